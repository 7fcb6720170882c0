"""Selections: what NumPy gives, from chunks whose edges hold garbage."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.selection import Selection

GARBAGE = -77


def cut(array: np.ndarray, chunk_shape: tuple[int, ...], place: tuple[int, ...]) -> np.ndarray:
    """Return a chunk of full size."""
    chunk = np.full(chunk_shape, GARBAGE, array.dtype)
    inside = tuple(
        slice(p * c, min((p + 1) * c, n))
        for p, c, n in zip(place, chunk_shape, array.shape, strict=True)
    )
    part = array[inside]
    chunk[tuple(slice(0, n) for n in part.shape)] = part
    return chunk


def selected(array: np.ndarray, chunk_shape: tuple[int, ...], index) -> np.ndarray:
    selection = Selection(index, array.shape)
    out = np.full(prod(selection.shape), GARBAGE, array.dtype)
    boxes = selection.boxes(chunk_shape)
    chunks, edges = boxes.of_chunks()
    assert len(np.unique(chunks, axis=0)) == len(chunks)
    assert chunks.tolist() == sorted(chunks.tolist())
    for number, place in enumerate(chunks.tolist()):
        chunk = cut(array, chunk_shape, tuple(place))
        boxes.copy(int(edges[number]), int(edges[number + 1]), chunk, out)
    check_contiguous(boxes, chunk_shape, array, out)
    return out.reshape(selection.shape)


def check_contiguous(boxes, chunk_shape, array, out) -> None:
    for number in np.flatnonzero(boxes.contiguous(chunk_shape)).tolist():
        chunk = cut(array, chunk_shape, tuple(boxes.chunk[number].tolist())).reshape(-1)
        strides = np.array([prod(chunk_shape[axis + 1 :]) for axis in range(len(chunk_shape))])
        first = int(boxes.start[number] @ strides) if chunk_shape else 0
        size, to = int(boxes.extent[number].prod()), int(boxes.target[number])
        assert (out[to : to + size] == chunk[first : first + size]).all()


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(prod(shape), dtype=np.int32).reshape(shape)


CASES = [
    ((10,), (3,), 4),
    ((10,), (3,), -1),
    ((10,), (3,), slice(None)),
    ((10,), (3,), slice(8, 1, -2)),
    ((10,), (3,), slice(5, 5)),
    ((10,), (3,), [1, 1, 9, 0, -1]),
    ((10,), (3,), np.arange(10) % 3 == 0),
    ((10,), (3,), [[1, 2], [3, 4]]),
    ((10,), (3,), np.array([], int)),
    ((10,), (3,), []),
    ((10,), (3,), None),
    ((7, 9), (2, 4), (slice(1, 6), slice(None, None, 2))),
    ((7, 9), (2, 4), ...),
    ((7, 9), (2, 4), (..., 3)),
    ((7, 9), (2, 4), (None, ..., None, 3)),
    ((7, 9), (2, 4), ([1, 5], [2, 8])),
    ((7, 9), (2, 4), ([[1], [5]], [2, 8, 0])),
    ((7, 9), (2, 4), numbered((7, 9)) % 5 == 2),
    ((7, 9), (2, 4), (3, [1, 2, 3, 7])),
    ((7, 9), (2, 4), (np.int8(-3), np.uint8(2))),
    ((4, 5, 6), (2, 2, 4), ([0, 3], slice(1, 4), [5, 0])),
    ((4, 5, 6), (2, 2, 4), (slice(None), [4, 0, 0], 2)),
    ((4, 5, 6), (2, 2, 4), (1, slice(None), [4, 0])),
    ((4, 5, 6), (2, 2, 4), ([True, False, True, True], 2)),
    ((4, 5, 6), (2, 2, 4), (slice(None, None, -1), slice(None, None, -3), slice(4, None, -2))),
    ((), (), ()),
    ((), (), ...),
    ((), (), None),
    ((0, 3), (1, 2), ...),
    ((5, 0), (2, 1), 1),
]


@pytest.mark.parametrize(("shape", "chunk_shape", "index"), CASES)
def test_cases(shape, chunk_shape, index):
    array = numbered(shape)
    found = selected(array, chunk_shape, index)
    assert found.shape == array[index].shape
    assert found.tolist() == array[index].tolist()


@pytest.mark.parametrize(
    "index",
    [10, -11, (0, 0), (..., ...), [0, 10], [0.5], 1.5, "a", np.zeros(9, bool), slice(0.5), {}],
)
def test_what_numpy_refuses(index):
    array = numbered((10,))
    with pytest.raises((IndexError, TypeError)):
        array[index]
    with pytest.raises(IndexError):
        Selection(index, (10,))


def test_a_step_of_zero():
    with pytest.raises(ValueError, match="axis 0: slice step cannot be zero"):
        Selection(slice(None, None, 0), (10,))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (10, "index 10 is out of bounds for axis 0 with size 10"),
        ((slice(None), [1, -4]), "index -4 is out of bounds for axis 1 with size 3"),
        ((0, 0, 0), "too many indices: the array has 2 axes, but 3 were indexed"),
        (np.ones(9, bool), "along axis 0: its size is 10, that of the boolean axis 9"),
        (([0, 1], [0, 1, 2]), r"shapes \(2,\), \(3,\) do not broadcast"),
        (True, "True is no index"),
    ],
)
def test_messages(index, message):
    with pytest.raises(IndexError, match=message):
        Selection(index, (10, 3))


def test_whole():
    assert Selection(..., (4, 5)).whole
    assert Selection((), (4, 5)).whole
    assert Selection(slice(None), (4, 5)).whole
    assert not Selection(slice(None, None, -1), (4, 5)).whole
    assert not Selection([0, 1, 2, 3], (4, 5)).whole
    assert not Selection(None, (4, 5)).whole


def test_runs_of_places_are_one_box():
    boxes = Selection(list(range(5, 25)), (100,)).boxes((10,))
    assert boxes.extent.tolist() == [[5], [10], [5]]
    assert boxes.target.tolist() == [0, 5, 15]


def test_rows_of_chunks_are_contiguous_where_they_are_whole():
    boxes = Selection(slice(0, 9), (10, 8)).boxes((2, 8))
    assert boxes.contiguous((2, 8)).all()
    boxes = Selection((slice(0, 9), slice(0, 7)), (10, 8)).boxes((2, 8))
    assert boxes.contiguous((2, 8)).tolist() == [False] * 4 + [True]


def test_a_selection_of_many_chunks_has_a_box_for_each():
    boxes = Selection(..., (1_000_000,)).boxes((10,))
    assert boxes.target.size == 100_000
    assert (boxes.extent == 10).all()


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    chunk_shape = tuple(draw(st.integers(1, max(1, n) + 2)) for n in shape)
    items: list = []
    axis = 0
    points = draw(st.sampled_from([(), (3,), (2, 2)]))
    while axis < len(shape) and draw(st.integers(0, 9)):
        size = shape[axis]
        kind = draw(st.sampled_from("isanbm"))
        if kind == "n":
            items.append(None)
            continue
        if kind == "s" or not size:
            edge = st.none() | st.integers(-size - 2, size + 2)
            step = draw(st.none() | st.integers(-4, 4).filter(bool))
            items.append(slice(draw(edge), draw(edge), step))
        elif kind == "i":
            items.append(draw(st.integers(-size, size - 1)))
        elif kind == "a":
            places = st.integers(-size, size - 1)
            count = prod(points)
            items.append(
                np.array(draw(st.lists(places, min_size=count, max_size=count))).reshape(points)
            )
        elif kind == "b" and not any(isinstance(item, np.ndarray) for item in items):
            items.append(np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size))))
            points = (int(items[-1].sum()),)
        elif (
            kind == "m"
            and axis + 1 < len(shape)
            and not any(isinstance(item, np.ndarray) for item in items)
        ):
            count = size * shape[axis + 1]
            mask = draw(st.lists(st.booleans(), min_size=count, max_size=count))
            items.append(np.array(mask, bool).reshape(size, shape[axis + 1]))
            points = (int(items[-1].sum()),)
            axis += 1
        else:
            items.append(slice(None))
        axis += 1
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), ...)
    return shape, chunk_shape, tuple(items)


@given(cases())
@settings(max_examples=400)
def test_as_numpy_does(case):
    shape, chunk_shape, index = case
    array = numbered(shape)
    try:
        expected = array[index]
    except IndexError:
        with pytest.raises(IndexError):
            Selection(index, shape)
        return
    found = selected(array, chunk_shape, index)
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()
