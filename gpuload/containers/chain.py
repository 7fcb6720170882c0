"""What files whose chunks' headers form a single chain have in common: what a scan can find.

A header is visited with the bytes around it, and becomes a record: its position and some 32-bit
words. What a row needs stands in the record of its chunk and in that of the header behind it, so
that n rows come of n + 1 records, the last of which may be that of the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gpuload.chunks import make_spans

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable, SpanTable
    from gpuload.containers.base import Index
    from gpuload.errors import FormatError
    from gpuload.options import Options
    from gpuload.sources import Source

    Positions = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint32]

__all__ = ["Chain"]


class Chain(ABC):
    """The framing of a file.

    Parameters
    ----------
    source : Source
        The file.
    options : Options
        As for `read_index`.

    Attributes
    ----------
    name : str
        The format.
    head, before : int
        Bytes of a header that are looked at, and bytes before it.
    words : int
        32-bit words of a record.
    first : int
        Where the first header stands.
    longest : int
        Stored bytes of a chunk, at most, which are usual.
    summed : bool
        Whether a checksum of 4 bytes follows each.
    """

    name: str
    head: int
    before: int
    words: int
    first = 0
    longest = 0
    summed = False

    def __init__(self, source: Source, options: Options) -> None:
        self.source, self.options = source, options

    @abstractmethod
    def visit(self, position: int, around: bytes) -> tuple[int, tuple[int, ...]]:
        """Return the position of the header behind one, and the words of its record.

        Parameters
        ----------
        position : int
            Where it stands.
        around : bytes
            Its bytes, and those before it.

        Raises
        ------
        FormatError
            If it is no header as all others are.
        """

    def ends(self, position: int, around: bytes) -> bool:
        """Return whether the chain ends at a position.

        Raises
        ------
        FormatError
            If anything else than the end of the file follows.
        """
        if position > self.source.size:
            raise self.source.truncated(self.source.size, position - self.source.size)
        return position == self.source.size

    @abstractmethod
    def record_before(self, around: bytes) -> tuple[int, ...]:
        """Return the words of a record of which only what stands before the header is known."""

    @abstractmethod
    def rows(self, positions: Positions, words: Words) -> ChunkTable:
        """Return the rows of all records but the last.

        It is called once for each part of the chain, in order.

        Raises
        ------
        FormatError
            As the readers do.
        """

    def spans(self, count: int, end: int) -> SpanTable:
        """Return the spans of the file, from the number of its rows and where the chain ends."""
        return make_spans([])

    @abstractmethod
    def index(self, chunks: ChunkTable, spans: SpanTable, last: int, end: int) -> Index:
        """Return the index as the reader does.

        Parameters
        ----------
        chunks, spans : ChunkTable, SpanTable
            All of them.
        last, end : int
            Where the last chunk starts, and where the chain ends.
        """

    def irregular(self, position: int) -> FormatError:
        """Return the error of a header that is not as the others are."""
        return self.source.broken(position, f"no header as the others of this {self.name} file")
