"""Raw DEFLATE payloads of known size on the host: libdeflate."""

from __future__ import annotations

import numpy as np

from gpuload.chunks import Checksum
from gpuload.codecs.base import Bytes, CorruptChunkError, check

__all__ = ["decode", "decode_checked"]

#: The smallest gzip header (RFC 1952, section 2.3): nothing is known of the file.
_HEADER = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])


def decode(stored: Bytes, slot: Bytes) -> int:
    """Decode one raw DEFLATE stream (RFC 1951)."""
    import deflate

    try:
        # Asked for 0 bytes, libdeflate answers without looking at the stream.
        decoded = deflate.deflate_decompress(stored, max(1, slot.size))
    except deflate.DeflateError:
        raise CorruptChunkError(
            f"the DEFLATE stream is damaged, or decodes to more than {slot.size} bytes"
        ) from None
    if len(decoded) > slot.size:
        raise CorruptChunkError(f"the DEFLATE stream decodes to more than {slot.size} bytes")
    slot[: len(decoded)] = np.frombuffer(decoded, np.uint8)
    return len(decoded)


def decode_checked(stored: Bytes, slot: Bytes, crc: int) -> int:
    """Decode a payload that must fill the slot, give this CRC-32, and end where its stream ends.

    libdeflate does not say where a raw stream ended, and would take a payload with anything behind
    it. As a gzip member it is decoded just as fast, and the trailer is looked for at that place.
    """
    import deflate

    payload = stored.tobytes()
    trailer = crc.to_bytes(4, "little") + slot.size.to_bytes(4, "little")
    try:
        decoded = deflate.gzip_decompress(_HEADER + payload + trailer, max(1, slot.size))
    except deflate.DeflateError:
        size = decode(stored, slot)
        if size == slot.size:
            check(Checksum.CRC32, slot, crc)
            raise CorruptChunkError("bytes follow the end of the DEFLATE stream") from None
        return size
    if trailer in payload and _is_member(_HEADER + payload + trailer[:-1], slot.size):
        # The very trailer was put there to hide what is behind it: the one at the end is not read.
        raise CorruptChunkError("bytes follow the end of the DEFLATE stream")
    if len(decoded) != slot.size:
        # Another trailer, right behind a shorter stream inside the payload, was found to be right.
        return decode(stored, slot)
    slot[:] = np.frombuffer(decoded, np.uint8)
    return slot.size


def _is_member(data: bytes, size: int) -> bool:
    import deflate

    try:
        deflate.gzip_decompress(data, max(1, size))
    except deflate.DeflateError:
        return False
    return True
