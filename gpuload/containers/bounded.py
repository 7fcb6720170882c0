"""Bound what the index of a file may take in memory.

A file can consist of millions of chunks of almost no bytes, each of which is a row of the table.
Readers look at a source once or more for each row, so the looks are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload.errors import MemoryLimitError
from gpuload.sources import Source

if TYPE_CHECKING:
    from gpuload.options import Options

__all__ = ["BoundedSource"]

#: Bytes of memory for each look at a source. A row takes 64 in the table and about as much again
#: while the table is made; a Zstandard frame or an empty LZ4 frame takes up to 300.
_BYTES_A_LOOK = 256
#: Resident bytes that readers see at a time, and count their looks behind.
_UNCOUNTED = 1 << 20


class BoundedSource(Source):
    """A source that a reader may look at only so often.

    Parameters
    ----------
    source : Source
        What is read.
    options : Options
        `memory_limit` bounds the number of looks.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self.name = source.name
        self.size = source.size
        self.wrapped = source
        self._limit = options.memory_limit
        self._left = max(1 << 12, options.memory_limit // _BYTES_A_LOOK)

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`."""
        return self.wrapped.readinto(offset, view)

    def peek(self, offset: int, size: int) -> bytes:
        """See `Source.peek`; a MemoryLimitError when there were too many."""
        self.look(offset, 1)
        return self.wrapped.peek(offset, size)

    def resident(self, offset: int) -> tuple[memoryview, int]:
        """See `Source.resident`; who looks into it says how often, by `look`."""
        view, start = self.wrapped.resident(offset)
        return view[: max(0, offset - start) + _UNCOUNTED], start

    def look(self, offset: int, times: int) -> None:
        """Count looks up to an offset; a MemoryLimitError when there were too many."""
        self._left -= times
        if self._left < 0:
            raise MemoryLimitError(
                f"{self.name}: byte {offset}: listing the chunks up to here takes more than "
                f"memory_limit ({self._limit} bytes); raise it (--memory-limit)"
            )
