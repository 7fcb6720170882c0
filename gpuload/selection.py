"""What is selected of an array, as NumPy's indexing says it, and which boxes of chunks that takes.

Along every axis of the array a selection is either a slice (an integer is one of one element), or
one of the advanced indices, which choose points: all of them broadcast together, as NumPy does.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from gpuload.boxes import Boxes

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

__all__ = ["Selection"]


@dataclass(frozen=True)
class _Slice:
    """Elements of an axis at equal distances.

    Attributes
    ----------
    start, step, count : int
        The first, the distance, and how many.
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
    """

    def __init__(self, index: Any, shape: tuple[int, ...]) -> None:
        self._array_shape = tuple(shape)
        items = _expanded(index, self._array_shape)
        self._slices: list[_Slice | None] = []
        #: The advanced indices, and the axes of the array that they are for.
        self._points: list[tuple[int, Integers]] = []
        #: What the axes of the result are: an axis of the array, None for a new one, -1 for points.
        self._result: list[int | None] = []
        self._place(items)
        self._broadcast: tuple[int, ...] = ()
        if self._points:
            self._broadcast = self._broadcasted()
        self.shape = self._shape()
        self.whole = self.shape == self._array_shape and all(
            isinstance(each, _Slice) and each.start == 0 and each.step == 1 for each in self._slices
        )

    def _place(self, items: list[Any]) -> None:
        """Give every item its axes."""
        positions = []
        for number, item in enumerate(items):
            axis = len(self._slices)
            if item is None:
                self._result.append(None)
                continue
            if item is Ellipsis:
                continue
            if isinstance(item, slice):
                self._slices.append(_slice(item, axis, self._array_shape[axis]))
                self._result.append(axis)
                continue
            found = _advanced(item, axis, self._array_shape)
            if found is None:
                self._slices.append(_integer(item, axis, self._array_shape[axis]))
                positions.append((number, False))
                continue
            positions.append((number, True))
            for more, points in enumerate(found):
                self._slices.append(None)
                self._points.append((axis + more, points))
            self._result.append(-1)
        self._join_points(positions)

    def _join_points(self, positions: list[tuple[int, bool]]) -> None:
        """Put the axis of the points where NumPy does: in their place if they stand together."""
        if not any(advanced for _, advanced in positions):
            return
        # Integers count as advanced indices beside others.
        for axis, each in enumerate(self._slices):
            if each is not None and not each.kept:
                self._slices[axis] = None
                self._points.append((axis, np.array(each.start, np.int64)))
        numbers = [number for number, _ in positions]
        together = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        where = self._result.index(-1) if together else 0
        self._result = [each for each in self._result if each != -1]
        self._result.insert(where, -1)

    def _broadcasted(self) -> tuple[int, ...]:
        try:
            arrays = np.broadcast_arrays(*(points for _, points in self._points))
        except ValueError:
            shapes = ", ".join(str(points.shape) for _, points in self._points)
            raise IndexError(f"indices of the shapes {shapes} do not broadcast together") from None
        axes = [axis for axis, _ in self._points]
        self._points = [(axis, each.reshape(-1)) for axis, each in zip(axes, arrays, strict=True)]
        return arrays[0].shape

    def _shape(self) -> tuple[int, ...]:
        shape: list[int] = []
        for each in self._result:
            if each is None:
                shape.append(1)
            elif each == -1:
                shape += self._broadcast
            else:
                shape.append(self._count(each))
        return tuple(shape)

    def _count(self, axis: int) -> int:
        found = self._slices[axis]
        assert found is not None
        return found.count

    def boxes(self, chunk_shape: tuple[int, ...]) -> Boxes:
        """Return the boxes of chunks that the selection consists of.

        Parameters
        ----------
        chunk_shape : tuple of int
            Elements of a chunk along each axis.
        """
        axes = len(self._array_shape)
        if not prod(self.shape):
            return Boxes.none(axes)
        strides, point_stride = self._strides()
        parts = [
            None if each is None else _cut(each, chunk_shape[axis], strides[axis])
            for axis, each in enumerate(self._slices)
        ]
        step = np.array([1 if each is None else each.step for each in self._slices], np.int64)
        counts = [1 if part is None else part.chunk.size for part in parts]
        points = self._point_parts(chunk_shape, point_stride)
        number = prod(counts) * (points.target.size if points else 1)
        return _product(parts, points, counts, number, step, strides)

    def _strides(self) -> tuple[Integers, int]:
        """Return the elements of the result from one to the next along each axis, and of points."""
        strides, points = np.zeros(len(self._array_shape), np.int64), 0
        behind = 1
        for each in reversed(self._result):
            if each == -1:
                points, behind = behind, behind * prod(self._broadcast)
            elif each is not None:
                strides[each], behind = behind, behind * self._count(each)
        return strides, points

    def _point_parts(self, chunk_shape: tuple[int, ...], stride: int) -> _Points | None:
        if not self._points:
            return None
        axes = [axis for axis, _ in self._points]
        places = np.stack([points for _, points in self._points])
        sizes = np.array([chunk_shape[axis] for axis in axes], np.int64)[:, np.newaxis]
        target = stride * np.arange(places.shape[1])
        chunk, start = places // sizes, places % sizes
        extent = np.ones(places.shape[1], np.int64)
        if len(axes) == 1 and places.shape[1]:
            # Elements that follow one another, in the chunk as in the result, are one box.
            apart = (np.diff(places[0]) != 1) | (np.diff(chunk[0]) != 0)
            firsts = np.concatenate(([0], np.flatnonzero(apart) + 1))
            extent = np.diff(np.append(firsts, places.shape[1]))
            chunk, start, target = chunk[:, firsts], start[:, firsts], target[firsts]
        return _Points(axes, chunk, start, extent, target, stride)


@dataclass(frozen=True)
class _Cut:
    """A slice, cut at the edges of chunks: m parts."""

    chunk: Integers
    start: Integers
    extent: Integers
    target: Integers


@dataclass(frozen=True)
class _Points:
    """Points along some axes: chunk and start of shape (axes, m), the others of shape (m,)."""

    axes: list[int]
    chunk: Integers
    start: Integers
    extent: Integers
    target: Integers
    stride: int


def _cut(each: _Slice, size: int, stride: int) -> _Cut:
    """Cut a slice at the edges of chunks of `size` elements."""
    last = each.start + each.step * (each.count - 1)
    low, high = min(each.start, last), max(each.start, last)
    step = abs(each.step)
    # Those in rising order; a slice that goes down meets them the other way round.
    chunks = np.arange(low // size, high // size + 1)
    first = np.maximum(0, -(-(chunks * size - low) // step))
    behind = np.minimum(each.count, -(-((chunks + 1) * size - low) // step))
    some = behind > first
    chunks, first, behind = chunks[some], first[some], behind[some]
    extent = behind - first
    if each.step > 0:
        return _Cut(chunks, low + first * step - chunks * size, extent, first * stride)
    start = low + (behind - 1) * step - chunks * size
    return _Cut(chunks, start, extent, (each.count - behind) * stride)


def _product(
    parts: list[_Cut | None],
    points: _Points | None,
    counts: list[int],
    number: int,
    step: Integers,
    strides: Integers,
) -> Boxes:
    """Return every combination of the parts of all axes."""
    axes = len(parts)
    chunk, start = np.zeros((number, axes), np.int64), np.zeros((number, axes), np.int64)
    extent, target = np.ones((number, axes), np.int64), np.zeros(number, np.int64)
    grid = [*counts, points.target.size if points else 1]
    places = np.unravel_index(np.arange(number), grid)
    for axis, part in enumerate(parts):
        if part is None:
            continue
        which = places[axis]
        chunk[:, axis], start[:, axis] = part.chunk[which], part.start[which]
        extent[:, axis] = part.extent[which]
        target += part.target[which]
    stride = strides.copy()
    if points:
        which = places[-1]
        target += points.target[which]
        for row, axis in enumerate(points.axes):
            chunk[:, axis], start[:, axis] = points.chunk[row][which], points.start[row][which]
        if len(points.axes) == 1:
            extent[:, points.axes[0]] = points.extent[which]
            stride[points.axes[0]] = points.stride
    return Boxes.ordered(chunk, start, extent, target, step, stride)


# --- Items of an index ----------------------------------------------------------------------------


def _expanded(index: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return items for every axis, None for new ones, and an ellipsis where it has no axes."""
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [number for number, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = sum(_axes_of(item) for item in items if item is not None and item is not Ellipsis)
    if used > len(shape):
        raise IndexError(
            f"too many indices: the array has {len(shape)} axes, but {used} were indexed"
        )
    rest: list[Any] = [slice(None)] * (len(shape) - used)
    if not dots:
        return items + rest
    # Also an ellipsis of no axes stands between the indices around it.
    return [*items[: dots[0]], *(rest or [...]), *items[dots[0] + 1 :]]


def _axes_of(item: Any) -> int:
    if isinstance(item, slice):
        return 1
    if isinstance(item, bool | np.bool_) or getattr(item, "shape", None) == ():
        _check_scalar(item)
    array = item if isinstance(item, np.ndarray) else None
    if array is None and isinstance(item, list | tuple):
        array = np.asarray(item)
    return array.ndim if array is not None and array.dtype == np.bool_ else 1


def _check_scalar(item: Any) -> None:
    if np.asarray(item).dtype == np.bool_:
        raise IndexError(f"{item} is no index: booleans must be arrays of one or more axes")


def _slice(item: slice, axis: int, size: int) -> _Slice:
    try:
        start, stop, step = item.indices(size)
    except TypeError:
        raise IndexError(
            f"axis {axis}: slice indices must be integers or None, not {item}"
        ) from None
    except ValueError:
        raise ValueError(f"axis {axis}: slice step cannot be zero") from None
    return _Slice(start, step, len(range(start, stop, step)))


def _integer(item: Any, axis: int, size: int) -> _Slice:
    place = operator.index(item)
    if not -size <= place < size:
        raise _outside(place, axis, size)
    return _Slice(place % size, 1, 1, kept=False)


def _outside(place: int, axis: int, size: int) -> IndexError:
    return IndexError(f"index {place} is out of bounds for axis {axis} with size {size}")


def _advanced(item: Any, axis: int, shape: tuple[int, ...]) -> list[Integers] | None:
    """Return the places along one or more axes that an array chooses; None for an integer."""
    if isinstance(item, SupportsIndex) and not isinstance(item, np.ndarray):
        return None
    array = np.asarray(item)
    if array.size == 0 and not isinstance(item, np.ndarray):
        array = array.astype(np.intp)
    if array.dtype == np.bool_:
        return _mask(array, axis, shape)
    if array.dtype.kind not in "iu":
        raise IndexError(
            f"axis {axis}: only integers, slices, ellipsis, None and integer or boolean arrays "
            f"are indices, not {type(item).__name__} of {array.dtype}"
        )
    size = shape[axis]
    bad = (array < -size) | (array >= size)
    if bad.any():
        raise _outside(int(array[bad][0]), axis, size)
    places = array.astype(np.int64)
    return [np.where(places < 0, places + size, places)]


def _mask(mask: npt.NDArray[np.bool_], axis: int, shape: tuple[int, ...]) -> list[Integers]:
    for more, size in enumerate(mask.shape):
        if size != shape[axis + more]:
            raise IndexError(
                f"boolean index did not match the array along axis {axis + more}: its size is "
                f"{shape[axis + more]}, that of the boolean axis {size}"
            )
    return [places.astype(np.int64) for places in np.nonzero(mask)]
