"""Raw DEFLATE payloads of known size on the host: libdeflate."""

from __future__ import annotations

import numpy as np

from gpuload.codecs.base import Bytes, CorruptChunkError

__all__ = ["decode"]


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
