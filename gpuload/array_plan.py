"""What loading a selection of an array takes: stored chunks, where they are and where they go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.array_codecs import Skip, Transpose
from gpuload.containers.array import Places
from gpuload.errors import FormatError, MemoryLimitError, UnsupportedCodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuload.containers.array import ArrayAsset
    from gpuload.selection import Boxes, Selection
    from gpuload.sources.stores import Store

    Integers = npt.NDArray[np.int64]

    #: Of an object: its key, where in it something starts, where that goes, and its size.
    Read = tuple[str, int, int, int]

__all__ = ["ArrayPlan", "Part"]

#: Bytes between two chunks of an object that are read along rather than left out.
_GAP = 4 << 10
#: Bytes of a chunk, at most: those of many chunks still add up in 64 bits.
_LARGEST = 1 << 40
#: Bytes that one thread reads at once.
_READ = 4 << 20
#: What the places of chunks in memory of a device are multiples of.
_EVEN = 16


@dataclass(frozen=True)
class Part:
    """Chunks of a plan that are worked on together.

    Attributes
    ----------
    plan : ArrayPlan
        Whose.
    first, last : int
        The chunks, the last exclusive.
    """

    plan: ArrayPlan
    first: int
    last: int


class ArrayPlan:
    """The plan for one selection.

    Parameters
    ----------
    asset : ArrayAsset
        The array.
    store : Store
        Where its chunks are.
    selection : Selection
        What is wanted of it.
    missing : str
        "fill", or "error" to refuse chunks that are missing.

    Attributes
    ----------
    chunks : ndarray of int64, shape (n, axes)
        The chunks that are needed, in the order in which they are stored.
    first, last : ndarray of int64, shape (n,)
        Which boxes are of each, the last exclusive.
    places : Places
        Where they are stored.
    raw_sizes : ndarray of int64, shape (n,)
        Bytes of each when it is decoded and all filters are undone.
    step_sizes : ndarray of int64, shape (filters + 1, n)
        Bytes that go into each filter when it is undone, and that come out of the last.

    Raises
    ------
    UnsupportedCodecError
        If the array cannot be loaded.
    FormatError
        If a chunk is missing that must not be, or an index of chunks is damaged.
    """

    def __init__(
        self, asset: ArrayAsset, store: Store, selection: Selection, missing: str = "fill"
    ) -> None:
        if asset.error or asset.grid is None:
            where = f"{store.name}: {asset.name}" if asset.name else store.name
            raise UnsupportedCodecError(asset.error, source=where)
        self.asset, self.store, self.selection = asset, store, selection
        self.boxes: Boxes = selection.boxes(asset.chunk_shape)
        self.chunks, edges = self.boxes.of_chunks()
        self.first, self.last = edges[:-1], edges[1:]
        self.places: Places = asset.grid.locate(self.chunks)
        self._order_as_stored()
        self.raw_sizes = self._raw_sizes()
        self.step_sizes = self._filtered_sizes()
        self._check_told_sizes()
        self._check_missing(missing)

    @property
    def name(self) -> str:
        """What messages call the array."""
        return f"{self.store.name}: {self.asset.name}" if self.asset.name else self.store.name

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.asset.dtype.itemsize

    @property
    def result_size(self) -> int:
        """Bytes of the result."""
        return prod(self.selection.shape) * self.itemsize

    @cached_property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Which chunks are not stored."""
        return self.places.objects < 0

    @property
    def encoded_sizes(self) -> Integers:
        """Bytes of each before filters are undone, shape (n,)."""
        sizes: Integers = self.step_sizes[0]
        return sizes

    @cached_property
    def aligned_sizes(self) -> Integers:
        """Most bytes of each on its way, so that those that follow one another start evenly."""
        sizes: Integers = -(-self.step_sizes.max(axis=0, initial=0) // _EVEN) * _EVEN
        return sizes

    @cached_property
    def stored_size(self) -> int:
        """Bytes of the chunks that are."""
        return int(self.places.sizes[~self.missing].sum())

    @property
    def bare(self) -> bool:
        """Whether chunks are stored as they are, but for checksums behind them."""
        return all(step.name == "crc32c" for step in self.asset.pipeline.compression)

    @property
    def has_stored_sums(self) -> bool:
        """Whether stored chunks have a CRC-32C, which is checked, and left off, by `expand`."""
        return any(step.name == "crc32c" for step in self.asset.pipeline.compression)

    @cached_property
    def undone(self) -> int:
        """How many filters have to be undone byte by byte, those of Blosc taken as one."""
        pipeline = self.asset.pipeline
        filters = sum(not isinstance(step, Skip | Transpose) for step in pipeline.filters)
        return filters + any(step.name == "blosc" for step in pipeline.compression)

    @cached_property
    def memory(self) -> tuple[Integers, Integers, Integers]:
        """Bytes of each chunk on a device: stored, and before and behind a filter."""
        there = ~self.missing
        stored = np.where(there, self.places.sizes + _gaps(self.places, _all(there.size)), 0)
        work = np.where(there, self.aligned_sizes, 0)
        pieces = self.undone + (not self.bare)
        first = work if pieces else np.zeros_like(work)
        second = np.where(self.direct, 0, work) if pieces > 1 else np.zeros_like(work)
        return stored, first, second

    def _order_as_stored(self) -> None:
        """Put chunks in the order of their bytes: those of a shard need not be in the grid's."""
        places = self.places
        order = np.lexsort((places.offsets, places.objects))
        if (np.diff(order) == 1).all():
            return
        self.chunks, self.first, self.last = (
            each[order] for each in (self.chunks, self.first, self.last)
        )
        raw, sums = places.raw_sizes, places.checksums
        self.places = Places(
            places.objects[order],
            places.offsets[order],
            places.sizes[order],
            places.keys,
            raw_sizes=None if raw is None else raw[order],
            checksums=None if sums is None else sums[order],
        )

    def _raw_sizes(self) -> Integers:
        shape, count = self.asset.chunk_shape, self.chunks.shape[0]
        sizes = np.full(count, self._checked(prod(shape) * self.itemsize), np.int64)
        if self.asset.clipped and shape:
            rows = self.asset.lengths[0] - self.chunks[:, 0] * shape[0]
            sizes = np.minimum(rows, shape[0]) * self._checked(prod(shape[1:]) * self.itemsize)
        return sizes

    def _checked(self, size: int) -> int:
        """Return the bytes of a chunk, which may only be huge if none is stored."""
        most = max(self.asset.pipeline.filtered_sizes(size))
        if most > _LARGEST and not self.missing.all():
            raise MemoryLimitError(f"{self.name}: a chunk decodes to {most} bytes")
        return min(size, _LARGEST)

    def _filtered_sizes(self) -> Integers:
        unique, which = np.unique(self.raw_sizes, return_inverse=True)
        sizes = [self.asset.pipeline.filtered_sizes(size) for size in unique.tolist()]
        steps = len(self.asset.pipeline.filters) + 1
        table = np.minimum(np.array(sizes, np.int64).reshape(unique.size, steps), _LARGEST)
        return table[which].T

    def _check_told_sizes(self) -> None:
        told = self.places.raw_sizes
        wrong = (
            np.zeros(0, np.bool_) if told is None else (told >= 0) & (told != self.encoded_sizes)
        )
        if told is not None and wrong.any():
            number = int(wrong.argmax())
            raise FormatError(
                f"{self.asset.name}: chunk {self.number(number)} decodes to {told[number]} bytes, "
                f"the array's shape and type ask for {self.encoded_sizes[number]}",
                source=self.location(number),
            )

    def _check_missing(self, missing: str) -> None:
        if self.missing.any() and (missing == "error" or self.asset.fill is None):
            number = int(self.missing.argmax())
            raise FormatError(
                f"chunk {tuple(self.chunks[number].tolist())} is missing, and "
                f"{int(self.missing.sum()) - 1} more; missing='fill' takes the fill value for them",
                source=self.name,
            )

    @cached_property
    def fill(self) -> npt.NDArray[Any]:
        """The fill value, shape ()."""
        element = self.asset.fill or bytes(self.itemsize)
        filled: npt.NDArray[Any] = np.frombuffer(element, self.asset.dtype)[0:1].reshape(())
        return filled

    @cached_property
    def contiguous(self) -> npt.NDArray[np.bool_]:
        """Which chunks go to the result whole, and one element behind the other, shape (n,)."""
        boxes, firsts = self.boxes, self.first
        alone = self.last - firsts == 1
        if self.undone_order or not alone.any():
            return np.zeros(firsts.size, np.bool_)
        whole = boxes.contiguous(self.asset.chunk_shape)[firsts]
        size = boxes.extent[firsts].prod(axis=1) * self.itemsize
        found: npt.NDArray[np.bool_] = alone & whole & (size == self.raw_sizes)
        return found

    @property
    def undone_order(self) -> bool:
        """Whether the axes of chunks are stored in another order."""
        return any(isinstance(step, Transpose) for step in self.asset.pipeline.filters)

    @cached_property
    def direct(self) -> npt.NDArray[np.bool_]:
        """Which chunks are decoded straight to where they go in the result, shape (n,)."""
        if self.asset.pipeline.filters:
            return np.zeros(self.first.size, np.bool_)
        return self.contiguous

    @cached_property
    def targets(self) -> Integers:
        """Where in the result the first box of each chunk goes, in bytes."""
        first: Integers = self.boxes.target[self.first] * self.itemsize
        return first

    def number(self, chunk: int) -> int:
        """Return the number of a chunk in the whole grid."""
        grid = [-(-n // c) for n, c in zip(self.asset.lengths, self.asset.chunk_shape, strict=True)]
        place = tuple(self.chunks[chunk].tolist())
        return int(np.ravel_multi_index(place, grid)) if place else 0

    def location(self, chunk: int) -> str:
        """Return what messages call the object that a chunk is in."""
        return self.store.location(self.places.keys[int(self.places.objects[chunk])])

    def chunk_shape(self, chunk: int) -> tuple[int, ...]:
        """Return the elements of a stored chunk along each axis."""
        shape = self.asset.chunk_shape
        if not self.asset.clipped or not shape:
            return shape
        return min(shape[0], self.asset.lengths[0] - int(self.chunks[chunk, 0]) * shape[0]), *shape[
            1:
        ]

    def read(self, chunks: Integers, starts: Integers, buffer: npt.NDArray[np.uint8]) -> None:
        """Read stored chunks.

        Parameters
        ----------
        chunks : ndarray of int64, shape (n,)
            Which; none is missing.
        starts : ndarray of int64, shape (n,)
            Where each goes, as `layout` says.
        buffer : ndarray of uint8
            Where to.
        """
        for reads in self.reads(chunks, starts):
            self.bring(reads, buffer)

    def bring(self, reads: Sequence[Read], buffer: npt.NDArray[np.uint8]) -> None:
        """Do some of the reads that `reads` has told."""
        view, readinto = memoryview(buffer), self.store.readinto
        for key, offset, place, size in reads:
            readinto(key, offset, view[place : place + size])

    def reads(self, chunks: Integers, starts: Integers) -> list[list[Read]]:
        """Return what to read for stored chunks, in lists of about as many bytes; see `read`."""
        if not chunks.size:
            return []
        places, which = self.places, self._runs(chunks)
        first, last = chunks[which[:-1]], chunks[which[1:] - 1]
        place = starts[which[:-1]]
        size = starts[which[1:] - 1] + places.sizes[last] - place
        pieces = np.maximum(1, -(-size // _READ))
        owner = np.repeat(np.arange(size.size), pieces)
        skip = (np.arange(owner.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * _READ
        keys = [places.keys[number] for number in places.objects[first][owner].tolist()]
        columns = places.offsets[first][owner] + skip, place[owner] + skip
        sizes = np.minimum(size[owner] - skip, _READ)
        found = list(zip(keys, *(each.tolist() for each in (*columns, sizes)), strict=True))
        list_of = (np.cumsum(sizes) - sizes) // _READ
        edges = [0, *(np.flatnonzero(np.diff(list_of)) + 1).tolist(), len(found)]
        return [found[one:other] for one, other in pairwise(edges)]

    def layout(self, chunks: Integers) -> tuple[Integers, int]:
        """Return where stored chunks go in a buffer that they are read to, and its size."""
        sizes, gaps = self.places.sizes[chunks], _gaps(self.places, chunks)
        starts = np.cumsum(sizes + gaps) - sizes
        return starts, int(starts[-1] + sizes[-1]) if chunks.size else 0

    def _runs(self, chunks: Integers) -> Integers:
        """Return the edges of runs of chunks that one read brings."""
        places = self.places
        joined = _joined(places.objects[chunks], places.offsets[chunks], places.sizes[chunks])
        return np.concatenate([[0], np.flatnonzero(~joined) + 1, [chunks.size]])

    def parts(self, most: int) -> list[Part]:
        """Return parts of at most `most` stored and decoded bytes, or of one chunk."""
        gaps = _gaps(self.places, _all(self.missing.size))
        taken = self.places.sizes + gaps + self.aligned_sizes
        return self.cut([(np.where(self.missing, 1, taken), most)])

    def cut(self, limits: Sequence[tuple[Integers, int]]) -> list[Part]:
        """Return parts of one chunk, or of more that stay within limits.

        Parameters
        ----------
        limits : sequence of tuple of (ndarray of int64, int)
            What each chunk takes of something, shape (n,), and the most that a part may.
        """
        ends = [(np.cumsum(sizes), most) for sizes, most in limits]
        parts, first = [], 0
        while first < self.missing.size:
            last = max(first + 1, min(_reached(end, first, most) for end, most in ends))
            parts.append(Part(self, first, last))
            first = last
        return parts


def _reached(ends: Integers, first: int, most: int) -> int:
    """Return up to where sizes, of which these are the sums, stay within a limit."""
    begun = int(ends[first - 1]) if first else 0
    return int(np.searchsorted(ends, begun + most, "right"))


def _all(count: int) -> Integers:
    return np.arange(count)


def _gaps(places: Places, chunks: Integers) -> Integers:
    """Return the bytes that are read along in front of each chunk."""
    begins, sizes = places.offsets[chunks], places.sizes[chunks]
    joined = _joined(places.objects[chunks], begins, sizes)
    gaps = np.zeros(chunks.size, np.int64)
    gaps[1:] = np.where(joined, begins[1:] - begins[:-1] - sizes[:-1], 0)
    return gaps


def _joined(objects: Integers, begins: Integers, sizes: Integers) -> npt.NDArray[np.bool_]:
    """Return which chunks stand right behind the one before, shape (n - 1,)."""
    gaps = begins[1:] - begins[:-1] - sizes[:-1]
    found: npt.NDArray[np.bool_] = (objects[1:] == objects[:-1]) & (gaps >= 0) & (gaps <= _GAP)
    return found
