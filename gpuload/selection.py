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

from gpuload.boxes import Boxes, combined, cut, joined

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

__all__ = ["Boxes", "Selection"]

#: Stands for the axes of the points among those of the result, and for the axis that the points of
#: a single boolean are for: none.
_POINTS = _NO_AXIS = -1


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
    IndexError
        As NumPy does.
    ValueError
        If the step of a slice is zero.
    """

    def __init__(self, index: Any, shape: tuple[int, ...]) -> None:
        self._array_shape = tuple(shape)
        items = _expanded(index, self._array_shape)
        #: What is taken along each axis of the array; None for points.
        self._slices: list[_Slice | None] = []
        #: The points, and the axes of the array that they are for.
        self._points: list[tuple[int, Integers]] = []
        #: What the axes of the result are: an axis of the array, None for a new one, or _POINTS.
        self._result: list[int | None] = []
        for item in items:
            self._add(item)
        self._broadcast: tuple[int, ...] = ()
        if self._points:
            self._join_points(first=_stand_apart(items))
        self._flatten_points()
        self.shape = self._shape()
        self.whole = self.shape == self._array_shape and all(
            each is not None and (each.start, each.step) == (0, 1) for each in self._slices
        )

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
            self._points += _points(item, axis, self._array_shape)
            self._result.append(_POINTS)

    def _join_points(self, *, first: bool) -> None:
        """Broadcast the points together, and put their axes in their place or first."""
        where = 0 if first else self._result.index(_POINTS)
        self._result = [each for each in self._result if each != _POINTS]
        self._result.insert(where, _POINTS)
        shapes = [places.shape for _, places in self._points]
        try:
            self._broadcast = np.broadcast_shapes(*shapes)
        except ValueError:
            found = ", ".join(map(str, shapes))
            raise IndexError(f"indices of the shapes {found} do not broadcast together") from None

    def _flatten_points(self) -> None:
        """Make all points flat and as many; those without an axis are nothing but their number."""
        self._points = [
            (axis, np.broadcast_to(places, self._broadcast).reshape(-1))
            for axis, places in self._points
            if axis != _NO_AXIS
        ]
        # Here, as NumPy does not mind what is outside where the points broadcast to none.
        for axis, places in self._points:
            _check_inside(places, axis, self._array_shape[axis])

    def _shape(self) -> tuple[int, ...]:
        shape: list[int] = []
        for each in self._result:
            shape += self._broadcast if each == _POINTS else [self._count(each)]
        return tuple(shape)

    def _count(self, axis: int | None) -> int:
        found = None if axis is None else self._slices[axis]
        return 1 if found is None else found.count

    def most_boxes(self, chunk_shape: tuple[int, ...]) -> int:
        """Return a number that `boxes` does not exceed, which is found at once."""
        most = prod(self._broadcast) if _POINTS in self._result else 1
        for each, size in zip(self._slices, chunk_shape, strict=True):
            if each is not None:
                reach = abs(each.step) * (each.count - 1)
                most *= min(each.count, reach // size + 2)
        return most

    def boxes(self, chunk_shape: tuple[int, ...]) -> Boxes:
        """Return the boxes of chunks that the selection consists of.

        Parameters
        ----------
        chunk_shape : tuple of int
            Elements of a chunk along each axis.
        """
        if not prod(self.shape):
            return Boxes.none(len(self._array_shape))
        stride, point_stride = self._strides()
        step = np.ones(len(self._slices), np.int64)
        parts = []
        for axis, each in enumerate(self._slices):
            if each is not None:
                step[axis] = each.step
                line = (each.start, each.step, each.count)
                parts.append(cut(axis, line, chunk_shape[axis], int(stride[axis])))
        if _POINTS in self._result:
            parts.append(joined(self._points, prod(self._broadcast), chunk_shape, point_stride))
        if self._points:
            stride[self._points[-1][0]] = point_stride
        return combined(parts, step, stride)

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
    items = [_item(item) for item in (index if isinstance(index, tuple) else (index,))]
    dots = [number for number, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = sum(map(_axes_of, items))
    if used > len(shape):
        raise IndexError(
            f"too many indices: the array has {len(shape)} axes, but {used} were indexed"
        )
    rest: list[Any] = [slice(None)] * (len(shape) - used)
    if not dots:
        return items + rest
    # Also an ellipsis of no axes stands between the indices around it.
    return [*items[: dots[0]], *(rest or [...]), *items[dots[0] + 1 :]]


def _item(item: Any) -> Any:
    """Return an item as None, Ellipsis, slice, int, or array of booleans or integers."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, SupportsIndex) and not isinstance(item, bool | np.bool_ | np.ndarray):
        try:
            return operator.index(item)
        except TypeError:  # Arrays of other libraries have __index__, too.
            pass
    array = _as_array(item)
    return int(array) if array.ndim == 0 and not _is_boolean(array) else array


def _as_array(item: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(item)
    except (TypeError, ValueError) as error:
        raise IndexError(f"{type(item).__name__} is no index: {error}") from None
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
        raise IndexError(
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


def _points(
    array: npt.NDArray[Any], axis: int, shape: tuple[int, ...]
) -> list[tuple[int, Integers]]:
    """Return the places that an array chooses, and along which axes."""
    if not _is_boolean(array):
        places = array.astype(np.int64)
        return [(axis, np.where(places < 0, places + shape[axis], places))]
    if array.ndim == 0:
        return [(_NO_AXIS, np.zeros(int(array), np.int64))]
    _check_mask(array, axis, shape)
    return [(axis + more, each.astype(np.int64)) for more, each in enumerate(np.nonzero(array))]


def _check_mask(mask: npt.NDArray[np.bool_], axis: int, shape: tuple[int, ...]) -> None:
    for more, size in enumerate(mask.shape):
        # One of no elements fits any axis for NumPy, and chooses nothing.
        if size not in (0, shape[axis + more]):
            raise IndexError(
                f"boolean index did not match the array along axis {axis + more}: its size is "
                f"{shape[axis + more]}, that of the boolean axis {size}"
            )


def _check_inside(places: Integers, axis: int, size: int) -> None:
    """Refuse places, counted from the start of the axis, that are outside."""
    outside = places[(places < 0) | (places >= size)]
    if outside.size:
        place = int(outside[0])
        raise _outside(place - size if place < 0 else place, axis, size)


def _outside(place: int, axis: int, size: int) -> IndexError:
    return IndexError(f"index {place} is out of bounds for axis {axis} with size {size}")
