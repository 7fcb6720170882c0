"""Skippable frames, which LZ4 and Zstandard share.

A magic of 0x184D2A50 to 0x184D2A5F, the size of the content, the content (RFC 8878, section 3.1.2;
LZ4 frame format, "Skippable Frames").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuload.sources import Source

HEADER_SIZE = 8


def is_magic(first: bytes) -> bool:
    """Return whether a file or frame with these first bytes is a skippable frame."""
    return len(first) >= 4 and first[1:4] == b"\x2a\x4d\x18" and first[0] & 0xF0 == 0x50


def content_size(source: Source, offset: int) -> int:
    """Return the content's size of the skippable frame at `offset`.

    Raises
    ------
    FormatError
        If the source ends inside the frame.
    """
    header = source.peek(offset, HEADER_SIZE)
    if len(header) < HEADER_SIZE:
        raise source.truncated(offset + len(header), HEADER_SIZE - len(header))
    size = int.from_bytes(header[4:8], "little")
    end = offset + HEADER_SIZE + size
    if end > source.size:
        raise source.truncated(source.size, end - source.size)
    return size


def skip(source: Source, offset: int) -> int:
    """Return the offset behind all skippable frames that follow one another from `offset` on."""
    while is_magic(source.peek(offset, 4)):
        offset += HEADER_SIZE + content_size(source, offset)
    return offset
