"""Large chunks that are one DEFLATE stream, decoded piece by piece.

A member of an NPZ file is a chunk of any size: neither its stored nor its decoded bytes have to be
in memory at once, and the members of a file are decoded side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload import checksums
from gpuload.array_codecs import Skip
from gpuload.chunks import Checksum
from gpuload.codecs import inflate
from gpuload.codecs.base import CorruptChunkError, mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from gpuload.array_plan import ArrayPlan
    from gpuload.codecs.base import Bytes
    from gpuload.options import Options

__all__ = ["PIECE", "ChunkStream", "streamed"]

#: Decoded bytes of a piece, at most: threads seldom meet at Python between pieces.
PIECE = 4 << 20
#: Stored bytes that are read at a time.
_FEED = 1 << 20
#: Decoded bytes of a chunk from which on it is decoded piece by piece.
_LARGE = 16 << 20
_NO_CHECKSUM = -1


def streamed(plan: ArrayPlan) -> npt.NDArray[np.bool_]:
    """Return which chunks of a plan are decoded piece by piece, shape (n,)."""
    pipeline = plan.asset.pipeline
    bytewise = plan.undone or [step.name for step in pipeline.compression] != ["deflate"]
    if bytewise:
        return np.zeros(plan.missing.size, np.bool_)
    found: npt.NDArray[np.bool_] = (plan.encoded_sizes >= _LARGE) & ~plan.missing
    return found


class ChunkStream:
    """One chunk.

    Parameters
    ----------
    plan : ArrayPlan
        Whose.
    chunk : int
        Which; `streamed` says that it can be decoded so.
    options : Options
        `verify` matters.

    Attributes
    ----------
    checksum : Checksum
        What of it can be checked, and is at the end unless `verify` is off.
    """

    def __init__(self, plan: ArrayPlan, chunk: int, options: Options) -> None:
        places = plan.places
        self._readinto, self._key = plan.store.readinto, places.keys[int(places.objects[chunk])]
        self._position = int(places.offsets[chunk])
        self._end = self._position + int(places.sizes[chunk])
        self._size, self._stored_size = int(plan.encoded_sizes[chunk]), int(places.sizes[chunk])
        steps = plan.asset.pipeline.filters
        self._skip = sum(step.size for step in steps if isinstance(step, Skip))
        known = _NO_CHECKSUM if places.checksums is None else int(places.checksums[chunk])
        self.checksum = Checksum.NONE if known == _NO_CHECKSUM else Checksum.CRC32
        self._crc = known if options.verify else _NO_CHECKSUM
        self._behind = False
        self._buffer = np.empty(min(_FEED, max(1, self._stored_size)), np.uint8)

    def pieces(self) -> Iterator[Bytes]:
        """Yield the bytes of the chunk's elements, `PIECE` at a time at most.

        Raises
        ------
        CorruptChunkError
            If the stream is damaged, decodes to another size, or to bytes with another checksum.
        FormatError, OSError
            As reading does.
        """
        crc32, crc, size, skip = checksums.crc32(), 0, 0, self._skip
        for part in self._parts():
            size += len(part)
            if size > self._size:
                raise self._damaged()
            if self._crc != _NO_CHECKSUM:
                crc = crc32(part, crc)
            piece = np.frombuffer(part, np.uint8)[skip:]
            skip = max(0, skip - len(part))
            if piece.size:
                yield piece
        if size != self._size:
            reason = f"it decodes to {size} bytes, the file says {self._size}"
            raise CorruptChunkError(reason, actual=size)
        if self._crc not in (_NO_CHECKSUM, crc):
            raise CorruptChunkError(mismatch(Checksum.CRC32, self._crc, crc), checksum=True)
        if self._crc != _NO_CHECKSUM and self._behind:
            raise CorruptChunkError("bytes follow the end of the DEFLATE stream")

    def _parts(self) -> Iterator[bytes]:
        stream, data = inflate.new_stream(), b""
        while not stream.eof:
            if stream.needs_input:
                data = self._feed()
                if not data:
                    raise self._damaged()
            try:
                yield stream.decompress(data, PIECE)
            except inflate.errors():
                raise self._damaged() from None
            data = b""
        self._behind = bool(stream.unused_data) or self._position < self._end

    def _feed(self) -> bytes:
        view = memoryview(self._buffer)[: self._end - self._position]
        self._readinto(self._key, self._position, view)
        self._position += len(view)
        return bytes(view)

    def _damaged(self) -> CorruptChunkError:
        return CorruptChunkError(
            f"the DEFLATE stream is damaged, or decodes to more than {self._size} bytes"
        )
