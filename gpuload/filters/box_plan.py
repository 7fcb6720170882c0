"""Which operations of a kernel copy boxes of elements.

Behind the operations lie, as 64-bit integers, the distances in bytes between neighbours along each
axis of the source, then of the destination, and then the extents of every box, one box after the
other (gpuload/kernels/boxes.cuh). Axes come in the order of falling distances in the destination.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuload.batch import PARAMS_DTYPE
from gpuload.engines import operations
from gpuload.filters.plan import ALGORITHMS
from gpuload.kernels.variants import BLOCK, Variant

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

__all__ = ["BOX_DTYPE", "BoxPlan", "Boxes", "normal"]

#: `PARAMS_DTYPE` of gpuload.batch, as the kernel reads it.
BOX_DTYPE = np.dtype(
    [
        ("extents", "<i8"),
        ("unused", "<u8"),
        ("distances", "<i8"),
        ("src", "<i8"),
        ("dst", "<i8"),
        ("algo", "<i4"),
        ("axes", "<u4"),
        ("element", "<u4"),
        ("part", "<u4"),
        ("parts", "<u4"),
        ("unused_too", "<u4"),
    ]
)
#: ``MOST_AXES`` of the kernel, and elements along one of them.
_MOST_AXES, _MOST_ELEMENTS = 8, 1 << 30
#: Bytes that are copied at once, at most.
_LARGEST = 16
#: Bytes of a part, at least, and parts of all boxes together.
_PART, _PARTS = 64 << 10, 16_384
#: Mean bytes of boxes from which on a block of threads copies one rather than a warp.
_LARGE = 4096


@dataclass(frozen=True)
class Boxes:
    """n boxes.

    Attributes
    ----------
    src, dst : ndarray of int64, shape (n,)
        Addresses of their first elements.
    extents : ndarray of int64, shape (n, axes)
        Elements along each axis.
    src_strides, dst_strides : ndarray of int64, shape (axes,)
        Bytes between neighbours; 0 or less is possible.
    element : int
        Bytes of an element.
    """

    src: Integers
    dst: Integers
    extents: Integers
    src_strides: Integers
    dst_strides: Integers
    element: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.src.size

    @property
    def axes(self) -> int:
        """How many axes they have."""
        return int(self.extents.shape[1])

    def some(self, which: slice | npt.NDArray[np.bool_]) -> Boxes:
        """Return some of them."""
        src, dst, extents = self.src[which], self.dst[which], self.extents[which]
        return replace(self, src=src, dst=dst, extents=extents)

    def with_axes(self, which: Integers | list[int]) -> Boxes:
        """Return them with some of their axes, in this order."""
        return replace(
            self,
            extents=self.extents[:, which],
            src_strides=self.src_strides[which],
            dst_strides=self.dst_strides[which],
        )


def normal(boxes: Boxes) -> Boxes:
    """Return boxes as the kernel takes them, which copy the same elements.

    None is empty, all addresses and strides are multiples of the element, which has 1, 2, 4, 8 or
    16 bytes, and the axes are in order and not too many.
    """
    there: npt.NDArray[np.bool_] = np.all(boxes.extents > 0, axis=1)
    boxes = boxes.some(there)
    boxes = boxes.with_axes(np.flatnonzero((boxes.extents != 1).any(axis=0)))
    boxes = _with_aligned_elements(boxes)
    boxes = boxes.with_axes(np.argsort(-np.abs(boxes.dst_strides), kind="stable"))
    while boxes.axes > _MOST_AXES:
        boxes = _with_less_axes(boxes)
    while (boxes.extents > _MOST_ELEMENTS).any():
        boxes = _halved(boxes)
    return boxes


def _with_aligned_elements(boxes: Boxes) -> Boxes:
    strides = np.concatenate([boxes.src_strides, boxes.dst_strides])
    bits = boxes.element | _LARGEST
    for each in (boxes.src, boxes.dst, strides):
        bits |= int(np.bitwise_or.reduce(each)) if each.size else 0
    unit = bits & -bits
    if unit == boxes.element and boxes.axes:
        return boxes
    extents = np.full((boxes.count, 1), boxes.element // unit)
    return Boxes(
        boxes.src,
        boxes.dst,
        np.concatenate([boxes.extents, extents], axis=1),
        np.append(boxes.src_strides, unit),
        np.append(boxes.dst_strides, unit),
        unit,
    )


def _with_less_axes(boxes: Boxes) -> Boxes:
    """Make boxes of their own of what lies along the axis with the fewest elements."""
    axis = int(boxes.extents.max(axis=0, initial=0).argmin())
    counts = boxes.extents[:, axis]
    owner = np.repeat(np.arange(boxes.count), counts)
    place = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    others = [other for other in range(boxes.axes) if other != axis]
    return replace(
        boxes.with_axes(others),
        src=boxes.src[owner] + place * boxes.src_strides[axis],
        dst=boxes.dst[owner] + place * boxes.dst_strides[axis],
        extents=boxes.extents[owner][:, others],
    )


def _halved(boxes: Boxes) -> Boxes:
    """Cut boxes with too many elements along an axis into two."""
    axis = int(boxes.extents.max(axis=0).argmax())
    which = boxes.extents[:, axis] > _MOST_ELEMENTS
    extents, more = boxes.extents.copy(), boxes.extents[which]
    half = more[:, axis] // 2
    extents[which, axis] = half
    more[:, axis] -= half
    src = boxes.src[which] + half * boxes.src_strides[axis]
    dst = boxes.dst[which] + half * boxes.dst_strides[axis]
    return replace(
        boxes,
        src=np.concatenate([boxes.src, src]),
        dst=np.concatenate([boxes.dst, dst]),
        extents=np.concatenate([extents, more]),
    )


class BoxPlan:
    """Operations that copy boxes.

    Parameters
    ----------
    boxes : Boxes
        At least one, all of them `normal`.
    """

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        sizes = boxes.extents.prod(axis=1) * boxes.element
        part = max(_PART, int(sizes.sum()) // _PARTS)
        parts = np.maximum(1, -(-sizes // part))
        self._owner = np.repeat(np.arange(boxes.count), parts)
        self._parts = parts
        self.count = self._owner.size
        lanes = BLOCK if int(sizes.sum()) >= _LARGE * boxes.count else 32
        self.launches = [(Variant("boxes", lanes), 0, self.count)]

    @property
    def extra_start(self) -> int:
        """Where in a block of memory the distances and extents start."""
        return -(-operations.size_of(self.count) // 16) * 16

    @property
    def size(self) -> int:
        """Bytes of memory for all of it."""
        return self.extra_start + 8 * self._boxes.axes * (2 + self._boxes.count)

    def params(self, block: int) -> npt.NDArray[np.void]:
        """Return the parameters; `block` is the address of the memory."""
        boxes, owner = self._boxes, self._owner
        params = np.zeros(self.count, BOX_DTYPE)
        params["distances"] = block + self.extra_start
        params["extents"] = block + self.extra_start + 8 * boxes.axes * (2 + owner)
        params["src"], params["dst"] = boxes.src[owner], boxes.dst[owner]
        params["algo"], params["axes"] = ALGORITHMS["boxes"], boxes.axes
        params["element"], params["parts"] = boxes.element, self._parts[owner]
        firsts = np.cumsum(self._parts) - self._parts
        params["part"] = np.arange(self.count) - firsts[owner]
        return params.view(PARAMS_DTYPE)

    def extra(self) -> npt.NDArray[np.uint8]:
        """Return the distances and extents."""
        boxes = self._boxes
        columns = boxes.src_strides, boxes.dst_strides, boxes.extents.reshape(-1)
        return np.concatenate(columns).astype(np.int64).view(np.uint8)
