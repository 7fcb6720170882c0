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
        Elements of the chunk from one to the next along each axis; may be negative.
    stride : ndarray of int64, shape (axes,)
        The same in the flat result.
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
        many, one = np.zeros((0, axes), np.int64), np.ones(axes, np.int64)
        return cls(many, many, many, np.zeros(0, np.int64), one, one)

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
        if last - first > 1 and (self.extent[first:last] == 1).all():
            places = tuple(self.start[first:last].T)
            out[self.target[first:last]] = chunk[places] if places else chunk
            return
        for number in range(first, last):
            self._copy_one(number, chunk, out)

    def _copy_one(self, number: int, chunk: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        start, extent = self.start[number].tolist(), self.extent[number].tolist()
        step = self.step.tolist()
        taken = chunk[tuple(map(_slice, start, extent, step))]
        strides = [stride * out.itemsize for stride in self.stride.tolist()]
        target = out[int(self.target[number]) :]
        as_strided(target, extent, strides)[...] = taken


def _slice(start: int, extent: int, step: int) -> slice:
    stop = start + extent * step
    return slice(start, None if stop < 0 else stop, step)
