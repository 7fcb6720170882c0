"""``gpuload inspect``: what a file holds, from its headers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .engines import check_engine, gpu_matters
from .inputs import Batch, open_any
from .messages import json_line, printable
from .options import (
    array_options,
    engine_options,
    examples,
    files_argument,
    json_option,
    loading_options,
    quiet_option,
)

if TYPE_CHECKING:
    from gpuload.array_container import ArrayContainer
    from gpuload.container import Container

__all__ = ["command"]


@click.command(
    epilog=examples(
        "gpuload inspect data.lz4",
        "gpuload inspect data.gz --chunks",
        "gpuload inspect --json *.zst",
    )
)
@files_argument
@click.option("--chunks", "with_chunks", is_flag=True, help="List every chunk.")
@engine_options
@loading_options
@array_options
@json_option
@quiet_option
def command(
    files: tuple[str, ...], *, with_chunks: bool, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Show format, sizes, chunks and checksums of files, without decoding them.

    Files of arrays (Zarr, also a folder, NPZ, NPY, safetensors, zip) are shown as a table of these.

    A file is batchable if its chunks decode independently of one another; if it is not, the
    reason is shown. Sizes that a format does not state are shown as upper bounds. The engine is
    the one that would load the file to the current GPU, or to --device N, and on a machine without
    one to the host. Why those before it would not is shown where there is a GPU, or with --engine
    or --device, and always in the JSON.
    """
    import gpuload

    batch = Batch(as_json=as_json)
    with batch.guard_all(files):
        check_engine(options)
    for file in files:
        with batch.guard(file), open_any(file, options, quiet=quiet) as container:
            if not isinstance(container, gpuload.Container):
                _print_arrays(container, as_json=as_json, passed_over=gpu_matters(options))
            elif as_json:
                _print_json(container, with_chunks=with_chunks)
            else:
                passed_over = gpu_matters(options)
                _print_text(container, with_chunks=with_chunks, passed_over=passed_over)
    batch.finish()


def _print_arrays(container: ArrayContainer, *, as_json: bool, passed_over: bool) -> None:
    from .array_facts import array_lines, array_record

    if as_json:
        click.echo(json_line(array_record(container)))
        return
    click.echo(printable(container.name))
    for text in array_lines(container, passed_over=passed_over):
        click.echo(printable(text))


def _print_json(container: Container, *, with_chunks: bool) -> None:
    from .chunk_rows import json_rows
    from .facts import record

    line = json_line(record(container))
    if not with_chunks:
        click.echo(line)
        return
    # The rows are printed as they are made: there may be millions of them.
    click.echo(f'{line[:-1]}, "chunks": [', nl=False)
    for text in json_rows(container.chunks):
        click.echo(text, nl=False)
    click.echo("]}")


def _print_text(container: Container, *, with_chunks: bool, passed_over: bool) -> None:
    from .chunk_rows import table_lines
    from .facts import labelled

    facts = list(labelled(container, passed_over=passed_over))
    click.echo(printable(container.name))
    width = max(len(label) for label, _ in facts)
    for label, value in facts:
        click.echo(f"  {label:<{width}}  {printable(value)}")
    if with_chunks:
        for text in table_lines(container.chunks):
            click.echo(text)
