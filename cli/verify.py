"""``gpuload verify``: decode and check, write nothing, list every bad chunk."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import click

from gpuload.errors import FormatError

from .engines import check_engine
from .inputs import STDIN_NAME, Batch, open_any
from .messages import human_size, plural, printable
from .options import (
    array_options,
    engine_options,
    examples,
    files_argument,
    json_option,
    loading_options,
    on_error_option,
    quiet_option,
)
from .progress import decoding_bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.array_container import ArrayContainer
    from gpuload.container import Container
    from gpuload.report import Report

__all__ = ["command"]


@click.command(
    epilog=examples(
        "gpuload verify data.lz4",
        "gpuload verify --json *.gz",
        "gpuload verify - < data.zst",
    )
)
@files_argument
@engine_options
@on_error_option(
    "raise",
    "retry-host",
    help="Whether a chunk that another engine failed on is bad (raise), or only if the host fails "
    "on it, too (retry-host).",
)
@loading_options
@array_options
@json_option
@quiet_option
def command(files: tuple[str, ...], *, as_json: bool, quiet: bool, **options: Any) -> None:
    """Decode files and check them, writing nothing.

    Every bad chunk is listed with its number, its byte offset, what was found and what was
    expected, and every bad file has a line with BAD. All files are checked, also after a bad one;
    the exit status is 1 if any was bad, or has an array that cannot be checked.

    The host decodes, unless --device names a GPU or --engine asks for one that runs there.
    """
    batch = Batch(as_json=as_json)
    with batch.guard_all(files):
        check_engine(options)
    for file in files:
        with (
            batch.guard(file),
            _bad_if_broken(file, as_json=as_json),
            open_any(file, options, quiet=quiet) as container,
        ):
            report = _verify(container, quiet=quiet)
            if report.failures or report.unchecked:
                batch.fail()
            batch.report(_record(container, report))
            if not as_json:
                _print(container, report, quiet=quiet)
    batch.finish()


@contextlib.contextmanager
def _bad_if_broken(file: str, *, as_json: bool) -> Iterator[None]:
    """Print a line among those of the other files also if there are no chunks to speak of."""
    try:
        yield
    except FormatError as error:
        if not as_json:
            name = STDIN_NAME if file == "-" else file
            reason = str(error).removeprefix(f"{error.source}: ")
            click.echo(printable(f"{name}: BAD: {reason}"))
        raise


def _verify(container: Container | ArrayContainer, *, quiet: bool) -> Report:
    with decoding_bar(
        container.name, container.raw_size, container.stored_size, quiet=quiet
    ) as progress:
        return container.verify(progress=progress)


def _record(container: Container | ArrayContainer, report: Report) -> dict[str, Any]:
    return {
        "file": container.name,
        "ok": not report.failures and not report.unchecked,
        "format": container.format,
        **dataclasses.asdict(report),
        "warnings": container.warnings,
    }


def _print(container: Container | ArrayContainer, report: Report, *, quiet: bool) -> None:
    name = printable(container.name)
    for failure in report.failures:
        click.echo(printable(str(failure)))
    for array, reason in report.unchecked.items():
        click.echo(printable(f"{container.name}: {array}: not checked: {reason}"))
    if report.unchecked and not report.failures:
        unchecked = plural(len(report.unchecked), "array")
        click.echo(f"{name}: {unchecked} not checked, {plural(report.chunks, 'chunk')} ok")
    elif report.failures:
        click.echo(f"{name}: BAD, {len(report.failures)} of {plural(report.chunks, 'chunk')}")
    elif not quiet:
        size = f"{plural(report.chunks, 'chunk')}, {human_size(report.raw_size)}"
        click.echo(f"{name}: ok, {size}, {_checks(report)}")


def _checks(report: Report) -> str:
    verified, unverified = (sum(kinds.values()) for kinds in (report.verified, report.unverified))
    if not verified + unverified:
        return "the file has no checksums"
    left = f", {unverified:,} not verified" if unverified else ""
    return f"{plural(verified, 'checksum')} verified{left}"
