"""What all writers of compressed streams share.

A writer knows one format and nothing of files and threads. The caller takes `Writer.header`, then
hands groups of consecutive chunks to `Writer.pack` (from any thread, in any order), then every
group's notes to `Writer.note` in the order of the data, and ends with `Writer.trailer`. One writer
makes one stream.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

__all__ = ["MIN_CHUNK_SIZE", "Packed", "Writer"]

#: Smallest chunk of the formats that leave it open. Framing outweighs the data below it.
MIN_CHUNK_SIZE = 1 << 10


class Packed(NamedTuple):
    """A group of chunks as it stands in the file.

    Attributes
    ----------
    pieces : list of bytes-like
        Framing and payload; the concatenation goes to the file.
    notes : sequence of bytes-like
        What the writer wants to see again, in the order of the data, for the trailer.
    """

    pieces: list[Buffer]
    notes: Sequence[Buffer] = ()


class Writer(ABC):
    """Writer of one format.

    Parameters
    ----------
    chunk_size : int, optional
        Decoded bytes of every chunk but the last.
    level : int, optional
        Compression level as the format's own tool counts it.

    Raises
    ------
    ValueError
        If the format does not allow one of them; the message lists what it allows.
    """

    #: What messages call it.
    codec: ClassVar[str]
    #: Allowed chunk sizes in bytes, and the one taken by default.
    chunk_sizes: ClassVar[Sequence[int]]
    default_chunk_size: ClassVar[int]
    #: Allowed levels (none if the format has no levels), and the one taken by default.
    levels: ClassVar[range] = range(0)
    default_level: ClassVar[int] = 0
    #: Most chunks that a stream can hold.
    max_chunks: ClassVar[int] = sys.maxsize

    def __init__(self, chunk_size: int | None = None, level: int | None = None) -> None:
        self.chunk_size = self.default_chunk_size if chunk_size is None else chunk_size
        self._level = self.default_level if level is None else level
        if self.chunk_size not in self.chunk_sizes:
            raise ValueError(
                f"chunk_size of {self.codec} must be {_spell(self.chunk_sizes)} bytes, "
                f"not {chunk_size!r}"
            )
        if level is not None and level not in self.levels:
            raise ValueError(f"level of {self.codec} must be {_spell(self.levels)}, not {level!r}")

    @property
    def level(self) -> int | None:
        """The compression level; None if the format has no levels."""
        return self._level if self.levels else None

    def chunk_count(self, raw_size: int) -> int:
        """Return the number of chunks that `raw_size` bytes make."""
        return -(-raw_size // self.chunk_size)

    def check(self, raw_size: int) -> None:
        """Raise a ValueError if `raw_size` bytes make more chunks than a stream can hold."""
        if self.chunk_count(raw_size) > self.max_chunks:
            least = -(-raw_size // self.max_chunks)
            raise ValueError(
                f"chunk_size of {self.codec} must be at least {least} bytes for {raw_size} bytes "
                f"of data (at most {self.max_chunks} chunks), not {self.chunk_size}"
            )

    @abstractmethod
    def header(self, raw_size: int) -> bytes:
        """Return what stands before the chunks of `raw_size` bytes in total."""

    @abstractmethod
    def pack(self, chunks: Iterable[memoryview]) -> Packed:
        """Compress consecutive chunks; safe from several threads at once."""

    def note(self, notes: Sequence[Buffer]) -> None:  # noqa: B027 (most formats keep no notes)
        """Take the notes of the next group."""

    @abstractmethod
    def trailer(self) -> bytes:
        """Return what stands behind the chunks, once the notes of all of them were taken."""


def _spell(allowed: Sequence[int]) -> str:
    if not allowed:
        return "left out (it has none)"
    if isinstance(allowed, range):
        return f"{allowed[0]} to {allowed[-1]}"
    return "one of " + ", ".join(map(str, allowed))
