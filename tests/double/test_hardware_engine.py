"""The hardware engine on the double: the contract of all engines, and what the driver answers."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from dataclasses import replace

import numpy as np
import pytest

from gpuload import driver
from gpuload.chunks import Checksum, Codec, make_table
from gpuload.engines.base import Outcome, Status
from gpuload.engines.hardware import HardwareEngine
from gpuload.errors import DriverError, GpuloadError
from gpuload.memory import copy
from tests.engines.engine_tests import EngineTests, Result, check, check_form
from tests.helpers.benches import Bench, workbench
from tests.helpers.device_loads import allocate, hang_ends_the_process
from tests.helpers.fakecuda import Code
from tests.helpers.payloads import Payload, encode, lay_out, sample

UNWRITTEN = 0xFFFFFFFF
CODECS = (Codec.DEFLATE, Codec.SNAPPY, Codec.LZ4)
DAMAGED = {
    Codec.DEFLATE: b"\x07\x00\x00",  # RFC 1951, section 3.2.3: block type 11 is reserved
    Codec.SNAPPY: b"\x01\x01",  # a copy from before the first byte
    Codec.LZ4: b"\x00\x01\x00\x10a",  # a match from before the first byte
}


@pytest.fixture
def bench(cuda):
    with workbench() as made, hang_ends_the_process(120):
        yield made


@pytest.fixture
def engine(bench):
    return HardwareEngine(0)


def taken_rows(engine, rows):
    """Return which rows an engine does not refuse."""
    return ~np.logical_or.reduce([*engine.refusals(rows).values(), np.zeros(rows.size, np.bool_)])


def spread(outcome, taken):
    """Return the outcome of all rows from that of those that were taken; the others are empty."""
    whole = Outcome.empty(taken.size)
    places = np.flatnonzero(taken).tolist()
    whole.actual[taken], whole.status[taken] = outcome.actual, outcome.status
    whole.reasons.update({places[row]: reason for row, reason in outcome.reasons.items()})
    whole.blame.update({places[row]: blame for row, blame in outcome.blame.items()})
    return replace(whole, code=outcome.code)


class TestHardwareEngine(EngineTests):
    supported = frozenset({Codec.RAW, *CODECS})
    bounded = False
    checks = False

    @pytest.fixture(autouse=True)
    def _bench(self, cuda):
        with workbench() as self.bench, hang_ends_the_process(120):
            yield

    def make_engine(self, options):
        return HardwareEngine(0)

    def start(self, engine, work):
        # Callers leave out what the engine refuses; no format has a chunk of a size that is not
        # stated and of which nothing is stored.
        hollow = (work.rows["stored_size"] == 0) & (work.rows["raw_size"] > 0)
        taken = taken_rows(engine, work.rows) & ~hollow
        assert not work.rows["stored_size"][~taken].any()
        some = replace(work, rows=work.rows[taken], src=work.src[taken], dst=work.dst[taken])
        placed = self.bench.place(some)
        submission = engine.submit(placed.batch)
        return lambda: Result(
            spread(submission.wait(), taken), self.bench.fetch(placed.window)[: work.out.size]
        )

    def test_refuses_dictionaries(self, engine):
        rows = make_table(
            range(3), stored_size=9, raw_size=9, codec=Codec.LZ4, dictionary=[True, False, True]
        )
        assert self.refused(engine(), rows) == [True, False, True]

    @pytest.mark.parametrize("side", ["stored_size", "raw_size"])
    def test_refuses_more_than_the_maximum(self, engine, cuda, side):
        limit = cuda.settings.maximum_length
        sizes = {"stored_size": 100, "raw_size": 100} | {side: [limit - 1, limit, limit + 1]}
        for codec in CODECS:
            rows = make_table(range(3), codec=codec, **sizes)
            assert self.refused(engine(), rows) == [False, False, True]

    @pytest.mark.parametrize("mask", range(1, 8))
    def test_refuses_codecs_without_a_bit_in_the_mask(self, engine, monkeypatch, mask):
        """DEFLATE is bit 0, Snappy bit 1, LZ4 bit 2; copies need none."""
        known = replace(driver.capabilities(0), decompress_mask=mask)
        monkeypatch.setattr(driver, "capabilities", lambda device_id: known)
        rows = make_table(range(4), stored_size=9, raw_size=9, codec=[*CODECS, Codec.RAW])
        missing = [not mask & 1, not mask & 2, not mask & 4, False]
        assert self.refused(engine(), rows) == missing

    def test_chunks_of_the_maximum(self, engine, cuda):
        cuda.settings.maximum_length = 65536
        self.decode(engine(), [encode(codec, sample("text", 65536)) for codec in CODECS])


# --- Submitting and waiting -----------------------------------------------------------------------


def mixed(*sizes):
    """Return rows of all codecs and of none, in turn."""
    codecs = [Codec.LZ4, Codec.RAW, Codec.DEFLATE, Codec.SNAPPY]
    return [encode(codecs[n % 4], sample("text", size, n)) for n, size in enumerate(sizes)]


def synchronisations(cuda):
    return {name: n for name, n in cuda.recorder.calls.items() if "Synchronize" in name}


def test_submitting_does_not_wait(cuda, bench, engine):
    payloads = [encode(codec, sample("text", 5000)) for codec in CODECS * 3]
    placed = bench.place(lay_out(payloads))
    before = synchronisations(cuda)
    submission = engine.submit(placed.batch)
    assert synchronisations(cuda) == before
    assert placed.words.tolist() == [UNWRITTEN] * 9, "nothing has run"
    outcome = submission.wait()
    assert placed.words.tolist() == [5000] * 9
    assert outcome.actual.tolist() == [5000] * 9


def test_a_batch_is_one_call(cuda, bench, engine):
    placed = bench.place(lay_out(mixed(*range(1, 101))))
    engine.submit(placed.batch).wait()
    assert cuda.batches == [75]


def test_copies_need_no_engine(cuda, bench, engine):
    payloads = [encode(Codec.RAW, sample("noise", size)) for size in (1, 5000, 3 << 20)]
    work = lay_out(payloads)
    placed = bench.place(work)
    outcome = engine.submit(placed.batch).wait()
    check(payloads, work, Result(outcome, bench.fetch(placed.window)[: work.out.size]))
    assert "cuMemBatchDecompressAsync" not in cuda.recorder.calls


def test_a_batch_waits_for_the_work_of_its_stream(bench, engine):
    """Its source is still being copied when it is submitted."""
    payloads = mixed(*range(100, 140))
    work = lay_out(payloads)
    placed = bench.place(work)
    source = bench.device.allocate(work.stored.size, stream=bench.stream)
    copy(int(source.handle), bench.stored(work.stored), work.stored.size, bench.stream)
    batch = replace(placed.batch, src=work.src + int(source.handle))
    outcome = engine.submit(batch).wait()
    check(payloads, work, Result(outcome, bench.fetch(placed.window)[: work.out.size]))


def test_waiting_for_a_batch_is_not_waiting_for_the_next(bench, engine):
    payloads = [encode(Codec.LZ4, sample("text", 900))]
    first, second = (bench.place(lay_out(payloads)) for _ in range(2))
    waiting = [engine.submit(placed.batch) for placed in (first, second)]
    waiting[0].wait()
    assert (first.words.tolist(), second.words.tolist()) == ([900], [UNWRITTEN])
    waiting[1].wait()
    assert second.words.tolist() == [900]


def test_waiting_twice(bench, engine):
    submission = engine.submit(bench.place(lay_out(mixed(10, 20, 30))).batch)
    once, twice = submission.wait(), submission.wait()
    assert once.actual.tolist() == twice.actual.tolist() == [10, 20, 30]


def test_batches_of_several_threads(bench, engine):
    payloads = mixed(*range(500, 530))
    work, failures = lay_out(payloads), []

    def run():
        device = driver.device(0)
        device.set_current()
        stream = device.create_stream()
        try:
            for _ in range(5):
                outcome = engine.submit(bench.place(work, stream).batch).wait()
                assert outcome.actual.tolist() == list(range(500, 530))
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            stream.sync()
            stream.close()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- What the driver refuses ----------------------------------------------------------------------


def ascending():
    """Return rows whose order by size is the other way round; row 6 is the only Snappy one."""
    sizes = [100 * (n + 1) for n in range(12)]
    codecs = [Codec.RAW, Codec.LZ4, Codec.DEFLATE] * 4
    codecs[6] = Codec.SNAPPY
    pairs = enumerate(zip(codecs, sizes, strict=True))
    return [encode(codec, sample("text", size, n)) for n, (codec, size) in pairs]


def assert_blamed(outcome, row, rows=12):
    """The driver named one row, and that is the one that is reported."""
    check_form(outcome, rows)
    assert outcome.code == Code.INVALID_VALUE
    assert outcome.blame == {row: "index"}
    assert outcome.status[row] == Status.REFUSED
    assert "CUDA_ERROR_INVALID_VALUE (1)" in outcome.reasons[row]


def test_blames_the_row_whose_codec_is_refused(cuda, bench, engine):
    cuda.settings.algorithm_mask = 5  # the engine has been told of all three
    outcome = engine.submit(bench.place(lay_out(ascending())).batch).wait()
    assert_blamed(outcome, 6)
    assert len(cuda.refusals) == 1


@pytest.mark.parametrize("first", [0, 1, 5])
def test_blames_the_row_that_is_too_long(cuda, bench, engine, first):
    """The largest compressed row is the first of the batch, wherever it stands in the table."""
    cuda.settings.maximum_length = 1100
    payloads = ascending()
    payloads[first], payloads[11] = payloads[11], payloads[first]
    assert payloads[first].codec == Codec.DEFLATE
    outcome = engine.submit(bench.place(lay_out(payloads)).batch).wait()
    assert_blamed(outcome, first)


def test_blames_the_row_that_is_stored_too_long(cuda, bench, engine):
    payloads = ascending()
    payloads[4] = encode(Codec.LZ4, sample("noise", 1199))
    assert len(payloads[4].stored) > 1200
    cuda.settings.maximum_length = 1200
    assert_blamed(engine.submit(bench.place(lay_out(payloads)).batch).wait(), 4)


@pytest.mark.parametrize("row", [1, 2, 6, 11])
@pytest.mark.parametrize("side", ["src", "dst"])
@pytest.mark.parametrize("kind", ["cuMemHostAlloc", "pool", "freed"])
def test_blames_the_row_whose_memory_is_out_of_reach(bench, engine, row, side, kind):
    """Its address is between others that the engine reaches, so that nobody looked at it before."""
    placed = bench.place(lay_out(ascending()))
    addresses = getattr(placed.batch, side).copy()
    with ExitStack() as stack:
        freed = kind == "freed"
        taking = allocate("DecompressMemory" if freed else kind, 5000, bench.stream)
        addresses[row] = stack.enter_context(taking)
        if freed:
            stack.close()
        # Addresses only grow on the double: what comes last is behind all others.
        last = bench.host.allocate(5000, stream=bench.stream)
        addresses[0] = int(last.handle)
        assert addresses.min() < addresses[row] < addresses.max()
        outcome = engine.submit(replace(placed.batch, **{side: addresses})).wait()
        assert_blamed(outcome, row)
        last.close()


def test_rows_of_a_refused_batch_do_not_count_as_decoded(cuda, bench, engine):
    """A row is OK only if its slot holds its bytes; the driver did not decode a part of a batch."""
    cuda.settings.algorithm_mask = 5
    payloads = ascending()
    work = lay_out(payloads)
    placed = bench.place(work)
    outcome = engine.submit(placed.batch).wait()
    out = bench.fetch(placed.window)
    for row in np.flatnonzero(outcome.status == Status.OK).tolist():
        start, size = int(work.dst[row]), len(payloads[row].raw)
        assert out[start : start + size].tobytes() == payloads[row].raw, f"row {row}"
        assert outcome.actual[row] == size


@pytest.mark.parametrize("code", [Code.INVALID_VALUE, Code.NOT_PERMITTED, Code.NOT_SUPPORTED])
def test_an_error_of_the_whole_batch_names_no_row(cuda, bench, engine, code):
    cuda.fail_next("cuMemBatchDecompressAsync", code)
    outcome = engine.submit(bench.place(lay_out(ascending())).batch).wait()
    check_form(outcome, 12)
    assert outcome.code == code
    assert outcome.blame == dict.fromkeys(range(12), "none")
    assert set(outcome.status.tolist()) == {Status.REFUSED}
    for reason in outcome.reasons.values():
        assert f"CUDA_ERROR_{code.name} ({code:d})" in reason


def test_a_device_without_an_engine(cuda, bench, engine):
    cuda.settings.algorithm_mask = 0
    outcome = engine.submit(bench.place(lay_out(ascending())).batch).wait()
    assert outcome.code == Code.NOT_SUPPORTED
    assert outcome.blame == dict.fromkeys(range(12), "none")


def test_the_next_batch_after_a_refused_one(cuda, bench, engine):
    payloads = ascending()
    work = lay_out(payloads)
    cuda.fail_next("cuMemBatchDecompressAsync", Code.INVALID_VALUE)
    engine.submit(bench.place(work).batch).wait()
    placed = bench.place(work)
    outcome = engine.submit(placed.batch).wait()
    check(payloads, work, Result(outcome, bench.fetch(placed.window)[: work.out.size]))


@pytest.mark.parametrize("kind", ["cuMemHostAlloc", "pool"])
@pytest.mark.parametrize(("side", "what"), [("src", "stored chunks"), ("dst", "decoded chunks")])
def test_memory_that_the_engine_can_not_reach(cuda, bench, engine, kind, side, what):
    """Nothing is submitted: a refusal of every row would say less."""
    work = lay_out(ascending())
    placed = bench.place(work)
    with allocate(kind, 100_000, bench.stream) as address:
        batch = replace(placed.batch, **{side: getattr(work, side) + address})
        with pytest.raises(DriverError, match=rf"memory of the {what} at 0x[0-9a-f]+ is not HW-"):
            engine.submit(batch)
    assert "cuMemBatchDecompressAsync" not in cuda.recorder.calls


def test_words_that_the_engine_can_not_reach(cuda, bench, engine):
    from cuda.core import LegacyPinnedMemoryResource

    placed = bench.place(lay_out(ascending()))
    words = LegacyPinnedMemoryResource().allocate(100, stream=bench.stream)
    with pytest.raises(DriverError, match=r"memory of the decoded sizes at 0x.* is not HW-"):
        engine.submit(replace(placed.batch, actual=words))
    words.close()


@pytest.mark.parametrize("side", ["src", "dst"])
def test_null_pointers(bench, engine, side):
    placed = bench.place(lay_out(ascending()))
    addresses = getattr(placed.batch, side).copy()
    addresses[3] = 0
    with pytest.raises(DriverError, match="at 0x0 is not HW-decompress capable"):
        engine.submit(replace(placed.batch, **{side: addresses}))


@pytest.mark.parametrize(
    "name", ["cuPointerGetAttribute", "cuMemcpyAsync", "cuEventRecord", "cuEventSynchronize"]
)
def test_other_calls_that_fail(cuda, bench, engine, name):
    placed = bench.place(lay_out(ascending()))
    cuda.fail_next(name, Code.INVALID_CONTEXT)
    with pytest.raises(DriverError, match=f"^{name} failed: CUDA_ERROR_INVALID_CONTEXT"):
        engine.submit(placed.batch).wait()
    bench.stream.sync()


# --- Corrupt payloads -----------------------------------------------------------------------------


def with_damage(codec):
    """Return rows of which one does not decode, and where it is."""
    payloads = [encode(codec, sample("text", 1000 + n)) for n in range(9)]
    payloads[4] = replace(payloads[4], stored=DAMAGED[codec])
    return payloads, 4


@pytest.mark.parametrize("codec", CODECS)
def test_a_short_count_is_the_rows_failure(cuda, bench, engine, codec):
    payloads, bad = with_damage(codec)
    work = lay_out(payloads)
    placed = bench.place(work)
    outcome = engine.submit(placed.batch).wait()
    result = Result(outcome, bench.fetch(placed.window)[: work.out.size])
    check(payloads, work, result, {bad})
    assert outcome.code == 0
    assert outcome.blame == {bad: "size"}
    assert outcome.status[bad] == Status.SIZE
    assert "the file says 1004" in outcome.reasons[bad]


@pytest.mark.parametrize("codec", CODECS)
def test_an_overrun_is_the_rows_failure(cuda, bench, engine, codec):
    cuda.settings.corruption = "overrun"
    payloads, bad = with_damage(codec)
    outcome = engine.submit(bench.place(lay_out(payloads)).batch).wait()
    check_form(outcome, len(payloads))
    assert outcome.blame == {bad: "size"}
    assert outcome.actual[bad] == 1004 + cuda.settings.overrun
    assert f"{1004 + cuda.settings.overrun} bytes, the file says 1004" in outcome.reasons[bad]
    assert len(cuda.overruns) == 1


def test_an_inexact_row_may_not_fill_more_than_its_slot(cuda, bench, engine):
    cuda.settings.corruption = "overrun"
    payloads, bad = with_damage(Codec.LZ4)
    payloads = [replace(payload, exact=False) for payload in payloads]
    outcome = engine.submit(bench.place(lay_out(payloads)).batch).wait()
    assert outcome.blame == {bad: "size"}
    assert "at most 1004" in outcome.reasons[bad]


@pytest.mark.parametrize("corruption", ["sticky", "overrun"])
def test_a_fault_ends_the_context_and_says_so(cuda, corruption):
    """An overrun into the guard is a fault, not damage to memory of others."""
    cuda.settings.corruption = corruption
    cuda.settings.overrun = 4 << 20
    bench = Bench()
    payloads, _ = with_damage(Codec.DEFLATE)
    submission = HardwareEngine(0).submit(bench.place(lay_out(payloads)).batch)
    with pytest.raises(DriverError, match="ended this process's CUDA context: start a new process"):
        submission.wait()
    with suppress(GpuloadError):
        bench.close()
    assert cuda.leaks() == []


def test_a_count_that_nobody_wrote(bench, engine):
    """The engine is not asked about empty batches, and counts what it did write only."""
    payload = Payload(Codec.RAW, b"", b"")
    outcome = engine.submit(bench.place(lay_out([payload])).batch).wait()
    assert outcome.status.tolist() == [Status.OK]
    assert outcome.actual.tolist() == [0]


def test_checksums_are_left_to_the_caller(bench, engine):
    payloads = [
        replace(encode(Codec.DEFLATE, sample("text", 100)), kind=Checksum.CRC32, checksum=1)
    ]
    assert engine.submit(bench.place(lay_out(payloads)).batch).wait().reasons == {}
