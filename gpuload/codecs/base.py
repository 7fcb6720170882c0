"""What host decoders have in common.

A *decoder* takes one stored payload and decodes it into a slot; a *stream decoder* yields the
decoded bytes of payloads too large, too entangled or too open-ended for a slot, piece by piece.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload import checksums
from gpuload.chunks import ChunkTable

if TYPE_CHECKING:
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = [
    "PIECE",
    "Bytes",
    "CorruptChunkError",
    "Decoder",
    "ManyDecoder",
    "Offsets",
    "StreamDecoder",
    "check",
    "gather",
    "mismatch",
]

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

#: ``decoder(stored, slot) -> size``: decode `stored` into `slot` and return how many bytes it gave.
#: Raises CorruptChunkError; never writes outside the slot.
Decoder = Callable[[Bytes, Bytes], int]

#: ``decoder(rows, src, dst, stored, out) -> count``: decode the first rows of a batch (see
#: `gpuload.engines.base.HostBatch`), as many as can be taken together, and return how many these
#: are: all of those came out right, as they do one by one. Returns 0 if none are taken, or anything
#: is wrong with any of them. Writes to no other slots.
ManyDecoder = Callable[[ChunkTable, Offsets, Offsets, Bytes, Bytes], int]

#: Bytes that a stream decoder yields at a time, about.
PIECE = 1 << 20
_SIGN_OF_LIFE = 512


class CorruptChunkError(Exception):
    """A payload does not decode. The engine turns it into a ChunkFailure; users never see it.

    Parameters
    ----------
    reason : str
        What was found, and what was expected instead.
    row : int
        Index of the row among those that a stream decoder was given.
    offset : int, optional
        Byte offset in the source, where it is known better than the payload's start.
    actual : int, optional
        Decoded bytes, where they decoded but are not as many as the file states.
    checksum : bool
        Whether they decoded and only a checksum disagrees.
    """

    def __init__(
        self,
        reason: str,
        *,
        row: int = 0,
        offset: int | None = None,
        actual: int | None = None,
        checksum: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row
        self.offset = offset
        self.actual = actual
        self.checksum = checksum


class StreamDecoder(ABC):
    """Decodes rows one after the other in bounded memory.

    Parameters
    ----------
    source : Source
        Where the rows' payloads are.
    rows : ChunkTable
        Rows that form one serial stream.
    options : Options
        `verify`, `dictionary` and `window_limit` matter here.
    vouched : bool
        Whether the caller checks the decoded bytes against a checksum.

    Attributes
    ----------
    position : int
        Bytes of the source up to here have been decoded, for progress.
    verified : collections.Counter
        How many checksums of each kind (`gpuload.chunks.Checksum`) agreed so far.
    warnings : list of tuple of (str, int)
        Deviations from the format, with their byte offsets in the source.
    """

    def __init__(
        self, source: Source, rows: ChunkTable, options: Options, *, vouched: bool = False
    ) -> None:
        self.source = source
        self.rows = rows
        self.options = options
        self.vouched = vouched
        self.position = int(rows["offset"][0])
        self.verified: Counter[int] = Counter()
        self.warnings: list[tuple[str, int]] = []

    @abstractmethod
    def pieces(self) -> Iterator[Bytes]:
        """Yield the decoded bytes, about `PIECE` at a time.

        A piece is valid until the second piece after it is asked for, so that one can be written
        while the next is decoded.

        Raises
        ------
        CorruptChunkError
            Where the stream does not decode.
        FormatError
            Where the source ends too early.
        """


def check(kind: int, data: Bytes, expected: int) -> None:
    """Compare a checksum of `data` with the stored one.

    Raises
    ------
    CorruptChunkError
        If they differ; `checksum` is set.
    """
    found = checksums.compute(kind, data)
    if found != expected:
        raise CorruptChunkError(mismatch(kind, expected, found), checksum=True)


def mismatch(kind: int, expected: int, found: int) -> str:
    """Return the sentence for a checksum that disagrees."""
    return f"{checksums.describe(kind)} is {found:#010x}, the file says {expected:#010x}"


def gather(parts: Iterable[bytes | bytearray]) -> Iterator[Bytes]:
    """Join small parts to pieces of at least `PIECE` bytes (the last one may be shorter).

    After many parts that gave little, an empty piece tells the caller that work goes on.
    """
    waiting: list[bytes | bytearray] = []
    size = 0
    for number, part in enumerate(parts, 1):
        if number % _SIGN_OF_LIFE == 0:
            yield np.empty(0, np.uint8)
        if part:
            waiting.append(part)
        size += len(part)
        if size >= PIECE:
            yield _joined(waiting)
            waiting, size = [], 0
    if size:
        yield _joined(waiting)


def _joined(parts: list[bytes | bytearray]) -> Bytes:
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)
