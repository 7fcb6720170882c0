"""Blosc 1 chunks as rows of the chunk table: one for each stream, or one for each chunk."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload import codecs
from gpuload.chunks import Checksum, Codec
from gpuload.codecs.base import Bytes, CorruptChunkError, check
from gpuload.codecs.blosc import HEADER_SIZE, decode, unshuffle
from gpuload.containers.blosc_layout import (
    BLOSCLZ,
    LZ4,
    SNAPPY,
    ZLIB,
    ZSTD,
    BloscBlocks,
    BloscChunks,
    BloscStreams,
    read_blocks,
    read_headers,
    read_streams,
)
from gpuload.containers.chunk_bytes import ChunkBytes, Expanded, Shuffled, join, rows_of
from gpuload.containers.wrapped import snappy_rows, zlib_rows
from gpuload.containers.zstd_chunks import one_frame_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.chunks import ChunkTable
    from gpuload.options import Options

    Integers = npt.NDArray[np.int64]

__all__ = ["decode_chunk", "expand_blosc"]

#: Chunks in smaller blocks than encoders make are left to the library as they are.
_SMALLEST_BLOCK = 256


def expand_blosc(chunks: ChunkBytes, *, streams: bool) -> Expanded:
    """Return the rows of Blosc chunks.

    Parameters
    ----------
    chunks : ChunkBytes
        n chunks.
    streams : bool
        Whether to give a row for each stream, or for each chunk. Chunks that only the library
        decodes are one row either way.

    Raises
    ------
    CorruptChunkError
        If a header is damaged, or tells of another size than the array; blocks or streams reach
        outside of their chunk, or are more than it has bytes for.
    """
    headers = read_headers(chunks)
    compressor, copied = headers.compressor, headers.copied
    snappy = ~copied & (compressor == SNAPPY)
    tiny = (chunks.raw_sizes > headers.block_size) & (headers.block_size < _SMALLEST_BLOCK)
    split = ~copied & (compressor != BLOSCLZ) & ~tiny & streams
    whole = np.flatnonzero(~copied & ~split & ~snappy)
    parts = [_copied(headers, np.flatnonzero(copied)), _whole(headers, whole)]
    here = {
        number: _decode(headers.take(np.array([number])), number)
        for number in np.flatnonzero(snappy & ~split).tolist()
    }
    which = np.flatnonzero(split)
    if not which.size:
        return join(chunks, [part for part in parts if part.size] or parts[:1], here)
    rows, shuffled = _split(headers.take(which), which)
    expanded = join(chunks, [*(part for part in parts if part.size), rows], here)
    expanded.shuffled = shuffled
    return expanded


# --- Rows -----------------------------------------------------------------------------------------


def _copied(headers: BloscChunks, which: npt.NDArray[np.intp]) -> ChunkTable:
    chunks = headers.bytes.take(which)
    offset = chunks.starts + HEADER_SIZE
    columns = {"asset": which, "offset": offset, "stored_size": chunks.raw_sizes}
    return rows_of(chunks, codec=Codec.RAW, **columns)


def _whole(headers: BloscChunks, which: npt.NDArray[np.intp]) -> ChunkTable:
    if which.size:
        with _renumbered(which):
            read_blocks(headers.take(which))
    size = headers.stored_size[which]
    return rows_of(headers.bytes.take(which), asset=which, stored_size=size, codec=Codec.BLOSC)


def _split(chunks: BloscChunks, numbers: Integers) -> tuple[ChunkTable, Shuffled]:
    """Return a row for each stream, and the blocks that they are shuffled in."""
    with _renumbered(numbers):
        blocks = read_blocks(chunks)
        rows = _stream_rows(chunks, read_streams(chunks, blocks))
    rows["asset"] = numbers[rows["asset"].astype(np.int64)]
    return rows, _shuffled(chunks, blocks, numbers)


@contextmanager
def _renumbered(numbers: Integers) -> Iterator[None]:
    """Have errors tell the number of a chunk among all, not among some."""
    try:
        yield
    except CorruptChunkError as error:
        error.row = int(numbers[error.row])
        raise


def _stream_rows(chunks: BloscChunks, streams: BloscStreams) -> ChunkTable:
    payloads = ChunkBytes(
        chunks.bytes.stored,
        streams.start,
        streams.stored_size,
        streams.place,
        streams.raw_size,
        chunks.bytes.options,
    )
    rows = rows_of(payloads, asset=streams.chunk, codec=Codec.RAW)
    compressor = chunks.compressor[streams.chunk]
    # A stream that takes as many bytes as it decodes to is stored as it is.
    compressed = streams.stored_size != streams.raw_size
    rows["codec"][compressed & (compressor == LZ4)] = Codec.LZ4
    for number, found in ((SNAPPY, snappy_rows), (ZLIB, zlib_rows), (ZSTD, one_frame_rows)):
        which = np.flatnonzero(compressed & (compressor == number))
        if which.size:
            with _renumbered(streams.chunk[which]):
                replacing = found(payloads.take(which))
            replacing["asset"] = streams.chunk[which]
            rows[which] = replacing
    return rows


def _shuffled(chunks: BloscChunks, blocks: BloscBlocks, numbers: Integers) -> Shuffled:
    """Return what is shuffled; blocks of a single element, or of none, are as they were."""
    element = chunks.element_size[blocks.chunk]
    count = blocks.size // element
    byte = chunks.byte_shuffled[blocks.chunk] & (count > 1)
    # Blosc 1 shuffles the bits of a block only if its elements are a multiple of 8.
    bit = chunks.bit_shuffled[blocks.chunk] & (count > 0) & (count % 8 == 0)
    any_of = np.bincount(blocks.chunk, byte | bit, chunks.bytes.count) > 0
    which = np.flatnonzero(any_of[blocks.chunk])
    chunk = blocks.chunk[which]
    return Shuffled(
        numbers[chunk],
        chunks.bytes.slots[chunk] + blocks.place[which],
        blocks.size[which],
        np.where(byte | bit, element, 1)[which],
        bit[which],
    )


# --- Decoding right here --------------------------------------------------------------------------


def decode_chunk(chunk: Bytes, raw_size: int, options: Options) -> Bytes:
    """Return what one chunk decodes to, by its streams.

    Raises
    ------
    CorruptChunkError
        If it is damaged, or decodes to another size.
    """
    place, sizes = np.zeros(1, np.int64), np.array([[chunk.size], [raw_size]], np.int64)
    headers = read_headers(ChunkBytes(chunk, place, sizes[0], place, sizes[1], options))
    return _decode(headers, 0)


def _decode(chunks: BloscChunks, number: int) -> Bytes:
    """Decode the only one of `chunks`, which has a number among others."""
    first = replace(chunks.bytes, slots=np.zeros(1, np.int64))
    chunks = replace(chunks, bytes=first)
    with _renumbered(np.array([number])):
        if chunks.copied[0]:
            return first.one(0)[HEADER_SIZE:][: int(first.raw_sizes[0])]
        if chunks.compressor[0] == BLOSCLZ:
            decoded = np.empty(int(first.raw_sizes[0]), np.uint8)
            decode(first.one(0)[: int(chunks.stored_size[0])], decoded)
            return decoded
        rows, shuffled = _split(chunks, np.zeros(1, np.int64))
        return _unshuffled(_decode_rows(first, rows), shuffled)


def _decode_rows(chunk: ChunkBytes, rows: ChunkTable) -> Bytes:
    decoded = np.empty(int(chunk.raw_sizes[0]), np.uint8)
    decoders = codecs.decoders(chunk.options, vouched=False)
    for row in rows:
        start, place = int(row["offset"]), int(row["dst_offset"])
        slot = decoded[place : place + int(row["raw_size"])]
        payload = chunk.stored[start - int(row["prefix_size"]) : start + int(row["stored_size"])]
        if decoders[int(row["codec"])](payload, slot) != slot.size:
            raise CorruptChunkError(f"a Blosc stream decodes to less than {slot.size} bytes")
        if chunk.options.verify and row["checksum_kind"] == Checksum.ADLER32:
            check(Checksum.ADLER32, slot, int(row["checksum"]))
    return decoded


def _unshuffled(decoded: Bytes, shuffled: Shuffled) -> Bytes:
    if not shuffled.start.size:
        return decoded
    columns = (shuffled.start, shuffled.size, shuffled.element_size, shuffled.bit)
    blocks = zip(*(column.tolist() for column in columns), strict=True)
    return np.concatenate(
        [
            unshuffle(decoded[start : start + size], element_size, bit=bit)
            for start, size, element_size, bit in blocks
        ]
    )
