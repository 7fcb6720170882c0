"""The command line of gpuload, installed as `gpuload_cli`: parse, call the library, print.

`cli` is the click group, imported when it is used. Nothing is imported before `main` has seen to
Ctrl-C.
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing costs a good part of what importing click costs
if TYPE_CHECKING:
    from typing import Any

    from .commands import cli

__all__ = ["cli", "main"]


def main() -> None:
    """Run the command line as a process of its own (the console script `gpuload`)."""
    import signal

    # Until there is a handler that cleans up, and something to clean up: end without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .boundary import prepare_process
    from .commands import cli

    prepare_process()
    cli.main(prog_name="gpuload")


def __getattr__(name: str) -> Any:
    if name != "cli":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .commands import cli

    return cli
