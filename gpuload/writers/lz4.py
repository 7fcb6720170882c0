"""LZ4 frames of independent blocks (LZ4 Frame Format Description of the lz4 project)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import lz4.block
import xxhash

from gpuload.writers.base import Packed, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

__all__ = ["Lz4Writer"]

_MAGIC = 0x184D2204
#: "Frame Descriptor", FLG: version 01, block independence, block checksum, content size, content
#: checksum; no dictionary.
_FLAGS = 0b01_1_1_1_1_0_0
#: The block maximum of each code of the BD byte.
_BLOCK_CODES = {64 << 10: 4, 256 << 10: 5, 1 << 20: 6, 4 << 20: 7}
#: "Data Blocks": the top bit of the size word marks a block that is stored as it is.
_STORED = 1 << 31
_END_MARK = bytes(4)
#: Levels from here on use the high-compression matcher, as in the lz4 tool.
_FIRST_HIGH_LEVEL = 3


class Lz4Writer(Writer):
    """One frame with content size, block checksums and content checksum."""

    codec = "lz4"
    chunk_sizes = tuple(_BLOCK_CODES)
    default_chunk_size = 64 << 10
    levels = range(1, 13)
    default_level = 1

    def __init__(self, chunk_size: int | None = None, level: int | None = None) -> None:
        super().__init__(chunk_size, level)
        self._content = xxhash.xxh32()

    def header(self, raw_size: int) -> bytes:
        """See `Writer.header`; "Frame Descriptor", its checksum included."""
        block_code = _BLOCK_CODES[self.chunk_size]
        descriptor = struct.pack("<BBQ", _FLAGS, block_code << 4, raw_size)
        check = xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF
        return struct.pack("<I", _MAGIC) + descriptor + bytes([check])

    def pack(self, chunks: Iterable[memoryview]) -> Packed:
        """See `Writer.pack`; "Data Blocks"."""
        chunks = list(chunks)
        pieces: list[Buffer] = []
        for chunk in chunks:
            pieces += self._block(chunk)
        return Packed(pieces, chunks)

    def _block(self, chunk: memoryview) -> tuple[Buffer, ...]:
        body: Buffer = self._compress(chunk)
        size = word = len(memoryview(body))
        if size >= len(chunk):
            body, word = chunk, len(chunk) | _STORED
        checksum = xxhash.xxh32_intdigest(body)
        return struct.pack("<I", word), body, struct.pack("<I", checksum)

    def _compress(self, chunk: memoryview) -> bytes:
        if self._level < _FIRST_HIGH_LEVEL:
            packed = lz4.block.compress(chunk, store_size=False)
        else:
            packed = lz4.block.compress(
                chunk, mode="high_compression", compression=self._level, store_size=False
            )
        return bytes(packed)

    def note(self, notes: Sequence[Buffer]) -> None:
        """See `Writer.note`: the chunks themselves, for the checksum of the whole content."""
        for chunk in notes:
            self._content.update(chunk)

    def trailer(self) -> bytes:
        """See `Writer.trailer`; "EndMark" and "Content Checksum"."""
        return _END_MARK + struct.pack("<I", self._content.intdigest())
