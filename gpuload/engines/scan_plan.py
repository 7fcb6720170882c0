"""What kernels that find the headers of chunks are asked, and how their answers are read.

They take the parameters of decoders and read them otherwise (gpuload/kernels/scan.cuh): an
operation is a segment of a range of a file, whose output is three words and as many records as
there is room for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload.engines import operations
from gpuload.kernels.variants import Variant

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint32]

__all__ = ["LARGEST_RANGE", "SCANS", "SCAN_DTYPE", "SEGMENT", "Scan", "ScanKind", "ScanPlan"]

#: `PARAMS_DTYPE` of gpuload.batch, as scans read it.
SCAN_DTYPE = np.dtype(
    [
        ("size", "<u8"),
        ("room", "<u8"),
        ("unused", "<u8"),
        ("range", "<i8"),
        ("output", "<i8"),
        ("algo", "<i4"),
        ("start", "<u4"),
        ("end", "<u4"),
        ("entry", "<u4"),
        ("longest", "<u4"),
        ("summed", "<u4"),
    ]
)
#: Bytes of a segment. A warp looks through it, and then goes from header to header, each of which
#: takes most of a microsecond: on a device with 132 multiprocessors a range of 52 MiB has about as
#: many segments as can be looked through side by side.
SEGMENT = 256 << 10
#: Bytes of a range, at most.
LARGEST_RANGE = 256 << 20
#: Bytes of pinned memory for a range, at least and at most, and stored bytes for each of them.
_LEAST, _MOST, _SHARE = 64 << 10, 4 << 20, 8
_UNKNOWN = 0xFFFFFFFF
#: The largest `Stop` of the kernels; a status above is one that no kernel wrote.
_NOTHING = 5
_ALIGNMENT, _HEAD = 16, 3


@dataclass(frozen=True)
class ScanKind:
    """A kernel that finds headers.

    Attributes
    ----------
    variant : Variant
        The kernel.
    algorithm : int
        Its code (``ScanAlgo`` in gpuload/kernels/scan.cuh).
    words : int
        32-bit words of a record behind the position.
    """

    variant: Variant
    algorithm: int
    words: int


#: By the name of the format.
SCANS = {
    "lz4": ScanKind(Variant("scan_lz4", 32), 768, 2),
    "snappy": ScanKind(Variant("scan_snappy", 32), 769, 4),
    "bgzf": ScanKind(Variant("scan_bgzf", 32), 770, 3),
    "zstd": ScanKind(Variant("scan_zstd", 32), 771, 3),
}


@dataclass(frozen=True)
class Scan:
    """The headers that were found in the n segments of a range.

    Positions count from the range's first byte. Nothing says which chains are those of the file.

    Attributes
    ----------
    segment : int
        Bytes of a segment.
    counts, starts : ndarray of int64, shape (n,)
        How many records each segment has, and which of all is its first.
    firsts, exits : ndarray of int64, shape (n,)
        The position of the first header of the chain in each, and that of the header behind its
        last one; of no meaning where there is none.
    positions : ndarray of int64, shape (m,)
        Where the headers stand.
    words : ndarray of uint32, shape (m, words of the kind)
        What was recorded of each.
    """

    segment: int
    counts: Integers
    starts: Integers
    firsts: Integers
    exits: Integers
    positions: Integers
    words: Words


class ScanPlan:
    """The operations for a range, in a block of memory.

    Parameters
    ----------
    kind : ScanKind
        What is looked for.
    size : int
        Bytes of the range, at most `LARGEST_RANGE`.
    segment : int
        Bytes of a segment.
    """

    def __init__(self, kind: ScanKind, size: int, segment: int = SEGMENT) -> None:
        if not 0 < size <= LARGEST_RANGE:
            raise ValueError(f"a range of {size} bytes; expected 1 to {LARGEST_RANGE}")
        self._kind, self._size, self._segment = kind, size, segment
        self.count = -(-size // segment)
        self._outputs = -(-operations.size_of(self.count) // _ALIGNMENT) * _ALIGNMENT
        wanted = min(_MOST, max(_LEAST, size // _SHARE)) - self._outputs
        self._room = wanted // self.count // _ALIGNMENT * _ALIGNMENT
        if self._room <= 4 * _HEAD:
            raise ValueError(f"{self.count} segments of {segment} bytes, too many for a range")
        #: Bytes of memory that it takes.
        self.size = self._outputs + self.count * self._room

    def params(
        self, address: int, block: int, entry: int | None, longest: int, *, summed: bool
    ) -> npt.NDArray[np.void]:
        """Return the parameters.

        Parameters
        ----------
        address, block : int
            Of the range, and of the memory.
        entry : int, optional
            Where in the range a header stands, if that is known.
        longest : int
            Stored bytes of a chunk, at most.
        summed : bool
            Whether a checksum of 4 bytes follows each.
        """
        params = np.zeros(self.count, SCAN_DTYPE)
        number = np.arange(self.count)
        params["size"], params["room"] = self._size, self._room
        params["range"] = address
        params["output"] = block + self._outputs + number * self._room
        params["algo"] = self._kind.algorithm
        params["start"] = number * self._segment
        params["end"] = np.minimum((number + 1) * self._segment, self._size)
        params["entry"] = _UNKNOWN
        if entry is not None and 0 <= entry < self._size:
            params["entry"][entry // self._segment] = entry
        params["longest"], params["summed"] = longest, summed
        return params

    def found(self, statuses: Words, memory: npt.NDArray[np.uint8]) -> Scan:
        """Return what was found, as it stands in the memory; copies all of it."""
        outputs = memory[self._outputs : self.size].view(np.uint32)
        each, record = self._room // 4, 1 + self._kind.words
        heads = outputs.reshape(self.count, each)[:, :_HEAD].astype(np.int64)
        counts = np.where(statuses <= _NOTHING, heads[:, 0], 0)
        if counts.max() > (each - _HEAD) // record:
            raise ValueError("a scan that has more records than there is room for")
        starts = np.cumsum(counts) - counts
        owner = np.repeat(np.arange(self.count), counts)
        within = np.arange(owner.size) - starts[owner]
        at = owner * each + _HEAD + within * record
        records = outputs[at[:, np.newaxis] + np.arange(record)]
        return Scan(
            segment=self._segment,
            counts=counts,
            starts=starts,
            firsts=heads[:, 1],
            exits=heads[:, 2],
            positions=records[:, 0].astype(np.int64),
            words=records[:, 1:],
        )
