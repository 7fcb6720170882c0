"""Payloads in a plain wrapping that does not depend on where they end.

zlib (RFC 1950), numcodecs' LZ4 (its size, and a raw block) and raw Snappy (its size, and elements).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import Checksum, Codec
from gpuload.codecs.refuse import bytes_at, refuse, words_at
from gpuload.containers.chunk_bytes import ChunkBytes, rows_of

if TYPE_CHECKING:
    from gpuload.chunks import ChunkTable

__all__ = ["lz4_rows", "snappy_rows", "zlib_rows"]

_ZLIB_HEADER, _ZLIB_TRAILER, _SIZE = 2, 4, 4
#: Most bytes of Snappy's preamble: 7 bits of a 32-bit number in each.
_PREAMBLE = 5


def zlib_rows(chunks: ChunkBytes) -> ChunkTable:
    """Return rows of zlib streams (RFC 1950, section 2.2).

    Raises
    ------
    CorruptChunkError
        If one is cut, its header is damaged, or it needs a dictionary.
    """
    framing = _ZLIB_HEADER + _ZLIB_TRAILER
    refuse({"{size} bytes are no zlib stream": chunks.sizes <= framing}, size=chunks.sizes)
    header = words_at(chunks.stored, chunks.starts, ">u2")
    method, window = header >> 8 & 15, header >> 12
    refuse(
        {
            "no zlib stream: its header is {header:#06x}": header % 31 != 0,
            "zlib compression method {method}; only 8 (DEFLATE) is known": method != 8,
            "the window of a zlib stream is larger than 32 KiB": window > 7,
            "a zlib stream needs a dictionary (FDICT)": header & 0x20 != 0,
        },
        header=header,
        method=method,
    )
    return rows_of(
        chunks,
        offset=chunks.starts + _ZLIB_HEADER,
        stored_size=chunks.sizes - framing,
        codec=Codec.DEFLATE,
        checksum_kind=Checksum.ADLER32,
        checksum=words_at(chunks.stored, chunks.starts + chunks.sizes - _ZLIB_TRAILER, ">u4"),
    )


def lz4_rows(chunks: ChunkBytes) -> ChunkTable:
    """Return rows of numcodecs' LZ4: the decoded size, little-endian, and a block.

    Raises
    ------
    CorruptChunkError
        If a size is not the one that the array asks for.
    """
    reason = "{size} bytes are no LZ4 block with its size in front"
    refuse({reason: chunks.sizes <= _SIZE}, size=chunks.sizes)
    told = words_at(chunks.stored, chunks.starts)
    reason = "the size in front of the LZ4 block is {told}, the array asks for {expected}"
    refuse({reason: told != chunks.raw_sizes}, told=told, expected=chunks.raw_sizes)
    offset, size = chunks.starts + _SIZE, chunks.sizes - _SIZE
    return rows_of(chunks, offset=offset, stored_size=size, codec=Codec.LZ4)


def snappy_rows(chunks: ChunkBytes) -> ChunkTable:
    """Return rows of raw Snappy (format description, section 1: the preamble).

    Raises
    ------
    CorruptChunkError
        If a preamble does not end, or has another size than the array.
    """
    refuse({"no byte of Snappy": chunks.sizes < 1})
    head = bytes_at(chunks.stored, chunks.starts, _PREAMBLE).astype(np.int64)
    length = (head < 128).argmax(axis=1) + 1
    ends = (head < 128).any(axis=1) & (length <= chunks.sizes)
    groups = np.where(np.arange(_PREAMBLE) < length[:, None], head & 127, 0)
    told = (groups << 7 * np.arange(_PREAMBLE)).sum(axis=1)
    refuse(
        {
            "the preamble of Snappy does not end": ~ends,
            "Snappy's preamble is {told}, expected {expected}": told != chunks.raw_sizes,
        },
        told=told,
        expected=chunks.raw_sizes,
    )
    return rows_of(
        chunks,
        offset=chunks.starts + length,
        stored_size=chunks.sizes - length,
        prefix_size=length,
        codec=Codec.SNAPPY,
    )
