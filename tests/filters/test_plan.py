"""Plans of filters and boxes: what a device can do, how work is cut, how much memory it takes."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.array_codecs import (
    BitUnshuffle,
    Delta,
    FixedScaleOffset,
    Pipeline,
    Skip,
    Transpose,
)
from gpuload.batch import ALGORITHMS as DECODERS
from gpuload.batch import PARAMS_DTYPE, SUMS
from gpuload.engines.scan_plan import SCANS
from gpuload.filters import box_plan, plan
from gpuload.filters.box_plan import Boxes, BoxPlan, normal
from gpuload.filters.plan import Units, decoded_sizes, make_plan, supported
from gpuload.kernels import compiler
from tests.helpers.filtered import name_of, steps

STEPS = steps()


def types(one: str, other: str):
    return np.dtype(one), np.dtype(other)


def units_of(step, sizes):
    decoded = np.array(sizes, np.int64)
    stored = np.array([step.encoded_size(size) for size in sizes], np.int64)
    src, dst = np.arange(decoded.size) << 40, (1000 + np.arange(decoded.size)) << 40
    return Units(src, dst, stored, decoded)


# --- What there is --------------------------------------------------------------------------------


def test_every_kernel_has_a_number_of_its_own():
    assert [*plan.ALGORITHMS] == [*compiler.FILTERS]
    others = {*DECODERS.values(), *SUMS.values(), *(kind.algorithm for kind in SCANS.values())}
    assert not others & {*plan.ALGORITHMS.values()}
    assert len({*plan.ALGORITHMS.values()}) == len(plan.ALGORITHMS)


@pytest.mark.parametrize(
    "dtype", [plan.UNIT_DTYPE, plan.SCALE_DTYPE, plan.DELTA_DTYPE, box_plan.BOX_DTYPE]
)
def test_layouts(dtype):
    """Addresses and algorithms stand where decoders have them."""
    assert dtype.itemsize == PARAMS_DTYPE.itemsize
    for name in ("src", "dst", "algo"):
        assert dtype.fields[name][1] == PARAMS_DTYPE.fields[name][1]


@pytest.mark.parametrize("step", [*STEPS, Skip(3), Transpose((0,), 4)], ids=name_of)
def test_filters_that_a_device_undoes(step):
    assert supported(step) == ""


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Delta(*types("f4", "f4")), "running sums of float32 depend on their order"),
        (Delta(*types("i4", "f4")), "running sums of float32"),
        (Delta(*types("?", "i1")), "running sums of bool"),
        (Delta(*types(">i4", "<i4")), "delta of >i4, which is not in the device's byte order"),
        (Delta(*types("<i4", ">i2")), "delta of >i2"),
        (FixedScaleOffset(0.0, 1.0, *types("i4", "i2")), "offset from int16 to int32"),
        (FixedScaleOffset(0.0, 1.0, *types("f2", "i2")), "offset from int16 to float16"),
        (FixedScaleOffset(0.0, 1.0, *types("f8", "f2")), "offset from float16 to float64"),
        (FixedScaleOffset(0.0, 1.0, *types("f8", "?")), "offset from bool to float64"),
        (FixedScaleOffset(0.0, 1.0, *types("<f8", ">i2")), "offset of >i2"),
    ],
    ids=name_of,
)
def test_filters_that_only_the_host_undoes(step, reason):
    assert reason in supported(step)
    with pytest.raises(ValueError, match=reason):
        make_plan(step, units_of(step, [80]))


@pytest.mark.parametrize("step", [Skip(3), Transpose((0,), 4)])
def test_filters_without_a_plan(step):
    with pytest.raises(ValueError, match="nothing that is undone"):
        make_plan(step, units_of(step, [80]))


@pytest.mark.parametrize("step", [*STEPS, Skip(3)], ids=name_of)
def test_decoded_sizes(step):
    for size in (0, 240, 2400):
        stored = np.array([Pipeline((step,)).filtered_sizes(size)[0]], np.int64)
        assert decoded_sizes(step, stored).tolist() == [size]


# --- How work is cut ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_parts_are_all_of_a_unit(step):
    sizes = [step.dtype.itemsize * 10 if hasattr(step, "dtype") else 10, 48 << 20, 480_000]
    units = units_of(step, sizes)
    made = make_plan(step, units)
    _, first, last = made.launches[-1]
    params, owner = made._params[first:last], made.owner[first:last]
    for number, size in enumerate(sizes):
        mine = params[owner == number]
        starts = mine["dst"] - units.dst[number]
        assert starts[0] == 0
        assert (starts[1:] == starts[:-1] + mine["room"][:-1].astype(np.int64)).all()
        assert starts[-1] + int(mine["room"][-1]) == size
        assert mine["room"].max() <= 64 << 10
    assert made.launches[0][1] == 0
    assert last == made.count


def test_first_elements_of_parts():
    """Rows of bits are read from whole bytes, and running sums with what stands before them."""
    made = make_plan(BitUnshuffle(100), units_of(BitUnshuffle(100), [10_000_000]))
    assert not (made._params["start"] % (8 * 100)).any()
    step = Delta(*types("i8", "i2"))
    made = make_plan(step, units_of(step, [800, 8 << 20, 80, 1 << 20]))
    cut, units_cut = 128 + 16, 2
    sizes = [last - first for _, first, last in made.launches]
    assert sizes == [cut, units_cut, cut + 2]
    params = made.params(1 << 50).view(plan.DELTA_DTYPE)
    sums = params["sums"][: cut + units_cut]
    start = (1 << 50) + made.extra_start
    assert sums[:cut].tolist() == [start + 8 * number for number in range(cut)]
    assert sums[cut:].tolist() == [start, start + 8 * 128]
    assert params["parts"][cut : cut + units_cut].tolist() == [128, 16]
    last = params["sums"][cut + units_cut :]
    assert np.flatnonzero(last == 0).tolist() == [0, 129]
    assert last[last != 0].tolist() == sums[:cut].tolist()
    assert made.size == made.extra_start + 8 * cut


@pytest.mark.parametrize("step", STEPS[::3], ids=name_of)
@pytest.mark.parametrize("sizes", [[1 << 41], [1 << 20] * 30_000, [16] * 32_768])
def test_memory_is_bounded(step, sizes):
    made = make_plan(step, units_of(step, sizes))
    assert made.count <= 2 * (len(sizes) + 2 * plan._PARTS)
    assert made.size < 16 << 20


# --- Boxes ----------------------------------------------------------------------------------------


def boxes_of(extents, src, dst, element=4, count=1):
    zeros = np.zeros(count, np.int64)
    rows = np.tile(np.array(extents, np.int64), (count, 1))
    return Boxes(zeros, zeros, rows, np.array(src, np.int64), np.array(dst, np.int64), element)


def test_axes_are_put_in_the_order_of_the_destination():
    made = normal(boxes_of((2, 3, 1, 5), (60, 20, 20, 4), (4, -8, 0, 24)))
    assert made.extents.tolist() == [[5, 3, 2]]
    assert made.dst_strides.tolist() == [24, -8, 4]
    assert made.src_strides.tolist() == [4, 20, 60]


@pytest.mark.parametrize(
    ("element", "src", "dst", "strides", "unit"),
    [
        (4, 0, 0, (4, 4), 4),
        (16, 0, 16, (16, 32), 16),
        (16, 0, 8, (16, 32), 8),
        (8, 0, 0, (12, 8), 4),
        (4, 1, 0, (4, 4), 1),
        (12, 0, 0, (12, 12), 4),
        (40, 0, 0, (40, -40), 8),
        (64, 0, 32, (64, 64), 16),
        (3, 0, 0, (3, 3), 1),
    ],
)
def test_elements_that_lie_where_they_can_be_read(element, src, dst, strides, unit):
    given = boxes_of((10,), strides[:1], strides[1:], element)
    made = normal(Boxes(given.src + src, given.dst + dst, *vars_of(given)))
    assert made.element == unit
    assert int(made.extents.prod()) * unit == 10 * element


def vars_of(boxes):
    return boxes.extents, boxes.src_strides, boxes.dst_strides, boxes.element


def test_boxes_without_elements_are_left_out():
    given = boxes_of((4, 5), (20, 4), (20, 4), count=3)
    given.extents[1, 0] = 0
    assert normal(given).count == 2
    given.extents[:, 1] = 0
    assert normal(given).count == 0


def test_the_largest_boxes():
    made = normal(boxes_of((5 << 30,), (1,), (1,), 1))
    assert made.extents.max() <= 1 << 30
    assert made.extents.sum() == 5 << 30
    order = np.argsort(made.src)
    assert (np.diff(made.src[order]) == made.extents[order][:-1, 0]).all()
    assert (made.src == made.dst).all()


@pytest.mark.parametrize("count", [1, 1000, 32_768])
@pytest.mark.parametrize("extents", [(1, 1), (100, 100), (1000, 5000)])
def test_memory_of_boxes_is_bounded(count, extents):
    made = BoxPlan(normal(boxes_of(extents, (4, 40_000), (40_000, 4), count=count)))
    assert made.count <= count + 2 * box_plan._PARTS
    assert made.size < 16 << 20
    params = made.params(0).view(box_plan.BOX_DTYPE)
    assert (params["part"] < params["parts"]).all()
    assert (
        params["part"].sum()
        == (params["parts"] * (params["parts"].astype(int) - 1) // 2)[params["part"] == 0].sum()
    )
    assert made.extra().nbytes == made.size - made.extra_start
