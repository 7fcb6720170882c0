"""Filters and boxes by kernels on a GPU: fresh random bytes, and nothing touched around them."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gpuload import driver
from gpuload.array_codecs import Delta, PackBits, Swap, Unshuffle
from gpuload.filters import box_plan, plan
from gpuload.filters.host import undo
from gpuload.kernels import compiler
from tests.gpu.test_nvcomp import Bench
from tests.helpers.device_loads import hang_ends_the_process
from tests.helpers.filtered import BACKGROUND, lay_out, name_of, steps
from tests.helpers.strided import box, boxes

pytestmark = pytest.mark.gpu

DEVICE = 0
STEPS = steps()


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    if compiler.refusal(DEVICE):
        pytest.skip(compiler.refusal(DEVICE))


@pytest.fixture
def bench():
    made = Bench()
    try:
        with hang_ends_the_process(300):
            yield made
    finally:
        made.close()


@pytest.fixture
def engine(bench):
    from gpuload.filters.device import DeviceFilters

    made = DeviceFilters(DEVICE)
    yield made
    made.close()


@pytest.fixture
def rng():
    seed = time.time_ns()
    print(f"seed {seed}")  # noqa: T201
    return np.random.default_rng(seed)


def verify(bench, engine, step, laid):
    source = bench.on_device(laid.stored)
    target = bench.on_device(np.full(laid.expected.size, BACKGROUND, np.uint8))
    decoded = laid.decoded if isinstance(step, PackBits) else None
    columns = laid.src + source, laid.dst + target, laid.sizes
    submission = engine.undo(step, *columns, bench.stream, decoded=decoded)
    assert not submission.wait().any()
    landing = np.empty_like(laid.expected)
    bench.fetch(landing, target)
    wrong = np.flatnonzero(landing != laid.expected)
    assert not wrong.size, f"{wrong.size} bytes are wrong, the first is {wrong[0]}"


@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_every_size(bench, engine, rng, step):
    sizes = [*range(300), *rng.integers(300, 20_000, 100).tolist(), 8192, 16_384]
    verify(bench, engine, step, lay_out(step, rng, sizes))


@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_aligned_units(bench, engine, rng, step):
    most = 1 << (18 if isinstance(step, Delta) else 22)
    laid = lay_out(step, rng, [most, most // 4, 96_000], gap=0)
    verify(bench, engine, step, laid)


@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_parts(bench, engine, rng, step, monkeypatch):
    monkeypatch.setattr(plan, "_PART", 10_000)
    verify(bench, engine, step, lay_out(step, rng, [500_001, 10, 9999, 100_000, 0, 70_001]))


def test_boxes_of_many_sorts(bench, engine, rng, monkeypatch):
    monkeypatch.setattr(box_plan, "_PART", 10_000)
    made = boxes(rng, 500, 200_000)
    for shape in [(300, 200), (64, 64), (70, 3, 90), (3, 500, 200), (33, 31, 32)]:
        for element in (1, 2, 3, 4, 8, 12, 16):
            axes = range(len(shape))
            made += [box(rng, shape, element, order, axes) for order in (axes, axes[::-1])]
    targets = []
    for each in made:
        source = bench.on_device(each.src)
        target = bench.on_device(np.full(each.room, BACKGROUND, np.uint8))
        engine.copy_boxes(
            np.array([source + each.src_first]),
            np.array([target + each.dst_first]),
            np.array([each.extents], np.int64),
            np.array(each.src_strides, np.int64),
            np.array(each.dst_strides, np.int64),
            each.element,
            bench.stream,
        )
        targets.append(target)
    for each, target in zip(made, targets, strict=True):
        landing = np.empty(each.room, np.uint8)
        bench.fetch(landing, target)
        assert (landing == each.expected(BACKGROUND)).all(), each


@pytest.mark.parametrize("step", [Unshuffle(4), Unshuffle(3), Swap(8)], ids=name_of)
def test_bytes_at_the_ends_of_mapped_memory(bench, engine, rng, step):
    """Before the first byte and behind the last there is no memory: to read there is a fault."""
    from gpuload.memory import HostNumaMemory, host_view

    if not driver.capabilities(DEVICE).host_numa_memory:
        pytest.skip("this device can't map memory of host NUMA nodes")
    with HostNumaMemory(DEVICE) as memory:
        room = memory.granularity
        source, target = (memory.allocate(room, stream=bench.stream) for _ in range(2))
        for at_end in (True, False):
            for size in [*range(1, 70), 4095, 4096, 4097, 65_536]:
                data = rng.integers(0, 256, size, np.uint8)
                place = room - size if at_end else 0
                host_view(source)[place : place + size] = data
                at = np.array([int(source.handle) + place]), np.array([int(target.handle) + place])
                engine.undo(step, *at, np.array([size]), bench.stream).wait()
                found = host_view(target)[place : place + size]
                assert (found == undo(step, data, (size,))).all(), (size, at_end)
        source.close()
        target.close()


def test_more_bytes_than_32_bits_count(bench, engine, rng):
    size = (4 << 30) + 70_000
    source, target = (bench._pool.allocate(size, stream=bench.stream) for _ in range(2))
    bench._kept += [source, target]
    source.fill(0, stream=bench.stream)
    from gpuload.memory import copy

    last = rng.integers(1, 256, size // 4, np.uint8)
    copy(int(source.handle) + 3 * (size // 4), last.ctypes.data, last.size, bench.stream)
    one = np.array([int(source.handle)]), np.array([int(target.handle)])
    engine.undo(Unshuffle(4), *one, np.array([size]), bench.stream).wait()
    landing = np.empty(1 << 20, np.uint8)
    for start in (0, 2 << 30, size - landing.size):
        bench.fetch(landing, int(target.handle) + start)
        expected = np.zeros((landing.size // 4, 4), np.uint8)
        expected[:, 3] = last[start // 4 :][: landing.size // 4]
        assert (landing.reshape(-1, 4) == expected).all(), start
    ones = np.array([1])
    engine.copy_boxes(*one[::-1], np.array([[size]]), ones, ones, 1, bench.stream)
    bench.stream.sync()
    bench.fetch(landing, int(source.handle) + size - landing.size)
    assert (landing.reshape(-1, 4) == expected).all()


def test_submitting_waits_for_nothing(bench, engine, rng):
    """The stream is busy with copies when a batch is submitted, and still is afterwards."""
    from gpuload.memory import copy

    step = Unshuffle(4)
    laid = lay_out(step, rng, [30_000] * 500)
    at = laid.src + bench.on_device(laid.stored), laid.dst + bench.on_device(laid.expected)
    engine.undo(step, *at, laid.sizes, bench.stream).wait()  # what is compiled and allocated once
    size = 1 << 30
    large = bench._pool.allocate(2 * size, stream=bench.stream)
    bench._kept.append(large)
    waiting = [engine.undo(step, *at, laid.sizes, bench.stream) for _ in range(4)]
    for submission in waiting:
        submission.wait()
    for _ in range(200):
        copy(int(large.handle), int(large.handle) + size, size, bench.stream)
    copied = bench.stream.record()
    waiting = [engine.undo(step, *at, laid.sizes, bench.stream) for _ in range(4)]
    assert not copied.is_done, "the copies are still running, and nobody has waited for them"
    for submission in waiting:
        assert not submission.wait().any()
