"""The rows of a chunk table as text and as JSON, in blocks, however many there are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpuload.chunks import Checksum, ChunkTable, Codec

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["json_rows", "table_lines"]

_BLOCK = 4096
_FIELDS = (
    "offset",
    "stored_size",
    "raw_size",
    "codec",
    "checksum_kind",
    "checksum",
    "exact",
    "chained",
    "dictionary",
)
_HEADER = (
    f"{'chunk':>9} {'offset':>15} {'stored':>11} {'raw':>13}  {'codec':<8} {'checksum':<24} flags"
)
_FLAGS = {"chained": "needs the chunk before", "dictionary": "needs a dictionary"}
_CODECS = {codec.value: codec.name.lower() for codec in Codec}
_CHECKSUMS = {kind.value: kind.name.lower() for kind in Checksum}


def json_rows(table: ChunkTable) -> Iterator[str]:
    """Yield the rows as JSON objects with commas between them, a block at a time."""
    separator = ""
    for rows in _blocks(table):
        yield separator + ", ".join(json.dumps(row) for row in rows)
        separator = ", "


def table_lines(table: ChunkTable) -> Iterator[str]:
    """Yield the rows as lines of columns under a header, a block at a time."""
    yield _HEADER
    for rows in _blocks(table):
        yield "\n".join(_line(row) for row in rows)


def _blocks(table: ChunkTable) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(table), _BLOCK):
        block = table[start : start + _BLOCK]
        columns = [block[name].tolist() for name in _FIELDS]
        yield [_row(start + at, *values) for at, values in enumerate(zip(*columns, strict=True))]


def _row(chunk: int, *values: Any) -> dict[str, Any]:
    row = {"chunk": chunk, **dict(zip(_FIELDS, values, strict=True))}
    row["codec"] = _CODECS[row["codec"]]
    if row["checksum_kind"] == Checksum.NONE:
        return {**row, "checksum_kind": None, "checksum": None}
    row["checksum_kind"] = _CHECKSUMS[row["checksum_kind"]]
    return row


def _line(row: dict[str, Any]) -> str:
    raw = f"{row['raw_size']:,}" if row["exact"] else f"<={row['raw_size']:,}"
    checksum = f"{row['checksum_kind']} {row['checksum']:08x}" if row["checksum_kind"] else "-"
    flags = ", ".join(text for name, text in _FLAGS.items() if row[name])
    line = (
        f"{row['chunk']:>9} {row['offset']:>15,} {row['stored_size']:>11,} {raw:>13}  "
        f"{row['codec']:<8} {checksum:<24} {flags}"
    )
    return line.rstrip()
