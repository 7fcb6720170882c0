"""Opening what stands on the command line, and carrying on after a file that failed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from gpuload.errors import (
    DecompressError,
    EngineUnavailableError,
    FormatError,
    MissingDependencyError,
)

from .boundary import status_of
from .messages import FAILURES, complain, describe, json_line, warn
from .outputs import name_write_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuload.array_container import ArrayContainer
    from gpuload.container import Container
    from gpuload.sources import Source

__all__ = ["STDIN_NAME", "Batch", "open_any", "open_container", "open_input", "require_stream"]

STDIN_NAME = "<stdin>"


@contextlib.contextmanager
def open_container(file: str, options: dict[str, Any], *, quiet: bool) -> Iterator[Container]:
    """Open a stream of bytes: a file, a URL or ``-``, and print its warnings at the end.

    Parameters
    ----------
    file : str
        As it stands on the command line.
    options : dict
        Fields of `gpuload.options.Options`; None stands for the default.
    quiet : bool
        Whether warnings are kept back.
    """
    with open_any(file, options, quiet=quiet) as opened:
        yield require_stream(opened)


@contextlib.contextmanager
def open_any(
    file: str, options: dict[str, Any], *, quiet: bool
) -> Iterator[Container | ArrayContainer]:
    """Open a stream of bytes or arrays, which may be a folder; otherwise as `open_container`."""
    import gpuload

    given = {name: value for name, value in options.items() if value is not None}
    source = file if _is_folder(file) else open_input(file)
    with gpuload.open(source, **given) as container:
        try:
            yield container
        finally:
            if not quiet:
                warn(container.warnings)


def require_stream(opened: Container | ArrayContainer) -> Container:
    """Return what was opened; a FormatError if it holds arrays."""
    from gpuload import Container

    if not isinstance(opened, Container):
        raise FormatError(
            f"it holds arrays ({opened.format}), not one stream of bytes: gpuload inspect lists "
            "them, and in Python gpuload.load(file, name) loads one",
            source=opened.name,
        )
    return opened


def _is_folder(file: str) -> bool:
    url = "://" in file and not os.path.lexists(file)
    return file.rstrip("/").endswith(".zarr") if url else Path(file).is_dir()


def open_input(file: str) -> Source:
    """Open a name on the command line: a path, a URL or ``-``."""
    from gpuload.sources import open_source

    if file == "-":
        return _standard_input()
    # To the library "://" makes a URL; a file that exists under such a name is a file.
    if "://" not in file or os.path.lexists(file):
        return open_source(Path(file) if "://" in file else file)
    with _fsspec_errors(file):
        return open_source(file)


def _standard_input() -> Source:
    from gpuload.sources import LocalFile, spool

    if sys.stdin is None:
        raise OSError(9, "standard input is closed", STDIN_NAME)
    if sys.stdin.isatty():
        raise click.UsageError("standard input is a terminal; name a file or redirect one")
    if _is_unread_file(sys.stdin):
        # A redirected file need not be copied: this is a second, independent way to open it.
        with contextlib.suppress(OSError):
            return LocalFile("/dev/stdin", STDIN_NAME)
    # Without its buffer, which would retry a read that Ctrl-C interrupted between two of its own.
    stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    return spool(stream, STDIN_NAME)


def _is_unread_file(stream: TextIO) -> bool:
    try:
        fd = stream.fileno()
        return stat.S_ISREG(os.fstat(fd).st_mode) and os.lseek(fd, 0, os.SEEK_CUR) == 0
    except OSError:
        return False


@contextlib.contextmanager
def _fsspec_errors(url: str) -> Iterator[None]:
    """Turn what fsspec raises for unknown protocols and uninstalled packages into `FAILURES`."""
    try:
        yield
    except FAILURES:
        raise
    except ImportError as error:
        if not url.startswith(("http://", "https://")):
            raise OSError(f"{url}: {error}") from error
        packages, purpose = "aiohttp and requests", "reading http and https URLs"
        raise MissingDependencyError(packages, "remote", purpose) from error
    except (TypeError, ValueError) as error:
        raise OSError(f"{url}: {error}") from error


def _failure_record(name: str, error: BaseException, lines: list[str]) -> dict[str, Any]:
    record = {"file": name, "ok": False, "error": "\n".join(lines)}
    if isinstance(error, DecompressError):
        return {**record, "failures": [dataclasses.asdict(failure) for failure in error.failures]}
    return record


class Batch:
    """The files of one command: reports failures and remembers the worst.

    Parameters
    ----------
    keep_going : bool
        Whether the files after a failed one are still taken.
    as_json : bool
        Whether a failed file also gets a JSON object.
    json_to_stderr : bool
        Whether that object goes to standard error.
    """

    def __init__(
        self, *, keep_going: bool = True, as_json: bool = False, json_to_stderr: bool = False
    ) -> None:
        self.keep_going = keep_going
        self.as_json = as_json
        self.json_to_stderr = json_to_stderr
        self.status = 0

    @contextlib.contextmanager
    def guard(self, file: str) -> Iterator[None]:
        """Turn an error about one file into messages."""
        name = STDIN_NAME if file == "-" else file
        try:
            # Output files name themselves, so that what is left is standard output.
            with name_write_errors("-"):
                yield
        except BrokenPipeError:
            raise
        except FAILURES as error:
            lines = describe(error, name)
            self.report(_failure_record(name, error, lines))
            complain(lines)
            self.fail(status_of(error))
            if not self.keep_going:
                self.finish()

    @contextlib.contextmanager
    def guard_all(self, files: Sequence[str]) -> Iterator[None]:
        """Turn an error about every file, such as an engine that is not here, into one message.

        There is a JSON object for each file all the same, or for the first if it is the last one.
        """
        try:
            yield
        except EngineUnavailableError as error:
            lines = describe(error)
            for file in files if self.keep_going else files[:1]:
                name = STDIN_NAME if file == "-" else file
                self.report(_failure_record(name, error, lines))
            complain(lines)
            self.fail(status_of(error))
            self.finish()

    def report(self, record: dict[str, Any]) -> None:
        """Print a record, if JSON was asked for."""
        if self.as_json:
            click.echo(json_line(record), err=self.json_to_stderr)

    def fail(self, status: int = 1) -> None:
        """Remember that a file failed, and the exit status that this asks for."""
        self.status = max(self.status, status)

    def finish(self) -> None:
        """End the command if any file failed."""
        if self.status:
            raise click.exceptions.Exit(self.status)
