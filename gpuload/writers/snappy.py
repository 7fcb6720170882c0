"""Snappy framing (framing_format.txt of the snappy project)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import cramjam
import numpy as np

from gpuload import checksums
from gpuload.chunks import Checksum
from gpuload.writers.base import MIN_CHUNK_SIZE, Packed, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

__all__ = ["SnappyWriter"]

#: Section 4.1: the stream identifier, a chunk of type 0xff.
_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED = 0x00
_UNCOMPRESSED = 0x01
_CHECKSUM_SIZE = 4


class SnappyWriter(Writer):
    """A stream identifier and one chunk of the framing format per chunk."""

    codec = "snappy"
    # Sections 4.2 and 4.3: at most 65,536 bytes of decoded data.
    chunk_sizes = range(MIN_CHUNK_SIZE, 65_537)
    default_chunk_size = 65_536

    def header(self, raw_size: int) -> bytes:
        """See `Writer.header`; section 4.1."""
        return _IDENTIFIER

    def pack(self, chunks: Iterable[memoryview]) -> Packed:
        """See `Writer.pack`; sections 4.2 and 4.3."""
        pieces: list[Buffer] = []
        for chunk in chunks:
            kind, body = _encode(chunk)
            size = _CHECKSUM_SIZE + len(memoryview(body))
            crc = checksums.compute(Checksum.CRC32C_MASKED, np.frombuffer(chunk, np.uint8))
            # The type is the low byte, the length the three bytes behind it.
            pieces += (struct.pack("<II", size << 8 | kind, crc), body)
        return Packed(pieces)

    def trailer(self) -> bytes:
        """See `Writer.trailer`: the format has none."""
        return b""


def _encode(chunk: memoryview) -> tuple[int, Buffer]:
    packed: Buffer = cramjam.snappy.compress_raw(chunk)
    # Less than an eighth saved is not worth decoding; the format leaves the threshold open.
    if len(memoryview(packed)) >= len(chunk) - len(chunk) // 8:
        return _UNCOMPRESSED, chunk
    return _COMPRESSED, packed
