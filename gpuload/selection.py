"""What is selected of an array, as NumPy's indexing says it, and which boxes of chunks that takes.

Along every axis of the array a selection is either a slice (an integer is one of one element), or
one of the arrays that choose points: all of them broadcast together, as NumPy does.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from gpuload.box_parts import combined, cut, joined, unchecked
from gpuload.boxes import Boxes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from gpuload.box_parts import Check

    Integers = npt.NDArray[np.int64]

__all__ = ["Boxes", "Selection"]

#: Stands for the axes of the points among those of the result.
_POINTS = -1
#: Points of which the places are found at once.
_AT_ONCE = 1 << 17
#: Places in arrays are less.
_LARGEST = 1 << 63
#: NumPy's most.
_MOST_AXES = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32


@dataclass(frozen=True)
class _Slice:
    """Elements of an axis at equal distances.

    Attributes
    ----------
    start, step, count : int
        The first, the distance (1 where there are no two), and how many.
    kept : bool
        Whether the result has the axis.
    """

    start: int
    step: int
    count: int
    kept: bool = True


@dataclass(frozen=True)
class _Points:
    """Points that an array chooses.

    Attributes
    ----------
    array : ndarray
        Of integers or booleans, as it was given.
    axes : range
        The axes of the selected array that it is for; none for a single boolean.
    shape : tuple of int
        What it has among the shapes that broadcast together.
    """

    array: npt.NDArray[Any]
    axes: range
    shape: tuple[int, ...]

    def check_inside(self, lengths: tuple[int, ...]) -> None:
        """Refuse integers that are outside."""
        if _is_boolean(self.array):
            return
        axis, size = self.axes[0], lengths[self.axes[0]]
        if self.array.min() < -size or self.array.max() >= size:
            outside = self.array[(self.array < -size) | (self.array >= size)]
            raise _outside(int(outside[0]), axis, size)

    def found(self) -> npt.NDArray[Any]:
        """Return the integers; of booleans, the numbers of the elements that are true."""
        if not _is_boolean(self.array):
            return self.array
        return np.zeros(self.shape, np.int64) if not self.axes else np.flatnonzero(self.array)

    def places(self, found: npt.NDArray[Any], lengths: tuple[int, ...]) -> list[Integers]:
        """Return the places along each axis that some of what was found stands for."""
        if not _is_boolean(self.array):
            return [np.where(found < 0, found + lengths[self.axes[0]], found)]
        return list(np.unravel_index(found, self.array.shape)) if self.axes else []


class Selection:
    """A selection of an array.

    Parameters
    ----------
    index : object
        As NumPy's indexing takes it: integers, slices, Ellipsis, None, boolean and integer arrays
        or lists, and tuples of these.
    shape : tuple of int
        Elements of the array along each axis.

    Attributes
    ----------
    shape : tuple of int
        Of the result.
    whole : bool
        Whether it is all of the array, in the order of its elements.

    Raises
    ------
    IndexError, TypeError, ValueError
        As NumPy does.
    """

    def __init__(self, index: Any, shape: tuple[int, ...]) -> None:
        self._array_shape = tuple(shape)
        items = _expanded(index, self._array_shape)
        #: What is taken along each axis of the array; None for points.
        self._slices: list[_Slice | None] = []
        self._points: list[_Points] = []
        #: What the axes of the result are: an axis of the array, None for a new one, or _POINTS.
        self._result: list[int | None] = []
        for item in items:
            self._add(item)
        self._broadcast: tuple[int, ...] = ()
        if self._points:
            self._join_points(first=_stand_apart(items))
        self.shape = self._shape()
        if len(self.shape) > _MOST_AXES:
            raise IndexError(f"the result would have {len(self.shape)} axes, over {_MOST_AXES}")
        self.whole = self.shape == self._array_shape and all(
            each is not None and (each.start, each.step) == (0, 1) for each in self._slices
        )
        self._listed: tuple[tuple[int, ...], Boxes] | None = None

    def _add(self, item: Any) -> None:
        """Give an item its axes."""
        axis = len(self._slices)
        if item is None:
            self._result.append(None)
        elif isinstance(item, slice):
            self._slices.append(_slice(item, axis, self._array_shape[axis]))
            self._result.append(axis)
        elif isinstance(item, int):
            self._slices.append(_integer(item, axis, self._array_shape[axis]))
        elif isinstance(item, np.ndarray):
            self._slices += [None] * _axes_of(item)
            self._points.append(_points(item, axis))
            self._result.append(_POINTS)

    def _join_points(self, *, first: bool) -> None:
        """Have the points broadcast together, and put their axes in their place or first."""
        where = 0 if first else self._result.index(_POINTS)
        self._result = [each for each in self._result if each != _POINTS]
        self._result.insert(where, _POINTS)
        shapes = [points.shape for points in self._points]
        try:
            self._broadcast = np.broadcast_shapes(*shapes)
        except ValueError:
            found = ", ".join(map(str, shapes))
            raise IndexError(f"indices of the shapes {found} do not broadcast together") from None
        if prod(self._broadcast):  # NumPy does not mind what is outside where there are none.
            for points in self._points:
                points.check_inside(self._array_shape)

    def _shape(self) -> tuple[int, ...]:
        shape: list[int] = []
        for each in self._result:
            shape += self._broadcast if each == _POINTS else [self._count(each)]
        return tuple(shape)

    def _count(self, axis: int | None) -> int:
        found = None if axis is None else self._slices[axis]
        return 1 if found is None else found.count

    @property
    def points(self) -> int:
        """How many points there are, if any axis has them."""
        return prod(self._broadcast) if self._points else 0

    def boxes(self, chunk_shape: tuple[int, ...], check: Check = unchecked) -> Boxes:
        """Return the boxes of chunks that the selection consists of; they are kept.

        Parameters
        ----------
        chunk_shape : tuple of int
            Elements of a chunk along each axis.
        check : callable, optional
            ``check(chunks, runs)``, called before so many chunks, or runs of points that follow one
            another, are listed; may raise.
        """
        if self._listed is None or self._listed[0] != chunk_shape:
            self._listed = chunk_shape, self._boxes(chunk_shape, check)
        return self._listed[1]

    def _boxes(self, chunk_shape: tuple[int, ...], check: Check) -> Boxes:
        if not prod(self.shape):
            return Boxes.none(len(self._array_shape))
        check(self._least_chunks(chunk_shape), 0)
        stride, point_stride = self._strides()
        step = np.ones(len(self._slices), np.int64)
        parts = []
        for axis, each in enumerate(self._slices):
            if each is not None:
                step[axis] = each.step
                line = (each.start, each.step, each.count)
                parts.append(cut(axis, line, chunk_shape[axis], int(stride[axis])))
        if self._points:
            axes = [axis for points in self._points for axis in points.axes]
            sizes = tuple(chunk_shape[axis] for axis in axes)
            grid = tuple(-(-self._array_shape[axis] // chunk_shape[axis]) for axis in axes)
            parts.append(joined(self._places(), axes, sizes, grid, point_stride, check))
            for axis in axes[-1:]:
                stride[axis] = point_stride
        return combined(parts, step, stride, check)

    def _least_chunks(self, chunk_shape: tuple[int, ...]) -> int:
        """Return a number of chunks that are needed at least, which is found at once."""
        least = 1
        for each, size in zip(self._slices, chunk_shape, strict=True):
            if each is not None:
                reach = abs(each.step) * (each.count - 1)
                least *= min(each.count, reach // size + 1)
        return least

    def _places(self) -> Iterator[Integers]:
        """Yield the places of the points along their axes, some points at a time."""
        if len(self._points) == 1 and _is_boolean(self._points[0].array) and self._points[0].axes:
            yield from _places_of(self._points[0].array)
            return
        count, found = prod(self._broadcast), [each.found() for each in self._points]
        for first in range(0, count, _AT_ONCE):
            numbers = np.arange(first, min(first + _AT_ONCE, count))
            at = np.unravel_index(numbers, self._broadcast) if self._broadcast else ()
            rows: list[Integers] = []
            for points, each in zip(self._points, found, strict=True):
                chosen = np.broadcast_to(each, self._broadcast)[at].reshape(-1)
                rows += points.places(chosen, self._array_shape)
            yield np.array(rows, np.int64).reshape(len(rows), numbers.size)

    def _strides(self) -> tuple[Integers, int]:
        """Return the elements of the result from one to the next along each axis, and of points."""
        strides, points = np.zeros(len(self._array_shape), np.int64), 0
        behind = 1
        for each in reversed(self._result):
            if each == _POINTS:
                points, behind = behind, behind * prod(self._broadcast)
            elif each is not None:
                strides[each], behind = behind, behind * self._count(each)
        return strides, points


# --- Items of an index ----------------------------------------------------------------------------


def _expanded(index: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return items for every axis, None for new ones, and an ellipsis where it has no axes."""
    items: list[Any] = []
    for item in index if isinstance(index, tuple) else (index,):
        if item is Ellipsis and any(each is Ellipsis for each in items):
            raise IndexError("an index can only have a single ellipsis ('...')")
        items.append(_item(item))
    dots = [number for number, item in enumerate(items) if item is Ellipsis]
    used = sum(map(_axes_of, items))
    if used > len(shape):
        raise IndexError(
            f"too many indices: the array has {len(shape)} axes, but {used} were indexed"
        )
    rest: list[Any] = [slice(None)] * (len(shape) - used)
    if dots:
        # Also an ellipsis of no axes stands between the indices around it.
        items = [*items[: dots[0]], *(rest or [...]), *items[dots[0] + 1 :]]
    else:
        items += rest
    _check_masks(items, shape)
    return items


def _item(item: Any) -> Any:
    """Return an item as None, Ellipsis, slice, int, or array of booleans or integers."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, SupportsIndex) and not isinstance(item, bool | np.bool_ | np.ndarray):
        try:
            return _checked(operator.index(item))
        except TypeError:  # Arrays of other libraries have __index__, too.
            pass
    array = _as_array(item)
    return int(array) if array.ndim == 0 and not _is_boolean(array) else array


def _checked(place: int) -> int:
    if not -_LARGEST <= place < _LARGEST:
        raise IndexError(f"index {place} is larger than any array")
    return place


def _as_array(item: Any) -> npt.NDArray[Any]:
    array = np.asarray(item)
    if array.size == 0 and not isinstance(item, np.ndarray):
        array = array.astype(np.int64)  # NumPy takes an empty list for one of integers.
    if array.dtype.kind not in "biu":
        raise IndexError(
            "only integers, slices, ellipsis, None and integer or boolean arrays are indices, "
            f"not {type(item).__name__} of {array.dtype}"
        )
    return array


def _is_boolean(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _axes_of(item: Any) -> int:
    """Return how many axes of the array an item is for."""
    if _is_boolean(item):
        return int(item.ndim)
    return 0 if item is None or item is Ellipsis else 1


def _stand_apart(items: list[Any]) -> bool:
    """Return whether anything stands between the indices that are no slices."""
    numbers = [number for number, item in enumerate(items) if isinstance(item, int | np.ndarray)]
    return numbers[-1] - numbers[0] >= len(numbers)


def _slice(item: slice, axis: int, size: int) -> _Slice:
    try:
        start, stop, step = item.indices(size)
    except TypeError:
        raise TypeError(
            f"axis {axis}: slice indices must be integers or None, not {item}"
        ) from None
    except ValueError:
        raise ValueError(f"axis {axis}: slice step cannot be zero") from None
    count = len(range(start, stop, step))
    return _Slice(start if count else 0, step if count > 1 else 1, count)


def _integer(place: int, axis: int, size: int) -> _Slice:
    if not -size <= place < size:
        raise _outside(place, axis, size)
    return _Slice(place % size, 1, 1, kept=False)


def _points(array: npt.NDArray[Any], axis: int) -> _Points:
    """Return the points that an array chooses, along which axes."""
    if not _is_boolean(array):
        return _Points(array.astype(np.int64, copy=False), range(axis, axis + 1), array.shape)
    axes = range(axis, axis + array.ndim)
    return _Points(array, axes, (int(np.count_nonzero(array)),))


def _places_of(mask: npt.NDArray[np.bool_]) -> Iterator[Integers]:
    """Yield the places of what is true, some at a time."""
    flat = mask.reshape(-1)
    for first in range(0, flat.size, _AT_ONCE):
        found = np.flatnonzero(flat[first : first + _AT_ONCE]) + first
        if found.size:
            yield np.array(np.unravel_index(found, mask.shape), np.int64)


def _check_masks(items: list[Any], shape: tuple[int, ...]) -> None:
    axis = 0
    for item in items:
        for more, size in enumerate(item.shape if _is_boolean(item) else ()):
            # One of no elements fits any axis for NumPy, and chooses nothing.
            if size not in (0, shape[axis + more]):
                raise IndexError(
                    f"boolean index did not match the array along axis {axis + more}: its size is "
                    f"{shape[axis + more]}, that of the boolean axis {size}"
                )
        axis += _axes_of(item)


def _outside(place: int, axis: int, size: int) -> IndexError:
    return IndexError(f"index {place} is out of bounds for axis {axis} with size {size}")
