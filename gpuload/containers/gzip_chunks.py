"""Chunks that are gzip members (RFC 1952): of each, nearly always, just one.

Only decoding finds where a member ends. But the size at the end of the last one is that of a whole
chunk only if it is alone, or all others are empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload.chunks import Checksum, Codec, make_table
from gpuload.codecs.base import Bytes, CorruptChunkError
from gpuload.codecs.gzip import GzipDecoder
from gpuload.codecs.gzip_header import MAGIC, TRAILER_SIZE, read_member_header
from gpuload.codecs.refuse import bytes_at, words_at
from gpuload.containers.chunk_bytes import ChunkBytes, Expanded, join, rows_of
from gpuload.errors import FormatError, UnsupportedCodecError
from gpuload.sources import BytesSource

if TYPE_CHECKING:
    from gpuload.chunks import ChunkTable
    from gpuload.options import Options

    Integers = npt.NDArray[np.int64]

__all__ = ["decode_chunk", "expand_gzip"]

#: The header without optional fields, and the smallest DEFLATE stream.
_PLAIN_HEADER, _SMALLEST_STREAM = 10, 2
#: ID1, ID2, CM for DEFLATE and FLG of such a header, little-endian.
_PLAIN = int.from_bytes(MAGIC + b"\x08\x00", "little")
_SOURCE = "in the stored chunk"


def expand_gzip(chunks: ChunkBytes) -> Expanded:
    """Return the rows of chunks; those that are not one member are decoded right here.

    Raises
    ------
    CorruptChunkError
        If one is damaged, or does not decode to the size that the array asks for.
    """
    size = np.full(chunks.count, _PLAIN_HEADER)
    fits = chunks.sizes >= _PLAIN_HEADER + _SMALLEST_STREAM + TRAILER_SIZE
    if fits.any():
        fits &= _magics(chunks.stored, chunks.starts) == _PLAIN
    decoded: dict[int, Bytes] = {}
    for number in np.flatnonzero(~fits).tolist():
        size[number] = _header_size(chunks.one(number), number)
    alone = _are_alone(chunks, size)
    for number in np.flatnonzero(~alone).tolist():
        try:
            limit = int(chunks.raw_sizes[number])
            decoded[number] = decode_chunk(chunks.one(number), limit, chunks.options)
        except CorruptChunkError as error:
            error.row = number
            raise
    which = np.flatnonzero(alone)
    return join(chunks, [_rows(chunks.take(which), size[which], which)], decoded)


def _magics(stored: Bytes, places: Integers) -> Integers:
    """Return the first four bytes of chunks; of one that has fewer, anything."""
    return bytes_at(stored, places, 4).view("<u4")[:, 0].astype(np.int64)


def decode_chunk(chunk: Bytes, limit: int, options: Options) -> Bytes:
    """Return what all members of a chunk decode to.

    Raises
    ------
    CorruptChunkError
        If one is damaged, they decode to more than `limit` bytes, or other bytes than zeros follow.
    """
    rows = make_table([0], stored_size=chunk.size, codec=Codec.GZIP)
    decoder = GzipDecoder(BytesSource(chunk, _SOURCE), rows, options)
    pieces, size = [], 0
    try:
        for piece in decoder.pieces():
            pieces.append(piece.copy())
            size += piece.size
            if size > limit:
                raise CorruptChunkError(f"the gzip members decode to more than {limit} bytes")
    except (FormatError, UnsupportedCodecError) as error:
        raise CorruptChunkError(str(error)) from None
    if decoder.warnings:
        raise CorruptChunkError(decoder.warnings[0][0])
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)


def _header_size(chunk: Bytes, number: int) -> int:
    source = BytesSource(chunk, _SOURCE)
    try:
        size = read_member_header(source.peek, 0, source.name).size
    except (FormatError, UnsupportedCodecError) as error:
        raise CorruptChunkError(str(error), row=number) from None
    if chunk.size < size + _SMALLEST_STREAM + TRAILER_SIZE:
        reason = f"a gzip member of {chunk.size} bytes, of which {size} are its header"
        raise CorruptChunkError(reason, row=number)
    return size


def _are_alone(chunks: ChunkBytes, header: Integers) -> npt.NDArray[np.bool_]:
    """Return which chunks are a single member, as far as sizes tell."""
    if not chunks.count:
        return np.zeros(0, np.bool_)
    told = words_at(chunks.stored, chunks.starts + chunks.sizes - 4)
    first = words_at(chunks.stored, chunks.starts + header, "<u2")
    # RFC 1951, section 3.2.3: a last block, of fixed codes that begin with the end of the block
    # (bits 1, 1 0 and seven of 0), or stored (0 0), with a size whose lower byte is 0.
    empty = (first & 0x3FF == 3) | (first & 0xFF07 == 1)
    alone: npt.NDArray[np.bool_] = (told == chunks.raw_sizes & 0xFFFFFFFF) & (
        ~empty | (chunks.raw_sizes == 0)
    )
    return alone


def _rows(chunks: ChunkBytes, header: Integers, numbers: npt.NDArray[np.intp]) -> ChunkTable:
    if not chunks.count:
        return rows_of(chunks)
    return rows_of(
        chunks,
        asset=numbers,
        offset=chunks.starts + header,
        stored_size=chunks.sizes - header - TRAILER_SIZE,
        codec=Codec.DEFLATE,
        checksum_kind=Checksum.CRC32,
        checksum=words_at(chunks.stored, chunks.starts + chunks.sizes - TRAILER_SIZE),
    )
