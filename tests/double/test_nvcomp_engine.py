"""The nvCOMP engine on the doubles of the driver and of nvCOMP: the contract, memory and errors."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from gpuload import driver
from gpuload.chunks import Codec, make_table
from gpuload.engines import nvcomp_library
from gpuload.engines.base import Status
from gpuload.engines.nvcomp import NvcompEngine
from gpuload.errors import DriverError, GpuloadError, MemoryLimitError
from gpuload.kernels import compiler
from gpuload.memory import copy
from tests.engines.engine_tests import SOME_BYTES, EngineTests, Result, check
from tests.helpers.benches import Bench, decode, workbench
from tests.helpers.device_loads import hang_ends_the_process
from tests.helpers.fakecuda import Code
from tests.helpers.fakenvcomp import FakeNvcomp
from tests.helpers.payloads import encode, lay_out, sample

CODECS = (Codec.DEFLATE, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD, Codec.GDEFLATE)
METHODS = dict(zip(CODECS, ("Deflate", "Snappy", "LZ4", "Zstd", "Gdeflate"), strict=True))
UNTOUCHED = 0x5A5A5A5A
DAMAGED = {
    Codec.DEFLATE: b"\x07\x00\x00",  # RFC 1951, section 3.2.3: block type 11 is reserved
    Codec.SNAPPY: b"\x01\x01",  # a copy from before the first byte
    Codec.LZ4: b"\x00\x01\x00\x10a",  # a match from before the first byte
    Codec.ZSTD: b"\x28\xb5\x2f\xfd\x00\x00",  # a frame that ends in its header
    Codec.GDEFLATE: b"any bytes",  # the double takes only its stand-in
}


@pytest.fixture(params=[6000], ids=lambda version: f"nvCOMP {version / 1000}")
def fake(cuda, monkeypatch, request):
    made = FakeNvcomp(cuda, request.param)
    monkeypatch.setattr(nvcomp_library, "_candidates", lambda: [str(made.path)])
    nvcomp_library._find.cache_clear()
    yield made
    nvcomp_library._find.cache_clear()


@pytest.fixture
def bench(fake):
    with workbench() as made, hang_ends_the_process(120):
        yield made


@pytest.fixture
def engine(bench):
    made = NvcompEngine(0)
    yield made
    made.close()


def mixed(*sizes):
    """Return rows of all codecs and of none, in turn."""
    codecs = [Codec.RAW, *CODECS]
    return [
        encode(codecs[n % len(codecs)], sample("text", size, n)) for n, size in enumerate(sizes)
    ]


class TestNvcompEngine(EngineTests):
    supported = frozenset({Codec.RAW, *CODECS})
    bounded = False
    checks = False

    @pytest.fixture(autouse=True)
    def _bench(self, fake):
        with workbench() as self.bench, hang_ends_the_process(120):
            yield

    def make_engine(self, options):
        return NvcompEngine(0, memory_limit=options.memory_limit)

    def start(self, engine, work):
        assert not any(self.refused(engine, work.rows))
        return self.bench.start(engine, work)

    def test_refuses_unsupported_codecs(self, engine):
        """As every engine does; Snappy's preamble has to be there, too."""
        rows = make_table(range(len(Codec)), **SOME_BYTES, prefix_size=2, codec=list(Codec))
        assert self.refused(engine(), rows) == [codec not in self.supported for codec in Codec]

    def test_scratch_memory_of_one_chunk_at_a_time(self, engine):
        self.decode(engine(memory_limit=22_000), self.mixture())


@pytest.mark.parametrize("fake", [5100, 5200, 6000], indirect=True)
def test_every_version(fake, bench, engine):
    decode(bench, engine, mixed(*range(1, 4000, 97)))
    assert {method for method, _, _ in fake.calls} == set(METHODS.values())


# --- Submitting and waiting -----------------------------------------------------------------------


def synchronisations(cuda):
    return {name: n for name, n in cuda.recorder.calls.items() if "Synchronize" in name}


def test_submitting_does_not_wait(cuda, fake, bench):
    engine = NvcompEngine(0, memory_limit=40_000)
    payloads = mixed(*range(1000, 1100))
    work = lay_out(payloads)
    placed = bench.place(work)
    cuda.pageable_copies.clear()
    before = synchronisations(cuda)
    submission = engine.submit(placed.batch)
    assert synchronisations(cuda) == before
    assert len(fake.calls) > 4
    assert cuda.pageable_copies == []
    outcome = submission.wait()
    check(payloads, work, Result(outcome, bench.fetch(placed.window)[: work.out.size]))
    engine.close()


def test_one_call_for_each_codec(fake, bench, engine):
    decode(bench, engine, mixed(*range(1, 121)))
    assert [(method, count) for method, count, _ in fake.calls] == [
        ("Deflate", 20),
        ("Snappy", 20),
        ("LZ4", 20),
        ("Zstd", 20),
        ("Gdeflate", 20),
    ]


def test_copies_need_no_nvcomp(cuda, fake, bench, engine):
    payloads = [encode(Codec.RAW, sample("noise", size)) for size in (1, 5000, 3 << 20)]
    decode(bench, engine, payloads)
    assert fake.calls == []


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


def test_the_words_of_the_batch_are_left_alone(bench, engine):
    placed = bench.place(lay_out(mixed(10, 20, 30, 40, 50)))
    placed.words[:] = UNTOUCHED
    engine.submit(placed.batch).wait()
    assert placed.words.tolist() == [UNTOUCHED] * 5


def test_waiting_twice(bench, engine):
    submission = engine.submit(bench.place(lay_out(mixed(10, 20, 30))).batch)
    assert submission.wait() is submission.wait()


def test_closing_waits_for_what_nobody_waited_for(cuda, bench, engine):
    payloads = mixed(*range(100, 130))
    work = lay_out(payloads)
    placed = bench.place(work)
    submission = engine.submit(placed.batch)
    engine.close()
    before = synchronisations(cuda)
    outcome = submission.wait()
    assert synchronisations(cuda) == before
    check(payloads, work, Result(outcome, bench.fetch(placed.window)[: work.out.size]))


def test_pinned_memory_is_used_again(cuda, bench, engine):
    for _ in range(5):
        decode(bench, engine, mixed(*range(100, 130)))
    assert cuda.recorder.calls["cuMemAllocHost"] == 1


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


# --- Scratch memory -------------------------------------------------------------------------------


def taken_from_pools(cuda):
    """Return the sizes of the memory that was taken in stream order."""
    return [args[1] for name, args, _ in cuda.recorder.log if name == "cuMemAllocFromPoolAsync"]


@pytest.mark.parametrize("limit", [30_000, 100_000, 1 << 20])
def test_scratch_memory_stays_under_the_limit(cuda, fake, bench, limit):
    engine = NvcompEngine(0, memory_limit=limit)
    payloads = [encode(Codec.ZSTD, sample("text", size)) for size in range(1000, 5000, 50)]
    decode(bench, engine, payloads)
    assert sum(count for _, count, _ in fake.calls) == len(payloads)
    assert max(size for _, _, size in fake.calls) <= limit
    # A call more would have done if each held as much as it may: 80 x 6936 + 3 x 238,000 bytes.
    assert len(fake.calls) <= -(-1_273_000 // limit) * 2
    assert max(taken_from_pools(cuda)) <= limit
    engine.close()


def test_parts_reuse_one_scratch_memory(cuda, bench):
    """Sources that are moved are moved for each part, behind nvCOMP's own memory."""
    engine = NvcompEngine(0, memory_limit=8192)
    payloads = [encode(Codec.DEFLATE, sample("noise", 900, n)) for n in range(64)]
    decode(bench, engine, payloads, src_starts=[1, 2, 3, 5] * 16)
    scratch, arrays = taken_from_pools(cuda)
    assert scratch <= 8192
    # Arrays of nvCOMP, and what the kernel that moves sources reads and writes.
    assert arrays == 64 * 44 + 64 * (64 + 8)
    engine.close()


@pytest.mark.parametrize("codec", CODECS)
def test_moved_sources_lie_behind_temporary_memory(fake, bench, codec):
    fake.temp_sizes[METHODS[codec]] = lambda count, largest, total: 100 * count + 1
    fake.alignments[METHODS[codec]] = (16, 1, 64)
    engine = NvcompEngine(0, memory_limit=6000)
    payloads = [encode(codec, sample("noise", 200 + n, n)) for n in range(40)]
    decode(bench, engine, payloads, src_starts=[n % 16 for n in range(40)])
    assert [count for _, count, _ in fake.calls] == [17, 18, 5]
    engine.close()


def test_a_row_of_more_scratch_memory_than_the_limit(bench, engine):
    small = NvcompEngine(0, memory_limit=47 * 256)
    payloads = [encode(Codec.ZSTD, sample("text", size)) for size in (1000, 1698, 1699, 5000)]
    work = lay_out(payloads)
    refused = small.refusals(work.rows)
    reason = "one chunk takes more than 12032 bytes of scratch memory (memory_limit)"
    assert refused[reason].tolist() == [False, False, True, True]
    message = "22016 bytes of scratch memory for a chunk of 5000 bytes, and memory_limit is 12032"
    with pytest.raises(MemoryLimitError, match=message):
        small.submit(bench.place(work).batch)


def test_no_memory(cuda, bench):
    engine = NvcompEngine(0, memory_limit=1 << 40)
    cuda.fail_next("cuMemAllocFromPoolAsync", Code.OUT_OF_MEMORY)
    with pytest.raises(MemoryLimitError, match="no memory for"):
        decode(bench, engine, mixed(*range(1, 50)))
    engine.close()


# --- Refusals -------------------------------------------------------------------------------------


def test_refuses_snappy_without_its_preamble(engine):
    rows = make_table(range(3), **SOME_BYTES, codec=Codec.SNAPPY, prefix_size=[0, 1, 5])
    refused = engine.refusals(rows)
    reason = "the length is not before the elements, where nvCOMP wants it"
    assert refused[reason].tolist() == [True, False, False]


# --- Damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_a_status_is_the_rows_failure(bench, engine, codec):
    payloads = [encode(codec, sample("text", 1000 + n)) for n in range(9)]
    payloads[4] = replace(payloads[4], stored=DAMAGED[codec])
    outcome = decode(bench, engine, payloads, {4})
    assert outcome.reasons == {4: "nvCOMP reports nvcompErrorCannotDecompress (12) for the chunk"}
    assert outcome.status[4] == Status.CORRUPT
    assert outcome.blame == {4: "index"}
    assert outcome.code == 0


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4, Codec.ZSTD, Codec.GDEFLATE])
def test_a_size_that_disagrees_is_the_rows_failure(bench, engine, codec):
    payloads = [encode(codec, sample("text", 1000 + n)) for n in range(9)]
    payloads[4] = replace(payloads[4], slot=1500)
    outcome = decode(bench, engine, payloads, {4})
    assert outcome.reasons == {4: "the engine reports 1004 bytes, the file says 1500"}
    assert outcome.status[4] == Status.SIZE
    assert outcome.blame == {4: "size"}


def test_raw_rows_that_do_not_fit_are_not_copied(bench, engine):
    payloads = [encode(Codec.RAW, sample("noise", 1000, n)) for n in range(9)]
    payloads[4] = replace(payloads[4], slot=990)
    outcome = decode(bench, engine, payloads, {4})
    assert outcome.reasons == {4: "the engine reports 1000 bytes, the file says 990"}


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("alignments", "nvcompBatchedLZ4DecompressGetRequiredAlignments"),
        ("temp_size", "nvcompBatchedLZ4DecompressGetTempSize"),
        ("decompress", "nvcompBatchedLZ4DecompressAsync"),
    ],
)
def test_calls_that_fail(fake, bench, engine, function, name):
    payloads = [encode(Codec.LZ4, sample("text", 1000, n)) for n in range(20)]
    fake.fail_next(function, 1000)
    message = rf"^{name} failed: nvcompErrorCudaError \(1000\): a CUDA error, says the double$"
    with pytest.raises(DriverError, match=message):
        engine.submit(bench.place(lay_out(payloads)).batch)
    decode(bench, engine, payloads)


@pytest.mark.parametrize("fake", [5100], indirect=True)
def test_failures_before_statuses_had_descriptions(fake, bench, engine):
    fake.fail_next("decompress", 4711)
    with pytest.raises(DriverError, match=r"failed: nvcompStatus_t 4711 \(4711\)$"):
        decode(bench, engine, [encode(Codec.LZ4, b"some bytes")])


def test_a_part_that_fails(cuda, fake, bench):
    """What was submitted before it still runs; its pinned memory is not used again meanwhile."""
    engine = NvcompEngine(0, memory_limit=30_000)
    payloads = [encode(Codec.ZSTD, sample("text", 1000, n)) for n in range(20)]
    placed = bench.place(lay_out(payloads))
    fake.fail_next("decompress", 12, after=3)
    with pytest.raises(DriverError, match="nvcompErrorCannotDecompress"):
        engine.submit(placed.batch)
    left = cuda.scheduler.stream(int(bench.stream.handle), cuda.current).queue
    assert [operation.label for operation in left] == ["free"]
    decode(bench, engine, payloads)
    engine.close()


@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize(
    "name", ["cuMemcpyAsync", "cuMemAllocFromPoolAsync", "cuMemAllocHost", "cuEventRecord"]
)
def test_calls_of_the_driver_that_fail(cuda, bench, engine, name, after):
    payloads = mixed(*range(100, 120))
    placed = bench.place(lay_out(payloads))
    cuda.fail_next(name, Code.INVALID_VALUE, after=after)
    with suppress(DriverError):
        engine.submit(placed.batch).wait()
        assert cuda.recorder.pending_injections() == [name]
    cuda.recorder._injections.clear()
    decode(bench, engine, payloads)


def test_waiting_that_fails(cuda, bench, engine):
    payloads = mixed(*range(100, 120))
    submission = engine.submit(bench.place(lay_out(payloads)).batch)
    cuda.fail_next("cuEventSynchronize", Code.INVALID_CONTEXT)
    with pytest.raises(DriverError, match="cuEventSynchronize failed: CUDA_ERROR_INVALID_CONTEXT"):
        submission.wait()
    assert submission.wait().actual.tolist() == list(range(100, 120))


def test_a_fault_ends_the_context_and_says_so(cuda, fake):
    bench = Bench()
    engine = NvcompEngine(0)
    placed = bench.place(lay_out(mixed(*range(100, 120))))
    cuda.queue_fault(int(bench.stream.handle))
    submission = engine.submit(placed.batch)
    with pytest.raises(DriverError, match="ended this process's CUDA context: start a new process"):
        submission.wait()
    for closing in (engine.close, bench.close):
        with suppress(GpuloadError):
            closing()


def test_slots_that_nvcomp_can_not_write(fake, bench, engine):
    fake.alignments["LZ4"] = (1, 4, 1)
    with pytest.raises(DriverError, match="writes to multiples of 4 only, and a slot is at 0x"):
        decode(bench, engine, [encode(Codec.LZ4, b"some bytes")], dst_starts=[5])


# --- The kernel for copies ------------------------------------------------------------------------


def sizes_of(launches):
    """Return how many copies each launch made."""
    assert {name for name, _ in launches} == {"raw_32"}
    return [count for _, count in launches]


def test_many_copies_are_one_launch(cuda, bench, engine):
    payloads = [encode(Codec.DEFLATE, sample("text", 500 + n)) for n in range(50)]
    payloads += [encode(Codec.RAW, sample("noise", 500 + n)) for n in range(50)]
    before = cuda.recorder.calls["cuMemcpyAsync"]
    work = lay_out(payloads, src_starts=[*[1, 2, 3, 4, 5] * 10, *[7] * 50])
    placed = bench.place(work)
    placing = cuda.recorder.calls["cuMemcpyAsync"] - before
    outcome = engine.submit(placed.batch).wait()
    check(payloads, work, Result(outcome, bench.fetch(placed.window)[: work.out.size]))
    assert sizes_of(cuda.launches) == [50, 40]
    # To the device and back, and what the bench fetched.
    assert cuda.recorder.calls["cuMemcpyAsync"] - before - placing == 3


def test_all_copies_are_the_drivers_where_kernels_can_not_be_compiled(
    cuda, bench, engine, monkeypatch
):
    monkeypatch.setattr(compiler, "refusal", lambda device_id: "no compiler")
    payloads = [encode(Codec.DEFLATE, sample("text", 500 + n)) for n in range(20)]
    payloads += [encode(Codec.RAW, sample("noise", 500 + n)) for n in range(20)]
    decode(bench, engine, payloads, src_starts=[1, 2, 3, 5, 7] * 8)
    assert cuda.launches == []


def test_large_and_few_copies_are_the_drivers(cuda, bench, engine):
    sizes = [(1 << 20) + 1, 1 << 20, 1, 2, 3]
    decode(bench, engine, [encode(Codec.RAW, sample("noise", size)) for size in sizes])
    decode(bench, engine, [encode(Codec.RAW, sample("noise", size)) for size in sizes[:4]])
    assert sizes_of(cuda.launches) == [4]


def test_launches_for_each_part(cuda, bench):
    engine = NvcompEngine(0, memory_limit=8192)
    payloads = [encode(Codec.DEFLATE, sample("noise", 900, n)) for n in range(64)]
    decode(bench, engine, payloads, src_starts=[1, 2, 3, 5] * 16)
    assert sum(sizes_of(cuda.launches)) == 64
    assert len(cuda.launches) == 8
    engine.close()
