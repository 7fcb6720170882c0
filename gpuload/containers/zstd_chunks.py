"""Chunks that are Zstandard frames (RFC 8878): of each, most often, just one.

Many chunks of one frame are looked at together. Others, and few, are looked at one by one, which
also finds what is wrong with a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.chunks import CHUNK_DTYPE, Checksum, Codec
from gpuload.codecs import zstd
from gpuload.codecs.base import Bytes, CorruptChunkError
from gpuload.codecs.refuse import bytes_at
from gpuload.codecs.zstd_headers import CHECKSUM_SIZE, SMALLEST, blocks_end, read_headers
from gpuload.containers import skippable
from gpuload.containers.chunk_bytes import ChunkBytes, Expanded, join, rows_of
from gpuload.containers.zstd_frame import (
    HEAD_SIZE,
    MAGIC,
    FrameHeader,
    parse_header,
    walk_blocks,
    window_size,
)
from gpuload.errors import FormatError
from gpuload.sources import BytesSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.chunks import ChunkTable
    from gpuload.options import Options

    Mask = npt.NDArray[np.bool_]

__all__ = ["decode_chunk", "expand_zstd", "one_frame_rows"]

#: With fewer chunks it is faster to look at them one by one.
_TOGETHER = 4


class _Frame(NamedTuple):
    offset: int
    end: int
    bound: int
    header: FrameHeader


def expand_zstd(chunks: ChunkBytes) -> Expanded:
    """Return the rows of chunks: one for each frame.

    Chunks of several frames that do not state their sizes are decoded right here.

    Raises
    ------
    CorruptChunkError
        If one is damaged, states another size than the array asks for, has something else behind
        or between its frames, or needs a dictionary or a window that the options do not give.
    """
    simple, rows = _together(chunks)
    parts, decoded = [rows], {}
    for number in np.flatnonzero(~simple).tolist():
        try:
            found = _rows_of_frames(chunks, number)
            if found is None:
                size = int(chunks.raw_sizes[number])
                decoded[number] = decode_chunk(chunks.one(number), size, chunks.options)
            else:
                parts.append(found)
        except CorruptChunkError as error:
            error.row = number
            raise
    return join(chunks, [part for part in parts if part.size] or parts[:1], decoded)


def one_frame_rows(chunks: ChunkBytes) -> ChunkTable:
    """Return the rows of chunks of one frame each.

    Raises
    ------
    CorruptChunkError
        As `expand_zstd`, or if a chunk has more frames.
    """
    expanded = expand_zstd(chunks)
    if expanded.rows.size != chunks.count or expanded.stored is not chunks.stored:
        counts = np.bincount(expanded.rows["asset"], minlength=chunks.count)
        raise CorruptChunkError("several Zstandard frames in one stream", row=int(counts.argmax()))
    return expanded.rows


def decode_chunk(chunk: Bytes, limit: int, options: Options) -> Bytes:
    """Return what all frames of a chunk decode to.

    Raises
    ------
    CorruptChunkError
        If one is damaged, or they decode to more than `limit` bytes.
    """
    decode = zstd.decoder(options.dictionary, verify=bool(options.verify))
    pieces, size = [], 0
    for frame in _frames(chunk, options):
        known = frame.header.content_size
        room = min(frame.bound if known is None else known, limit - size)
        slot = np.empty(room, np.uint8)
        slot = slot[: decode(chunk[frame.offset : frame.end], slot)]
        if known not in (None, slot.size):
            raise CorruptChunkError(f"a Zstandard frame of {known} bytes decodes to {slot.size}")
        pieces.append(slot)
        size += slot.size
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)


# --- One by one -----------------------------------------------------------------------------------


def _frames(chunk: Bytes, options: Options) -> Iterator[_Frame]:
    """Yield the frames of a chunk, after it was looked at what they need."""
    source, offset = BytesSource(chunk, "in the stored chunk"), 0
    try:
        while offset < source.size:
            if skippable.is_magic(source.peek(offset, 4)):
                offset += skippable.HEADER_SIZE + skippable.content_size(source, offset)
                continue
            frame = _frame(source, offset)
            _check_needs(frame.header, options)
            yield frame
            offset = frame.end
    except FormatError as error:
        raise CorruptChunkError(str(error)) from None


def _frame(source: BytesSource, offset: int) -> _Frame:
    head = source.peek(offset, HEAD_SIZE)
    if head[:4] != MAGIC:
        raise source.broken(offset, f"no Zstandard frame starts here: found {head[:4].hex(' ')}")
    header = parse_header(source, offset, head)
    return _Frame(offset, *walk_blocks(source, offset, header, head), header)


def _check_needs(header: FrameHeader, options: Options) -> None:
    # A single segment is decoded into its slot, which serves as the window.
    if header.window > options.window_limit and not header.single_segment:
        raise CorruptChunkError(
            f"a Zstandard frame needs a window of {header.window} bytes, more than the limit of "
            f"{options.window_limit}; the option window_limit (--max-window) raises it"
        )
    if header.dictionary_id and options.dictionary is None:
        raise CorruptChunkError(
            f"a Zstandard frame needs the dictionary with ID {header.dictionary_id}; give it with "
            "the option dictionary (--dictionary)"
        )


def _rows_of_frames(chunks: ChunkBytes, number: int) -> ChunkTable | None:
    """Return the rows of a chunk; None if the sizes of several frames are not known."""
    chunk, raw_size = chunks.one(number), int(chunks.raw_sizes[number])
    frames = list(_frames(chunk, chunks.options))
    if not frames:
        raise CorruptChunkError(f"no Zstandard frame in the {chunk.size} bytes of the chunk")
    sizes = [frame.header.content_size for frame in frames]
    if sizes.count(None) > 1:
        return None
    left = raw_size - sum(size for size in sizes if size is not None)
    if left < 0 or (left and None not in sizes):
        raise CorruptChunkError(
            f"its Zstandard frames state {raw_size - left} bytes, the array asks for {raw_size}"
        )
    rows = np.zeros(len(frames), CHUNK_DTYPE)
    start, place = int(chunks.starts[number]), int(chunks.slots[number])
    for row, frame, size in zip(rows, frames, sizes, strict=True):
        _fill(row, frame, chunk, left if size is None else size)
        row["asset"], row["dst_offset"] = number, place
        row["offset"] += np.uint64(start)
        place += int(row["raw_size"])
    return rows


def _fill(row: np.void, frame: _Frame, chunk: Bytes, raw_size: int) -> None:
    row["offset"], row["stored_size"] = frame.offset, frame.end - frame.offset
    row["raw_size"], row["codec"], row["exact"] = raw_size, Codec.ZSTD, True
    row["dictionary"] = frame.header.dictionary_id != 0
    if frame.header.checksum:
        row["checksum_kind"] = Checksum.XXH64_LOW
        tail = chunk[frame.end - CHECKSUM_SIZE : frame.end].tobytes()
        row["checksum"] = int.from_bytes(tail, "little")


# --- Together -------------------------------------------------------------------------------------


def _together(chunks: ChunkBytes) -> tuple[Mask, ChunkTable]:
    """Return which chunks are one plain frame of the right size, and their rows."""
    if chunks.count < _TOGETHER:
        return np.zeros(chunks.count, np.bool_), rows_of(chunks)[:0]
    simple = chunks.sizes >= SMALLEST
    if not chunks.stored.size:
        return simple, rows_of(chunks)[:0]
    headers = read_headers(chunks.stored, chunks.starts)
    # Dictionaries are for those that look at chunks one by one.
    simple &= headers.plain
    simple &= ~headers.stated | (headers.content_sizes == chunks.raw_sizes.astype(np.uint64))
    windows = window_size(headers.window_descriptors.astype(np.int64))
    simple &= headers.single_segment | (windows <= chunks.options.window_limit)
    ends = chunks.starts + chunks.sizes - CHECKSUM_SIZE * headers.checksum
    places = chunks.starts + headers.sizes
    which = np.flatnonzero(simple)
    # Those few that are left at the end are looked at one by one.
    simple[which] = blocks_end(chunks.stored, places[which], ends[which], fewest=_TOGETHER)
    which = np.flatnonzero(simple)
    return simple, _plain_rows(chunks.take(which), which, headers.checksum[which])


def _plain_rows(chunks: ChunkBytes, numbers: npt.NDArray[np.intp], summed: Mask) -> ChunkTable:
    rows = rows_of(chunks, asset=numbers, codec=Codec.ZSTD)
    which = np.flatnonzero(summed)
    if which.size:
        end = (chunks.starts + chunks.sizes)[which]
        tail = bytes_at(chunks.stored, end - CHECKSUM_SIZE, CHECKSUM_SIZE)
        rows["checksum"][which] = tail.view("<u4")[:, 0]
        rows["checksum_kind"][which] = Checksum.XXH64_LOW
    return rows
