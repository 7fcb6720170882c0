"""How much memory loads to the double of a device take, and several of them at once."""

from __future__ import annotations

import gc
import threading
from collections import Counter

import pytest

import gpuload
from gpuload import driver
from gpuload.device_array import close_pools
from gpuload.errors import GpuloadError, MemoryLimitError
from tests.helpers.device_loads import QUICK, clean_loads, compressed, new_stream, text

MIB = 1 << 20
TEXT = text(3 * MIB)
CODECS = ["lz4", "snappy", "gzip"]

every_codec = pytest.mark.parametrize("codec", CODECS)


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield


@pytest.fixture(scope="module")
def files():
    """Return compressed text by codec."""
    return {codec: compressed(TEXT, codec) for codec in CODECS}


@pytest.fixture
def stream():
    made = new_stream()
    yield made
    made.close()


def loaded(data, **options):
    """Load to the device; return the bytes and the report."""
    with gpuload.open(data, **QUICK | options) as container:
        return bytes(container.load(device=0)), container.report


# --- Memory ---------------------------------------------------------------------------------------


class Watched:
    """How much memory of `cuMemCreate` there is at most, on the device or on the host."""

    def __init__(self, cuda):
        self._memory = cuda.memory
        self.peak = 0

    def __call__(self, *arguments, **fields):
        made = self._create(*arguments, **fields)
        sums = Counter()
        for each in self._memory.allocations.values():
            sums[each.location] += each.size * (each.kind == "created")
        self.peak = max(self.peak, *sums.values())
        return made


@pytest.fixture
def watched(cuda, monkeypatch):
    watching = Watched(cuda)
    watching._create = cuda.memory.create
    monkeypatch.setattr(cuda.memory, "create", watching)
    return watching


LARGE = text(20 * MIB)


@pytest.fixture(scope="module")
def large():
    return compressed(LARGE, "snappy")


@pytest.mark.parametrize("engine", ["hardware", "sm"])
@pytest.mark.parametrize("verify", [True, "auto"])
@pytest.mark.parametrize("threads", [1, 4, 16])
@pytest.mark.parametrize("limit", [24 * MIB, 64 * MIB])
def test_scratch_memory_keeps_to_the_limit(cuda, large, watched, limit, threads, verify, engine):
    options = {"memory_limit": limit, "threads": threads, "verify": verify, "engine": engine}
    found, report = loaded(large, **options)
    assert found == LARGE
    assert report.engine == engine
    assert watched.peak <= limit


@pytest.mark.parametrize("limit", [24 * MIB, 64 * MIB])
def test_rows_without_a_place_keep_to_the_limit_too(cuda, watched, limit):
    """LZ4 frames do not state the sizes of their blocks: they go by way of windows."""
    found, _ = loaded(compressed(LARGE, "lz4"), memory_limit=limit, threads=16, engine="sm")
    assert found == LARGE
    assert watched.peak <= limit


def test_a_lower_limit_makes_more_batches(cuda, large):
    counts = []
    for limit in (256 * MIB, 64 * MIB, 16 * MIB):
        cuda.batches.clear()
        assert loaded(large, memory_limit=limit, threads=1)[0] == LARGE
        counts.append(len(cuda.batches))
        assert sum(cuda.batches) == len(LARGE) // 65_536
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("engine", ["hardware", "sm"])
@pytest.mark.parametrize("limit", [1, 1000, 70_000, 140_000, 1 << 20])
@every_codec
def test_a_limit_of_next_to_nothing(codec, files, limit, engine):
    """It refuses or slows down, and changes nothing of what comes out."""
    if (codec, engine) == ("gzip", "sm"):
        engine = "auto"
    try:
        found, _ = loaded(files[codec], memory_limit=limit, engine=engine)
    except MemoryLimitError as error:
        found = str(error)
    assert found == TEXT or "memory_limit" in found


def test_memory_is_pinned_where_the_engine_reads_it(cuda, files):
    """No copy of a load waits for pageable memory, but those to the host that checks."""
    array = gpuload.load(files["gzip"], device=0, **QUICK)
    assert cuda.pageable_copies == []
    del array


def test_a_thousand_loads_leave_the_memory_as_it_was(cuda, stream):
    data, raw = compressed(TEXT[:100_000], "snappy"), TEXT[:100_000]
    options = {"memory_limit": MIB, "threads": 1}
    gpuload.load(data, device=0, stream=stream, **options)
    stream.sync()
    before = driver.memory_info(0)[0]
    for number in range(1000):
        array = gpuload.load(data, device=0, stream=stream, **options)
        assert number % 100 or bytes(array) == raw
        del array
    stream.sync()
    assert driver.memory_info(0)[0] == before
    close_pools()
    stream.sync()
    assert driver.memory_info(0)[0] == cuda.settings.total_memory


def test_arrays_outlive_what_made_them(cuda, files):
    with gpuload.open(files["lz4"], **QUICK) as container:
        array = container.load(device=0)
    close_pools()
    gc.collect()
    assert bytes(array) == TEXT


def test_garbage_gives_its_memory_back(cuda, files):
    array = gpuload.load(files["lz4"], device=0, **QUICK)
    assert cuda.leaks()
    del array
    close_pools()
    assert cuda.leaks() == []


# --- Threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_streams", [True, False])
def test_two_threads_load_at_once(cuda, files, own_streams):
    """Each has its device current, its stream and its bytes; the first use of all is shared."""
    results, failures = {}, []
    ready = threading.Barrier(2)

    def run(number):
        codecs = CODECS[number:] + CODECS[:number]
        try:
            made = new_stream() if own_streams else None
            ready.wait(60)
            for codec in codecs:
                array = gpuload.load(files[codec], device=0, stream=made, **QUICK)
                results[number, codec] = bytes(array)
                del array
            if made is not None:
                made.sync()
                made.close()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures
    assert len(results) == 6
    assert set(results.values()) == {TEXT}


def test_one_container_loads_from_two_threads(files):
    results = []
    with gpuload.open(files["gzip"], **QUICK) as container:

        def run():
            results.append(bytes(container.load(device=0)))

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
    assert results == [TEXT, TEXT]


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_threads_that_cannot_be_started(files, allowed, monkeypatch):
    start, started = threading.Thread.start, []

    def refuse(thread):
        if len(started) >= allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    try:
        assert loaded(files["snappy"], threads=3)[0] == TEXT
    except (RuntimeError, GpuloadError) as error:
        error.__traceback__ = None
