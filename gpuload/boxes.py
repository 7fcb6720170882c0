"""Boxes of chunks: what a selection takes of each chunk, and where that goes in the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

__all__ = ["Boxes", "Part", "combined", "cut", "joined"]

#: Boxes of so few elements on average are copied element by element, so many boxes at once: what is
#: needed for that stays in a processor's caches.
_SMALL, _BATCH = 48, 4096


@dataclass(frozen=True)
class Boxes:
    """n boxes, in the order of their chunks.

    Attributes
    ----------
    chunk : ndarray of int64, shape (n, axes)
        The place of the box's chunk in the grid.
    start, extent : ndarray of int64, shape (n, axes)
        The first element in the chunk, and how many, along each axis.
    target : ndarray of int64, shape (n,)
        Where the first element goes in the flat result.
    step : ndarray of int64, shape (axes,)
        Elements of the chunk from one to the next along each axis; may be negative, and is 1 where
        no box has two.
    stride : ndarray of int64, shape (axes,)
        The same in the flat result; 0 where that has no such axis.
    """

    chunk: Integers
    start: Integers
    extent: Integers
    target: Integers
    step: Integers
    stride: Integers

    @classmethod
    def none(cls, axes: int) -> Boxes:
        """Return no boxes."""
        none, flat = np.zeros((0, axes), np.int64), np.zeros(0, np.int64)
        return cls(none, none, none, flat, np.ones(axes, np.int64), np.zeros(axes, np.int64))

    @classmethod
    def ordered(
        cls,
        chunk: Integers,
        start: Integers,
        extent: Integers,
        target: Integers,
        step: Integers,
        stride: Integers,
    ) -> Boxes:
        """Return boxes from columns in any order."""
        step = np.where((extent > 1).any(axis=0), step, 1)
        if chunk.shape[1]:
            order = np.lexsort(chunk.T[::-1])
            if (np.diff(order) != 1).any():
                chunk, start, extent, target = (
                    each[order] for each in (chunk, start, extent, target)
                )
        return cls(chunk, start, extent, target, step, stride)

    def of_chunks(self) -> tuple[Integers, Integers]:
        """Return the chunks, shape (k, axes), and the edges of their boxes, shape (k + 1,)."""
        count = self.target.size
        new = np.ones(count, np.bool_)
        new[1:] = (self.chunk[1:] != self.chunk[:-1]).any(axis=1)
        firsts = np.flatnonzero(new)
        return self.chunk[firsts], np.append(firsts, count)

    def contiguous(self, chunk_shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """Return which boxes are one run of elements in the chunk, and the same run in the result.

        Parameters
        ----------
        chunk_shape : tuple of int
            Elements of a chunk along each axis.
        """
        found = np.ones(self.target.size, np.bool_)
        inside, taken = 1, np.ones(self.target.size, np.int64)
        for axis in reversed(range(len(chunk_shape))):
            several = self.extent[:, axis] > 1
            follows = (self.step[axis] == 1) & (self.stride[axis] == taken) & (taken == inside)
            found &= ~several | follows
            taken = taken * self.extent[:, axis]
            inside *= chunk_shape[axis]
        return found

    def copy(self, first: int, last: int, chunk: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Copy some boxes of one chunk to their place.

        Parameters
        ----------
        first, last : int
            The boxes, the last exclusive.
        chunk : ndarray
            The decoded chunk.
        out : ndarray, one axis
            The flat result, of the same type.
        """
        if last - first == 1:
            self._copy_one(first, chunk, out)
        elif (self.extent[first:last] == 1).all():
            out[self.target[first:last]] = chunk[tuple(self.start[first:last].T)]
        else:
            for begin in range(first, last, _BATCH):
                self._copy_several(begin, min(begin + _BATCH, last), chunk, out)

    def _copy_several(
        self, first: int, last: int, chunk: npt.NDArray[Any], out: npt.NDArray[Any]
    ) -> None:
        sizes = self.extent[first:last].prod(axis=1)
        if sizes.sum() <= _SMALL * sizes.size:
            self._copy_small(first, sizes, chunk, out)
            return
        for number in range(first, last):
            self._copy_one(number, chunk, out)

    def _copy_small(
        self, first: int, sizes: Integers, chunk: npt.NDArray[Any], out: npt.NDArray[Any]
    ) -> None:
        """Copy boxes of so many elements, all elements at once."""
        owner = np.repeat(np.arange(first, first + sizes.size), sizes)
        rest = np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        target, places = self.target[owner], self.start[owner]
        for axis in reversed(range(self.step.size)):
            extent = self.extent[first : first + sizes.size, axis]
            if (extent > 1).any():
                rest, at = np.divmod(rest, self.extent[owner, axis])
                places[:, axis] += at * self.step[axis]
                target += at * self.stride[axis]
        out[target] = chunk[tuple(places.T)]

    def _copy_one(self, number: int, chunk: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        start, extent = self.start[number].tolist(), self.extent[number].tolist()
        taken = chunk[tuple(map(_slice, start, extent, self.step.tolist()))]
        strides = [stride * out.itemsize for stride in self.stride.tolist()]
        target = out[int(self.target[number]) :]
        as_strided(target, extent, strides)[...] = taken


def _slice(start: int, extent: int, step: int) -> slice:
    stop = start + extent * step
    return slice(start, None if stop < 0 else stop, step)


# --- How boxes come to be -------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What is taken along some axes: m pieces.

    Attributes
    ----------
    axes : list of int
        The axes of the array; along the last of them a piece may have several elements.
    chunk, start : ndarray of int64, shape (len(axes), m)
        The chunk along each of the axes, and the first element there.
    extent, target : ndarray of int64, shape (m,)
        How many elements, and where the first goes in the flat result.
    """

    axes: list[int]
    chunk: Integers
    start: Integers
    extent: Integers
    target: Integers


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
    return Part([axis], chunk[None], begin[None], behind - first, met_before * stride)


def joined(
    points: list[tuple[int, Integers]], count: int, chunk_shape: tuple[int, ...], stride: int
) -> Part:
    """Join points that follow one another along the last of their axes, in chunk and result alike.

    Parameters
    ----------
    points : list of (int, ndarray of int64, shape (count,))
        Axes of the array in rising order, maybe none, and the places along each.
    count : int
        How many points; at least one.
    chunk_shape : tuple of int
        Elements of a chunk along each axis.
    stride : int
        Elements of the result from one point to the next.
    """
    axes = [axis for axis, _ in points]
    places = np.array([each for _, each in points], np.int64).reshape(len(axes), count)
    sizes = np.array([chunk_shape[axis] for axis in axes], np.int64)[:, None]
    chunk, start = np.divmod(places, sizes)
    apart = np.ones(count, np.bool_)
    if axes:
        apart[1:] = (np.diff(places[:-1]) != 0).any(axis=0)
        apart[1:] |= (np.diff(places[-1]) != 1) | (np.diff(chunk[-1]) != 0)
    firsts = np.flatnonzero(apart).astype(np.int64)
    extent = np.diff(np.append(firsts, count))
    return Part(axes, chunk[:, firsts], start[:, firsts], extent, firsts * stride)


def combined(parts: list[Part], step: Integers, stride: Integers) -> Boxes:
    """Return a box for every combination of the pieces of all parts.

    Parameters
    ----------
    parts : list of Part
        Together they have every axis once.
    step, stride : ndarray of int64, shape (axes,)
        As `Boxes` has them.
    """
    counts = tuple(part.target.size for part in parts)
    chunk, start, extent = (np.ones((*counts, step.size), np.int64) for _ in range(3))
    target = np.zeros(counts, np.int64)
    for number, part in enumerate(parts):
        along = (-1,) + (1,) * (len(parts) - number - 1)
        target += part.target.reshape(along)
        for row, axis in enumerate(part.axes):
            chunk[..., axis] = part.chunk[row].reshape(along)
            start[..., axis] = part.start[row].reshape(along)
        for axis in part.axes[-1:]:
            extent[..., axis] = part.extent.reshape(along)
    chunk, start, extent = (each.reshape(target.size, step.size) for each in (chunk, start, extent))
    return Boxes.ordered(chunk, start, extent, target.reshape(-1), step, stride)
