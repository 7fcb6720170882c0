"""The SM engine on the double, which runs the kernels' own sources: contract, memory, errors."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from gpuload import driver
from gpuload.chunks import Codec, make_table
from gpuload.engines import sm
from gpuload.engines.base import Status
from gpuload.engines.sm import SmEngine
from gpuload.errors import DriverError, GpuloadError
from gpuload.kernels.variants import Variant
from tests.double.test_hardware_engine import DAMAGED
from tests.engines.engine_tests import EngineTests, Result, check
from tests.helpers.benches import Bench, decode, workbench
from tests.helpers.damaged_batches import check_damaged, damaged_batch
from tests.helpers.device_loads import hang_ends_the_process
from tests.helpers.fakecuda import Code
from tests.helpers.payloads import encode, lay_out, sample

CODECS = (Codec.SNAPPY, Codec.LZ4)
ALL = (Codec.RAW, *CODECS)


@pytest.fixture
def bench(cuda):
    with workbench() as made, hang_ends_the_process(120):
        yield made


@pytest.fixture
def engine(bench):
    made = SmEngine(0)
    yield made
    made.close()


def mixed(*sizes):
    """Return rows of all codecs and of none, in turn."""
    return [encode(ALL[n % 3], sample("text", size, n)) for n, size in enumerate(sizes)]


class TestSmEngine(EngineTests):
    supported = frozenset(ALL)
    bounded = True
    checks = False

    @pytest.fixture(autouse=True)
    def _bench(self, cuda):
        with workbench() as self.bench, hang_ends_the_process(120):
            yield

    def make_engine(self, options):
        return SmEngine(0)

    def start(self, engine, work):
        assert not any(self.refused(engine, work.rows))
        return self.bench.start(engine, work)

    def test_refuses_dictionaries(self, engine):
        rows = make_table(
            range(3), stored_size=9, raw_size=9, codec=Codec.LZ4, dictionary=[True, False, True]
        )
        assert self.refused(engine(), rows) == [True, False, True]

    @pytest.mark.parametrize("side", ["stored_size", "raw_size"])
    def test_refuses_what_does_not_fit_in_its_counters(self, engine, side):
        sizes = {"stored_size": 100, "raw_size": 100} | {side: [(1 << 30) - 1, 1 << 30, 1 << 33]}
        for codec in ALL:
            rows = make_table(range(3), codec=codec, **sizes)
            assert self.refused(engine(), rows) == [False, True, True]


# --- Submitting and waiting -----------------------------------------------------------------------


def calls(cuda, *words):
    """Return how often calls with one of some words in their names were made."""
    return {
        name: number
        for name, number in cuda.recorder.calls.items()
        if any(word in name for word in words)
    }


@pytest.mark.parametrize("count", [1, 2, 300])
def test_submitting_does_not_wait(cuda, bench, engine, count):
    payloads = mixed(*range(1000, 1000 + count))
    work = lay_out(payloads)
    decode(bench, engine, payloads)  # compiles, and allocates what is kept
    placed = bench.place(work)
    before = calls(cuda, "Synchronize", "Memcpy", "Alloc", "Create", "Library")
    submission = engine.submit(placed.batch)
    assert calls(cuda, "Synchronize", "Memcpy", "Alloc", "Create", "Library") == before
    outcome = submission.wait()
    check(payloads, work, Result(outcome, bench.fetch(placed.window)[: work.out.size]))


@pytest.mark.parametrize("codecs", [(codec,) for codec in ALL] + [ALL, CODECS])
def test_one_launch_for_each_codec(cuda, bench, engine, codecs):
    payloads = [encode(codecs[n % len(codecs)], sample("text", 100, n)) for n in range(30)]
    before = cuda.recorder.calls["cuLaunchKernelEx"]
    decode(bench, engine, payloads)
    assert cuda.recorder.calls["cuLaunchKernelEx"] - before == len(codecs)


def test_nothing_is_launched_for_nothing(cuda, bench, engine):
    before = cuda.recorder.calls["cuLaunchKernelEx"]
    decode(bench, engine, [])
    assert cuda.recorder.calls["cuLaunchKernelEx"] == before


def test_waiting_twice(bench, engine):
    submission = engine.submit(bench.place(lay_out(mixed(100, 0, 3))).batch)
    assert submission.wait() is submission.wait()


def test_closing_waits_for_what_nobody_waited_for(cuda, bench):
    engine = SmEngine(0)
    payloads = mixed(*range(100, 130))
    work = lay_out(payloads)
    placed = bench.place(work)
    engine.submit(placed.batch)
    engine.close()
    out = bench.fetch(placed.window)[: work.out.size]
    for row, payload in enumerate(payloads):
        start = int(work.dst[row])
        assert out[start : start + len(payload.raw)].tobytes() == payload.raw


def test_memory_of_one_batch_is_that_of_the_next(cuda, bench, engine):
    decode(bench, engine, mixed(*range(100)))
    before = calls(cuda, "cuMemAllocHost", "cuMemHostAlloc", "cuEventCreate")
    for _ in range(5):
        decode(bench, engine, mixed(*range(90, 200)))
        decode(bench, engine, mixed(*range(100)))
    assert calls(cuda, "cuMemAllocHost", "cuMemHostAlloc", "cuEventCreate") == before


def test_threads_side_by_side(bench, engine):
    payloads, results = mixed(*range(200, 230)), []
    work = lay_out(payloads)
    placed = [bench.place(work) for _ in range(4)]

    def start(one):
        driver.device(0).set_current()
        results.extend((one, engine.submit(one.batch).wait()) for _ in range(5))

    threads = [threading.Thread(target=start, args=(one,)) for one in placed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, outcome in results:
        check(payloads, work, Result(outcome, bench.fetch(one.window)[: work.out.size]))
    assert len(results) == 20


# --- What a kernel reports ------------------------------------------------------------------------

#: LZ4 blocks and Snappy elements that end in each way that a kernel knows, by their formats'
#: descriptions, with the slot's size and what the reason has to say.
REPORTS = {
    "LZ4 inside a length": (
        Codec.LZ4,
        b"\xf0\xff",
        100,
        "the 2 stored bytes end inside an element",
    ),
    "LZ4 without a token": (Codec.LZ4, b"", 100, "the 0 stored bytes end inside an element"),
    "LZ4 from before the start": (
        Codec.LZ4,
        DAMAGED[Codec.LZ4] + b"b" * 30,
        100,
        "a match starts before the first decoded byte",
    ),
    "LZ4 literals that do not fit": (
        Codec.LZ4,
        b"\x50abcde",
        4,
        "it decodes to more than the 4 bytes that the file allows",
    ),
    "Snappy inside a literal": (
        Codec.SNAPPY,
        b"\x10abc",
        100,
        "the 4 stored bytes end inside an element",
    ),
    "Snappy from before the start": (
        Codec.SNAPPY,
        DAMAGED[Codec.SNAPPY],
        100,
        "a match starts before the first decoded byte",
    ),
    "Snappy literals that do not fit": (
        Codec.SNAPPY,
        b"\x10abcde",
        4,
        "it decodes to more than the 4 bytes that the file allows",
    ),
    "RAW that does not fit": (
        Codec.RAW,
        b"abcde",
        4,
        "it decodes to more than the 4 bytes that the file allows",
    ),
}


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("alone", [True, False])
def test_reports(bench, engine, name, alone):
    codec, stored, slot, reason = REPORTS[name]
    bad = replace(encode(codec, b"x" * slot), stored=stored, slot=slot, exact=False)
    good = [encode(codec, sample("text", 500 + n)) for n in range(0 if alone else 5)]
    outcome = decode(bench, engine, [*good, bad, *good], {len(good)})
    assert outcome.reasons == {len(good): reason}
    assert outcome.status[len(good)] == Status.CORRUPT
    assert outcome.actual[len(good)] == 0
    assert outcome.blame == {len(good): "index"}


def test_sizes_that_the_file_does_not_state_as_they_are(bench, engine):
    payloads = [replace(encode(Codec.LZ4, b"abc" * 50), slot=151)]
    outcome = decode(bench, engine, payloads, {0})
    assert outcome.reasons == {0: "the engine reports 150 bytes, the file says 151"}
    assert outcome.blame == {0: "size"}


def test_a_kernel_that_does_nothing(bench, engine, monkeypatch):
    """A status that nobody wrote is not taken for success."""
    monkeypatch.setattr(engine, "_launch", lambda *_: None)
    outcome = engine.submit(bench.place(lay_out(mixed(10, 20, 30))).batch).wait()
    assert set(outcome.reasons.values()) == {"the kernel did not say what became of it"}
    assert outcome.actual.tolist() == [0, 0, 0]
    monkeypatch.undo()
    decode(bench, engine, mixed(10, 20, 30))


@pytest.fixture(params=[32, 128])
def lanes(request, monkeypatch):
    """Let each variant of the kernels decode, whatever the batch."""
    monkeypatch.setattr(sm, "choose", lambda codec, *_, **__: Variant(codec, request.param))
    return request.param


def test_variants(bench, engine, lanes):
    payloads = mixed(0, 1, 65536, *range(0, 5000, 97))
    payloads[6] = replace(payloads[6], slot=len(payloads[6].raw) - 1)
    outcome = decode(bench, engine, payloads, {6})
    assert list(outcome.reasons) == [6]


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_streams_among_valid_ones(bench, engine, codec, lanes):
    payloads, bad = damaged_batch(codec, 1000, 1)
    work = lay_out(payloads)
    placed = bench.place(work)
    outcome = engine.submit(placed.batch).wait()
    out = bench.fetch(placed.window)[: work.out.size]
    check_damaged(payloads, work, Result(outcome, out), bad)


# --- When the driver fails ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "after"),
    [("cuLaunchKernelEx", 0), ("cuLaunchKernelEx", 1), ("cuEventRecord", 0), ("cuEventCreate", 0)],
)
def test_calls_that_fail(cuda, bench, engine, name, after):
    payloads = mixed(*range(100, 120))
    decode(bench, engine, payloads)
    more = mixed(*range(100, 300))
    placed = bench.place(lay_out(more))
    cuda.fail_next(name, Code.INVALID_VALUE, after=after)
    with pytest.raises(DriverError, match=f"{name} failed: "):
        engine.submit(placed.batch)
    decode(bench, engine, payloads)
    decode(bench, engine, more)


def test_waiting_that_fails(cuda, bench, engine):
    submission = engine.submit(bench.place(lay_out(mixed(*range(100, 120)))).batch)
    cuda.fail_next("cuEventSynchronize", Code.INVALID_CONTEXT)
    with pytest.raises(DriverError, match="cuEventSynchronize failed: CUDA_ERROR_INVALID_CONTEXT"):
        submission.wait()
    assert submission.wait().actual.tolist() == list(range(100, 120))


def test_a_fault_ends_the_context_and_says_so(cuda):
    bench = Bench()
    engine = SmEngine(0)
    placed = bench.place(lay_out(mixed(*range(100, 120))))
    cuda.queue_fault(int(bench.stream.handle))
    submission = engine.submit(placed.batch)
    with pytest.raises(DriverError, match="ended this process's CUDA context: start a new process"):
        submission.wait()
    for closing in (engine.close, bench.close):
        with suppress(GpuloadError):
            closing()


def test_order_of_the_rows_is_kept(bench, engine):
    """Kernels get the largest first; what they say goes back to the row that it is about."""
    rng = np.random.default_rng(5)
    sizes = rng.permutation(200).tolist()
    payloads = mixed(*sizes)
    for row in range(0, 200, 7):
        payloads[row] = replace(payloads[row], slot=len(payloads[row].raw) + 1)
    bad = set(range(0, 200, 7))
    outcome = decode(bench, engine, payloads, bad)
    assert set(outcome.reasons) == bad
    assert outcome.actual.tolist() == sizes
