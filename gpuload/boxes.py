"""Boxes of chunks: what a selection takes of each chunk, and where that goes in the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

__all__ = ["Boxes"]

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
