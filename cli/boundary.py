"""The edge between commands and the process: exit statuses, signals, standard streams."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import warnings
from typing import TYPE_CHECKING

import click

from gpuload.errors import EngineUnavailableError

from .messages import FAILURES, complain, describe

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["exit_status", "prepare_process", "status_of"]

_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
#: Seconds after a signal in which others are ignored.
_CLEANUP = 1.0
_stopped: float | None = None


def exit_status(work: Callable[[], object]) -> int:
    """Run `work`, print what it raises, and return the status of the process.

    0 is success, 1 bad data or a failed read or write, 2 wrong usage or an engine or device that is
    not here, 130 Ctrl-C. click itself ends the process quietly, with status 1, when the reader of a
    pipe is gone.
    """
    try:
        result = work()
    except click.UsageError as error:
        _show_usage_error(error)
        return error.exit_code
    except click.ClickException as error:
        complain(error.format_message().splitlines())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("gpuload: aborted", err=True)
        return 130
    except FAILURES as error:
        complain(describe(error))
        return status_of(error)
    return result if isinstance(result, int) else 0


def status_of(error: BaseException) -> int:
    """Return the exit status for one of `FAILURES`."""
    return 2 if isinstance(error, EngineUnavailableError) else 1


def _show_usage_error(error: click.UsageError) -> None:
    # No arguments at all; click 8.1 prints the help without an error.
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return
    complain(error.format_message().splitlines())
    if error.ctx is not None:
        click.echo(f"Try '{error.ctx.command_path} --help' for help.", err=True)


def prepare_process() -> None:
    """Make signals raise, so that cleanups run, and standard output unable to fail on a name.

    Python's warnings, which libraries address to programmers, are not shown unless asked for.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for name in _STOPPING:
        number = getattr(signal, name, None)
        # What the parent process chose to ignore (nohup, a job in the background) stays ignored.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    if sys.stdout is not None:
        with contextlib.suppress(AttributeError):
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _stop(number: int, _: FrameType | None) -> None:
    # One more signal must not interrupt the cleanup that the first one started. It counts again
    # later: Python drops what is raised in a callback of a weak reference, and goes on.
    global _stopped
    now = time.monotonic()
    if _stopped is not None and now - _stopped < _CLEANUP:
        return
    _stopped = now
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
