"""The SM engine on a GPU: the contract of all engines, damage in numbers, memory of the host."""

from __future__ import annotations

import hashlib
import statistics
import time
import warnings

import numpy as np
import pytest

import gpuload
from gpuload import driver
from gpuload.chunks import Codec
from gpuload.engines import sm
from gpuload.engines.base import DeviceBatch
from gpuload.errors import EngineUnavailableError, FormatWarning, GpuloadError
from gpuload.kernels import compiler
from gpuload.kernels.variants import Variant
from tests.conftest import corpus_entries, corpus_folder
from tests.engines.engine_tests import EngineTests
from tests.gpu.test_nvcomp import workbench
from tests.helpers.damaged_batches import check_damaged, damaged_batch
from tests.helpers.payloads import encode, lay_out, sample

pytestmark = pytest.mark.gpu

DEVICE = 0
CODECS = (Codec.SNAPPY, Codec.LZ4)
#: Damaged streams of both codecs for each variant, and how many of them a batch has.
DAMAGED, AT_ONCE = 100_000, 10_000


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    if compiler.refusal(DEVICE):
        pytest.skip(compiler.refusal(DEVICE))


@pytest.fixture
def bench():
    with workbench() as made:
        yield made


def make():
    from gpuload.engines.sm import SmEngine

    return SmEngine(DEVICE)


@pytest.fixture
def engine(bench):
    made = make()
    yield made
    made.close()


class TestSmEngine(EngineTests):
    supported = frozenset({Codec.RAW, *CODECS})
    bounded = True
    checks = False

    @pytest.fixture(autouse=True)
    def _bench(self):
        with workbench() as self.bench:
            yield

    def make_engine(self, options):
        return make()

    def start(self, engine, work):
        assert not any(self.refused(engine, work.rows))
        return self.bench.start(engine, work)


# --- Files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", corpus_entries("stream"), ids=lambda entry: entry["file"])
def test_corpus(entry):
    outcomes = {entry["expect"], entry.get("also_accept", entry["expect"])}
    options = {"device": DEVICE, "engine": "sm", "verify": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            array = gpuload.load(corpus_folder() / entry["file"], **options)
        except EngineUnavailableError:
            return  # nothing in it is for the kernels
        except GpuloadError:
            assert "error" in outcomes
            return
    assert "ok" in outcomes
    hashes = [entry.get("sha256"), *entry.get("also_sha256", [])]
    assert hashlib.sha256(bytes(array)).hexdigest() in hashes


# --- Damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [32, 128])
@pytest.mark.parametrize("codec", CODECS)
def test_damaged_streams_among_valid_ones(bench, codec, lanes, monkeypatch):
    """As many are valid, and exact; nothing outside of a slot is written."""
    monkeypatch.setattr(sm, "choose", lambda codec, *_, **__: Variant(codec, lanes))
    engine = make()
    for seed in range(DAMAGED // 2 // AT_ONCE):
        payloads, bad = damaged_batch(codec, AT_ONCE, seed)
        work = lay_out(payloads)
        check_damaged(payloads, work, bench.start(engine, work)(), bad)
    engine.close()


# --- Submitting -----------------------------------------------------------------------------------


def test_submitting_waits_for_nothing(bench, engine):
    """The stream is busy with copies when a batch is submitted, and still is afterwards."""
    from gpuload.memory import copy

    payloads = [encode(CODECS[n % 2], sample("text", 65536, n % 8)) for n in range(200)]
    work = lay_out(payloads)
    bench.start(engine, work)()  # what is compiled and allocated once
    source, out = bench.on_device(work.stored), bench.on_device(work.out)
    size = 1 << 30
    large = bench._pool.allocate(2 * size, stream=bench.stream)
    bench._kept.append(large)
    words = [bench.words(work.rows.size) for _ in range(4)]
    bench.stream.sync()
    for _ in range(200):
        copy(int(large.handle), int(large.handle) + size, size, bench.stream)
    copied = bench.stream.record()
    began = time.perf_counter()
    waiting = [
        engine.submit(DeviceBatch(work.rows, work.src + source, work.dst + out, w, bench.stream))
        for w in words
    ]
    submitted = time.perf_counter() - began
    assert not copied.is_done, "the copies are still running, and nobody has waited for them"
    for submission in waiting:
        assert not submission.wait().reasons
    print(f"4 batches submitted in {submitted * 1e3:.2f} ms behind copies of 200 GiB")  # noqa: T201


def test_host_time_of_one_chunk(bench, engine):
    """Printed, not judged: the machine may be busy."""
    work = lay_out([encode(Codec.LZ4, sample("text", 65536))])
    source, out = bench.on_device(work.stored), bench.on_device(work.out)
    words = bench.words(1)
    one = DeviceBatch(work.rows, work.src + source, work.dst + out, words, bench.stream)
    engine.submit(one).wait()
    submitting, all_of_it = [], []
    for _ in range(300):
        began = time.perf_counter()
        submission = engine.submit(one)
        submitting.append(time.perf_counter() - began)
        assert not submission.wait().reasons
        all_of_it.append(time.perf_counter() - began)
    submit, done = (statistics.median(times) * 1e6 for times in (submitting, all_of_it))
    times = f"submit returns after {submit:.0f} us, it is done after {done:.0f}"
    print(f"one chunk of 64 KiB: {times}")  # noqa: T201


# --- Memory of the host ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.RAW, *CODECS])
def test_sources_in_memory_of_the_host_at_any_alignment(bench, engine, codec):
    payloads = [encode(codec, sample("text", 3000 + n, n)) for n in range(256)]
    starts = [n % 16 for n in range(256)]
    bench.decode(engine, payloads, source=bench.on_host, src_starts=starts)


@pytest.mark.parametrize("codec", [Codec.RAW, *CODECS])
def test_sources_at_the_end_of_mapped_memory(bench, engine, codec):
    """Right behind the last stored byte there is no memory: reading there would be a fault."""
    from gpuload.memory import HostNumaMemory, host_view

    if not driver.capabilities(DEVICE).host_numa_memory:
        pytest.skip("this device can't map memory of host NUMA nodes")
    with HostNumaMemory(DEVICE) as memory:
        size = memory.granularity
        whole = memory.allocate(size, stream=bench.stream)
        for length in range(1, 80):
            payload = encode(codec, sample("text", 20 * length, length))
            work = lay_out([payload])
            place = size - len(payload.stored)
            host_view(whole)[place:] = np.frombuffer(payload.stored, np.uint8)
            out = bench.on_device(work.out)
            src = np.array([int(whole.handle) + place])
            batch = DeviceBatch(work.rows, src, work.dst + out, bench.words(1), bench.stream)
            assert not engine.submit(batch).wait().reasons
        whole.close()
