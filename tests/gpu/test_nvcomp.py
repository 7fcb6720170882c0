"""nvCOMP on a GPU: the contract of all engines, moved sources, split batches, what it reports."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from gpuload import driver
from gpuload.chunks import Codec, make_table
from gpuload.engines.base import DeviceBatch, Status
from gpuload.engines.nvcomp_abi import Options
from tests.engines.engine_tests import SOME_BYTES, EngineTests, Result, check
from tests.helpers.device_loads import hang_ends_the_process
from tests.helpers.payloads import KINDS, Payload, encode, lay_out, sample

pytestmark = pytest.mark.gpu

DEVICE = 0
#: What there are encoders for on the host; GDeflate has tests of its own.
CODECS = (Codec.DEFLATE, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
#: Codecs whose decoders notice damage (nvcomp/lz4.h, snappy.h); for others it is undefined.
CHECKED = {Codec.SNAPPY: b"\x01\x01", Codec.LZ4: b"\x00\x01\x00\x10a"}


@pytest.fixture(scope="module", autouse=True)
def _nvcomp():
    from gpuload.engines.nvcomp_library import unavailable

    if unavailable():
        pytest.skip(unavailable())


class Bench:
    """Batches in memory of the device, and the destination back on the host."""

    def __init__(self):
        from gpuload.memory import DecompressPool
        from gpuload.memory.mapped import host_view

        device = driver.device(DEVICE)
        device.set_current()
        self.stream = device.create_stream()
        self._pool, self._view = DecompressPool(DEVICE), host_view
        self._kept = []

    def close(self):
        with ExitStack() as closing:
            closing.callback(self.stream.close)
            closing.callback(self._pool.close)
            for buffer in self._kept:
                closing.callback(buffer.close)

    def on_device(self, data):
        """Return the address of bytes on the device."""
        from gpuload.memory import copy

        buffer = self._pool.allocate(max(1, data.size), stream=self.stream)
        self._kept.append(buffer)
        copy(int(buffer.handle), data.ctypes.data, data.size, self.stream)
        self.stream.sync()
        return int(buffer.handle)

    def on_host(self, data):
        """Return the address of bytes in pinned memory of the host."""
        from cuda.core import LegacyPinnedMemoryResource

        buffer = LegacyPinnedMemoryResource().allocate(max(1, data.size))
        self._kept.append(buffer)
        self._view(buffer)[: data.size] = data
        return int(buffer.handle)

    def words(self, count):
        from cuda.core import LegacyPinnedMemoryResource

        self._kept.append(LegacyPinnedMemoryResource().allocate(max(4, 4 * count)))
        return self._kept[-1]

    def fetch(self, landing, address):
        """Fill an array from the device."""
        from gpuload.memory import copy

        copy(landing.ctypes.data, address, landing.size, self.stream)
        self.stream.sync()

    def start(self, engine, work, source=None):
        """Submit a batch, and return what waits for it and fetches the destination."""
        out = self.on_device(work.out)
        src = work.src + (source or self.on_device)(work.stored)
        words = self.words(work.rows.size)
        batch = DeviceBatch(work.rows, src, work.dst + out, words, self.stream)
        submission = engine.submit(batch)

        def finish():
            outcome, landing = submission.wait(), np.empty_like(work.out)
            self.fetch(landing, out)
            return Result(outcome, landing)

        return finish

    def decode(self, engine, payloads, bad=(), *, source=None, **starts):
        work = lay_out(payloads, **starts)
        result = self.start(engine, work, source)()
        check(payloads, work, result, bad)
        return result.outcome


@contextmanager
def workbench():
    bench = Bench()
    try:
        with hang_ends_the_process(300):
            yield bench
    finally:
        bench.close()


@pytest.fixture
def bench():
    with workbench() as made:
        yield made


def make(**options):
    from gpuload.engines.nvcomp import NvcompEngine

    return NvcompEngine(DEVICE, **options)


@pytest.fixture
def engine(bench):
    made = make()
    yield made
    made.close()


class TestNvcompEngine(EngineTests):
    supported = frozenset({Codec.RAW, *CODECS})
    bounded = False
    checks = False

    @pytest.fixture(autouse=True)
    def _bench(self):
        with workbench() as self.bench:
            yield

    def make_engine(self, options):
        return make(memory_limit=options.memory_limit)

    def start(self, engine, work):
        assert not any(self.refused(engine, work.rows))
        return self.bench.start(engine, work)

    def test_refuses_unsupported_codecs(self, engine):
        """As every engine does; Snappy's preamble has to be there, too."""
        rows = make_table(range(len(Codec)), **SOME_BYTES, prefix_size=2, codec=list(Codec))
        supported = {*self.supported, Codec.GDEFLATE}
        assert self.refused(engine(), rows) == [codec not in supported for codec in Codec]


@pytest.mark.parametrize("codec", CODECS)
def test_sources_at_any_address(bench, engine, codec):
    payloads = [encode(codec, sample("text", 3000 + n, n)) for n in range(2000)]
    bench.decode(engine, payloads, src_starts=[n % 16 for n in range(2000)])


def test_sources_are_moved_without_the_kernel(bench, engine, monkeypatch):
    """Where kernels can't be compiled the driver copies, one source after the other."""
    from gpuload.engines import nvcomp

    monkeypatch.setattr(nvcomp, "raw_kernel", lambda device_id: None)
    payloads = [encode(Codec.DEFLATE, sample("text", 3000 + n, n)) for n in range(200)]
    bench.decode(engine, payloads, src_starts=[n % 16 for n in range(200)])


@pytest.mark.parametrize("codec", CODECS)
def test_sources_in_memory_of_the_host(bench, engine, codec):
    payloads = [encode(codec, sample("text", 3000 + n, n)) for n in range(200)]
    bench.decode(engine, payloads, source=bench.on_host)


@pytest.mark.parametrize(("codec", "limit"), [(Codec.DEFLATE, 20_000), (Codec.ZSTD, 100_000)])
def test_batches_in_many_parts(bench, codec, limit):
    """Both need scratch memory: for sources that are moved, and for nvCOMP itself."""
    engine = make(memory_limit=limit)
    payloads = [encode(codec, sample("text", 5000 + n, n)) for n in range(500)]
    bench.decode(engine, payloads, src_starts=[n % 16 for n in range(500)])
    engine.close()


def test_the_limit_is_kept(bench):
    """What the pool has taken from the device is what was in use at once, and little more."""
    engine = make(memory_limit=64 << 20)
    payloads = [encode(Codec.ZSTD, sample("text", 65536, n % 8)) for n in range(4096)]
    free = driver.memory_info(DEVICE)[0]
    bench.decode(engine, payloads)
    used = free - driver.memory_info(DEVICE)[0]
    engine.close()
    # Beside it there are the stored and the decoded chunks, and nvCOMP's own code.
    assert used < (64 << 20) + 2 * 4096 * 65536 + (256 << 20)


def test_snappy_with_lengths_of_any_size(bench, engine):
    """The preamble before the elements has 1 to 4 bytes."""
    sizes = [1, 127, 128, 16_383, 16_384, 100_000, (1 << 21) - 1, 1 << 21]
    payloads = [encode(Codec.SNAPPY, sample("text", size)) for size in sizes]
    assert {len(payload.prefix) for payload in payloads} == {1, 2, 3, 4}
    bench.decode(engine, payloads)


@pytest.mark.parametrize("codec", CHECKED)
def test_damage_that_nvcomp_notices(bench, engine, codec):
    payloads = [encode(codec, sample("text", 1000 + n)) for n in range(9)]
    payloads[4] = replace(payloads[4], stored=CHECKED[codec])
    outcome = bench.decode(engine, payloads, {4})
    assert list(outcome.reasons) == [4]
    assert outcome.status[4] in (Status.CORRUPT, Status.SIZE)


def test_submitting_does_not_wait(bench, engine):
    """The device is busy for a while when the second batch is submitted."""
    payloads = [encode(Codec.ZSTD, sample("text", 65536, n % 8)) for n in range(2000)]
    work = lay_out(payloads)
    bench.start(engine, work)()  # what is loaded and allocated once
    source, out = bench.on_device(work.stored), bench.on_device(work.out)
    words = bench.words(work.rows.size)
    batch = DeviceBatch(work.rows, work.src + source, work.dst + out, words, bench.stream)
    waiting = [engine.submit(batch) for _ in range(4)]
    assert not bench.stream.record().is_done
    for submission in waiting:
        assert not submission.wait().reasons


# --- GDeflate, which nothing on the host encodes --------------------------------------------------


def gdeflate(bench, parts, level=1):
    """Return payloads that nvCOMP's own compressor makes (gdeflate.h of 5.1 to 6.0)."""
    from gpuload.engines.nvcomp_library import load

    options, stream = Options(level), int(bench.stream.handle)  # both kinds of options are alike
    count, most, total = len(parts), max(map(len, parts)), sum(map(len, parts))
    bound, temp = ctypes.c_size_t(), ctypes.c_size_t()
    compress("GetMaxOutputChunkSize", most, options, ctypes.byref(bound))
    words = [count, most, options, ctypes.byref(temp), total]
    if load().version < (6, 0):
        compress("GetTempSizeAsync", *words)
    else:
        compress("GetTempSize", *words, stream)
    raw, _ = apart(bench, parts, most)
    stored, out = apart(bench, [b""] * count, bound.value)
    scratch = bench.on_device(np.zeros(temp.value, np.uint8))
    lengths = pinned(bench, [len(part) for part in parts])
    sizes, statuses = pinned(bench, [0] * count), pinned(bench, [-1] * count)
    compress(
        *("Async", pinned(bench, raw), lengths, most, count, scratch, temp.value),
        *(pinned(bench, stored), sizes, options, statuses, stream),
    )
    bench.stream.sync()
    assert not any((ctypes.c_int * count).from_address(statuses))
    bench.fetch(out, stored[0])
    made = zip(parts, stored, (ctypes.c_size_t * count).from_address(sizes), strict=True)
    return [
        Payload(Codec.GDEFLATE, part, out[at - stored[0] :][:size].tobytes())
        for part, at, size in made
    ]


def compress(name, *words):
    from gpuload.engines.nvcomp_library import load

    call = getattr(load()._library, f"nvcompBatchedGdeflateCompress{name}")
    words = [ctypes.c_size_t(word) if isinstance(word, int) else word for word in words]
    assert call(*words) == 0, name


def apart(bench, parts, size):
    """Return addresses on the device for parts of up to `size` bytes, and the bytes there."""
    stride = -(-size // 16) * 16
    data = np.frombuffer(b"".join(part.ljust(stride, b"\0") for part in parts), np.uint8).copy()
    start = bench.on_device(data)
    return [start + stride * number for number in range(len(parts))], data


def pinned(bench, words):
    return bench.on_host(np.array(words, np.int64).view(np.uint8))


@pytest.mark.parametrize("level", [0, 1, 5])
def test_gdeflate(bench, engine, level):
    sizes = (1, 15, 100, 4097, 65535, 65536)
    payloads = gdeflate(bench, [sample(kind, size) for kind in KINDS for size in sizes], level)
    assert sum(len(payload.stored) for payload in payloads) < sum(p.raw_size for p in payloads)
    bench.decode(engine, payloads)


def test_gdeflate_beside_other_codecs(bench, engine):
    """In many parts, from any address; a size that the file gets wrong is noticed."""
    parts = [sample("text", 3000 + n, n) for n in range(200)]
    payloads = gdeflate(bench, parts)
    payloads[1::4] = [encode(Codec.RAW, part) for part in parts[1::4]]
    payloads[2::4] = [encode(Codec.DEFLATE, part) for part in parts[2::4]]
    payloads[40] = replace(payloads[40], slot=4000)
    small = make(memory_limit=20_000)
    starts = [n % 16 for n in range(200)]
    outcome = bench.decode(small, payloads, {40}, src_starts=starts)
    assert outcome.reasons == {40: "the engine reports 3040 bytes, the file says 4000"}
    small.close()
