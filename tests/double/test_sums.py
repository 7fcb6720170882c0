"""Checksums by kernels, on the double: right ones, which rows have one, memory, and errors."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpuload.chunks import Checksum
from gpuload.codecs.base import mismatch
from gpuload.engines import sum_plan
from gpuload.engines.base import Outcome, Status
from gpuload.engines.sums import DeviceSums, check
from gpuload.errors import DriverError
from gpuload.memory import copy, host_view
from tests.helpers.benches import workbench
from tests.helpers.device_loads import hang_ends_the_process
from tests.helpers.fakecuda import Code
from tests.helpers.summed_chunks import KINDS, summed_chunks

#: What is computed in parts where it is large.
CRCS = (Checksum.CRC32, Checksum.CRC32C_MASKED)


@pytest.fixture
def bench(cuda):
    with workbench() as made, hang_ends_the_process(120):
        yield made


@pytest.fixture
def engine(bench):
    made = DeviceSums(0)
    yield made
    made.close()


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def place(bench, chunks, *, told=True):
    """Put chunks into memory of the device; return what `submit` takes."""
    window = bench.device.allocate(chunks.data.size, stream=bench.stream)
    bench._kept.append(window)
    copy(int(window.handle), bench.stored(chunks.data), chunks.data.size, bench.stream)
    actual = bench.host.allocate(max(4, chunks.sizes.nbytes), stream=bench.stream)
    host_view(actual)[: chunks.sizes.nbytes] = chunks.sizes.view(np.uint8)
    bench._kept.append(actual)
    at = int(window.handle)
    addresses = chunks.rows, chunks.stored + at, chunks.decoded + at
    return (*addresses, actual if told else None, bench.stream)


def compute(bench, engine, chunks, *, told=True):
    return engine.submit(*place(bench, chunks, told=told)).wait()


def verify(bench, engine, chunks):
    computed, done = compute(bench, engine, chunks)
    assert computed.dtype == np.uint64
    assert computed.tolist() == chunks.expected
    assert done.tolist() == (chunks.rows["checksum_kind"] != Checksum.NONE).tolist()


def sizes_of(rng, count, most=3000):
    return rng.integers(0, most, count).tolist()


# --- Which checksums ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("exact", [True, False])
def test_every_kind(bench, engine, rng, kind, count, exact):
    verify(bench, engine, summed_chunks(rng, [kind] * count, sizes_of(rng, count), exact=exact))


def test_kinds_and_sizes_of_many_sorts(bench, engine, rng):
    kinds = rng.choice([Checksum.NONE, *KINDS], 100).tolist()
    exact = rng.integers(0, 2, 100).astype(bool).tolist()
    verify(bench, engine, summed_chunks(rng, kinds, sizes_of(rng, 100), exact=exact))


def test_chunks_of_common_sizes(bench, engine, rng):
    sizes = [65_536, 65_280, 23_456, 0, 1, 100_000] * 5
    kinds = [kind for kind in KINDS for _ in range(6)]
    verify(bench, engine, summed_chunks(rng, kinds, sizes))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", [True, False])
def test_a_single_large_chunk(bench, engine, rng, kind, exact):
    """Those with a CRC are computed in parts."""
    verify(bench, engine, summed_chunks(rng, [kind], [(1 << 20) + 777], exact=exact))


@pytest.fixture
def small_parts(monkeypatch):
    """Cut chunks that are larger than 2,000 bytes into parts of 700."""
    largest = np.full(256, 1 << 60)
    largest[list(CRCS)] = 2000
    monkeypatch.setattr(sum_plan, "_LARGEST", largest)
    monkeypatch.setattr(sum_plan, "_PART", 700)


@pytest.mark.usefixtures("small_parts")
def test_parts_among_chunks_that_are_whole(cuda, bench, engine, rng):
    kinds = rng.choice([Checksum.NONE, *KINDS], 80).tolist()
    exact = rng.integers(0, 2, 80).astype(bool).tolist()
    sizes = rng.choice([0, 5, 1999, 2000, 2001, 2100, 2800, 5000, 9999], 80).tolist()
    verify(bench, engine, summed_chunks(rng, kinds, sizes, exact=exact))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("kind", CRCS)
def test_parts_behind_the_end(bench, engine, rng, kind):
    """A slot may have room for parts of which there is nothing."""
    chunks = summed_chunks(rng, [kind] * 5, [100, 700, 2000, 2900, 0], exact=False)
    chunks.rows["raw_size"] = 3000  # what lies there is memory still
    verify(bench, engine, chunks)


def test_an_empty_batch(bench, engine, rng):
    chunks = summed_chunks(rng, [Checksum.CRC32], [9])
    none = np.empty(0, np.int64)
    computed, done = engine.submit(chunks.rows[:0], none, none, None, bench.stream).wait()
    assert computed.size == done.size == 0


def test_rows_without_a_checksum(cuda, bench, engine, rng):
    chunks = summed_chunks(rng, [Checksum.NONE] * 3, [5, 6, 7])
    before = cuda.recorder.calls["cuLaunchKernelEx"]
    computed, done = compute(bench, engine, chunks)
    assert computed.tolist() == [0, 0, 0]
    assert not done.any()
    assert cuda.recorder.calls["cuLaunchKernelEx"] == before


@pytest.mark.parametrize("count", [1, 4])
def test_rows_whose_size_nobody_states(bench, engine, rng, count):
    """Those of stored bytes are computed all the same."""
    kinds = [Checksum.CRC32, Checksum.XXH32_STORED, Checksum.XXH64_LOW, Checksum.CRC32C_MASKED]
    chunks = summed_chunks(rng, kinds[:count], [500] * count, exact=False)
    computed, done = compute(bench, engine, chunks, told=False)
    assert done.tolist() == [False, True, False, False][:count]
    assert computed.tolist() == np.where(done, chunks.expected, 0).tolist()


def test_sizes_that_no_device_wrote(bench, engine, rng):
    """What lies in the slot is summed up, and nothing outside of it."""
    chunks = summed_chunks(rng, [Checksum.CRC32] * 3, [500, 600, 700], exact=False)
    chunks.sizes[:] = 0xFFFFFFFF
    computed, done = compute(bench, engine, chunks)
    assert done.all()
    assert (computed != chunks.expected).all()


# --- Submitting and waiting -----------------------------------------------------------------------


def calls(cuda, *words):
    return {
        name: number
        for name, number in cuda.recorder.calls.items()
        if any(word in name for word in words)
    }


@pytest.mark.parametrize("count", [1, 2, 50])
def test_submitting_does_not_wait(cuda, bench, engine, rng, count):
    chunks = summed_chunks(rng, [KINDS[n % 5] for n in range(count)], sizes_of(rng, count))
    verify(bench, engine, chunks)  # compiles, and allocates what is kept
    placed = place(bench, chunks)
    before = calls(cuda, "Synchronize", "Memcpy", "Alloc", "Create", "Library")
    submission = engine.submit(*placed)
    assert calls(cuda, "Synchronize", "Memcpy", "Alloc", "Create", "Library") == before
    assert submission.wait()[0].tolist() == chunks.expected


@pytest.mark.parametrize("number", range(1, 6))
def test_one_launch_for_each_kernel(cuda, bench, engine, rng, number):
    kinds = [KINDS[n % number] for n in range(30)]
    chunks = summed_chunks(rng, kinds, sizes_of(rng, 30))
    before = cuda.recorder.calls["cuLaunchKernelEx"]
    verify(bench, engine, chunks)
    both = {Checksum.XXH32, Checksum.XXH32_STORED} <= {*kinds}
    assert cuda.recorder.calls["cuLaunchKernelEx"] - before == number - both


def test_waiting_twice(bench, engine, rng):
    submission = engine.submit(*place(bench, summed_chunks(rng, [*KINDS], [10] * 5)))
    first, second = submission.wait(), submission.wait()
    assert first[0].tolist() == second[0].tolist()


def test_closing_waits_for_what_nobody_waited_for(bench, rng):
    engine = DeviceSums(0)
    chunks = summed_chunks(rng, [*KINDS], [1000] * 5)
    submission = engine.submit(*place(bench, chunks))
    engine.close()
    assert submission.wait()[0].tolist() == chunks.expected


def test_memory_of_one_batch_is_that_of_the_next(cuda, bench, engine, rng):
    chunks = summed_chunks(rng, [Checksum.CRC32] * 50, sizes_of(rng, 50))
    verify(bench, engine, chunks)
    before = calls(cuda, "cuMemAllocHost", "cuMemHostAlloc", "cuEventCreate")
    for _ in range(4):
        verify(bench, engine, chunks)
    after = calls(cuda, "cuMemAllocHost", "cuMemHostAlloc", "cuEventCreate")
    assert after == before


# --- When the driver fails ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "after"), [("cuLaunchKernelEx", 0), ("cuLaunchKernelEx", 1), ("cuEventRecord", 0)]
)
def test_calls_that_fail(cuda, bench, engine, rng, name, after):
    chunks = summed_chunks(rng, [*KINDS] * 3, sizes_of(rng, 15))
    verify(bench, engine, chunks)
    placed = place(bench, chunks)
    cuda.fail_next(name, Code.INVALID_VALUE, after=after)
    with pytest.raises(DriverError, match=f"{name} failed: "):
        engine.submit(*placed)
    verify(bench, engine, chunks)


def test_waiting_that_fails(cuda, bench, engine, rng):
    chunks = summed_chunks(rng, [*KINDS], [99] * 5)
    submission = engine.submit(*place(bench, chunks))
    cuda.fail_next("cuEventSynchronize", Code.INVALID_CONTEXT)
    with pytest.raises(DriverError, match="cuEventSynchronize failed: CUDA_ERROR_INVALID_CONTEXT"):
        submission.wait()
    assert submission.wait()[0].tolist() == chunks.expected


# --- Rows that fail for their checksum ------------------------------------------------------------


def test_checking(bench, engine, rng):
    chunks = summed_chunks(rng, [*KINDS, Checksum.NONE], [300] * 6)
    rows = chunks.rows.copy()
    computed, done = compute(bench, engine, chunks)
    outcome = Outcome.empty(6)
    check(rows, computed, done, outcome)
    assert not outcome.reasons
    rows["checksum"] ^= 1
    outcome.fail(2, Status.SIZE, "too short")
    check(rows, computed, done, outcome)
    wrong = Status.CHECKSUM
    assert outcome.status.tolist() == [wrong, wrong, Status.SIZE, wrong, wrong, Status.OK]
    reasons = {
        row: mismatch(int(rows["checksum_kind"][row]), expected ^ 1, expected)
        for row, expected in enumerate(chunks.expected[:5])
    }
    assert outcome.reasons == {**reasons, 2: "too short"}


def test_a_checksum_that_no_word_can_hold():
    """Nothing of a file's checksum is ignored."""
    rows = summed_chunks(np.random.default_rng(1), [Checksum.CRC32], [10]).rows
    computed, done = rows["checksum"].copy(), np.ones(1, np.bool_)
    rows["checksum"] += np.uint64(1 << 32)
    outcome = Outcome.empty(1)
    check(rows, computed, done, outcome)
    assert outcome.status.tolist() == [Status.CHECKSUM]


def test_a_kernel_that_does_nothing(bench, engine, rng, monkeypatch):
    monkeypatch.setattr(engine, "_launch", lambda *_: None)
    for count in (1, 5):
        chunks = summed_chunks(rng, [*KINDS][:count], [300] * count)
        computed, done = compute(bench, engine, chunks)
        assert done.all()
        assert not (computed == chunks.expected).any()


def test_plans_of_large_batches():
    """Operations of a kernel stand together, the largest first."""
    chunks = summed_chunks(np.random.default_rng(2), [*KINDS] * 20, [*range(100)])
    buffer = SimpleNamespace(handle=1 << 20)
    which = np.arange(100)
    plan = sum_plan.make_plan(chunks.rows, which, chunks.stored, chunks.decoded, buffer)
    launches = plan.launches()
    assert [variant.name for variant, *_ in launches] == [
        "crc32_32",
        "crc32c_32",
        "xxh32_4",
        "xxh64_4",
    ]
    assert [(first, last) for _, first, last in launches] == [
        (0, 20),
        (20, 40),
        (40, 80),
        (80, 100),
    ]
    for _, first, last in launches:
        sizes = plan.params["src_num_bytes"][first:last].tolist()
        assert sizes == sorted(sizes, reverse=True)
