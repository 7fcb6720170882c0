"""Many DEFLATE payloads in one call of a library: as the members of one gzip stream.

A call for each payload has threads take turns at Python; ISA-L's reader of gzip streams decodes
and checks all members that it is given without. Payloads of a BGZF file lie apart by a trailer and
a header, which leaves room for those of the stream: they are made here, from the rows.

The reader finds by itself where members start and end. That those are the rows follows from what is
looked at here, whatever the payloads hold:

* A member starts at the start of the stream, or at a header with zero bytes or the trailer of the
  member before it right in front, and that trailer ends in a zero byte, being a size below
  2^24. Nothing but the headers that were made here looks like that, or the rows are left alone.
* A member therefore starts where a row starts. Where it ends, the reader wants its trailer, then
  nothing but zero bytes up to the next header. If the trailer that was made for the row stood
  later, its size, which is not zero, would be in the way, unless by at most three bytes: but then
  the size that the reader finds is at least 256 times that of the row, more than all rows have.
* So it ends where a row ends, with the checksum and the size of that row. If other rows lay in
  between, the bytes of these, which are not empty, would be missing at the end.
"""

from __future__ import annotations

import struct
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.chunks import Checksum, Codec

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.codecs.base import Bytes, ManyDecoder, Offsets

__all__ = ["decoder", "suits"]

#: The smallest gzip header (RFC 1952, section 2.3): nothing is known of the file.
_HEADER = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])
_TRAILER = struct.Struct("<II")
#: How a header starts, with the zero byte in front of it.
_MARK = int.from_bytes(b"\0" + _HEADER[:3], "little")
#: Decoded and stored bytes of one stream, so that sizes end in a zero byte and memory is bounded.
_LIMIT = 1 << 24


def decoder() -> ManyDecoder | None:
    """Return a decoder of many rows at once, for use from any number of threads.

    Returns
    -------
    callable or None
        See `gpuload.codecs.base.ManyDecoder`: it takes rows that state their sizes and CRC-32s.
        None without the library.
    """
    if _library() is None:
        return None
    scratch = _Scratch()

    def decode(rows: ChunkTable, src: Offsets, dst: Offsets, stored: Bytes, out: Bytes) -> int:
        end = src + rows["stored_size"].astype(np.int64)
        count, gap = _together(rows, src, end, dst)
        if count < 2:
            return 0
        size = int(end[count - 1] - src[0]) + len(_HEADER) + _TRAILER.size
        stream, marks = scratch.take(size)
        stream[len(_HEADER) : -_TRAILER.size] = stored[src[0] : end[count - 1]]
        _frame(stream, rows[:count], end[:count] - src[0], gap)
        slots = out[dst[0] : dst[count - 1] + int(rows["raw_size"][count - 1])]
        alone = _headers(stream, marks) == count - 1
        return count if alone and _inflate(stream, slots) else 0

    return decode


def suits(rows: ChunkTable) -> bool:
    """Return whether all rows are of the kind that may be decoded together."""
    return bool(rows.size) and bool(_known(rows).all())


def _known(rows: ChunkTable) -> npt.NDArray[np.bool_]:
    summed = rows["checksum_kind"] == Checksum.CRC32
    known: npt.NDArray[np.bool_] = (rows["codec"] == Codec.DEFLATE) & summed & rows["exact"]
    return known


@cache
def _library() -> tuple[Callable[[Bytes], Any], tuple[type[Exception], ...]] | None:
    """Return the reader, and what it raises for a stream that it does not take."""
    try:
        from isal.igzip_lib import error
        from isal.isal_zlib import _GzipReader
    except ImportError:
        return None
    # The library's own type stub calls its exception class an instance, and knows of files alone.
    reader: Any = _GzipReader
    damage: type[Exception] = error  # type: ignore[assignment]
    return reader, (damage, OSError, EOFError)


def _together(rows: ChunkTable, src: Offsets, end: Offsets, dst: Offsets) -> tuple[int, int]:
    """Return how many of the first rows can be taken together, and the bytes between payloads."""
    raw = rows["raw_size"].astype(np.int64)
    total = int(raw.sum())
    gap = int(src[1] - end[0]) if rows.size > 1 else 0
    if gap < len(_HEADER) + _TRAILER.size or total >= _LIMIT or end[-1] - src[0] >= _LIMIT:
        return 0, 0
    fits = _known(rows)
    fits &= raw * 256 > total
    fits[1:] &= (src[1:] - end[:-1] == gap) & (dst[1:] - dst[:-1] == raw[:-1])
    return int(fits.argmin()) if not fits.all() else rows.size, gap


class _Scratch(threading.local):
    """Memory of each thread for a stream, and for a mark for each byte of it."""

    def __init__(self) -> None:
        self._memory = np.empty((2, 0), np.uint8)

    def take(self, size: int) -> tuple[Bytes, Bytes]:
        """Return it; what it held before is lost."""
        if self._memory.shape[1] < size:
            self._memory = np.empty((2, size + size // 4), np.uint8)
        return self._memory[0, :size], self._memory[1, :size]


def _frame(stream: Bytes, rows: ChunkTable, end: Offsets, gap: int) -> None:
    """Write headers and trailers (RFC 1952, section 2.3.1); `end` counts from the first payload."""
    stream[: len(_HEADER)] = np.frombuffer(_HEADER, np.uint8)
    between = struct.Struct(f"<II{gap - len(_HEADER) - _TRAILER.size}x{len(_HEADER)}s")
    places, view = (end + len(_HEADER)).tolist(), memoryview(stream)
    trailers = list(zip(places, rows["checksum"].tolist(), rows["raw_size"].tolist(), strict=True))
    for place, checksum, size in trailers[:-1]:
        between.pack_into(view, place, checksum, size, _HEADER)
    _TRAILER.pack_into(view, *trailers[-1])


def _headers(stream: Bytes, marks: Bytes) -> int:
    """Return how many places look like the start of a member, besides the start of the stream."""
    # Words from each byte on, in four rows (there is no room for a member in the few bytes that may
    # be left over); one call, as after each a thread waits for its turn at Python.
    words = np.ndarray((4, (stream.size - 3) // 4), "<u4", stream, strides=(1, 4))
    found = marks[: words.size].view(np.bool_).reshape(words.shape)
    return int(np.count_nonzero(np.equal(words, _MARK, out=found)))


def _inflate(stream: Bytes, slots: Bytes) -> bool:
    """Return whether a stream is in order and fills the slots."""
    library = _library()
    if library is None:
        return False
    reader, errors = library
    try:
        members = reader(stream)
        # The last trailer is only read by a call that there is nothing left for.
        return bool(members.readinto(slots) == slots.size and members.readinto(bytearray(1)) == 0)
    except errors:
        return False
