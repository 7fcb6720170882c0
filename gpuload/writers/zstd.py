"""Zstandard frames with a seek table.

RFC 8878, and the Zstandard Seekable Format (contrib/seekable_format of the zstd project).
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

import zstandard

from gpuload.writers.base import MIN_CHUNK_SIZE, Packed, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

__all__ = ["ZstdWriter"]

#: Seekable format, "Format": the table is a skippable frame of this magic, and ends with a footer
#: of the number of frames, a descriptor and a magic.
_SKIPPABLE_MAGIC = 0x184D2A5E
_FOOTER = struct.Struct("<IBI")
_FOOTER_MAGIC = 0x8F92EAB1
#: "Seek_Table_Descriptor": every entry has a checksum.
_CHECKSUM_FLAG = 1 << 7
#: ZSTD_minCLevel(): minus the largest target length.
_MIN_LEVEL = -(1 << 17)


class ZstdWriter(Writer):
    """One frame per chunk with content size and checksum, and the seek table."""

    codec = "zstd"
    chunk_sizes = range(MIN_CHUNK_SIZE, (1 << 30) + 1)
    default_chunk_size = 1 << 20
    levels = range(_MIN_LEVEL, zstandard.MAX_COMPRESSION_LEVEL + 1)
    default_level = 3
    # Seekable format, "Number_Of_Frames".
    max_chunks = 0x8000000

    def __init__(self, chunk_size: int | None = None, level: int | None = None) -> None:
        super().__init__(chunk_size, level)
        self._entries = bytearray()
        self._frames = 0
        self._local = threading.local()

    def header(self, raw_size: int) -> bytes:
        """See `Writer.header`: nothing, but for an empty input its only frame."""
        return b"" if raw_size else self._empty_frame()

    def _empty_frame(self) -> bytes:
        # A seek table alone would look like an LZ4 file as much as like a Zstandard one.
        packed = self.pack([memoryview(b"")])
        self.note(packed.notes)
        return b"".join(packed.pieces)

    def pack(self, chunks: Iterable[memoryview]) -> Packed:
        """See `Writer.pack`; RFC 8878, section 3.1.1."""
        frames: list[Buffer] = []
        entries: list[Buffer] = []
        compressor = self._compressor()
        for chunk in chunks:
            frame = compressor.compress(chunk)
            # The entry's checksum is the one that ends the frame: the low half of XXH64.
            entries.append(struct.pack("<II", len(frame), len(chunk)) + frame[-4:])
            frames.append(frame)
        return Packed(frames, entries)

    def _compressor(self) -> zstandard.ZstdCompressor:
        # One shared by threads would crash the process.
        if not hasattr(self._local, "compressor"):
            self._local.compressor = zstandard.ZstdCompressor(
                level=self._level, write_checksum=True, write_content_size=True
            )
        compressor: zstandard.ZstdCompressor = self._local.compressor
        return compressor

    def note(self, notes: Sequence[Buffer]) -> None:
        """See `Writer.note`: the entries of the seek table."""
        for entry in notes:
            self._entries += entry
        self._frames += len(notes)

    def trailer(self) -> bytes:
        """See `Writer.trailer`; the seek table."""
        footer = _FOOTER.pack(self._frames, _CHECKSUM_FLAG, _FOOTER_MAGIC)
        size = len(self._entries) + len(footer)
        return b"".join([struct.pack("<II", _SKIPPABLE_MAGIC, size), self._entries, footer])
