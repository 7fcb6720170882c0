"""The header of one LZ4 frame (LZ4 frame format, "Frame Descriptor")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from gpuload.errors import UnsupportedCodecError

if TYPE_CHECKING:
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = ["DESCRIPTOR_SIZE", "LEGACY_MAXIMUM", "Frame", "read_header"]

# Bits of FLG, the first byte of a descriptor; its top two are the version. BD is the second byte.
_INDEPENDENT = 0x20
_BLOCK_CHECKSUM = 0x10
_CONTENT_SIZE = 0x08
_CONTENT_CHECKSUM = 0x04
_DICTIONARY_ID = 0x01
_FLG_RESERVED = 0x02
_BD_RESERVED = 0x8F
#: Bytes of a descriptor that has every field, with its checksum.
DESCRIPTOR_SIZE = 15

#: Sizes from here on are no sizes of files; the largest one also means "unknown" in a span.
_SIZE_LIMIT = 1 << 63
#: Every block of a legacy frame but the last decodes to this many bytes.
LEGACY_MAXIMUM = 8 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """What the header of a frame says; `body` is the offset of its first size word."""

    start: int
    body: int
    maximum: int = LEGACY_MAXIMUM
    independent: bool = True
    block_checksum: bool = False
    content_checksum: bool = False
    content_size: int | None = None
    dictionary_id: int | None = None
    legacy: bool = False


def read_header(source: Source, start: int, options: Options) -> Frame:
    """Read the descriptor of a standard frame (LZ4 frame format, "Frame Descriptor")."""
    place = start + 4
    descriptor = source.peek(place, DESCRIPTOR_SIZE)
    flags = descriptor[0] if descriptor else 0
    end = 2 + 8 * bool(flags & _CONTENT_SIZE) + 4 * bool(flags & _DICTIONARY_ID)
    if len(descriptor) <= end:
        raise source.truncated(place + len(descriptor), end + 1 - len(descriptor))
    _check_descriptor(source, place, descriptor[: end + 1])
    frame = Frame(
        start=start,
        body=place + end + 1,
        maximum=1 << 8 + 2 * (descriptor[1] >> 4),
        independent=bool(flags & _INDEPENDENT),
        block_checksum=bool(flags & _BLOCK_CHECKSUM),
        content_checksum=bool(flags & _CONTENT_CHECKSUM),
        content_size=_field(descriptor[2:10]) if flags & _CONTENT_SIZE else None,
        dictionary_id=_field(descriptor[end - 4 : end]) if flags & _DICTIONARY_ID else None,
    )
    _check_frame(source, frame, options)
    return frame


def _check_descriptor(source: Source, place: int, descriptor: bytes) -> None:
    flags, limits = descriptor[:2]
    if flags >> 6 != 1:
        raise UnsupportedCodecError(
            f"LZ4 frame of version {flags >> 6} (FLG byte 0x{flags:02x}); only version 1 is known",
            source=source.name,
            offset=place,
        )
    found, expected = descriptor[-1], xxhash.xxh32_intdigest(descriptor[:-1]) >> 8 & 0xFF
    if found != expected:
        message = f"the frame header's checksum is 0x{found:02x}, its bytes give 0x{expected:02x}"
        raise source.broken(place + len(descriptor) - 1, message)
    if flags & _FLG_RESERVED or limits & _BD_RESERVED:
        message = f"reserved bits are set (FLG 0x{flags:02x}, BD 0x{limits:02x}); they must be 0"
        raise source.broken(place, message)
    if limits >> 4 < 4:
        message = f"block maximum code {limits >> 4}; expected 4 to 7 (64 KiB to 4 MiB)"
        raise source.broken(place + 1, message)


def _check_frame(source: Source, frame: Frame, options: Options) -> None:
    if frame.dictionary_id is not None and options.dictionary is None:
        raise UnsupportedCodecError(
            f"the frame needs the dictionary with ID {frame.dictionary_id} "
            f"(0x{frame.dictionary_id:08x}); give it with the option dictionary (--dictionary)",
            source=source.name,
            offset=frame.start,
        )
    if frame.content_size is not None and frame.content_size >= _SIZE_LIMIT:
        message = f"a content size of {frame.content_size} bytes, which no file can have"
        raise source.broken(frame.start + 6, message)


def _field(data: bytes) -> int:
    return int.from_bytes(data, "little")
