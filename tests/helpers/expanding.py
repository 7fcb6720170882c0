"""Expand stored chunks, and decode the rows on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.array_codecs import Compression
from gpuload.codecs.base import CorruptChunkError
from gpuload.containers.expand import expand
from gpuload.engines.base import HostBatch
from gpuload.engines.host import HostEngine
from gpuload.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuload.containers.expand import Expanded

#: Bytes before, between and behind what is looked at; no stored or decoded byte is here by chance.
_GAP, _FILLING = 13, 0xA5


def expanded(
    names: str | Sequence[str],
    chunks: Sequence[bytes],
    raw_sizes: Sequence[int],
    *,
    streams: bool,
    checksums: Any = None,
    **options: Any,
) -> tuple[Expanded, np.ndarray, int]:
    """Return what `expand` makes of chunks, their slots, and the size of the intermediate."""
    stored, starts = lay_out(chunks)
    slots = np.cumsum([_GAP, *(size + _GAP for size in raw_sizes)])
    steps = tuple(map(Compression, [names] if isinstance(names, str) else names))
    sizes = np.array([len(chunk) for chunk in chunks], np.int64)
    found = expand(
        steps,
        stored,
        starts,
        sizes,
        slots[:-1].astype(np.int64),
        np.array(raw_sizes, np.int64),
        Options(device="cpu", **options),
        streams=streams,
        checksums=checksums,
    )
    return found, slots[:-1], int(slots[-1])


def lay_out(chunks: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return chunks in one buffer, and where they are."""
    gap = bytes([_FILLING]) * _GAP
    starts = np.cumsum([_GAP, *(len(chunk) + _GAP for chunk in chunks)])[:-1]
    stored = np.frombuffer(gap + b"".join(chunk + gap for chunk in chunks), np.uint8)
    return stored, starts.astype(np.int64)


def decoded(
    names: str | Sequence[str],
    chunks: Sequence[bytes],
    raw_sizes: Sequence[int],
    *,
    streams: bool,
    **more: Any,
) -> list[bytes]:
    """Return what chunks decode to; raise CorruptChunkError if any is damaged."""
    found, slots, size = expanded(names, chunks, raw_sizes, streams=streams, **more)
    rows, out = found.rows, np.full(size, _FILLING, np.uint8)
    _check_rows(rows, found.stored, slots, raw_sizes)
    more.pop("checksums", None)
    places = rows["offset"].astype(np.int64), rows["dst_offset"].astype(np.int64)
    engine = HostEngine(Options(device="cpu", threads=1, **more))
    outcome = engine.decode(HostBatch(rows, *places, found.stored, out))
    for row, reason in sorted(outcome.reasons.items()):
        raise CorruptChunkError(reason, row=int(rows["asset"][row]))
    out = unshuffled(out, found)
    for slot, raw in zip(slots.tolist(), raw_sizes, strict=True):
        assert (out[slot + raw : slot + raw + _GAP] == _FILLING).all(), "bytes behind a slot"
    return [out[slot : slot + raw].tobytes() for slot, raw in zip(slots, raw_sizes, strict=True)]


def attempt(
    names: str | Sequence[str], chunks: Sequence[bytes], raw_sizes: Sequence[int], *, streams: bool
) -> tuple[list[bytes] | None, int]:
    """Return what chunks decode to, or None and the number of the damaged one."""
    try:
        return decoded(names, chunks, raw_sizes, streams=streams), -1
    except CorruptChunkError as error:
        return None, error.row


def _check_rows(rows, stored, slots, raw_sizes) -> None:
    """Check that rows are inside, in the order of the chunks, and fill the slots exactly once."""
    start = rows["offset"].astype(np.int64) - rows["prefix_size"]
    assert (start >= 0).all()
    assert (rows["offset"] + rows["stored_size"] <= stored.size).all()
    assert (np.diff(rows["asset"].astype(np.int64)) >= 0).all()
    assert rows["exact"].all()
    for number, (slot, raw) in enumerate(zip(slots.tolist(), raw_sizes, strict=True)):
        mine = rows[rows["asset"] == number]
        ends = mine["dst_offset"] + mine["raw_size"]
        assert mine.size
        assert mine["dst_offset"][0] == slot
        assert (mine["dst_offset"][1:] == ends[:-1]).all()
        assert ends[-1] == slot + raw


def unshuffled(out: np.ndarray, found: Expanded) -> np.ndarray:
    """Undo shuffles, by the description of the format, one element after the other."""
    after, blocks = out.copy(), found.shuffled
    columns = (blocks.start, blocks.size, blocks.element_size, blocks.bit)
    for start, size, element, bit in zip(*(each.tolist() for each in columns), strict=True):
        block = out[start : start + size]
        after[start : start + size] = unshuffle(block, element, bit=bit)
    return after


def unshuffle(block: np.ndarray, element: int, *, bit: bool) -> np.ndarray:
    """Return a block as it was: plane p of the block has byte, or bit, p of every element."""
    count, result = block.size // element, block.copy()
    whole = block[: count * element]
    if bit:
        planes = np.unpackbits(whole, bitorder="little").reshape(8 * element, count)
        result[: whole.size] = np.packbits(planes.T.reshape(-1), bitorder="little")
    else:
        for place in range(element):
            result[place : whole.size : element] = whole[place * count : (place + 1) * count]
    return result
