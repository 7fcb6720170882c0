"""What the commands of ``gpuload bench`` share: options, and errors as JSON."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from .messages import FAILURES, describe, json_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["device_option", "each_once", "json_errors", "json_option", "repeats_option"]

device_option = click.option(
    "--device",
    type=click.IntRange(min=0),
    metavar="N",
    help="The GPU, as gpuload doctor numbers them.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, at the end."
)


def repeats_option(default: int) -> Callable[..., Callable[..., None]]:
    """Return the option that says how often everything is measured."""
    return click.option(
        "--repeats",
        type=click.IntRange(min=1, max=1000),
        default=default,
        metavar="N",
        help=f"Runs after a warm-up; the median counts.  [default: {default}]",
    )


def each_once(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return what an option was given, without repetitions."""
    return tuple(dict.fromkeys(names))


@contextlib.contextmanager
def json_errors(*, as_json: bool) -> Iterator[None]:
    """Print an error also as the JSON object that a program waits for."""
    try:
        yield
    except BrokenPipeError:
        raise
    except FAILURES as error:
        if as_json:
            click.echo(json_line({"ok": False, "error": "\n".join(describe(error))}))
        raise
