"""Selections: what NumPy gives, from chunks whose edges hold garbage."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from math import prod
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload import box_parts
from gpuload import selection as selection_module
from gpuload.selection import Selection

GARBAGE = -77


class Like:
    """What NumPy can make an array of, as the arrays of other libraries."""

    def __init__(self, values) -> None:
        self.values = np.array(values)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self.values

    def __index__(self) -> int:
        raise TypeError("only arrays of one element are integers")


def cut(array: np.ndarray, chunk_shape: tuple[int, ...], place, *, clipped=False) -> np.ndarray:
    """Return a chunk of full size, or with only what is inside of the array along axis 0."""
    chunk = np.full(chunk_shape, GARBAGE, array.dtype)
    inside = tuple(
        slice(p * c, min((p + 1) * c, n))
        for p, c, n in zip(place, chunk_shape, array.shape, strict=True)
    )
    part = array[inside]
    chunk[tuple(slice(0, n) for n in part.shape)] = part
    return chunk[: len(part)] if clipped else chunk


def selected(array: np.ndarray, chunk_shape: tuple[int, ...], index, *, clipped=False):
    selection = Selection(index, array.shape)
    out = np.full(prod(selection.shape), GARBAGE, array.dtype)
    boxes = selection.boxes(chunk_shape)
    copy_all(boxes, array, chunk_shape, out, clipped=clipped)
    check_columns(boxes, array.ndim, out.size)
    check_contiguous(boxes, chunk_shape, array, out)
    check_on_demand(Selection(index, array.shape), boxes, chunk_shape)
    return out.reshape(selection.shape)


def copy_all(boxes, array, chunk_shape, out, *, clipped=False) -> None:
    chunks, edges = boxes.of_chunks()
    assert len(set(map(tuple, chunks.tolist()))) == len(chunks)
    assert chunks.tolist() == sorted(chunks.tolist())
    for number, place in enumerate(chunks.tolist()):
        chunk = cut(array, chunk_shape, place, clipped=clipped)
        boxes.copy(int(edges[number]), int(edges[number + 1]), chunk, out)


def few_at_once():
    """Have boxes made when they are asked for, and points looked at, a few at once."""
    patches = ExitStack()
    for module, name, value in (
        (box_parts, "_LISTED", -1),
        (box_parts, "_LISTED_A_CHUNK", 0),
        (box_parts, "_AT_ONCE", 5),
        (selection_module, "_AT_ONCE", 7),
    ):
        patches.enter_context(mock.patch.object(module, name, value))
    return patches


def check_on_demand(selection, boxes, chunk_shape) -> None:
    """Check that boxes which are made when they are asked for are those that are listed."""
    with few_at_once():
        others = selection.boxes(chunk_shape)
        for name in ("chunk", "start", "extent", "target"):
            assert (getattr(others, name)[:] == getattr(boxes, name)).all()
            last = np.arange(boxes.target.size)[::-2]
            assert (getattr(others, name)[last] == getattr(boxes, name)[last]).all()
        for name in ("step", "stride"):
            assert (getattr(others, name) == getattr(boxes, name)).all()
        for found, expected in zip(others.of_chunks(), boxes.of_chunks(), strict=True):
            assert (found == expected).all()
        assert (others.contiguous(chunk_shape)[:] == boxes.contiguous(chunk_shape)).all()
        check_copies(others, boxes, chunk_shape)


def check_copies(others, boxes, chunk_shape) -> None:
    chunk = numbered(chunk_shape)
    size = int((boxes.target + (boxes.extent - 1) @ boxes.stride).max(initial=-1)) + 1
    outs = np.full((2, size), GARBAGE, np.int32)
    for first, last in pairwise(boxes.of_chunks()[1].tolist()):
        boxes.copy(first, last, chunk, outs[0])
        others.copy(first, last, chunk, outs[1])
    assert (outs[0] == outs[1]).all()


def check_columns(boxes, axes: int, size: int) -> None:
    count = len(boxes.target)
    for column in (boxes.chunk, boxes.start, boxes.extent):
        assert (column.shape, column.dtype) == ((count, axes), np.int64)
    for column in (boxes.step, boxes.stride):
        assert (column.shape, column.dtype) == ((axes,), np.int64)
    assert boxes.target.dtype == np.int64
    assert (boxes.extent >= 1).all()
    assert boxes.extent.prod(axis=1).sum() == size


def check_contiguous(boxes, chunk_shape, array, out) -> None:
    for number in np.flatnonzero(boxes.contiguous(chunk_shape)).tolist():
        chunk = cut(array, chunk_shape, boxes.chunk[number].tolist()).reshape(-1)
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
    ((10,), (3,), slice(2, None, 10**30)),
    ((10,), (3,), slice(None, None, -(10**30))),
    ((10,), (3,), np.array(7)),
    ((10,), (3,), np.array([3, 4, 5, 6], np.uint8)),
    ((10,), (3,), Like([2, -1])),
    ((10,), (3,), Like(3)),
    ((10,), (3,), Like(np.arange(10) > 4)),
    ((10,), (3,), True),
    ((10,), (3,), False),
    ((10,), (3,), (np.True_, slice(2, 5))),
    ((10,), (3,), (np.array(True), [1, 2, 3])),
    ((10,), (3,), (slice(2, 5), None, True)),
    ((), (), True),
    ((), (), np.array(False)),
    ((7, 9), (2, 4), Like(numbered((7, 9)) % 5 == 2)),
    ((7, 9), (2, 4), (Like(3), Like([1, 0]))),
    ((7, 9), (2, 4), (np.zeros((0, 1), int), [99, 100])),
    ((7, 9), (2, 4), np.zeros(0, bool)),
    ((7, 9), (2, 4), ((0, 1), (2, 3))),
    ((7, 9), (2, 4), ((0, 1),)),
    ((7, 9), (2, 4), (slice(0, 1, -1), slice(0, 0))),
    ((7, 9), (7, 9), (0, slice(None, None, -1))),
    ((4, 5, 6), (2, 2, 4), (0, ..., [1, 2])),
    ((4, 5, 6), (2, 2, 4), (slice(None), 1, ..., [1, 2])),
    ((4, 5, 6), (2, 2, 4), (1, None, [1, 2])),
    ((4, 5, 6), (2, 2, 4), (slice(None), numbered((5, 6)) % 3 > 0)),
]


@pytest.mark.parametrize(("shape", "chunk_shape", "index"), CASES)
def test_cases(shape, chunk_shape, index):
    array = numbered(shape)
    found = selected(array, chunk_shape, index)
    assert found.shape == array[index].shape
    assert found.tolist() == array[index].tolist()


@pytest.mark.parametrize(
    "index",
    [
        10,
        -11,
        10**30,
        (0, 0),
        (..., ...),
        [0, 10],
        [0.5],
        1.5,
        "a",
        slice(0.5),
        {},
        [None],
        [slice(1)],
        np.array([]),
        np.array(1.0),
        np.zeros(9, bool),
        np.zeros((10, 1), bool),
        Like(np.zeros(9, bool)),
        (True, 10),
        (False, 10),
        (True, True, 0, 0),
    ],
)
def test_what_numpy_refuses(index):
    with pytest.raises((IndexError, TypeError)) as expected:
        numbered((10,))[index]
    with pytest.raises(expected.type, match=r"."):
        Selection(index, (10,))


def test_a_ragged_list():
    for refuses in (numbered((10,)).__getitem__, lambda index: Selection(index, (10,))):
        with pytest.raises(ValueError, match="inhomogeneous"):
            refuses([[0], [0, 1]])


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
        ([[0, 10], [1, 2]], "index 10 is out of bounds for axis 0 with size 10"),
        ((0, 0.5), "not float of float64"),
        ((slice(None), slice("a")), "axis 1: slice indices must be integers"),
    ],
)
def test_messages(index, message):
    with pytest.raises((IndexError, TypeError), match=message):
        Selection(index, (10, 3))


def test_whole():
    assert Selection(..., (4, 5)).whole
    assert Selection((), (4, 5)).whole
    assert Selection(slice(None), (4, 5)).whole
    assert Selection((slice(None, None, -3), slice(0, 9)), (1, 5)).whole
    assert Selection(slice(None, None, -1), (0, 5)).whole
    assert Selection((), ()).whole
    assert not Selection(True, (4, 5)).whole
    assert not Selection((slice(None), slice(0, 4)), (4, 5)).whole
    assert not Selection(slice(None, None, -1), (4, 5)).whole
    assert not Selection([0, 1, 2, 3], (4, 5)).whole
    assert not Selection(None, (4, 5)).whole


def test_runs_of_places_are_one_box():
    boxes = Selection(list(range(5, 25)), (100,)).boxes((10,))
    assert boxes.extent.tolist() == [[5], [10], [5]]
    assert boxes.target.tolist() == [0, 5, 15]


def test_runs_beside_an_integer_are_one_box():
    boxes = Selection((3, [4, 5, 6, 8]), (10, 100)).boxes((2, 6))
    assert boxes.chunk.tolist() == [[1, 0], [1, 1], [1, 1]]
    assert boxes.start.tolist() == [[1, 4], [1, 0], [1, 2]]
    assert boxes.extent.tolist() == [[1, 2], [1, 1], [1, 1]]
    assert boxes.target.tolist() == [0, 2, 3]
    assert boxes.stride.tolist() == [0, 1]


def test_rows_of_a_mask_are_runs():
    mask = np.zeros((4, 8), bool)
    mask[1, 2:7] = mask[2, 0] = True
    boxes = Selection(mask, (4, 8)).boxes((4, 8))
    assert boxes.start.tolist() == [[1, 2], [2, 0]]
    assert boxes.extent.tolist() == [[1, 5], [1, 1]]
    assert boxes.contiguous((4, 8)).all()


def test_a_slice_that_goes_down():
    boxes = Selection(slice(8, None, -3), (10,)).boxes((4,))
    assert boxes.chunk.tolist() == [[0], [1], [2]]
    assert boxes.start.tolist() == [[2], [1], [0]]
    assert boxes.target.tolist() == [2, 1, 0]
    assert boxes.step.tolist() == [1]
    boxes = Selection(slice(8, None, -1), (10,)).boxes((4,))
    assert boxes.start.tolist() == [[3], [3], [0]]
    assert boxes.extent.tolist() == [[4], [4], [1]]
    assert boxes.step.tolist() == [-1]


def test_axes_that_are_gone_have_no_stride():
    assert Selection((1, slice(0, 5)), (3, 7)).boxes((2, 3)).stride.tolist() == [0, 1]
    assert Selection((slice(0, 2), 1), (3, 7)).boxes((2, 3)).stride.tolist() == [1, 0]


def test_nothing_has_no_boxes():
    chunks, edges = Selection((slice(2, 2), [1, 2]), (4, 5)).boxes((2, 2)).of_chunks()
    assert chunks.shape == (0, 2)
    assert edges.tolist() == [0]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("shape", [(30_000,), (10_000, 3), (150, 200)])
def test_many_boxes_of_a_chunk(share, shape):
    array = numbered(shape)
    mask = np.random.default_rng(5).random(shape[0]) < share
    assert (selected(array, shape, mask) == array[mask]).all()
    index = (np.flatnonzero(mask), slice(None, None, -2))[: len(shape)]
    assert (selected(array, shape, index) == array[index]).all()


def test_rows_of_chunks_are_contiguous_where_they_are_whole():
    boxes = Selection(slice(0, 9), (10, 8)).boxes((2, 8))
    assert boxes.contiguous((2, 8)).all()
    boxes = Selection((slice(0, 9), slice(0, 7)), (10, 8)).boxes((2, 8))
    assert boxes.contiguous((2, 8)).tolist() == [False] * 4 + [True]


def test_a_selection_of_many_chunks_has_a_box_for_each():
    boxes = Selection(..., (1_000_000,)).boxes((10,))
    assert boxes.target.size == 100_000
    assert (boxes.extent == 10).all()


def arrays_of(values, shape: tuple[int, ...]):
    size = prod(shape)
    flat = st.lists(values, min_size=size, max_size=size)
    return flat.map(lambda found: np.array(found, type(found[0]) if found else int).reshape(shape))


def masks(shape: tuple[int, ...]):
    return arrays_of(st.booleans(), shape).map(lambda found: found.astype(bool))


def slices(size: int):
    edge = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, edge, edge, st.none() | st.integers(-4, 4).filter(bool))


def places_along(size: int, slack: int):
    return st.integers(-size - slack, max(size - 1 + slack, -size - slack))


@st.composite
def items(draw, sizes: tuple[int, ...], points: tuple[int, ...], slack: int):
    """Return an index for the first of some axes, and for how many it is."""
    size = sizes[0]
    whole = size or slack
    kinds = "ssnzm" + "ijaaly" * bool(whole)
    kind = draw(st.sampled_from(kinds))
    if kind == "s":
        return draw(slices(size)), 1
    if kind == "n":
        return None, 0
    if kind == "z":
        return draw(st.sampled_from([True, False, np.True_, np.array(True)])), 0
    if kind == "m":
        axes = draw(st.integers(1, min(2, len(sizes))))
        mask = draw(masks(sizes[:axes]))
        return (mask.tolist() if axes == 1 and draw(st.booleans()) else mask), axes
    place = places_along(size, slack)
    if kind in "ij":
        found = draw(place)
        return (found if kind == "i" else draw(st.sampled_from([np.int16, np.array]))(found)), 1
    found = draw(arrays_of(place, points))
    return {"a": found, "l": found.tolist(), "y": Like(found)}[kind], 1


@st.composite
def cases(draw, slack: int = 0):
    """Return shapes of an array and its chunks, and an index, maybe `slack` elements outside."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    chunk_shape = tuple(draw(st.integers(1, max(1, n) + 2)) for n in shape)
    points = draw(st.sampled_from([(3,), (1,), (2, 2), (8,), (0,)]))
    index: list = []
    axis = 0
    while axis < len(shape) and draw(st.integers(0, 9)):
        item, axes = draw(items(shape[axis:], points, slack))
        index.append(item)
        axis += axes
    if draw(st.booleans()):
        index.insert(draw(st.integers(0, len(index))), ...)
    return shape, chunk_shape, tuple(index)


@given(cases(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_as_numpy_does(case, clipped):
    check_case(*case, clipped=clipped)


@given(cases(slack=1))
@settings(max_examples=300, deadline=None)
def test_as_numpy_does_where_indices_may_be_outside(case):
    check_case(*case)


class Broken:
    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        raise RuntimeError("no array")


#: What indices are made of, of whatever axes.
ODDITIES = [
    *(0, 1, -1, 4, -5, 9, 10**30, -(10**30), True, False, None, ..., 1.0, 0.5, float("nan"), 1j),
    *("a", "", b"x", "1", {}, set(), object(), [], [[]], [[], []], (), [None], [...], [1.0], ["a"]),
    *(
        [0, 1],
        [1, -1],
        [0, 7],
        [[0], [1]],
        [[0, 1]],
        [[0], [0, 1]],
        [True],
        [True, False],
        [0, True],
    ),
    *([False, False], [[True, False]], [10**30], [slice(1)], range(2), range(0), (0, 1), ((0,),)),
    *(
        np.int8(1),
        np.uint64(2),
        np.uint64(2**64 - 1),
        np.float32(1),
        np.True_,
        np.False_,
        np.str_(),
    ),
    *(np.array(1), np.array(-9), np.array(1.0), np.array(True), np.array(False), np.array(None)),
    *(np.array([]), np.array([], int), np.array([], bool), np.zeros((0, 2), int), np.zeros((2, 0))),
    *(np.array([0, 1], np.uint8), np.array([2**63], np.uint64), np.array([-1], ">i2")),
    *(np.array([1, 0], object), np.array(["a"]), np.array([0, 1], "m8[s]"), np.ones((2, 2), bool)),
    *(np.array([True, False, True]), np.ones(4, bool), np.zeros(3, bool), np.ones((3, 4), bool)),
    *(
        slice(None),
        slice(1, 3),
        slice(None, None, -1),
        slice(5, 1, -2),
        slice(3, 1),
        slice(-2, None),
    ),
    *(slice(None, None, 0), slice("a"), slice(1.0), slice(None, 10**30), slice(np.int8(1), None)),
    *(
        Like([True, False, True]),
        Broken(),
        memoryview(b"\1\0"),
        bytearray(b"\1"),
    ),
]


def test_oddities_as_numpy_has_them():
    random = np.random.default_rng(17)
    counts = {True: 0, False: 0}
    for _ in range(6000):
        shape = tuple(random.choice([0, 1, 2, 3, 4, 5], random.integers(0, 4)).tolist())
        chosen = random.integers(0, len(ODDITIES), random.choice([1, 1, 2, 2, 3, 4]))
        index = tuple(ODDITIES[number] for number in chosen)
        counts[check_oddity(shape, index[0] if len(index) == 1 else index)] += 1
    assert min(counts.values()) > 500


REFUSALS = (IndexError, TypeError, ValueError, RuntimeError)


def check_oddity(shape, index) -> bool:
    """Check that NumPy gives the same, or refuses alike; return whether it refuses."""
    array = numbered(shape)
    try:
        expected = np.asarray(array[index])
    except (*REFUSALS, OverflowError, DeprecationWarning) as error:
        # OverflowError is what NumPy has for its own large integers only, and NumPy 1 only warns of
        # what is outside where the result is empty.
        kind = type(error) if isinstance(error, REFUSALS) else IndexError
        with pytest.raises(kind, match=r"."):
            Selection(index, shape)
        return True
    found = selected(array, tuple(2 for _ in shape), index)
    assert (found.shape, found.tolist()) == (expected.shape, expected.tolist()), repr(index)
    return False


def test_more_axes_than_numpy_has():
    array = numbered((3,))
    for count in (30, 31, 32, 62, 63, 64, 65, 200):
        check_oddity(array.shape, (None,) * count)


def check_case(shape, chunk_shape, index, *, clipped=False) -> None:
    array = numbered(shape)
    try:
        expected = np.asarray(array[index])
    except (IndexError, DeprecationWarning):  # NumPy 1 only warns where the result is empty.
        with pytest.raises(IndexError):
            Selection(index, shape)
        return
    found = selected(array, chunk_shape, index, clipped=clipped and bool(shape))
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()
    assert expected.tolist() == array.tolist() or not Selection(index, shape).whole
