"""The kernel of boxes on the CPU, under sanitizers, against NumPy's strided arrays."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.filters import box_plan
from gpuload.filters.box_plan import Boxes, BoxPlan, normal
from tests.helpers.lanes import build, filters
from tests.helpers.lanes.filters import Case
from tests.helpers.strided import box, boxes

SIZES = (1, 2, 4, 8, 16)


def skip_without(way: build.Build) -> None:
    if reason := build.missing(way):
        pytest.skip(reason)


@pytest.fixture(autouse=True, scope="module")
def _sanitizers():
    skip_without(build.WARPS)


@pytest.fixture(scope="module")
def _exact():
    skip_without(build.EXACT)


@pytest.fixture(scope="module")
def _races():
    skip_without(build.RACES)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def cases_of(strided, at=0, to=0):
    """Return a case for each part of a box; addresses are remainders by 16 in the plan."""
    columns = [np.array(each, np.int64) for each in (strided.src_strides, strided.dst_strides)]
    given = Boxes(
        np.array([strided.src_first + at]),
        np.array([strided.dst_first + to]),
        np.array([strided.extents], np.int64),
        *columns,
        strided.element,
    )
    plan = BoxPlan(normal(given))
    start = plan.extra_start
    params = plan.params(0).view(box_plan.BOX_DTYPE)
    for name in ("extents", "distances"):
        params[name] -= start
    params["src"] -= at
    params["dst"] -= to
    table = plan.extra().tobytes()
    src = strided.src.tobytes()
    return [Case(params[i : i + 1], src, strided.room, at, to, table, 5) for i in range(plan.count)]


def verify(all_of_them, rng, lanes=128, **options):
    asked, owners = [], []
    for number, strided in enumerate(all_of_them):
        unit = strided.element if number % 2 else 1
        at, to = (0, 0) if number % 3 == 0 else (rng.integers(0, 16 // unit, 2) * unit).tolist()
        cases = cases_of(strided, at, to)
        asked += cases
        owners += [number] * len(cases)
    made = filters.run_parallel(f"boxes_{lanes}", asked, **options)
    joined = {}
    for owner, case, found in zip(owners, asked, made, strict=True):
        assert found.table == case.table
        joined.setdefault(owner, []).append(np.frombuffer(found.dst, np.uint8))
    for owner, parts in joined.items():
        strided, low, high = all_of_them[owner], np.min(parts, axis=0), np.max(parts, axis=0)
        if len(parts) == 1:
            assert (parts[0] == strided.expected(filters.UNTOUCHED)).all(), strided
            continue
        # Each byte is made by one part, and left alone by others.
        for background in (low, high):
            again = strided.expected(filters.UNTOUCHED)
            assert ((background == again) | (background == filters.UNTOUCHED)).all(), strided
        written = [part != filters.UNTOUCHED for part in parts]
        assert np.sum(written, axis=0).max() == 1, strided


@pytest.mark.parametrize("lanes", [32, 128])
def test_boxes_of_many_sorts(rng, lanes):
    verify(boxes(rng, 400), rng, lanes)


@pytest.mark.usefixtures("_exact")
@pytest.mark.parametrize("lanes", [1, 32, 128])
def test_bounds_to_the_byte(rng, lanes):
    verify(boxes(rng, 150), rng, lanes, build=build.EXACT)


def test_a_single_lane(rng):
    verify(boxes(rng, 300), rng, 1, build=build.ALONE)


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_every_order_of_lanes(rng, order):
    verify(boxes(rng, 50), rng, order=order)


@pytest.mark.usefixtures("_races")
@pytest.mark.parametrize("lanes", [32, 128])
def test_no_data_races(rng, lanes):
    verify(boxes(rng, 50), rng, lanes, build=build.RACES)


@pytest.mark.parametrize("element", SIZES)
@pytest.mark.parametrize("lanes", [32, 128])
def test_contiguous_rows(rng, element, lanes):
    """Whole, cropped, and single ones; long enough to be cut."""
    made = [
        box(rng, extents, element, range(len(extents)), range(len(extents)), gaps=gaps)
        for extents in [(1,), (37,), (5000,), (7, 64), (3, 1000), (2, 3, 100)]
        for gaps in [
            [(0, 0)] * len(extents),
            [(0, 16)] * len(extents),
            [(3, 0)] * len(extents),
            [(1, 2)] * len(extents),
        ]
    ]
    verify(made, rng, lanes)


@pytest.mark.parametrize("element", SIZES)
def test_transposed_ones(rng, element):
    """Tiles that are full, and those at the edges."""
    shapes = [(8, 8), (64, 64), (65, 33), (9, 100), (3, 200), (200, 3), (2, 40, 40), (20, 3, 31)]
    made = [
        box(rng, shape, element, range(len(shape))[::-1], range(len(shape)), gaps=gaps)
        for shape in shapes
        for gaps in ([(0, 0)] * len(shape), [(1, 0)] * len(shape))
    ]
    verify(made, rng)


def test_transposed_middle_axes(rng):
    made = [
        box(rng, (3, 12, 5, 20), 4, order, (0, 1, 2, 3))
        for order in [(0, 3, 2, 1), (3, 0, 1, 2), (1, 3, 0, 2), (2, 3, 1, 0), (0, 2, 3, 1)]
    ]
    verify(made, rng)


@pytest.mark.parametrize("element", SIZES)
def test_one_element_for_all(rng, element):
    made = [
        box(rng, shape, element, range(len(shape)), range(len(shape)), fill=range(len(shape)))
        for shape in [(1,), (5,), (3000,), (20, 70), (3, 4, 5)]
    ]
    verify(made, rng)


def test_parts(rng, monkeypatch):
    monkeypatch.setattr(box_plan, "_PART", 1000)
    made = [each for each in boxes(rng, 60) if 0xCD not in each.src]
    shapes = [(70, 70), (500,), (9, 9, 9), (3, 300)]
    for shape in shapes:
        for order in (range(len(shape)), range(len(shape))[::-1]):
            each = box(rng, shape, 4, order, range(len(shape)))
            each.src[each.src == 0xCD] = 0
            made.append(each)
    verify(made, rng)


def test_operations_of_others_are_left_alone(rng):
    (case,) = cases_of(box(rng, (5, 5), 4, (0, 1), (1, 0)))
    case.params["algo"] = 256
    for lanes in (32, 128):
        (made,) = filters.run(f"boxes_{lanes}", [case])
        assert made.dst == bytes([filters.UNTOUCHED]) * len(made.dst)
