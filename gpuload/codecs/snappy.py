"""Raw Snappy elements on the host: cramjam into the slot."""

from __future__ import annotations

from gpuload.codecs.base import Bytes, CorruptChunkError

__all__ = ["decode"]


def decode(stored: Bytes, slot: Bytes) -> int:
    """Decode elements with the length preamble before them (the row's prefix)."""
    import cramjam

    try:
        size: int = cramjam.snappy.decompress_raw_into(stored, slot)
    except cramjam.DecompressionError as error:
        raise CorruptChunkError(
            f"the Snappy elements do not decode to {slot.size} bytes ({error})"
        ) from None
    return size
