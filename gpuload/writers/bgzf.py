"""BGZF: gzip members of at most 64 KiB that state their size (SAM specification, section 4.1)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import deflate
import numpy as np

from gpuload import checksums
from gpuload.chunks import Checksum
from gpuload.writers.base import MIN_CHUNK_SIZE, Packed, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

__all__ = ["BgzfWriter"]

#: gzip header (RFC 1952, section 2.3) up to the block size: deflate, an extra field, no time, no
#: hint, unknown system; 6 bytes of extra field: BC, of 2 bytes.
_HEADER = bytes.fromhex("1f8b 08 04 00000000 00 ff 0600 4243 0200")
_FOOTER = struct.Struct("<II")
_BLOCK_FRAMING = len(_HEADER) + 2 + _FOOTER.size
#: Section 4.1.2: an empty block that marks the end of the file.
_END_OF_FILE = _HEADER + bytes.fromhex("1b00 0300 00000000 00000000")


class BgzfWriter(Writer):
    """One BGZF block per chunk, and the end-of-file block."""

    codec = "gzip"
    # A chunk that does not shrink takes 31 bytes more than its content, and 65,536 is the limit;
    # 65,280 is what bgzip itself takes.
    chunk_sizes = range(MIN_CHUNK_SIZE, 65_281)
    default_chunk_size = 65_280
    levels = range(13)
    default_level = 6

    def header(self, raw_size: int) -> bytes:
        """See `Writer.header`."""
        return b""

    def pack(self, chunks: Iterable[memoryview]) -> Packed:
        """See `Writer.pack`; section 4.1, "The BGZF compression format"."""
        pieces: list[Buffer] = []
        for chunk in chunks:
            body = self._compress(chunk)
            block_size = _BLOCK_FRAMING + len(body)
            crc = checksums.compute(Checksum.CRC32, np.frombuffer(chunk, np.uint8))
            pieces += (
                _HEADER,
                struct.pack("<H", block_size - 1),
                body,
                _FOOTER.pack(crc, len(chunk)),
            )
        return Packed(pieces)

    def _compress(self, chunk: memoryview) -> bytes | bytearray:
        packed: bytearray = deflate.deflate_compress(chunk, self._level)
        stored_size = len(chunk) + 5
        return packed if len(packed) <= stored_size else _store(chunk)

    def trailer(self) -> bytes:
        """See `Writer.trailer`."""
        return _END_OF_FILE


def _store(chunk: memoryview) -> bytes:
    """Return one final stored block (RFC 1951, section 3.2.4)."""
    return struct.pack("<BHH", 1, len(chunk), len(chunk) ^ 0xFFFF) + chunk
