"""What a reader returns: the index of a file.

A reader is a function ``read(source, options) -> Index``. It reads headers only, never payload, so
that opening a file costs as little as walking it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpuload.chunks import SPAN_DTYPE, UNKNOWN, ChunkTable, SpanTable
from gpuload.errors import FormatError

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.sources import Source

__all__ = ["Asset", "Index", "Listener"]


class Listener(Protocol):
    """Takes the rows of a file while it is being listed.

    Attributes
    ----------
    at : int
        Offset from which on the reader hands over what it has found, when it gets to it.
    """

    at: int

    def take(self, chunks: ChunkTable, spans: SpanTable, *, done: bool) -> None:
        """Take the next rows, and the spans that end with one of them.

        Parameters
        ----------
        chunks : ChunkTable
            All rows whose payloads end before `at`, except for the last row that was found.
        spans : SpanTable
            Their rows count from the first row of the file.
        done : bool
            Whether these are the last rows.
        """


@dataclass(frozen=True)
class Asset:
    """One thing that can be loaded by name.

    Attributes
    ----------
    name : str
        Empty for the only asset of a stream.
    dtype : numpy.dtype
        Element type.
    shape : tuple of int or None
        Elements along each axis; None for a byte stream whose size only decoding finds.
    """

    name: str = ""
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.uint8))
    shape: tuple[int, ...] | None = None


@dataclass
class Index:
    """The index of one file.

    Attributes
    ----------
    format : str
        "lz4", "snappy", "gzip", "bgzf" or "zstd".
    source : Source
        The file.
    chunks : ChunkTable
        One row per chunk, in the order of the decoded bytes.
    spans : SpanTable
        Sizes and checksums that cover several rows.
    assets : list of Asset
        What the rows' `asset` points to.
    serial : str
        Why the chunks cannot be decoded independently; empty if they can ("batchable").
    strict : bool
        Whether `warn` raises.
    details : dict
        Facts for ``inspect``: plain values under names of the format's specification.
    warnings : list of str
        What deviates from the format without making the bytes doubtful.
    """

    format: str
    source: Source
    chunks: ChunkTable
    spans: SpanTable = field(default_factory=lambda: np.zeros(0, SPAN_DTYPE))
    assets: list[Asset] = field(default_factory=lambda: [Asset()])
    serial: str = ""
    strict: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def batchable(self) -> bool:
        """Whether the chunks are independent of one another."""
        return not self.serial

    @property
    def exact(self) -> bool:
        """Whether the file states the decoded size of every chunk."""
        return bool(self.chunks["exact"].all())

    @property
    def raw_bound(self) -> int:
        """Most bytes that the file can decode to."""
        sizes: list[int] = self.chunks["raw_size"].tolist()
        return sum(sizes)

    @property
    def raw_size(self) -> int | None:
        """Decoded bytes as the file states them, by chunk or by span; None if it does not."""
        if self.exact:
            return self.raw_bound
        covered = int(self.spans["count"].sum()) == self.chunks.size
        if not covered or (self.spans["raw_size"] == UNKNOWN).any():
            return None
        sizes: list[int] = self.spans["raw_size"].tolist()
        return sum(sizes)

    @property
    def checksum_kinds(self) -> npt.NDArray[np.uint8]:
        """The kinds of all checksums of chunks and spans, `Checksum.NONE` among them."""
        return np.concatenate((self.chunks["checksum_kind"], self.spans["checksum_kind"]))

    def warn(self, message: str, offset: int, outcome: str = "ignored") -> None:
        """Note a deviation at a byte offset; a FormatError if the caller asked to be strict.

        Parameters
        ----------
        message : str
            What deviates.
        offset : int
            Where.
        outcome : str
            What that means for a caller who did not ask to be strict; the warning ends with it.
        """
        if self.strict:
            raise FormatError(message, source=self.source.name, offset=offset)
        text = f"{self.source.name}: byte {offset}: {message}; {outcome}"
        if text not in self.warnings:
            self.warnings.append(text)
