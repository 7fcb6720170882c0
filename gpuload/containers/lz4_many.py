"""Many LZ4 files that were written alike, listed side by side.

Walking from block to block takes Python some microseconds a file. Files of one frame each, with
the same FLG and BD bytes (LZ4 frame format, "Frame Descriptor"), take a few steps of NumPy
together, one for the first block of each, one for the second, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

from gpuload.chunks import SPAN_DTYPE, UNKNOWN, Checksum
from gpuload.containers import lz4
from gpuload.containers.lz4_frame import read_header
from gpuload.errors import GpuloadError
from gpuload.sources import BytesSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuload.chunks import ChunkTable, SpanTable
    from gpuload.containers.lz4_frame import Frame
    from gpuload.options import Options

    Integers = npt.NDArray[np.int64]

__all__ = ["list_alike"]

#: Files, at least, and blocks of one, at most, with which this is faster.
_FEWEST, _MOST_BLOCKS = 8, 16
_SIZE_MASK = (1 << 31) - 1
#: Where the content size stands, and how large it is if it is one (`read_header` has the reason).
_SIZE_PLACE, _SIZE_LIMIT = 6, 1 << 63


def list_alike(
    view: memoryview, edges: Sequence[int], options: Options
) -> tuple[ChunkTable, SpanTable, list[int]] | None:
    """Read the indexes of files that lie behind one another in memory.

    Parameters
    ----------
    view : memoryview
        Their bytes.
    edges : sequence of int
        Where each starts and the last ends, as the offsets of the rows count; `view` is what is
        between the first and the last of them.
    options : Options
        As for `gpuload.containers.lz4.read`.

    Returns
    -------
    tuple or None
        What `gpuload.containers.lz4.list_many` returns; None if the files are not alike, or one of
        them is damaged.
    """
    if len(edges) <= _FEWEST or options.dictionary is not None:
        return None
    try:
        frame = read_header(BytesSource(view[: edges[1] - edges[0]]), 0, options)
    except GpuloadError:
        return None
    files = _Files(np.frombuffer(view, np.uint8), np.array(edges, np.int64), frame)
    return files.listed() if files.are_alike() else None


class _Files:
    def __init__(self, data: npt.NDArray[np.uint8], edges: Integers, frame: Frame) -> None:
        self._data, self._frame, self._edges = data, frame, edges
        bounds = edges - edges[0]
        self._starts, self._ends = bounds[:-1], bounds[1:]

    def are_alike(self) -> bool:
        """Return whether all start with the header of the first, but for the size and checksum."""
        length, frame = self._frame.body, self._frame
        if (self._starts + length > self._ends).any():
            return False
        heads = self._bytes(self._starts, length)
        fixed = slice(0, _SIZE_PLACE)
        if (heads[:, fixed] != heads[0, fixed]).any():
            return False
        if frame.content_size is not None and (self._sizes() >= _SIZE_LIMIT).any():
            return False
        packed, last = heads.tobytes(), length - 1
        return all(
            xxhash.xxh32_intdigest(packed[at + 4 : at + last]) >> 8 & 0xFF == packed[at + last]
            for at in range(0, len(packed), length)
        )

    def listed(self) -> tuple[ChunkTable, SpanTable, list[int]] | None:
        """Return their rows and spans, and how many rows each has; None if one is damaged."""
        summed, limit = 4 * self._frame.block_checksum, self._frame.maximum
        position, owner = self._starts + self._frame.body, np.arange(self._starts.size)
        behind = position.copy()  # the end mark of each
        found: list[tuple[Integers, Integers, Integers, Integers]] = []
        for _ in range(_MOST_BLOCKS + 1):
            if (position + 4 > self._ends[owner]).any():
                return None
            words = self._words(position)
            behind[owner] = position + 4
            position, owner, words = (each[words != 0] for each in (position, owner, words))
            if not owner.size:
                return self._tables(found, behind)
            following = position + 4 + (words & _SIZE_MASK) + summed
            if ((words & _SIZE_MASK) > limit).any() or (following > self._ends[owner]).any():
                return None
            sums = self._words(following - 4) if summed else np.zeros_like(words)
            found.append((owner, position + 4, words, sums))
            position = following
        return None

    def _tables(
        self, found: Sequence[tuple[Integers, ...]], ends: Integers
    ) -> tuple[ChunkTable, SpanTable, list[int]] | None:
        frame = self._frame
        if (ends + 4 * frame.content_checksum != self._ends).any() or not found:
            return None
        owner, offsets, words, sums = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        order = np.argsort(owner, kind="stable")
        chunks = lz4.rows_of(
            offsets[order] + self._edges[0],
            words[order].astype(np.uint64),
            sums[order],
            maximum=np.uint64(frame.maximum),
            summed=frame.block_checksum,
            chained=False,
        )
        counts = np.bincount(owner, minlength=ends.size)
        if not frame.independent:
            firsts = np.cumsum(counts) - counts
            chunks["chained"] = True
            chunks["chained"][firsts[counts > 0]] = False
        return chunks, self._spans(counts, ends), counts.tolist()

    def _spans(self, counts: Integers, ends: Integers) -> SpanTable:
        frame = self._frame
        if frame.content_size is None and not frame.content_checksum:
            return np.zeros(0, SPAN_DTYPE)
        spans = np.zeros(counts.size, SPAN_DTYPE)
        spans["first"], spans["count"] = np.cumsum(counts) - counts, counts
        spans["raw_size"] = UNKNOWN if frame.content_size is None else self._sizes()
        spans["offset"] = _SIZE_PLACE
        if frame.content_checksum:
            spans["offset"] = ends - self._starts
            spans["checksum"], spans["checksum_kind"] = self._words(ends), Checksum.XXH32
        return spans

    def _sizes(self) -> npt.NDArray[np.uint64]:
        return self._bytes(self._starts + _SIZE_PLACE, 8).view("<u8").ravel()

    def _words(self, at: Integers) -> Integers:
        return self._bytes(at, 4).view("<u4").ravel().astype(np.int64)

    def _bytes(self, at: Integers, count: int) -> npt.NDArray[np.uint8]:
        found: npt.NDArray[np.uint8] = self._data[at[:, np.newaxis] + np.arange(count)]
        return found
