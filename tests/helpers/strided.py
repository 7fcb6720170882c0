"""Boxes of all sorts, in memory where nothing else lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Strided", "box", "boxes"]


@dataclass(frozen=True)
class Strided:
    """One box.

    Attributes
    ----------
    src : ndarray of uint8
        All bytes of the source, from the lowest to the highest.
    src_first, dst_first : int
        Where in the source, and in a destination of `room` bytes, the first element is.
    extents, src_strides, dst_strides : tuple of int
        Of each axis.
    element : int
        Bytes of an element.
    """

    src: npt.NDArray[np.uint8]
    src_first: int
    dst_first: int
    room: int
    extents: tuple[int, ...]
    src_strides: tuple[int, ...]
    dst_strides: tuple[int, ...]
    element: int

    def expected(self, background: int) -> npt.NDArray[np.uint8]:
        """Return the destination as NumPy makes it."""
        out = np.full(self.room, background, np.uint8)
        kind, shape = np.dtype(f"V{self.element}"), self.extents
        if 0 not in shape:
            taken = self.src[self.src_first :][: self.element].view(kind)
            given = out[self.dst_first :][: self.element].view(kind)
            as_strided(given, shape, self.dst_strides)[...] = as_strided(
                taken, shape, self.src_strides
            )
        return out


def box(rng, extents, element, src_axes, dst_axes, *, signs=(), gaps=(), fill=()) -> Strided:
    """Return a box whose axes have the orders given, from the longest stride to the shortest.

    Parameters
    ----------
    rng : Generator
        For the bytes.
    extents : sequence of int
        Elements along each axis.
    element : int
        Bytes of one.
    src_axes, dst_axes : sequence of int
        The orders of the axes.
    signs : sequence of (int, int), optional
        Of the strides in the source and in the destination, for each axis.
    gaps : sequence of (int, int), optional
        Elements between the end of an axis and the next one, for each axis.
    fill : sequence of int
        Axes of which the source has one element only.
    """
    shapes = list(extents)
    sides = []
    for side, order in enumerate((src_axes, dst_axes)):
        strides, distance = [0] * len(shapes), element
        for axis in reversed(order):
            if side == 0 and axis in fill:
                continue
            strides[axis] = distance * (signs[axis][side] if signs else 1)
            distance *= max(1, shapes[axis]) + (gaps[axis][side] if gaps else 0)
        reach = [(shape - 1) * stride for shape, stride in zip(shapes, strides, strict=True)]
        low, high = sum(min(0, each) for each in reach), sum(max(0, each) for each in reach)
        sides.append((tuple(strides), -low, high - low + element))
    (src_strides, src_first, size), (dst_strides, dst_first, room) = sides
    src = rng.integers(0, 256, size, np.uint8)
    return Strided(
        src, src_first, dst_first, room, tuple(shapes), src_strides, dst_strides, element
    )


def boxes(rng: np.random.Generator, count: int, most: int = 3000) -> list[Strided]:
    """Return boxes of at most so many elements, each like nothing else."""
    found = []
    while len(found) < count:
        axes = int(rng.integers(1, 6))
        large = rng.choice([3, 20, 200], axes)
        extents = [int(rng.integers(1, limit + 1)) for limit in large]
        if np.prod(extents) > most:
            continue
        element = int(rng.choice([1, 2, 4, 8, 16]))
        alike = rng.random() < 0.4
        src_axes = list(range(axes)) if alike else rng.permutation(axes).tolist()
        dst_axes = list(range(axes)) if rng.random() < 0.6 else rng.permutation(axes).tolist()
        signs = [tuple(rng.choice([1, 1, 1, -1], 2).tolist()) for _ in extents]
        gaps = [tuple(rng.choice([0, 0, 1, 5], 2).tolist()) for _ in extents]
        fill = [axis for axis in range(axes) if rng.random() < 0.1]
        found.append(
            box(rng, extents, element, src_axes, dst_axes, signs=signs, gaps=gaps, fill=fill)
        )
    return found
