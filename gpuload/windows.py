"""Cut a chunk table into windows: ranges of rows that are read and decoded together.

A window is either a *batch*, whose rows decode into slots in any order, or a *stream*, whose rows
decode one after the other in bounded memory: linked blocks, plain gzip, and chunks too large for a
slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import Codec
from gpuload.options import ENGINES

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable

__all__ = ["Window", "close_up", "moves", "offsets", "plan"]

#: Codecs of which one row can be decoded piece by piece, or at least one row after the other.
STREAMABLE = (Codec.RAW, Codec.LZ4, Codec.ZSTD, Codec.GZIP)
#: Bytes between payloads that are read along rather than split for.
_GAP = 64 << 10


@dataclass(frozen=True, slots=True)
class Window:
    """Rows `first` to `last` (exclusive) of a table.

    Attributes
    ----------
    first, last : int
        The rows.
    start, end : int
        The bytes of the source that hold their payloads and prefixes.
    raw_size : int
        Sum of the rows' raw sizes (upper bounds where inexact).
    streamed : bool
        Whether the rows decode as a stream.
    engine : int
        Who decodes the rows: a place in `gpuload.options.ENGINES`.
    """

    first: int
    last: int
    start: int
    end: int
    raw_size: int
    streamed: bool
    engine: int


def plan(
    chunks: ChunkTable,
    *,
    target: int | npt.NDArray[np.int64],
    raw_limit: int,
    stored_limit: int,
    engines: npt.NDArray[np.uint8] | None = None,
) -> list[Window]:
    """Cut a table into windows.

    Parameters
    ----------
    chunks : ChunkTable
        Rows in the order of their decoded bytes.
    target : int or ndarray of int64
        Stored and decoded bytes of a window, about; an array has one for each row.
    raw_limit, stored_limit : int
        Largest slot and largest payload of a row in a batch; rows with larger ones are streamed,
        if their codec can be (the chunks of the others are small by their formats).
    engines : ndarray of uint8, optional
        For each row, the place of its engine in `gpuload.options.ENGINES`.

    Returns
    -------
    list of Window
        In order; together they hold every row once.
    """
    if not chunks.size:
        return []
    if engines is None:
        engines = np.full(chunks.size, ENGINES.index("host"), np.uint8)
    start = (chunks["offset"] - chunks["prefix_size"]).astype(np.int64)
    end = (chunks["offset"] + chunks["stored_size"]).astype(np.int64)
    # A row that is not chained starts a new chain.
    chain = np.cumsum(~chunks["chained"])
    streamed = _streamed(chunks, chain, raw_limit, stored_limit)
    parted = _parted(chunks, start, end, target)
    parted |= _changes(engines) | _changes(streamed) | (_changes(chain) & streamed)
    # A chain is never cut, whatever lies between its rows.
    parted &= ~chunks["chained"]
    parted[0] = True
    first = np.flatnonzero(parted)
    last = np.append(first[1:], chunks.size)
    raw = np.add.reduceat(chunks["raw_size"], first)
    columns = (first, last, start[first], end[last - 1], raw, streamed[first], engines[first])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Window(*row) for row in rows]


def _streamed(
    chunks: ChunkTable, chain: npt.NDArray[np.int64], raw_limit: int, stored_limit: int
) -> npt.NDArray[np.bool_]:
    streamed: npt.NDArray[np.bool_] = np.isin(chain, chain[chunks["chained"]])
    large = (chunks["raw_size"] > raw_limit) | (chunks["stored_size"] > stored_limit)
    streamed |= large & np.isin(chunks["codec"], STREAMABLE)
    streamed |= chunks["codec"] == Codec.GZIP
    return streamed


def _parted(
    chunks: ChunkTable,
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    target: int | npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return where rows are too far from the row before, or enough rows for a window are before."""
    gap = np.zeros(chunks.size, np.int64)
    gap[1:] = start[1:] - end[:-1]
    apart = (gap < 0) | (gap > _GAP) | _changes(chunks["source"])
    size = chunks["raw_size"].astype(np.int64) + end - start + np.clip(gap, 0, _GAP)
    return apart | _changes(np.floor(np.cumsum(size / target)))


def _changes(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Return where a value differs from the one before it."""
    changed = np.zeros(values.size, np.bool_)
    changed[1:] = values[1:] != values[:-1]
    return changed


def offsets(
    rows: ChunkTable, window: Window
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where the payloads and the slots of a window start, from its start on."""
    dst = rows["dst_offset"].astype(np.int64)
    return rows["offset"].astype(np.int64) - window.start, dst - dst[0]


def moves(dst: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return copies (from, to, size) that put rows from their slots to where they belong.

    Rows that stay side by side share a copy, so that full slots take one.
    """
    ends = np.cumsum(sizes)
    starts = ends - sizes
    shifts = dst - starts
    first = np.flatnonzero(np.diff(shifts, prepend=shifts[0] - 1))
    last = np.append(first[1:], dst.size) - 1
    return list(
        zip(
            dst[first].tolist(),
            starts[first].tolist(),
            (ends[last] - starts[first]).tolist(),
            strict=True,
        )
    )


def close_up(
    out: npt.NDArray[np.uint8], dst: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> None:
    """Move rows that are shorter than their slots together."""
    for start, to, size in moves(dst, sizes):
        if start != to:
            out[to : to + size] = out[start : start + size]
