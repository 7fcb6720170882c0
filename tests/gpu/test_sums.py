"""Checksums by kernels on a GPU: fresh random bytes of every kind, nothing read outside of them."""

from __future__ import annotations

import statistics
import time
import zlib

import numpy as np
import pytest

from gpuload import driver
from gpuload.chunks import Checksum, make_table
from gpuload.kernels import compiler
from tests.gpu.test_nvcomp import Bench
from tests.helpers.device_loads import hang_ends_the_process
from tests.helpers.summed_chunks import KINDS, summed_chunks

pytestmark = pytest.mark.gpu

DEVICE = 0
#: Bytes behind which 32 bits do not count.
BEYOND = (4 << 30) + 70_000


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
    from gpuload.engines.sums import DeviceSums

    made = DeviceSums(DEVICE)
    yield made
    made.close()


@pytest.fixture
def rng():
    seed = time.time_ns()
    print(f"seed {seed}")  # noqa: T201
    return np.random.default_rng(seed)


def start(bench, engine, chunks, source=None):
    at = (source or bench.on_device)(chunks.data)
    actual = bench.words(chunks.rows.size)
    bench._view(actual)[: chunks.sizes.nbytes] = chunks.sizes.view(np.uint8)
    addresses = chunks.stored + at, chunks.decoded + at
    return engine.submit(chunks.rows, *addresses, actual, bench.stream)


def verify(bench, engine, chunks, source=None):
    computed, done = start(bench, engine, chunks, source).wait()
    assert done.all()
    wrong = np.flatnonzero(computed != chunks.expected)
    about = chunks.rows[["checksum_kind", "raw_size", "exact"]][wrong[:5]]
    assert not wrong.size, f"{wrong.size} of {computed.size} are wrong: {about.tolist()}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_size(bench, engine, rng, kind):
    sizes = [*range(1000), *rng.integers(0, 20_000, 1000).tolist()]
    for exact in (True, False):
        verify(bench, engine, summed_chunks(rng, [kind] * len(sizes), sizes, exact=exact))


@pytest.mark.parametrize("kind", KINDS)
def test_many_chunks_of_common_sizes(bench, engine, rng, kind):
    sizes = rng.choice([65_536, 65_280, 23_456, 4096], 3000).tolist()
    verify(bench, engine, summed_chunks(rng, [kind] * 3000, sizes))


def test_all_kinds_at_once(bench, engine, rng):
    kinds, sizes = rng.choice(KINDS, 10_000).tolist(), rng.integers(0, 30_000, 10_000).tolist()
    exact = rng.integers(0, 2, 10_000).astype(bool).tolist()
    verify(bench, engine, summed_chunks(rng, kinds, sizes, exact=exact))


def test_parts_of_large_chunks(bench, engine, rng):
    kinds = [*KINDS] * 8
    sizes = (1 << rng.integers(18, 25, 40)) + rng.integers(-3, 4, 40)
    exact = rng.integers(0, 2, 40).astype(bool).tolist()
    verify(bench, engine, summed_chunks(rng, kinds, sizes.tolist(), exact=exact))


@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_the_host(bench, engine, rng, kind):
    sizes = rng.integers(0, 5000, 300).tolist()
    verify(bench, engine, summed_chunks(rng, [kind] * 300, sizes), bench.on_host)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_at_the_ends_of_mapped_memory(bench, engine, rng, kind):
    """Before the first byte and behind the last there is no memory: to read there is a fault."""
    from gpuload.memory import HostNumaMemory, host_view

    if not driver.capabilities(DEVICE).host_numa_memory:
        pytest.skip("this device can't map memory of host NUMA nodes")
    sizes = [*range(1, 140), 4095, 4096, 4097, 65_536]
    with HostNumaMemory(DEVICE) as memory:
        room = memory.granularity
        whole = memory.allocate(room, stream=bench.stream)
        for at_end in (True, False):
            for size in sizes:
                chunks = summed_chunks(rng, [kind], [size])
                own = chunks.stored if kind == Checksum.XXH32_STORED else chunks.decoded
                place = room - size if at_end else 0
                first = int(own[0])
                host_view(whole)[place : place + size] = chunks.data[first : first + size]
                at = np.array([int(whole.handle) + place])
                computed, _ = engine.submit(chunks.rows, at, at, None, bench.stream).wait()
                assert computed.tolist() == chunks.expected, (size, at_end)
        whole.close()


def test_more_bytes_than_32_bits_count(bench, engine, rng):
    """As one operation of the kernel, and cut into parts."""
    from gpuload.engines import sum_plan

    data = np.zeros(BEYOND, np.uint8)
    data[:: 1 << 20] = rng.integers(1, 256, data[:: 1 << 20].size, np.uint8)
    data[-70_000:] = rng.integers(0, 256, 70_000, np.uint8)
    at = np.array([bench.on_device(data) + 3])
    expected = zlib.crc32(data[3:])
    rows = make_table([0], raw_size=BEYOND - 3, checksum_kind=Checksum.CRC32, exact=True)
    computed, _ = engine.submit(rows, at, at, None, bench.stream).wait()
    assert computed.tolist() == [expected]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sum_plan, "_LARGEST", np.full(256, 1 << 60))
        patch.setattr("gpuload.engines.sums.is_large", lambda *_: False)
        computed, _ = engine.submit(rows, at, at, None, bench.stream).wait()
    assert computed.tolist() == [expected]


def test_submitting_waits_for_nothing(bench, engine, rng):
    """The stream is busy with copies when a batch is submitted, and still is afterwards."""
    from gpuload.memory import copy

    chunks = summed_chunks(rng, rng.choice(KINDS, 500).tolist(), [30_000] * 500)
    at = bench.on_device(chunks.data)
    actual = bench.words(chunks.rows.size)
    placed = (chunks.rows, chunks.stored + at, chunks.decoded + at, actual, bench.stream)
    engine.submit(*placed).wait()  # what is compiled and allocated once
    size = 1 << 30
    large = bench._pool.allocate(2 * size, stream=bench.stream)
    bench._kept.append(large)
    waiting = [engine.submit(*placed) for _ in range(4)]
    for submission in waiting:
        submission.wait()
    for _ in range(200):
        copy(int(large.handle), int(large.handle) + size, size, bench.stream)
    copied = bench.stream.record()
    waiting = [engine.submit(*placed) for _ in range(4)]
    assert not copied.is_done, "the copies are still running, and nobody has waited for them"
    for submission in waiting:
        assert submission.wait()[0].tolist() == chunks.expected


def test_host_time(bench, engine, rng):
    """Printed, not judged: the machine may be busy."""
    for count in (1, 16_384):
        chunks = summed_chunks(rng, [Checksum.CRC32] * count, [100] * count)
        at = bench.on_device(chunks.data)
        placed = (chunks.rows, chunks.stored + at, chunks.decoded + at, None, bench.stream)
        engine.submit(*placed).wait()
        submitting, all_of_it = [], []
        for _ in range(30):
            began = time.perf_counter()
            submission = engine.submit(*placed)
            submitting.append(time.perf_counter() - began)
            submission.wait()
            all_of_it.append(time.perf_counter() - began)
        submit, done = (statistics.median(times) * 1e6 for times in (submitting, all_of_it))
        print(  # noqa: T201
            f"{count} chunks of 100 bytes: submit returns after {submit:.0f} us, they are done "
            f"after {done:.0f}"
        )
