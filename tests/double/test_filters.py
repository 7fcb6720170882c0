"""Filters undone, and boxes copied, by kernels on the double: bytes, memory, threads and errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpuload import driver
from gpuload.array_codecs import BitUnshuffle, Delta, FixedScaleOffset, PackBits, Swap, Unshuffle
from gpuload.errors import DriverError
from gpuload.filters import box_plan, device, plan
from gpuload.filters.device import DeviceFilters
from gpuload.memory import copy
from tests.helpers.benches import workbench
from tests.helpers.device_loads import hang_ends_the_process
from tests.helpers.fakecuda import Code
from tests.helpers.filtered import BACKGROUND, lay_out, name_of, steps
from tests.helpers.strided import box, boxes

STEPS = steps()
SIZES = [*range(0, 40, 3), 500, 8192, 20_001]


@pytest.fixture
def bench(cuda):
    with workbench() as made, hang_ends_the_process(120):
        yield made


@pytest.fixture
def engine(bench):
    made = DeviceFilters(0)
    yield made
    made.close()


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def _small_parts(monkeypatch):
    monkeypatch.setattr(plan, "_PART", 3000)
    monkeypatch.setattr(box_plan, "_PART", 1000)


def on_device(bench, data):
    window = bench.device.allocate(max(1, data.size), stream=bench.stream)
    bench._kept.append(window)
    copy(int(window.handle), bench.stored(data), data.size, bench.stream)
    return window


def place(bench, laid):
    source = on_device(bench, laid.stored)
    target = on_device(bench, np.full(laid.expected.size, BACKGROUND, np.uint8))
    columns = laid.src + int(source.handle), laid.dst + int(target.handle), laid.sizes
    return target, columns


def start(bench, engine, step, laid):
    target, columns = place(bench, laid)
    decoded = laid.decoded if isinstance(step, PackBits) else None
    return target, engine.undo(step, *columns, bench.stream, decoded=decoded)


def verify(bench, engine, step, laid):
    target, submission = start(bench, engine, step, laid)
    assert not submission.wait().any()
    assert (bench.fetch(target)[: laid.expected.size] == laid.expected).all()


# --- Filters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_every_filter(bench, engine, rng, step):
    verify(bench, engine, step, lay_out(step, rng, SIZES))


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("step", STEPS[::2], ids=name_of)
def test_parts(bench, engine, rng, step):
    verify(bench, engine, step, lay_out(step, rng, [50_000, 10, 2999, 3000, 0, 7001]))


@pytest.mark.parametrize("step", [Unshuffle(1), Swap(1), Unshuffle(0)], ids=name_of)
def test_filters_that_do_nothing(bench, engine, rng, step):
    laid = lay_out(Swap(1), rng, SIZES)
    verify(bench, engine, step, laid)


def test_several_batches(bench, engine, rng, monkeypatch):
    monkeypatch.setattr(device, "_BATCH", 7)
    for step in (Unshuffle(4), PackBits()):
        verify(bench, engine, step, lay_out(step, rng, SIZES * 2))


def test_nothing_to_do(cuda, bench, engine, rng):
    before = cuda.recorder.calls["cuLaunchKernelEx"]
    none = np.zeros(0, np.int64)
    assert engine.undo(Unshuffle(4), none, none, none, bench.stream).wait().size == 0
    zeros = np.zeros(3, np.int64)
    assert not engine.undo(Delta(*2 * [np.dtype("i4")]), *3 * [zeros], bench.stream).wait().any()
    one = np.ones(1, np.int64)
    engine.copy_boxes(zeros, zeros, zeros[:, np.newaxis], one, one, 4, bench.stream)
    assert cuda.recorder.calls["cuLaunchKernelEx"] == before


def test_first_bytes_of_packed_bits_that_are_wrong(bench, engine, rng, monkeypatch):
    monkeypatch.setattr(device, "_BATCH", 3)
    laid = lay_out(PackBits(), rng, [13, 0, 100, 64, 7, 8, 9, 30])
    for unit in (2, 3, 6):
        laid.stored[laid.src[unit]] ^= 8
    target, submission = start(bench, engine, PackBits(), laid)
    assert np.flatnonzero(submission.wait()).tolist() == [2, 3, 6]
    assert np.flatnonzero(submission.wait()).tolist() == [2, 3, 6]
    assert (bench.fetch(target)[: laid.expected.size] == laid.expected).all()


def test_sizes_that_disagree(bench, engine):
    one, ten = np.zeros(1, np.int64), np.full(1, 10)
    with pytest.raises(ValueError, match="only its caller knows"):
        engine.undo(PackBits(), one, one, ten, bench.stream)
    for wrong in (73, 64, 0):
        with pytest.raises(ValueError, match="not those of its bits"):
            engine.undo(PackBits(), one, one, ten, bench.stream, decoded=np.full(1, wrong))
    with pytest.raises(ValueError, match="Swap of other sizes"):
        engine.undo(Swap(4), one, one, ten, bench.stream, decoded=ten + 1)


def test_filters_that_only_the_host_undoes(bench, engine):
    one = np.ones(1, np.int64)
    floats = [np.dtype("f4")] * 2
    for step in (Delta(*floats), FixedScaleOffset(0.0, 1.0, np.dtype("i4"), np.dtype("i4"))):
        assert device.supported(step)
        with pytest.raises(ValueError, match=r"running sums|fixed scale"):
            engine.undo(step, one, one, one * 8, bench.stream)


# --- Boxes ----------------------------------------------------------------------------------------


def copy_all(bench, engine, made, element=None):
    """Copy boxes, each in memory of its own."""
    targets = []
    for each in made:
        source = on_device(bench, each.src)
        target = on_device(bench, np.full(each.room, BACKGROUND, np.uint8))
        engine.copy_boxes(
            np.array([int(source.handle) + each.src_first]),
            np.array([int(target.handle) + each.dst_first]),
            np.array([each.extents], np.int64),
            np.array(each.src_strides, np.int64),
            np.array(each.dst_strides, np.int64),
            each.element,
            bench.stream,
        )
        targets.append(target)
    for each, target in zip(made, targets, strict=True):
        assert (bench.fetch(target)[: each.room] == each.expected(BACKGROUND)).all(), each


def test_boxes_of_many_sorts(bench, engine, rng):
    copy_all(bench, engine, boxes(rng, 80))


@pytest.mark.usefixtures("_small_parts")
def test_boxes_in_parts(bench, engine, rng):
    copy_all(bench, engine, boxes(rng, 40))


@pytest.mark.parametrize("element", [3, 5, 6, 12, 24, 40])
def test_elements_of_other_sizes(bench, engine, rng, element):
    orders = [((0, 1), (0, 1)), ((1, 0), (0, 1)), ((0, 1), (1, 0))]
    copy_all(bench, engine, [box(rng, (9, 11), element, *order) for order in orders])


def test_boxes_with_many_axes_and_with_none(bench, engine, rng):
    order = rng.permutation(10).tolist()
    copy_all(bench, engine, [box(rng, (2, 1, 2, 3, 2, 2, 1, 2, 2, 3), 4, order, range(10))])
    copy_all(bench, engine, [box(rng, (3,) + 10 * (2,), 1, range(11)[::-1], range(11))])
    copy_all(bench, engine, [box(rng, (), 8, (), ())])


def test_long_axes_are_cut(bench, engine, rng, monkeypatch):
    monkeypatch.setattr(box_plan, "_MOST_ELEMENTS", 100)
    shapes = [(1000,), (99, 101), (250, 3)]
    copy_all(bench, engine, [box(rng, shape, 2, *2 * [range(len(shape))]) for shape in shapes])


def test_many_boxes_of_one_array(bench, engine, rng, monkeypatch):
    """A grid of chunks, cropped at the edges, comes together."""
    monkeypatch.setattr(device, "_BATCH", 5)
    shape, chunk = (50, 70), (16, 24)
    array = rng.integers(0, 1 << 30, shape).astype(np.int32)
    padded = np.zeros((64, 72), np.int32)
    padded[:50, :70] = array
    chunks = padded.reshape(4, 16, 3, 24).transpose(0, 2, 1, 3).copy()
    source = on_device(bench, chunks.view(np.uint8).reshape(-1))
    target = on_device(bench, np.zeros(array.nbytes, np.uint8))
    rows, columns = (each.reshape(-1) for each in np.mgrid[0:4, 0:3])
    engine.copy_boxes(
        int(source.handle) + np.arange(12) * 16 * 24 * 4,
        int(target.handle) + rows * 16 * 280 + columns * 24 * 4,
        np.stack(
            [np.minimum(16, 50 - rows * chunk[0]), np.minimum(24, 70 - columns * chunk[1])], 1
        ),
        np.array([96, 4]),
        np.array([280, 4]),
        4,
        bench.stream,
    )
    found = bench.fetch(target)[: array.nbytes].view(np.int32).reshape(shape)
    assert (found == array).all()


# --- Submitting and waiting -----------------------------------------------------------------------


def calls(cuda, *words):
    return {
        name: number
        for name, number in cuda.recorder.calls.items()
        if any(word in name for word in words)
    }


WAITING = ("Synchronize", "Memcpy", "Alloc", "Create", "Library")


def test_submitting_does_not_wait(cuda, bench, engine, rng):
    step = Unshuffle(4)
    laid = lay_out(step, rng, [1000] * 20)
    verify(bench, engine, step, laid)  # compiles, and allocates what is kept
    target, columns = place(bench, laid)
    before = calls(cuda, *WAITING)
    engine.undo(step, *columns, bench.stream)
    assert calls(cuda, *WAITING) == before
    assert (bench.fetch(target)[: laid.expected.size] == laid.expected).all()


def test_memory_is_used_again_though_nobody_waits(cuda, bench, engine, rng):
    step = BitUnshuffle(2)
    _, columns = place(bench, lay_out(step, rng, [1000] * 20))
    for _ in range(3):
        engine.undo(step, *columns, bench.stream)
        bench.stream.sync()
    before = calls(cuda, "Alloc")
    for _ in range(10):
        engine.undo(step, *columns, bench.stream)
        bench.stream.sync()
    assert calls(cuda, "Alloc") == before


def test_memory_has_a_limit(cuda, bench, engine, rng, monkeypatch):
    monkeypatch.setattr(device, "_HELD", 8 << 10)
    step = Unshuffle(4)
    laid = lay_out(step, rng, [500] * 20)
    target, columns = place(bench, laid)
    submissions = [engine.undo(step, *columns, bench.stream) for _ in range(50)]
    assert len(engine._running) <= 6
    assert not any(each.wait().any() for each in submissions)
    assert (bench.fetch(target)[: laid.expected.size] == laid.expected).all()


def test_threads_share_it(bench, engine, rng, monkeypatch):
    monkeypatch.setattr(device, "_HELD", 8 << 10)
    laid = lay_out(PackBits(), rng, [300] * 20)
    laid.stored[laid.src[5]] ^= 1
    _, columns = place(bench, laid)
    bench.stream.sync()

    def work(_):
        with driver.on_device(0):
            stream = driver.device(0).create_stream()
            try:
                return engine.undo(PackBits(), *columns, stream, decoded=laid.decoded).wait()
            finally:
                stream.sync()
                stream.close()

    with ThreadPoolExecutor(4) as pool:
        for damaged in pool.map(work, range(24)):
            assert np.flatnonzero(damaged).tolist() == [5]


def test_closing_waits_for_what_nobody_waited_for(bench, rng):
    engine, step = DeviceFilters(0), Swap(8)
    laid = lay_out(step, rng, [1000] * 5)
    target, submission = start(bench, engine, step, laid)
    engine.close()
    assert not submission.wait().any()
    assert (bench.fetch(target)[: laid.expected.size] == laid.expected).all()


@pytest.mark.parametrize(
    ("name", "after"), [("cuLaunchKernelEx", 0), ("cuLaunchKernelEx", 2), ("cuEventRecord", 0)]
)
@pytest.mark.usefixtures("_small_parts")
def test_calls_that_fail(cuda, bench, engine, rng, name, after):
    step = Delta(np.dtype("i4"), np.dtype("i4"))  # of several launches
    laid = lay_out(step, rng, [10_000] * 5)
    verify(bench, engine, step, laid)
    _, columns = place(bench, laid)
    cuda.fail_next(name, Code.INVALID_VALUE, after=after)
    with pytest.raises(DriverError, match=f"{name} failed: "):
        engine.undo(step, *columns, bench.stream)
    verify(bench, engine, step, laid)
