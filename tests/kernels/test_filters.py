"""The kernels of filters on the CPU, under sanitizers, against the definitions of the filters."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpuload.array_codecs import Delta, PackBits
from gpuload.filters import plan as plans
from gpuload.filters.plan import DELTA_DTYPE, Units, make_plan
from tests.helpers.filtered import filtered, name_of, steps
from tests.helpers.lanes import build, filters
from tests.helpers.lanes.filters import Case

TILE = 8192
STEPS = steps()
OF_PARTS = (plans.SCALE_DTYPE, DELTA_DTYPE)


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
    return np.random.default_rng(7)


@pytest.fixture
def _small_parts(monkeypatch):
    monkeypatch.setattr(plans, "_PART", 10_000)


def one(values) -> np.ndarray:
    return np.array([values], np.int64)


def cases_of(step, stored, raw, at=0, to=0):
    """Return a case for each part, its kernel, and what it is to make."""
    units = Units(one(0), one(0), one(stored.size), one(raw.size))
    plan = make_plan(step, units)
    kernel = plan.launches[0][0].codec
    found, start, before = [], 0, 0
    for number in range(plan.launches[-1][1], plan.count):
        params = plan._params[number : number + 1].copy()
        src, dst, room = stored, int(params["dst"][0]), int(params["room"][0])
        table, of_table = b"", 0
        if params.dtype in OF_PARTS:
            src = stored[int(params["src"][0]) :][: int(params["size"][0])]
        if params.dtype == DELTA_DTYPE and params["sums"][0]:
            table, of_table, params["sums"] = np.uint64(before).tobytes(), 4, 0
        params["src"] = params["dst"] = 0
        places = {"src_at": (at + len(found)) % 16, "dst_at": (to + dst) % 16}
        case = Case(params, src.tobytes(), room, **places, table=table, of_table=of_table)
        found.append((case, raw[dst : dst + room].tobytes()))
        assert dst == start
        start += room
        if isinstance(step, Delta):
            last = raw.view(f"u{step.dtype.itemsize}")[start // step.dtype.itemsize - 1]
            before = int(last)
    assert start == raw.size
    return kernel, found


def verify(step, sizes, rng, lanes=128, **options):
    asked, kernel = [], ""
    for number, size in enumerate(sizes):
        stored, raw = filtered(step, rng, size)
        if not raw.size:
            continue
        at, to = (0, 0) if number % 3 == 0 else rng.integers(0, 16, 2).tolist()
        kernel, parts = cases_of(step, stored, raw, at, to)
        asked += parts
    made = filters.run_parallel(f"{kernel}_{lanes}", [case for case, _ in asked], **options)
    for (case, expected), found in zip(asked, made, strict=True):
        assert found.dst == expected, (step, len(case.src), case.src_at, case.dst_at)
        assert found.table == case.table
        assert found.status == (0 if isinstance(step, PackBits) else 0xCDCDCDCD)


@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_sizes_up_to_a_few_tiles(step, rng):
    sizes = [*range(1, 40), 63, 64, 65, 127, 128, 129, 255, 500, 1000, 4096]
    sizes += [TILE - 1, TILE, TILE + 1, 2 * TILE, 3 * TILE + 5, 20_000]
    verify(step, sizes, rng)


@pytest.mark.usefixtures("_exact")
@pytest.mark.parametrize("step", STEPS, ids=name_of)
@pytest.mark.parametrize("lanes", [1, 128])
def test_bounds_to_the_byte(step, rng, lanes):
    sizes = [*range(1, 24), *rng.integers(24, 3000, 12).tolist(), TILE + 13, 2 * TILE]
    verify(step, sizes, rng, lanes, build=build.EXACT)


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_parts(step, rng):
    verify(step, [9_999, 20_480, 30_000, 30_001], rng)


@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_a_single_lane(step, rng):
    verify(step, [5, 64, 100, 1000, TILE + 100, 70_000], rng, 1, build=build.ALONE)


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_every_order_of_lanes(order, rng):
    for step in STEPS[::3]:
        verify(step, [100, 1000, TILE + 100], rng, order=order)


@pytest.mark.usefixtures("_races")
def test_no_data_races(rng):
    for step in STEPS[::2]:
        verify(step, [300, TILE + 300, 2 * TILE + 77], rng, build=build.RACES)


@pytest.mark.parametrize("lanes", [1, 128])
@pytest.mark.parametrize("size", ["i1", "i2", "i4", "i8"])
@pytest.mark.parametrize("stored", ["i1", "u2", "i4", "u8"])
def test_sums_of_parts(size, stored, lanes, rng):
    """The first launch of a delta with several parts."""
    step, asked, sums = Delta(np.dtype(size), np.dtype(stored)), [], []
    for count in (1, 5, 16, 129, 5000):
        elements, _ = filtered(step, rng, count * step.astype.itemsize)
        params = np.zeros(1, DELTA_DTYPE)
        params["size"], params["algo"] = elements.size, plans.ALGORITHMS["delta"]
        params["kinds"], params["stage"] = plans._kinds(step), plans._SUM
        at = {"src_at": count % 16, "table": bytes(8), "of_table": 4}
        asked.append(Case(params, elements.tobytes(), 0, **at))
        sums.append(sum(elements.view(step.astype).tolist()))
    way = build.ALONE if lanes == 1 else build.WARPS
    made = filters.run(f"delta_{lanes}", asked, build=way)
    mask = (1 << 8 * step.dtype.itemsize) - 1
    found = [int.from_bytes(each.table, "little") & mask for each in made]
    assert found == [total & mask for total in sums]


@pytest.mark.parametrize("lanes", [1, 128])
def test_sums_that_are_added_up(lanes):
    """The second one: what stands before each part."""
    rng, asked, expected = random.Random(5), [], []
    for count in (1, 2, 127, 128, 129, 1000):
        sums = [rng.randrange(1 << 64) for _ in range(count)]
        params = np.zeros(1, DELTA_DTYPE)
        params["algo"], params["stage"] = plans.ALGORITHMS["delta"], plans._ADD_UP
        params["parts"] = count
        asked.append(Case(params, b"", 0, table=np.array(sums, "<u8").tobytes(), of_table=4))
        expected.append([sum(sums[:number]) % (1 << 64) for number in range(count)])
    way = build.ALONE if lanes == 1 else build.WARPS
    made = filters.run(f"delta_{lanes}", asked, build=way)
    assert [np.frombuffer(each.table, "<u8").tolist() for each in made] == expected


def test_a_first_byte_that_is_wrong():
    raw = np.ones(13, np.uint8)
    asked = []
    for first in (3, 2, 4, 0, 8, 255):
        stored = np.array([first, 255, 248], np.uint8)
        _, [(case, expected)] = cases_of(PackBits(), stored, raw)
        asked.append(case)
    made = filters.run("packbits_128", asked)
    assert [found.status == 0 for found in made] == [True, *[False] * 5]
    assert {found.dst for found in made} == {expected}


def test_operations_of_others_are_left_alone(rng):
    kernels = set()
    for step in STEPS[::4]:
        stored, raw = filtered(step, rng, 100)
        kernel, [(case, _)] = cases_of(step, stored, raw)
        case.params["algo"] = 4
        (made,) = filters.run(f"{kernel}_128", [case])
        assert made.dst == bytes([filters.UNTOUCHED]) * len(made.dst)
        assert made.status == 0xCDCDCDCD
        kernels.add(kernel)
    assert len(kernels) >= 5
