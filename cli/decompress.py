"""``gpuload decompress``: files in, exact bytes out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .engines import check_engine
from .inputs import Batch, open_container
from .messages import complain, plural
from .options import (
    engine_options,
    examples,
    files_argument,
    force_option,
    json_beside_output_option,
    loading_options,
    on_error_option,
    quiet_option,
)
from .outputs import NamelessOutputError, Target, open_output, plan
from .progress import decoding_bar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

    from gpuload.container import Container
    from gpuload.report import Report

__all__ = ["command"]


@click.command(
    epilog=examples(
        "gpuload decompress data.lz4",
        "gpuload decompress data.lz4 -o /dev/shm/data",
        "gpuload decompress *.gz --output-dir unpacked --keep-going",
        "gpuload decompress -c logs.zst | grep error",
        "curl -s https://example.org/data.gz | gpuload decompress - -o data",
    )
)
@files_argument
@click.option("-o", "--output", metavar="OUT", help="Write here; '-' is standard output.")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write every file into this directory, under its name without the suffix; it is created "
    "if it is missing.",
)
@click.option("-c", "--stdout", "to_stdout", is_flag=True, help="Write to standard output.")
@force_option
@click.option("-k", "--keep-going", is_flag=True, help="Go on with the next file after a bad one.")
@click.option("--no-verify", is_flag=True, help="Skip checksums.")
@engine_options
@on_error_option(
    "raise",
    "retry-host",
    "skip",
    help="What to do about a chunk that does not decode: raise, write no file; retry-host, have "
    "the host decode it if another engine failed on it; skip, write zeros in its place where the "
    "format states its size, and list it.",
)
@loading_options
@json_beside_output_option
@quiet_option
def command(
    files: tuple[str, ...],
    output: str | None,
    output_dir: str | None,
    *,
    to_stdout: bool,
    force: bool,
    keep_going: bool,
    no_verify: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Decompress files.

    The output of data.lz4 is data, beside it, unless an option says otherwise. It appears whole
    or not at all; a file that is there already stays, unless --force is given. FILE '-' is
    standard input.

    The host decodes, unless --device names a GPU, --engine asks for one that runs there, or the
    file is so large that a GPU is faster with the time that it takes to start (--json says why).

    Suffixes that are taken off: .lz4 .gz .bgz .zst .zstd .sz .snappy; .tgz and .tzst become .tar.
    """
    options["verify"] = not no_verify
    try:
        targets = plan(files, output, output_dir, to_stdout=to_stdout, force=force)
    except NamelessOutputError as error:
        _explain_nameless(error, options, as_json=as_json)
    to_standard = any(target.output == "-" for target in targets)
    batch = Batch(keep_going=keep_going, as_json=as_json, json_to_stderr=to_standard)
    with batch.guard_all(files):
        check_engine(options)
    for target in targets:
        with (
            batch.guard(target.file),
            open_container(target.file, options, quiet=quiet) as container,
        ):
            if options["engine"] not in (None, "auto", "host"):
                container.explain()  # refuses what no row suits, before there is an output
            if output_dir is not None:
                Path(output_dir).mkdir(parents=True, exist_ok=True)
            report = _write(container, target, force=force, quiet=quiet)
            batch.report(_record(container, target, report))
            if report.failures:
                complain(_skipped(container.name, report))
                batch.fail()
    batch.finish()


def _explain_nameless(
    error: NamelessOutputError, options: dict[str, Any], *, as_json: bool
) -> NoReturn:
    """End the command, with what is wrong with the file itself if something is."""
    batch = Batch(keep_going=False, as_json=as_json)
    with batch.guard(error.file), open_container(error.file, options, quiet=True):
        raise error


def _write(container: Container, target: Target, *, force: bool, quiet: bool) -> Report:
    with (
        open_output(target.output, force=force) as output,
        decoding_bar(
            container.name, container.raw_size, container.stored_size, quiet=quiet
        ) as progress,
    ):
        report = container.write_to(output.fd, positional=output.regular, progress=progress)
        output.commit()
    return report


def _record(container: Container, target: Target, report: Report) -> dict[str, Any]:
    return {
        "file": container.name,
        "ok": not report.failures,
        "output": target.output,
        "format": container.format,
        **dataclasses.asdict(report),
        "warnings": container.warnings,
    }


def _skipped(name: str, report: Report) -> Iterator[str]:
    yield from map(str, report.failures)
    chunks = f"{len(report.failures):,} of {plural(report.chunks, 'chunk')}"
    yield f"{name}: {chunks} skipped; the output has zeros in their place"
