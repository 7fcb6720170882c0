"""How the boxes of a selection come to be: as combinations of pieces along some axes each.

Where there are many boxes only the pieces are listed, and boxes are made when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.boxes import Boxes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

    #: Is told of chunks, and of runs of points, before they are listed, and may refuse.
    Check = Callable[[int, int], None]

__all__ = ["Check", "Part", "combined", "cut", "joined", "unchecked"]

#: So many boxes, or so many a chunk, are listed; where there are more, each is made when it is
#: asked for, and so many at once.
_LISTED, _LISTED_A_CHUNK, _AT_ONCE = 1 << 14, 2, 1 << 16


def unchecked(chunks: int, runs: int) -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class Part:
    """What is taken along some axes: m pieces, in g groups of the same chunk along these axes.

    Attributes
    ----------
    axes : list of int
        The axes of the array; along the last of them a piece may have several elements.
    sizes : tuple of int
        Elements of a chunk along each of the axes.
    chunk : ndarray of int64, shape (len(axes), g)
        The chunk of each group along each of the axes.
    edges : ndarray of int64, shape (g + 1,)
        Where the pieces of each group start.
    start : ndarray of int64, shape (m,)
        The first element in the chunk: its number, had the chunk no other axes.
    extent, target : ndarray of int64, shape (m,)
        How many elements, and where the first goes in the flat result.
    """

    axes: list[int]
    sizes: tuple[int, ...]
    chunk: Integers
    edges: Integers
    start: Integers
    extent: Integers
    target: Integers

    def starts(self, pieces: Integers) -> tuple[Integers, ...]:
        """Return the first element of pieces along each of the axes."""
        found = self.start[pieces]
        if len(self.axes) == 1:
            return (found,)
        return np.unravel_index(found, self.sizes) if self.axes else ()


def cut(axis: int, line: tuple[int, int, int], size: int, stride: int) -> Part:
    """Cut a slice at the edges of chunks.

    Parameters
    ----------
    axis : int
        The axis of the array.
    line : tuple of int
        The first element, the distance to the next, and how many; at least one.
    size : int
        Elements of a chunk along the axis.
    stride : int
        Elements of the result from one to the next.
    """
    start, step, count = line
    last = start + step * (count - 1)
    low, high = min(start, last), max(start, last)
    # In rising order of the chunks; a slice that goes down meets them the other way round.
    chunk = np.arange(low // size, high // size + 1, dtype=np.int64)
    first = np.maximum(0, -(-(chunk * size - low) // abs(step)))
    behind = np.minimum(count, -(-((chunk + 1) * size - low) // abs(step)))
    some = behind > first
    chunk, first, behind = chunk[some], first[some], behind[some]
    met_first, met_before = (first, first) if step > 0 else (behind - 1, count - behind)
    begin = low + met_first * abs(step) - chunk * size
    edges = np.arange(chunk.size + 1, dtype=np.int64)
    return Part([axis], (size,), chunk[None], edges, begin, behind - first, met_before * stride)


def joined(
    points: Iterator[Integers],
    axes: list[int],
    sizes: tuple[int, ...],
    grid: tuple[int, ...],
    stride: int,
    check: Check = unchecked,
) -> Part:
    """Join points that follow one another along the last of their axes, in chunk and result alike.

    Parameters
    ----------
    points : iterator of ndarray of int64, shape (len(axes), n)
        The places of points along each axis, some points at a time; at least one.
    axes : list of int
        Axes of the array in rising order, maybe none.
    sizes, grid : tuple of int
        Elements of a chunk, and chunks, along each of the axes.
    stride : int
        Elements of the result from one point to the next.
    check : callable, optional
        Called with 0 and the runs of points that there are so far.
    """
    (chunk, start, first), count = _runs(points, sizes, grid, check)
    extent = np.diff(first, append=count)
    first *= stride
    if (chunk[1:] < chunk[:-1]).any():
        order = np.argsort(chunk, kind="stable")
        chunk, start = chunk[order], start[order]
        extent, first = extent[order], first[order]
    edges = np.flatnonzero(np.diff(chunk, prepend=-1)).astype(np.int64)
    place = np.unravel_index(chunk[edges], grid) if axes else ()
    places = np.array(place, np.int64).reshape(len(axes), edges.size)
    return Part(axes, sizes, places, np.append(edges, chunk.size), start, extent, first)


def _runs(
    points: Iterator[Integers], sizes: tuple[int, ...], grid: tuple[int, ...], check: Check
) -> tuple[list[Integers], int]:
    """Return runs of points, by chunk, start in it and number of the first, and all points."""
    columns: list[tuple[Integers, Integers, Integers]] = []
    count = found = 0
    before = np.zeros((len(sizes), 0), np.int64)
    for places in points:
        apart = _apart(np.concatenate((before, places), axis=1), sizes)[before.shape[1] :]
        firsts = np.flatnonzero(apart).astype(np.int64)
        columns.append((*_numbered(places[:, firsts], sizes, grid), firsts + count))
        count, before, found = count + places.shape[1], places[:, -1:], found + firsts.size
        check(0, found)
    return [np.concatenate(each) for each in zip(*columns, strict=True)], count


def _apart(places: Integers, sizes: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return which points do not go on where the one before ends."""
    apart = np.ones(places.shape[1], np.bool_)
    if sizes:
        apart[1:] = (places[:-1, 1:] != places[:-1, :-1]).any(axis=0)
        apart[1:] |= places[-1, 1:] != places[-1, :-1] + 1
        apart |= places[-1] % sizes[-1] == 0
    return apart


def _numbered(
    places: Integers, sizes: tuple[int, ...], grid: tuple[int, ...]
) -> tuple[Integers, Integers]:
    """Return the numbers of the chunks of points, and of the points in them."""
    if not sizes:
        return (np.zeros(places.shape[1], np.int64),) * 2
    chunk, start = np.divmod(places, np.array(sizes, np.int64)[:, None])
    flat = np.ravel_multi_index(tuple(chunk), grid), np.ravel_multi_index(tuple(start), sizes)
    return flat[0].astype(np.int64), flat[1].astype(np.int64)


@dataclass(frozen=True)
class _Product:
    """All combinations of the pieces of some parts, chunk by chunk.

    Attributes
    ----------
    parts : list of Part
        The pieces.
    groups : list of ndarray of int64, shape (k,)
        Which group of each part's pieces the boxes of a chunk are combinations of.
    chunks : ndarray of int64, shape (k, axes)
        The chunks, in rising order.
    edges : ndarray of int64, shape (k + 1,)
        Where the boxes of each start.
    step, stride : ndarray of int64, shape (axes,)
        As `Boxes` has them.
    """

    parts: list[Part]
    groups: list[Integers]
    chunks: Integers
    edges: Integers
    step: Integers
    stride: Integers

    @property
    def count(self) -> int:
        """How many boxes there are."""
        return int(self.edges[-1])

    def rows(self, which: slice | Integers) -> Boxes:
        """Return some of the boxes."""
        if isinstance(which, slice):
            which = np.arange(*which.indices(self.count), dtype=np.int64)
        owner = np.searchsorted(self.edges, which, "right") - 1
        left = which - self.edges[owner]
        start = np.empty((which.size, self.step.size), np.int64)
        extent, target = np.ones_like(start), np.zeros(which.size, np.int64)
        for part, groups in zip(reversed(self.parts), reversed(self.groups), strict=True):
            group = groups[owner]
            left, at = np.divmod(left, part.edges[group + 1] - part.edges[group])
            piece = part.edges[group] + at
            target += part.target[piece]
            for axis, places in zip(part.axes, part.starts(piece), strict=True):
                start[:, axis] = places
            for axis in part.axes[-1:]:
                extent[:, axis] = part.extent[piece]
        return Boxes(self.chunks[owner], start, extent, target, self.step, self.stride)


class _OnDemand:
    """A column of boxes that are made when they are asked for."""

    def __init__(self, product: _Product, column: Callable[[Boxes], Any]) -> None:
        self._product, self._column = product, column

    def __getitem__(self, which: Any) -> Any:
        return self._column(self._product.rows(which))


class _ManyBoxes(Boxes):
    """Boxes that are made when they are asked for."""

    _product: _Product

    def __init__(self, product: _Product) -> None:
        columns: Iterator[Any] = (
            _OnDemand(product, attrgetter(name)) for name in ("chunk", "start", "extent", "target")
        )
        chunk, start, extent, target = columns
        super().__init__(chunk, start, extent, target, product.step, product.stride)
        object.__setattr__(self, "_product", product)

    def of_chunks(self) -> tuple[Integers, Integers]:
        """See `Boxes.of_chunks`."""
        return self._product.chunks, self._product.edges

    def contiguous(self, chunk_shape: tuple[int, ...]) -> Any:
        """See `Boxes.contiguous`; found when it is asked for, too."""
        return _OnDemand(self._product, lambda boxes: boxes.contiguous(chunk_shape))

    def copy(self, first: int, last: int, chunk: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """See `Boxes.copy`."""
        for begin in range(first, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            self._product.rows(slice(begin, end)).copy(0, end - begin, chunk, out)


def combined(
    parts: list[Part], step: Integers, stride: Integers, check: Check = unchecked
) -> Boxes:
    """Return a box for every combination of the pieces of all parts.

    Parameters
    ----------
    parts : list of Part
        Together they have every axis once.
    step, stride : ndarray of int64, shape (axes,)
        As `Boxes` has them.
    check : callable, optional
        Called with the chunks that there are, and 0.
    """
    counts = tuple(part.edges.size - 1 for part in parts)
    check(prod(counts), 0)
    groups = _combinations(counts)
    chunks = np.empty((prod(counts), step.size), np.int64)
    for part, group in zip(parts, groups, strict=True):
        chunks[:, part.axes] = part.chunk[:, group].T
    axes = [axis for part in parts for axis in part.axes]
    if axes != sorted(axes):
        order = np.lexsort(chunks.T[::-1])
        chunks, groups = chunks[order], [group[order] for group in groups]
    found = _Product(parts, groups, chunks, _edges(parts, groups), _steps(parts, step), stride)
    few = found.count <= max(_LISTED, _LISTED_A_CHUNK * chunks.shape[0])
    return found.rows(slice(None)) if few else _ManyBoxes(found)


def _combinations(counts: tuple[int, ...]) -> list[Integers]:
    if not counts:
        return []
    numbers = np.arange(prod(counts), dtype=np.int64)
    return [np.asarray(each, np.int64) for each in np.unravel_index(numbers, counts)]


def _edges(parts: list[Part], groups: list[Integers]) -> Integers:
    """Return where the boxes of each chunk start."""
    count = np.ones(groups[0].size if groups else 1, np.int64)
    for part, group in zip(parts, groups, strict=True):
        count *= np.diff(part.edges)[group]
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(count)))


def _steps(parts: list[Part], step: Integers) -> Integers:
    """Return the steps, which are of no meaning where no box has two elements."""
    found = np.ones_like(step)
    for part in parts:
        for axis in part.axes[-1:]:
            found[axis] = step[axis] if (part.extent > 1).any() else 1
    return found
