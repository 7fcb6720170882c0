"""The group of all commands, and what is true for each of them.

This module imports click and nothing else, so that ``gpuload --version`` answers at once; a
command's module is imported when the command is used.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import click

__all__ = ["cli"]

#: Commands in the order of the help text; each is the `command` of the module of its name.
_COMMANDS = ("decompress", "inspect", "verify", "compress", "bench", "doctor")

# Backspace keeps click from wrapping the lines that follow.
_EXAMPLES = """\b
Examples:
  gpuload decompress data.lz4
  gpuload decompress logs.gz -o logs.txt
  gpuload inspect data.zst
  gpuload verify *.gz
  gpuload compress data --codec lz4 -o data.lz4
"""


class _Commands(click.Group):
    """A group that imports a command when it is used, and turns every error into a message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"{__package__}.{cmd_name}").command
        return command

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command; in standalone mode bad input ends in a message and a SystemExit."""
        run = partial(super().main, *args, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        from .boundary import exit_status

        raise SystemExit(exit_status(run))


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001
    if wanted:
        import gpuload

        click.echo(f"gpuload {gpuload.__version__}")
        ctx.exit()


@click.group(
    "gpuload",
    cls=_Commands,
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Decompress, check and write LZ4, gzip, BGZF, Zstandard and Snappy files; look into arrays.

    The format of a file is recognised by its content, never by its name.

    Exit status: 0 done, 1 bad data or a failed read or write, 2 wrong usage, or an engine or a GPU
    that was asked for and is not here or cannot do it.
    """
