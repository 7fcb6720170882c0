"""The contract of every engine: a batch of table rows in, a status a row out.

Submitting and waiting are two calls, so that a device can work while the next batch is staged. All
engines decode the same rows to the same bytes and refuse the same ones; ``EngineTests`` in the
tests holds each of them to it. One difference is known: liblz4, on the host, takes some blocks that
end otherwise than the LZ4 block format asks (its end-of-block conditions), which no encoder writes
and the kernels refuse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cuda.core import Buffer, Stream

    from gpuload.chunks import ChunkTable

__all__ = [
    "Batch",
    "DeviceBatch",
    "Engine",
    "HostBatch",
    "Outcome",
    "Status",
    "Submission",
]


class Status(IntEnum):
    """What became of a row."""

    OK = 0
    CORRUPT = 1  #: the payload does not decode
    SIZE = 2  #: it decodes to another size than the file states
    CHECKSUM = 3  #: it decodes, but a checksum disagrees
    REFUSED = 4  #: the driver did not take it


@dataclass(frozen=True)
class Batch:
    """Rows to decode, with where their bytes are and where they go.

    Parameters
    ----------
    rows : ChunkTable
        n rows, none of them chained.
    src : ndarray of int64, shape (n,)
        Where each payload starts; a row's prefix stands right before it.
    dst : ndarray of int64, shape (n,)
        Where each slot starts; slots are `raw_size` bytes long and do not overlap.
    """

    rows: ChunkTable
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]


@dataclass(frozen=True)
class HostBatch(Batch):
    """A batch in host memory: `src` counts from the start of `stored`, `dst` from that of `out`.

    Parameters
    ----------
    stored, out : ndarray of uint8
        Staged bytes, and the destination.
    """

    stored: npt.NDArray[np.uint8]
    out: npt.NDArray[np.uint8]

    def part(self, first: int, last: int) -> HostBatch:
        """Return the batch of rows `first` to `last` (exclusive)."""
        return self.take(slice(first, last))

    def take(self, rows: slice | npt.NDArray[np.intp]) -> HostBatch:
        """Return the batch of some of the rows."""
        return HostBatch(self.rows[rows], self.src[rows], self.dst[rows], self.stored, self.out)


@dataclass(frozen=True)
class DeviceBatch(Batch):
    """A batch in memory that a device reads and writes: `src` and `dst` are addresses.

    Parameters
    ----------
    actual : Buffer
        At least n 32-bit words that the device writes and the host reads: the decoded sizes.
    stream : Stream
        What the batch waits for, and what waits for the batch.
    """

    actual: Buffer
    stream: Stream


@dataclass
class Outcome:
    """What became of a batch of n rows.

    Attributes
    ----------
    actual : ndarray of int64, shape (n,)
        Decoded bytes of each row that is OK; of others what the engine says, or 0.
    status : ndarray of uint8, shape (n,)
        A `Status` for each row. The slot of a row that is not OK holds nothing of use.
    reasons : dict of int to str
        For each row that is not OK, what was found and what was expected.
    code : int
        What the CUDA driver answered; 0 if it took the batch, or is not involved.
    blame : dict of int to str
        For rows that failed on a device, how that is known: "index" if the driver named the row,
        "none" if it named no row of the batch, "size" if the decoded size disagrees.
    """

    actual: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]
    reasons: dict[int, str] = field(default_factory=dict)
    code: int = 0
    blame: dict[int, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, count: int) -> Outcome:
        """Return the outcome of `count` rows before they are decoded."""
        return cls(np.zeros(count, np.int64), np.zeros(count, np.uint8))

    def fail(self, row: int, status: Status, reason: str) -> None:
        """Note that a row failed."""
        self.status[row] = status
        self.reasons[row] = reason

    @classmethod
    def joined(cls, parts: list[Outcome]) -> Outcome:
        """Return the outcome of batches that follow one another."""
        reasons, first = {}, 0
        for part in parts:
            reasons.update({first + row: reason for row, reason in part.reasons.items()})
            first += part.actual.size
        actual = np.concatenate([part.actual for part in parts])
        return cls(actual, np.concatenate([part.status for part in parts]), reasons)


class Submission(ABC):
    """A batch on its way."""

    @abstractmethod
    def wait(self) -> Outcome:
        """Block until the batch is done and return what became of it."""


BatchT = TypeVar("BatchT", bound=Batch)


class Engine(ABC, Generic[BatchT]):
    """Decodes batches of one kind of memory.

    Attributes
    ----------
    name : str
        As `engine=` and ``--engine`` spell it.
    """

    name: ClassVar[str]

    @abstractmethod
    def refusals(self, rows: ChunkTable) -> dict[str, npt.NDArray[np.bool_]]:
        """Return why the engine cannot take rows: for each reason, which rows it holds for."""

    @abstractmethod
    def submit(self, batch: BatchT) -> Submission:
        """Start to decode a batch of rows that the engine does not refuse."""

    def close(self) -> None:
        """Release what the engine holds."""
