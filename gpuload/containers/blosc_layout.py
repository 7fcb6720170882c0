"""Blosc 1 chunks: their header, their blocks, and the streams that blocks consist of.

All of it is in c-blosc's README_CHUNK_FORMAT and README_HEADER, except the rule when a block is
split (`BloscChunks.splits`), and that places of blocks count from the start of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload.codecs.blosc import HEADER_SIZE
from gpuload.codecs.refuse import bytes_at, refuse, words_at

if TYPE_CHECKING:
    from gpuload.containers.chunk_bytes import ChunkBytes

    Integers = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

__all__ = [
    "BLOSCLZ",
    "LZ4",
    "SNAPPY",
    "ZLIB",
    "ZSTD",
    "BloscBlocks",
    "BloscChunks",
    "BloscStreams",
    "read_blocks",
    "read_headers",
    "read_streams",
]

#: Compressors.
BLOSCLZ, LZ4, SNAPPY, ZLIB, ZSTD = range(5)

_HEADER = np.dtype(
    [
        ("version", "u1"),
        ("inner_version", "u1"),
        ("flags", "u1"),
        ("element_size", "u1"),
        ("raw_size", "<u4"),
        ("block_size", "<u4"),
        ("stored_size", "<u4"),
    ]
)
_BYTE_SHUFFLED, _COPIED, _BIT_SHUFFLED, _RESERVED, _WHOLE_BLOCKS = 1, 2, 4, 8, 16
_VERSION, _INNER_VERSION = 2, 1
_LARGEST = (1 << 31) - 1 - HEADER_SIZE
#: Of a place in the table of blocks, and of the size in front of a stream.
_WORD = 4
#: A block is split if there are at most so many streams, of at least so many bytes.
_MOST_STREAMS, _SHORTEST_STREAM = 16, 128


@dataclass(frozen=True)
class BloscChunks:
    """Chunks, and what their headers say.

    Attributes
    ----------
    bytes : ChunkBytes
        The chunks.
    flags, element_size, block_size, stored_size : ndarray of int64, shape (n,)
        Of the header; bytes behind `stored_size` do not belong to the chunk.
    """

    bytes: ChunkBytes
    flags: Integers
    element_size: Integers
    block_size: Integers
    stored_size: Integers

    @property
    def compressor(self) -> Integers:
        """The compressor of each, as `LZ4`."""
        return self.flags >> 5

    @property
    def copied(self) -> Mask:
        """Which have their bytes right behind the header, and neither blocks nor filters."""
        copied: Mask = self.flags & _COPIED != 0
        return copied

    @property
    def byte_shuffled(self) -> Mask:
        """Which have blocks whose bytes are shuffled."""
        shuffled: Mask = (self.flags & _BYTE_SHUFFLED != 0) & (self.element_size > 1)
        return shuffled

    @property
    def bit_shuffled(self) -> Mask:
        """Which have blocks whose bits are shuffled."""
        shuffled: Mask = (self.flags & _BIT_SHUFFLED != 0) & ~self.byte_shuffled
        return shuffled

    @property
    def splits(self) -> Mask:
        """Which have full blocks that consist of one stream for each byte of an element."""
        element = np.maximum(self.element_size, 1)
        split: Mask = (
            (self.flags & _WHOLE_BLOCKS == 0)
            & (element <= _MOST_STREAMS)
            & (self.block_size // element >= _SHORTEST_STREAM)
        )
        return split

    @property
    def block_count(self) -> Integers:
        """How many blocks each has."""
        return -(-self.bytes.raw_sizes // self.block_size)

    def take(self, which: npt.NDArray[np.intp]) -> BloscChunks:
        """Return some of the chunks."""
        parts = (self.flags, self.element_size, self.block_size, self.stored_size)
        return BloscChunks(self.bytes.take(which), *(part[which] for part in parts))


@dataclass(frozen=True)
class BloscBlocks:
    """Blocks of chunks, in order; `place` is that of its decoded bytes in the chunk."""

    chunk: Integers
    place: Integers
    size: Integers
    start: Integers
    end: Integers


@dataclass(frozen=True)
class BloscStreams:
    """Streams of blocks, in order; `place` is that of its decoded bytes in the intermediate."""

    chunk: Integers
    place: Integers
    raw_size: Integers
    start: Integers
    stored_size: Integers


def read_headers(chunks: ChunkBytes) -> BloscChunks:
    """Read and check the headers of chunks.

    Raises
    ------
    CorruptChunkError
        If one is cut or damaged, tells of another size than the array, or of something unknown.
    """
    reason = f"{{size}} bytes, a Blosc header has {HEADER_SIZE}"
    refuse({reason: chunks.sizes < HEADER_SIZE}, size=chunks.sizes)
    if not chunks.count:
        return BloscChunks(chunks, *(np.zeros(0, np.int64) for _ in range(4)))
    header = bytes_at(chunks.stored, chunks.starts, HEADER_SIZE).view(_HEADER)[:, 0]
    names = ("flags", "element_size", "block_size", "stored_size")
    found = BloscChunks(chunks, *(header[name].astype(np.int64) for name in names))
    _check_headers(found, header)
    return found


def _check_headers(found: BloscChunks, header: npt.NDArray[np.void]) -> None:
    raw, size = header["raw_size"].astype(np.int64), found.stored_size
    copied, block = found.copied, found.block_size
    table = HEADER_SIZE + _WORD * -(-raw // np.maximum(block, 1))
    refuse(
        {
            f"Blosc format version {{version}}; known is {_VERSION}, of Blosc 1": (
                header["version"] != _VERSION
            ),
            "Blosc flags {flags:#04x}: bit 3 is reserved": found.flags & _RESERVED != 0,
            "Blosc elements of 0 bytes": found.element_size == 0,
            "the Blosc header tells of {raw} decoded bytes, the array asks for {expected}": (
                raw != found.bytes.raw_sizes
            ),
            "{raw} decoded bytes are more than Blosc allows": raw > _LARGEST,
            "Blosc blocks of {block} bytes in a chunk of {raw}": (
                (block == 0) | (block > np.maximum(raw, 1))
            ),
            "the Blosc header tells of {size} stored bytes, there are {there}": (
                (size < HEADER_SIZE) | (size > found.bytes.sizes)
            ),
            "{size} stored bytes of a Blosc chunk that holds {raw} as they are": (
                copied & (size != HEADER_SIZE + raw)
            ),
            "a Blosc chunk of {size} bytes ends in its table of blocks": ~copied & (table > size),
            "Blosc compressor {compressor}; known are 0 (blosclz), 1 (lz4), 2 (snappy), 3 (zlib) "
            "and 4 (zstd)": ~copied & (found.compressor > ZSTD),
            "version {inner} of a Blosc compressor's format; known is 1": (
                ~copied & (header["inner_version"] != _INNER_VERSION)
            ),
            "Blosc blocks of {block} bytes, split in elements of {element}": (
                ~copied & found.splits & (block % np.maximum(found.element_size, 1) != 0)
            ),
        },
        version=header["version"],
        flags=found.flags,
        raw=raw,
        expected=found.bytes.raw_sizes,
        block=block,
        size=size,
        there=found.bytes.sizes,
        compressor=found.compressor,
        inner=header["inner_version"],
        element=found.element_size,
    )


def read_blocks(chunks: BloscChunks) -> BloscBlocks:
    """Read where the blocks of chunks are, none of which is copied.

    Raises
    ------
    CorruptChunkError
        If one starts outside of its chunk.
    """
    counts = chunks.block_count
    chunk = np.repeat(np.arange(counts.size), counts)
    number = np.arange(chunk.size) - np.repeat(np.cumsum(counts) - counts, counts)
    place = number * chunks.block_size[chunk]
    first = chunks.bytes.starts[chunk]
    begin = words_at(chunks.bytes.stored, first + HEADER_SIZE + _WORD * number)
    size, table = chunks.stored_size[chunk], HEADER_SIZE + _WORD * counts[chunk]
    reason = "block {number} of a Blosc chunk starts at byte {begin} of {size}"
    outside = (begin < table) | (begin + _WORD >= size)
    refuse({reason: outside}, chunk, number=number, begin=begin, size=size)
    decoded = np.minimum(chunks.block_size[chunk], chunks.bytes.raw_sizes[chunk] - place)
    return BloscBlocks(chunk, place, decoded, first + begin, first + size)


def read_streams(chunks: BloscChunks, blocks: BloscBlocks) -> BloscStreams:
    """Find the streams of blocks: each is a size, and as many bytes.

    Raises
    ------
    CorruptChunkError
        If one reaches outside of its chunk or is too long, or there are too many.
    """
    splits = _split_counts(chunks, blocks)
    _check_room(chunks, blocks, splits)
    first = np.cumsum(splits) - splits
    owner = np.repeat(np.arange(splits.size), splits)
    start, stored_size = np.zeros((2, owner.size), np.int64)
    raw_size = (blocks.size // splits)[owner]
    position, active = blocks.start.copy(), np.arange(splits.size)
    for number in range(int(splits.max())):
        active = active[splits[active] > number]
        rows = first[active] + number
        size = _stream_sizes(chunks, blocks, active, position[active], raw_size[rows])
        start[rows], stored_size[rows] = position[active] + _WORD, size
        position[active] += _WORD + size
    extent = np.bincount(blocks.chunk, position - blocks.start, chunks.bytes.count)
    reason = "blocks of a Blosc chunk overlap"
    refuse({reason: extent > chunks.stored_size - HEADER_SIZE - _WORD * chunks.block_count})
    within = np.arange(owner.size) - first[owner]
    place = chunks.bytes.slots[blocks.chunk] + blocks.place
    return BloscStreams(
        blocks.chunk[owner], place[owner] + within * raw_size, raw_size, start, stored_size
    )


def _split_counts(chunks: BloscChunks, blocks: BloscBlocks) -> Integers:
    """Return the streams of each block; a shorter block at the end is not split."""
    split = chunks.splits[blocks.chunk] & (blocks.size == chunks.block_size[blocks.chunk])
    return np.where(split, chunks.element_size[blocks.chunk], 1)


def _check_room(chunks: BloscChunks, blocks: BloscBlocks, splits: Integers) -> None:
    """Refuse chunks with more streams than bytes before there is memory taken for them."""
    streams = np.bincount(blocks.chunk, splits, chunks.bytes.count).astype(np.int64)
    reason = "{streams} streams in a Blosc chunk of {size} bytes"
    refuse(
        {reason: streams * (_WORD + 1) > chunks.stored_size},
        streams=streams,
        size=chunks.stored_size,
    )


def _stream_sizes(
    chunks: BloscChunks, blocks: BloscBlocks, active: Integers, position: Integers, raw: Integers
) -> Integers:
    """Return the stored bytes of the next stream of some blocks."""
    left = blocks.end[active] - position - _WORD
    reason = "a Blosc chunk ends before a stream of one of its blocks"
    refuse({reason: left < 1}, blocks.chunk[active])
    size = words_at(chunks.bytes.stored, position)
    reason = "a Blosc stream of {size} stored bytes, {left} are left, and it decodes to {raw}"
    bad = (size < 1) | (size > left) | (size > raw)
    refuse({reason: bad}, blocks.chunk[active], size=size, left=left, raw=raw)
    return size
