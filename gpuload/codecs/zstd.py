"""Zstandard frames on the host: python-zstandard.

Its decoders are not safe to share between threads, so each thread keeps its own. It takes a frame
that is cut short for a complete one, so the blocks of a payload are counted here first.
"""

from __future__ import annotations

import io
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import checksums
from gpuload.chunks import Checksum
from gpuload.codecs.base import (
    PIECE,
    Bytes,
    CorruptChunkError,
    Decoder,
    StreamDecoder,
    mismatch,
)
from gpuload.errors import MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuload.sources import Source

__all__ = ["Decompressors", "FrameDecoder", "decoder", "embedded_checksum", "translated"]

#: Where the frame header's descriptor stands, and the bit in it that announces a checksum.
_DESCRIPTOR, _CHECKSUM_FLAG, _CHECKSUM_SIZE = 4, 4, 4
_HEADER_MAXIMUM, _BLOCK_HEADER, _RLE = 18, 3, 1
_LARGEST_WINDOW = 1 << 31
_READ_SIZE = 256 << 10


def decoder(dictionary: bytes | None, *, verify: bool = True) -> Decoder:
    """Return the decoder of whole frames, for use from any number of threads.

    Parameters
    ----------
    dictionary : bytes, optional
        For frames that were made with one.
    verify : bool
        Whether to compare the checksums that frames carry.
    """
    decompressors = Decompressors(dictionary)

    def decode(stored: Bytes, slot: Bytes) -> int:
        _check_complete(lambda at, size: stored[at : at + size].tobytes(), stored.size)
        frame = decompressors.own()
        with translated():
            reader = frame.stream_reader(stored if verify else _without_checksum(stored))
            size: int = reader.readinto(slot) if slot.size else 0
            # The frame's end (its checksum too) is looked at by the read behind the last byte.
            if reader.readinto(bytearray(1)):
                raise CorruptChunkError(f"the frame decodes to more than {slot.size} bytes")
        return size

    return decode


class Decompressors:
    """The library's decoder of each thread: to share one is not safe.

    Parameters
    ----------
    dictionary : bytes, optional
        For all frames.
    """

    def __init__(self, dictionary: bytes | None) -> None:
        self._local = threading.local()
        self._dictionary = _dictionary(dictionary)

    def own(self) -> Any:
        """Return that of the calling thread.

        Raises
        ------
        CorruptChunkError
            If the dictionary is no good.
        """
        if not hasattr(self._local, "frame"):
            self._local.frame = _decompressor(self._dictionary())
        return self._local.frame


def embedded_checksum(stored: Bytes) -> int | None:
    """Return the checksum that a frame carries, which the library compares while it decodes."""
    if stored.size < 9 or not stored[_DESCRIPTOR] & _CHECKSUM_FLAG:
        return None
    return int.from_bytes(stored[-_CHECKSUM_SIZE:].tobytes(), "little")


def _without_checksum(stored: Bytes) -> Bytes:
    """Return a frame that the library finds no checksum in (RFC 8878, section 3.1.1.1.1)."""
    if embedded_checksum(stored) is None:
        return stored
    stripped = stored[:-_CHECKSUM_SIZE].copy()
    stripped[_DESCRIPTOR] &= ~_CHECKSUM_FLAG & 0xFF
    return stripped


def _check_complete(peek: Callable[[int, int], bytes], stored_size: int) -> None:
    """Refuse a payload whose blocks do not end where it ends (RFC 8878, section 3.1.1).

    Parameters
    ----------
    peek : callable
        ``peek(offset, size)`` returns bytes of the payload.
    stored_size : int
        Bytes of the payload.
    """
    import zstandard

    head = peek(0, min(_HEADER_MAXIMUM, stored_size))
    with translated():
        position = zstandard.frame_header_size(head)
    last = False
    while not last and position + _BLOCK_HEADER <= stored_size:
        word = int.from_bytes(peek(position, _BLOCK_HEADER), "little")
        last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        position += _BLOCK_HEADER + (1 if kind == _RLE else size)
    position += _CHECKSUM_SIZE if head[_DESCRIPTOR] & _CHECKSUM_FLAG else 0
    if not last or position != stored_size:
        raise CorruptChunkError(
            f"the frame's blocks end at {position} bytes, its payload has {stored_size}"
        )


def _dictionary(data: bytes | None) -> Callable[[], Any]:
    """Return a function that returns the library's form of a dictionary, made on the first call."""

    @cache
    def make() -> Any:
        import zstandard

        with translated():
            return zstandard.ZstdCompressionDict(data) if data else None

    return make


def _decompressor(dictionary: Any) -> Any:
    import zstandard

    # Readers have compared the windows with the limit; what is left may be as large as it gets.
    try:
        return zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=_LARGEST_WINDOW)
    except zstandard.ZstdError as error:
        raise CorruptChunkError(f"the dictionary that was given is no good: {error}") from None


@contextmanager
def translated() -> Iterator[None]:
    """Raise CorruptChunkError instead of the library's error."""
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
        start, size = int(row["offset"]), int(row["stored_size"])
        _check_complete(lambda at, wanted: self.source.peek_exact(start + at, wanted), size)
        self._check_window(start)
        checksum = _FrameChecksum(self.source, row) if self.options.verify else None
        payload = _Payload(self.source, start, size, verify=bool(self.options.verify))
        for piece in self._decoded(payload):
            if checksum:
                checksum.update(piece)
            yield piece
        if checksum and row["checksum_kind"] != Checksum.NONE:
            checksum.compare()
            self.verified[int(row["checksum_kind"])] += 1

    def _check_window(self, start: int) -> None:
        """Refuse a single segment, which is its own window, if it is larger than windows may be."""
        import zstandard

        with translated():
            head = self.source.peek(start, _HEADER_MAXIMUM)
            window = zstandard.get_frame_parameters(head).window_size
        if window > self.options.window_limit:
            raise MemoryLimitError(
                f"{self.source.name}: byte {start}: decoding this Zstandard frame piece by piece "
                f"needs a window of {window} bytes, more than the limit of "
                f"{self.options.window_limit}; the option window_limit (--max-window) raises it"
            )

    def _decoded(self, payload: _Payload) -> Iterator[Bytes]:
        frame = _decompressor(_dictionary(self.options.dictionary)())
        reader = frame.stream_reader(payload, read_size=_READ_SIZE)
        # Two buffers in turn: the caller may still read one while the other is filled.
        buffers = [np.empty(PIECE, np.uint8) for _ in range(2)]
        size = PIECE
        while size:
            buffers.reverse()
            with translated():
                size = reader.readinto(buffers[0])
            self.position = payload.position
            yield buffers[0][:size]


class _FrameChecksum:
    """The checksum of a row: the library compares the frame's own, here that of a seek table."""

    def __init__(self, source: Source, row: np.void) -> None:
        self._expected = int(row["checksum"])
        start, end = int(row["offset"]), int(row["offset"] + row["stored_size"])
        self._own = bool(source.peek_exact(start + _DESCRIPTOR, 1)[0] & _CHECKSUM_FLAG)
        self._found = int.from_bytes(source.peek(end - _CHECKSUM_SIZE, _CHECKSUM_SIZE), "little")
        needed = not self._own and row["checksum_kind"] != Checksum.NONE
        self._running = checksums.running(Checksum.XXH64_LOW) if needed else None

    def update(self, piece: Bytes) -> None:
        if self._running:
            self._running.update(piece)

    def compare(self) -> None:
        found = self._running.intdigest() & 0xFFFFFFFF if self._running else self._found
        if found != self._expected:
            reason = mismatch(Checksum.XXH64_LOW, self._expected, found)
            raise CorruptChunkError(reason, checksum=True)


class _Payload(io.RawIOBase):
    """The payload of a row as a file to read from, without its checksum if nobody wants it."""

    def __init__(self, source: Source, offset: int, size: int, *, verify: bool) -> None:
        self._source = source
        self._descriptor = offset + _DESCRIPTOR
        self.position = offset
        self._end = offset + size
        self._strip = not verify and bool(
            source.peek_exact(self._descriptor, 1)[0] & _CHECKSUM_FLAG
        )
        if self._strip:
            self._end -= _CHECKSUM_SIZE

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: self._end - self.position]
        self._source.read_exact(self.position, view)
        if self._strip and 0 <= (at := self._descriptor - self.position) < len(view):
            view[at] &= ~_CHECKSUM_FLAG & 0xFF
        self.position += len(view)
        return len(view)
