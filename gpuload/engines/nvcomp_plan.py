"""What nvCOMP is given in which call: a batch, split so that its scratch memory stays small.

Nothing here touches a device.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gpuload.chunks import Codec
from gpuload.errors import DriverError, MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.engines.base import Batch
    from gpuload.engines.nvcomp_library import Library

    Integers = npt.NDArray[np.int64]

#: A number of bytes, or an array of them.
SizeT = TypeVar("SizeT", int, "Integers")

__all__ = ["Part", "Plan", "framed_size", "make_plan", "place_size", "scratch_size"]

#: Moved payloads start at multiples of this: nvCOMP asks for less, but its headers say that more
#: "may help improve performance".
_PLACE = 16
#: The first of them starts at a multiple of this, behind nvCOMP's temporary memory.
_START = 256


@dataclass(frozen=True)
class Part:
    """Chunks that nvCOMP decodes in one call.

    Attributes
    ----------
    codec : int
        Of all of them.
    first, last : int
        Their places in the plan; `last` is not one of them.
    temp_size : int
        Bytes of nvCOMP's temporary memory, at the start of the scratch memory.
    size : int
        Bytes of scratch memory, with the payloads that are moved there.
    """

    codec: int
    first: int
    last: int
    temp_size: int
    size: int


@dataclass(frozen=True)
class Plan:
    """The compressed rows of a batch, in the order in which nvCOMP is given them.

    Attributes
    ----------
    rows : ndarray of intp, shape (n,)
        Their places in the batch: codec by codec, the largest slots first.
    sources, source_sizes, capacities, targets : ndarray of int64, shape (n,)
        Addresses and sizes of what is stored, sizes and addresses of the slots.
    places : ndarray of int64, shape (n,)
        Where in the scratch memory a payload is moved first; -1 for those that stay.
    parts : list of Part
        The calls, one after the other in the same scratch memory.
    """

    rows: npt.NDArray[np.intp]
    sources: Integers
    source_sizes: Integers
    capacities: Integers
    targets: Integers
    places: Integers
    parts: list[Part]

    @property
    def scratch_size(self) -> int:
        """Bytes of scratch memory."""
        return max((part.size for part in self.parts), default=0)


def framed_size(rows: ChunkTable) -> npt.NDArray[np.uint64]:
    """Return the stored bytes of rows; those of Snappy with the preamble, which nvCOMP wants."""
    preamble = np.where(rows["codec"] == Codec.SNAPPY, rows["prefix_size"], 0)
    framed: npt.NDArray[np.uint64] = rows["stored_size"] + preamble.astype(np.uint64)
    return framed


def place_size(size: Integers) -> Integers:
    """Return the scratch memory that payloads take if they are moved."""
    return _round_up(size, _PLACE)


def scratch_size(temp: SizeT, moved: SizeT) -> SizeT:
    """Return the bytes of scratch memory: nvCOMP's own, and the moved payloads behind it."""
    return _round_up(temp, _START) + moved


def _round_up(size: SizeT, unit: int) -> SizeT:
    return -(-size // unit) * unit


def make_plan(
    batch: Batch, which: npt.NDArray[np.intp], library: Library, limit: int, stream: int = 0
) -> Plan:
    """Return how rows of a batch are decoded.

    Parameters
    ----------
    batch : Batch
        Its `src` and `dst` are addresses.
    which : ndarray of intp, shape (n,)
        The rows, none of which is refused.
    library : Library
        Called for the device that is current.
    limit : int
        Bytes of scratch memory.
    stream : int
        Handle of the stream that the batch will run on.

    Raises
    ------
    MemoryLimitError
        If a row takes more scratch memory than that alone.
    DriverError
        If nvCOMP answers with an error, or wants slots at other addresses.
    """
    which, codecs, raw = _in_order(batch.rows, which)
    sizes = framed_size(batch.rows)[which].astype(np.int64)
    bare = np.ascontiguousarray(batch.rows["stored_size"])[which].astype(np.int64)
    sources, targets = batch.src[which] - (sizes - bare), batch.dst[which]
    moved = np.zeros(which.size, np.int64)
    parts: list[Part] = []
    bounds = [*np.flatnonzero(np.diff(codecs, prepend=-1)).tolist(), which.size]
    for first, last in pairwise(bounds):
        codec, mine = int(codecs[first]), slice(first, last)
        needed = library.alignments(codec)
        _check_targets(targets[mine], needed.output)
        moved[mine] = place_size(sizes[mine]) * (sources[mine] % needed.input != 0)
        parts += _Splitter(library, codec, stream, first, raw[mine], moved[mine]).split(limit)
    return Plan(which, sources, sizes, raw, targets, _places(moved, parts), parts)


def _in_order(
    rows: ChunkTable, which: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64], Integers]:
    """Return rows codec by codec, largest slot first, with their codecs and the slots' sizes."""
    # Taking from columns is much faster than taking rows, which lie far apart.
    codecs = np.ascontiguousarray(rows["codec"])[which].astype(np.int64)
    raw = np.ascontiguousarray(rows["raw_size"])[which].astype(np.int64)
    order = np.lexsort((-raw, codecs))
    return which[order], codecs[order], raw[order]


def _check_targets(targets: Integers, alignment: int) -> None:
    wrong = np.flatnonzero(targets % alignment)
    if wrong.size:
        raise DriverError(
            f"nvCOMP writes to multiples of {alignment} only, and a slot is at "
            f"{int(targets[wrong[0]]):#x}: use another engine"
        )


class _Splitter:
    """Splits chunks of one codec, whose slots come in descending order of their sizes."""

    def __init__(
        self, library: Library, codec: int, stream: int, first: int, raw: Integers, moved: Integers
    ) -> None:
        self._library, self._codec, self._stream = library, codec, stream
        self._first, self._raw = first, raw
        # Of Python's integers, which are quicker one by one.
        self._raw_ends, self._moved_ends = ([0, *np.cumsum(size).tolist()] for size in (raw, moved))

    def split(self, limit: int) -> Iterator[Part]:
        """Yield parts of at most `limit` bytes of scratch memory, as large as they can be."""
        start, left = 0, self._raw.size
        while left:
            count = left
            if self._need(start, count)[1] > limit:
                # nvCOMP's need grows with the number of chunks and with their bytes.
                fitting = bisect_right(
                    range(1, left), limit, key=lambda count: self._need(start, count)[1]
                )
                count = max(1, fitting)
            temp, size = self._need(start, count)
            if size > limit:
                raise MemoryLimitError(
                    f"nvCOMP takes {size} bytes of scratch memory for a chunk of "
                    f"{self._raw[start]} bytes, and memory_limit is {limit}: raise it, or use "
                    "another engine"
                )
            first = self._first + start
            yield Part(self._codec, first, first + count, temp, size)
            start, left = start + count, left - count

    def _need(self, start: int, count: int) -> tuple[int, int]:
        """Return the bytes of temporary memory of some chunks, and those of scratch memory."""
        total = self._raw_ends[start + count] - self._raw_ends[start]
        moved = self._moved_ends[start + count] - self._moved_ends[start]
        largest = int(self._raw[start])
        temp = self._library.temp_size(self._codec, count, largest, total, self._stream)
        return temp, scratch_size(temp, moved)


def _places(moved: Integers, parts: list[Part]) -> Integers:
    """Return where payloads go in the scratch memory; -1 for those whose `moved` size is 0."""
    places = np.full(moved.size, -1, np.int64)
    for part in parts:
        mine = moved[part.first : part.last]
        starts = np.cumsum(mine) - mine + _round_up(part.temp_size, _START)
        places[part.first : part.last] = np.where(mine > 0, starts, -1)
    return places
