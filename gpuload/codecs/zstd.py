"""Zstandard frames on the host: python-zstandard.

Its decoders are not safe to share between threads, so each thread keeps its own. It takes a frame
that is cut short for a complete one, so the blocks of a payload are counted here first.
"""

from __future__ import annotations

import io
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.chunks import Checksum
from gpuload.codecs.base import PIECE, Bytes, CorruptChunkError, Decoder, StreamDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.sources import Source

__all__ = ["FrameDecoder", "decoder", "embedded_checksum"]

_CHECKSUM_FLAG = 4
_READ_SIZE = 256 << 10


def decoder(dictionary: bytes | None, window_limit: int) -> Decoder:
    """Return the decoder of whole frames, for use from any number of threads."""
    local = threading.local()

    def decode(stored: Bytes, slot: Bytes) -> int:
        _check_complete(stored)
        if not hasattr(local, "frame"):
            local.frame = _decompressor(dictionary, window_limit)
        with _translated():
            reader = local.frame.stream_reader(stored)
            size: int = reader.readinto(slot) if slot.size else 0
            # The frame's end (its checksum too) is looked at by the read behind the last byte.
            if reader.readinto(bytearray(1)):
                raise CorruptChunkError(f"the frame decodes to more than {slot.size} bytes")
        return size

    return decode


def embedded_checksum(stored: Bytes) -> int | None:
    """Return the checksum that a frame carries, which the library compares while it decodes."""
    if stored.size < 9 or not stored[4] & _CHECKSUM_FLAG:
        return None
    return int.from_bytes(stored[-4:].tobytes(), "little")


def _check_complete(stored: Bytes) -> None:
    """Refuse a payload whose blocks do not end where it ends (RFC 8878, section 3.1.1)."""
    import zstandard

    with _translated():
        position = zstandard.frame_header_size(memoryview(stored))
    last = False
    while not last and position + 3 <= stored.size:
        header = int.from_bytes(stored[position : position + 3].tobytes(), "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == 1 else size)
    position += _CHECKSUM_FLAG if stored[4] & _CHECKSUM_FLAG else 0
    if not last or position != stored.size:
        raise CorruptChunkError(
            f"the frame's blocks end at {position} bytes, its payload has {stored.size}"
        )


def _decompressor(dictionary: bytes | None, window_limit: int) -> Any:
    import zstandard

    data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    # The library wants a power of two; readers have compared the exact size already.
    window = 1 << max(10, (window_limit - 1).bit_length())
    return zstandard.ZstdDecompressor(dict_data=data, max_window_size=min(window, 1 << 31))


@contextmanager
def _translated() -> Iterator[None]:
    import zstandard

    try:
        yield
    except zstandard.ZstdError as error:
        reason = str(error).removeprefix("zstd decompress error: ")
        raise CorruptChunkError(
            f"the Zstandard frame does not decode: {reason}", checksum="checksum" in reason
        ) from None


class FrameDecoder(StreamDecoder):
    """One frame too large for a slot."""

    def pieces(self) -> Iterator[Bytes]:
        """See `StreamDecoder.pieces`."""
        row = self.rows[0]
        payload = _Payload(self.source, int(row["offset"]), int(row["stored_size"]))
        frame = _decompressor(self.options.dictionary, self.options.window_limit)
        reader = frame.stream_reader(payload, read_size=_READ_SIZE)
        # Two buffers in turn: the caller may still read one while the other is filled.
        buffers = [np.empty(PIECE, np.uint8) for _ in range(2)]
        size = PIECE
        while size:
            buffers.reverse()
            with _translated():
                size = reader.readinto(buffers[0])
            self.position = payload.position
            yield buffers[0][:size]
        if row["checksum_kind"] != Checksum.NONE:
            self.verified[int(row["checksum_kind"])] += 1


class _Payload(io.RawIOBase):
    """The payload of a row as a file to read from."""

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self._source = source
        self.position = offset
        self._end = offset + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._end - self.position]
        self._source.read_exact(self.position, view)
        self.position += len(view)
        return len(view)
