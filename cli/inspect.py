"""``gpuload inspect``: what a file holds, from its headers alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from .chunk_rows import json_rows, table_lines
from .inputs import Batch, open_container
from .messages import counts, human_size, json_line, printable
from .options import examples, files_argument, json_option, loading_options, quiet_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.loader import Container

__all__ = ["command"]

_CODEC_FIELD = "codec"
_CHECKSUM_FIELD = "checksum_kind"


@click.command(
    epilog=examples(
        "gpuload inspect data.lz4",
        "gpuload inspect data.gz --chunks",
        "gpuload inspect --json *.zst",
    )
)
@files_argument
@click.option("--chunks", "with_chunks", is_flag=True, help="List every chunk.")
@loading_options
@json_option
@quiet_option
def command(
    files: tuple[str, ...], *, with_chunks: bool, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Show format, sizes, chunks and checksums of files, without decoding them.

    A file is batchable if its chunks decode independently of one another; if it is not, the
    reason is shown. Sizes that a format does not state are shown as upper bounds.
    """
    batch = Batch(as_json=as_json)
    for file in files:
        with batch.guard(file), open_container(file, options, quiet=quiet) as container:
            if as_json:
                _print_json(container, with_chunks=with_chunks)
            else:
                _print_text(container, with_chunks=with_chunks)
    batch.finish()


def _print_json(container: Container, *, with_chunks: bool) -> None:
    line = json_line(_record(container))
    if not with_chunks:
        click.echo(line)
        return
    # The rows are printed as they are made: there may be millions of them.
    click.echo(f'{line[:-1]}, "chunks": [', nl=False)
    for text in json_rows(container.chunks):
        click.echo(text, nl=False)
    click.echo("]}")


def _print_text(container: Container, *, with_chunks: bool) -> None:
    click.echo(printable(container.name))
    facts = list(_facts(container))
    width = max(len(label) for label, _ in facts)
    for label, value in facts:
        click.echo(f"  {label:<{width}}  {printable(value)}")
    if with_chunks:
        for text in table_lines(container.chunks):
            click.echo(text)


def _record(container: Container) -> dict[str, Any]:
    return {
        "file": container.name,
        "ok": True,
        "format": container.format,
        "stored_size": container.stored_size,
        "raw_size": container.raw_size,
        "raw_bound": container.raw_bound,
        "ratio": _ratio(container),
        "chunk_count": len(container.chunks),
        "codecs": _kinds(container, _CODEC_FIELD),
        "checksums": _kinds(container, _CHECKSUM_FIELD),
        "batchable": container.batchable,
        "serial": container.serial,
        "engines": [_explanation(choice) for choice in container.explain()],
        "details": container.details,
        "warnings": container.warnings,
    }


def _explanation(choice: Any) -> dict[str, Any]:
    record = dataclasses.asdict(choice)
    asset = record["asset"]
    return {**record, "asset": asset["name"] if isinstance(asset, dict) else asset}


def _facts(container: Container) -> Iterator[tuple[str, str]]:
    yield "format", container.format
    yield "stored size", _size(container.stored_size)
    yield "raw size", _raw_size(container)
    ratio = _ratio(container)
    if ratio is not None:
        yield "ratio", f"{ratio:.2f}"
    yield "chunks", f"{len(container.chunks):,}"
    yield "codecs", counts(_kinds(container, _CODEC_FIELD)) or "none"
    yield "checksums", counts(_kinds(container, _CHECKSUM_FIELD)) or "none"
    yield "batchable", "yes" if container.batchable else f"no: {container.serial}"
    yield from _engine_facts(container)
    for name, value in container.details.items():
        yield name.replace("_", " "), _plain(value)


def _engine_facts(container: Container) -> Iterator[tuple[str, str]]:
    for choice in container.explain():
        yield "engine", f"{choice.engine}: {choice.reason}"
        for engine, why in choice.passed_over.items():
            yield "", f"not {engine}: {why}"
        yield "checked", choice.checksums


def _raw_size(container: Container) -> str:
    if container.raw_size is not None:
        return _size(container.raw_size)
    return f"not stated; at most {_size(container.raw_bound)}"


def _ratio(container: Container) -> float | None:
    if not container.raw_size or not container.stored_size:
        return None
    return round(container.raw_size / container.stored_size, 4)


def _size(size: int) -> str:
    return f"{size:,} bytes ({human_size(size)})" if size >= 1024 else f"{size} bytes"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _kinds(container: Container, field: str) -> dict[str, int]:
    """Count the rows (and, for checksums, the spans) of every kind."""
    import numpy as np

    from gpuload.chunks import Checksum, Codec

    names = Codec if field == _CODEC_FIELD else Checksum
    columns = [container.chunks[field]]
    if field == _CHECKSUM_FIELD:
        columns.append(container.spans[field])
    kinds, numbers = np.unique(np.concatenate(columns), return_counts=True)
    found = {
        names(kind).name: number
        for kind, number in zip(kinds.tolist(), numbers.tolist(), strict=True)
    }
    found.pop(Checksum.NONE.name, None)
    return found
