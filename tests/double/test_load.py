"""Loads to the double of a device: destinations, streams, engines side by side, memory."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from dataclasses import replace

import lz4.block
import lz4.frame
import numpy as np
import pytest
import zstandard

import gpuload
from gpuload import driver
from gpuload.device_array import close_pools
from gpuload.errors import DriverError, FormatWarning, GpuloadError, MemoryLimitError
from gpuload.memory import copy
from tests.helpers.device_loads import (
    BUILDERS,
    UserArray,
    allocate,
    compressed,
    hang_ends_the_process,
    read,
    run_alone,
    text,
    write,
)
from tests.helpers.handmade import (
    INDEPENDENT,
    SNAPPY_IDENTIFIER,
    V1,
    gzip_member,
    lz4_block,
    lz4_frame,
    snappy_chunk,
    snappy_data,
    snappy_literal,
)

MIB = 1 << 20
#: What a load has beside the result; small, so that staging is quick to make.
QUICK = {"memory_limit": 16 * MIB, "threads": 2}
TEXT = text(3 * MIB)
NOISE = np.random.default_rng(3).bytes(200_000)
CODECS = ["lz4", "snappy", "gzip"]

every_codec = pytest.mark.parametrize("codec", CODECS)


def each_way(*names):
    """Run a test with options that lead down different paths."""
    return pytest.mark.parametrize("options", [WAYS[name] for name in names], ids=names)


WAYS = {
    "engine": {},
    "checked": {"verify": True},
    "trusted": {"trusted": True},
    "host": {"engine": "host"},
}


@pytest.fixture(autouse=True)
def _clean(cuda):
    before = set(threading.enumerate())
    with hang_ends_the_process(120):
        yield
        assert set(threading.enumerate()) <= before, "no thread stays"
    close_pools()


@pytest.fixture(scope="module")
def files():
    """Return compressed text by codec."""
    return {codec: compressed(TEXT, codec) for codec in CODECS}


@pytest.fixture
def stream():
    device = driver.device(0)
    device.set_current()
    made = device.create_stream()
    yield made
    made.close()


def loaded(data, *, out=None, stream=None, **options):
    """Load to the device; return the bytes and the report."""
    with gpuload.open(data, **QUICK | options) as container:
        array = container.load(device=0, out=out, stream=stream)
        return bytes(array), container.report


# --- What comes out -------------------------------------------------------------------------------


@every_codec
@pytest.mark.parametrize("verify", [True, "auto", False])
@pytest.mark.parametrize("trusted", [None, True])
def test_loaded_by_the_engine(cuda, files, codec, verify, trusted):
    data, report = loaded(files[codec], verify=verify, trusted=trusted)
    assert data == TEXT
    assert report.engine == "hardware"
    assert report.passed_over == {}
    assert report.raw_size == len(TEXT)
    assert report.stored_size == len(files[codec])
    assert cuda.batches


@pytest.mark.parametrize("device", [0, "cuda", "cuda:0", None])
def test_ways_to_name_the_device(files, device):
    array = gpuload.load(files["lz4"], device=device, **QUICK)
    assert array.device == "cuda:0"
    assert bytes(array) == TEXT


def test_host_memory_is_asked_for_by_name(cuda, files):
    array = gpuload.load(files["lz4"], device="cpu", **QUICK)
    assert array.device == "cpu"
    assert not cuda.batches


def test_no_such_device(files):
    with pytest.raises(DriverError, match="there is no device 7"):
        gpuload.load(files["lz4"], device=7)


@every_codec
def test_the_engine_decodes_to_host_memory(cuda, files, codec, tmp_path):
    """A load to memory of the host, a file and `verify` go through the engine if it is named."""
    options = QUICK | {"engine": "hardware", "device": 0}
    out = bytearray(len(TEXT))
    with gpuload.open(files[codec], **options) as container:
        container.load(out=out)
        assert bytes(out) == TEXT
        assert bytes(container.load(device="cpu")) == TEXT
        fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
        try:
            report = container.write_to(fd, positional=True)
        finally:
            os.close(fd)
        assert (tmp_path / "out").read_bytes() == TEXT
        assert report.engine == "hardware"
        assert report.unverified == {}
        before = len(cuda.batches)
        assert container.verify().failures == []
        assert len(cuda.batches) > before


SHAPES = {
    "no frame's bytes": (lz4.frame.compress(b""), b""),
    "empty blocks": (lz4.frame.compress(b"") * 3 + lz4.frame.compress(b"abc"), b"abc"),
    "one byte": (lz4.frame.compress(b"a"), b"a"),
    "empty chunks": (
        SNAPPY_IDENTIFIER
        + snappy_data(b"abc", elements=snappy_literal(b"abc"))
        + snappy_data(b"", elements=b"")
        + snappy_data(b"")
        + snappy_data(b"xyz", elements=snappy_literal(b"xyz")),
        b"abcxyz",
    ),
    "empty chunks only": (SNAPPY_IDENTIFIER + 5 * snappy_data(b"", elements=b""), b""),
    "skippable chunks": (
        SNAPPY_IDENTIFIER + snappy_chunk(0xFE, bytes(99)) + snappy_data(b"xyz"),
        b"xyz",
    ),
    # The end block of BGZF is empty, and starts where the memory of the window ends.
    "as large as what the driver maps": (
        compressed(TEXT[: 2 * MIB], "gzip", chunk_size=32 << 10),
        TEXT[: 2 * MIB],
    ),
    "one more than what the driver maps": (
        compressed(TEXT[: 2 * MIB + 1], "snappy"),
        TEXT[: 2 * MIB + 1],
    ),
    "stored as it is": (compressed(NOISE, "lz4"), NOISE),
    "1 KiB chunks": (compressed(TEXT[:300_000], "snappy", chunk_size=1024), TEXT[:300_000]),
}


@pytest.mark.parametrize("trusted", [None, True])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_files(name, trusted):
    data, expected = SHAPES[name]
    for verify in (True, "auto"):
        assert loaded(data, verify=verify, trusted=trusted)[0] == expected


@pytest.mark.parametrize("trusted", [None, True])
def test_blocks_of_unknown_size_are_closed_up(cuda, trusted):
    """LZ4 frame format: a block may hold less than the maximum, also in the middle."""
    parts = [TEXT[:65_536], TEXT[:1000], TEXT[5000:70_536], b"x" * 65_535, TEXT[9:10], TEXT[:300]]
    blocks = [lz4_block(lz4.block.compress(part, store_size=False)) for part in parts]
    blocks.insert(3, lz4_block(NOISE[:777], raw=True))
    parts.insert(3, NOISE[:777])
    data = lz4_frame(*blocks, flags=V1 | INDEPENDENT) * 2
    for verify in (True, "auto"):
        bytes_, report = loaded(data, verify=verify, trusted=trusted)
        assert bytes_ == b"".join(parts) * 2
        assert report.engine == "hardware"
        assert report.raw_size == len(bytes_)
    assert sum(cuda.batches) == 2 * 12


# --- Engines side by side -------------------------------------------------------------------------


@pytest.fixture
def device_with(monkeypatch, cuda):
    """Return a function that changes what the device and its driver say they can do."""

    def change(**capabilities):
        known = replace(driver.capabilities(0), **capabilities)
        monkeypatch.setattr(driver, "capabilities", lambda device_id: known)
        cuda.settings.algorithm_mask = known.decompress_mask
        cuda.settings.maximum_length = known.decompress_max_length

    return change


@pytest.mark.parametrize("verify", [True, "auto"])
def test_chunks_that_are_too_long_go_to_the_host(cuda, device_with, verify):
    """Frames with long and short blocks, compressed or not, decode side by side."""
    device_with(decompress_max_length=65_536)
    short, long = compressed(TEXT, "lz4"), compressed(TEXT, "lz4", chunk_size=1 << 20)
    data = short + compressed(NOISE, "lz4", chunk_size=256 << 10) + long + short
    expected = TEXT + NOISE + TEXT + TEXT
    found, report = loaded(data, verify=verify)
    assert found == expected
    assert report.engine == "hardware, host"
    reason = "longer than the device's maximum of 65536 bytes (3 of 100 chunks)"
    assert report.passed_over == {"hardware": reason}
    assert sum(cuda.batches) == 96


def test_files_that_are_too_long_go_to_the_host_whole(cuda, device_with):
    device_with(decompress_max_length=65_535)
    found, report = loaded(compressed(TEXT, "lz4"))
    assert found == TEXT
    assert report.engine == "host"
    assert report.passed_over == {"hardware": "longer than the device's maximum of 65535 bytes"}
    assert not cuda.batches


HOST_ONLY = {
    "linked blocks": (lz4.frame.compress(TEXT, block_linked=True, block_size=4), "linked to"),
    "linked blocks with a checksum": (
        lz4.frame.compress(TEXT, block_linked=True, block_size=4, content_checksum=True),
        "linked to",
    ),
    "plain gzip": (gzip_member(TEXT), "one serial stream"),
    "Zstandard": (
        zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
        "the codec's bit is missing in the device's algorithm mask (0x7)",
    ),
}


@pytest.mark.parametrize("verify", [True, "auto"])
@pytest.mark.parametrize("name", HOST_ONLY)
def test_what_the_engine_does_not_decode(cuda, name, verify):
    """The reason is in the report and in explain(), and every checksum is checked."""
    data, reason = HOST_ONLY[name]
    with gpuload.open(data, device=0, verify=verify, **QUICK) as container:
        assert bytes(container.load(device=0)) == TEXT
        assert container.report.engine == "host"
        assert container.report.passed_over["hardware"].startswith(reason)
        assert container.report.unverified == {}
        [explained] = container.explain()
    assert explained.engine == "host"
    assert explained.passed_over["hardware"].startswith(reason)
    assert not cuda.batches


def test_untrusted_input_never_goes_to_the_engine(cuda, files):
    for engine in ("auto", "host"):
        found, report = loaded(files["snappy"], trusted=False, engine=engine)
        assert found == TEXT
        assert report.engine == "host"
    assert "not trusted" in loaded(files["snappy"], trusted=False)[1].passed_over["hardware"]
    with pytest.raises(DriverError, match="input is not trusted"):
        loaded(files["snappy"], trusted=False, engine="hardware")
    assert "cuMemBatchDecompressAsync" not in cuda.recorder.calls


def test_a_device_without_an_engine(cuda, files, device_with):
    device_with(decompress_mask=0, decompress_max_length=0)
    found, report = loaded(files["gzip"])
    assert found == TEXT
    assert report.engine == "host"
    assert report.unverified == {}
    assert "has no decompression engine (its algorithm mask is 0)" in report.passed_over["hardware"]
    with pytest.raises(DriverError, match="its algorithm mask is 0"):
        loaded(files["gzip"], engine="hardware")
    assert "cuMemBatchDecompressAsync" not in cuda.recorder.calls


def test_a_device_without_host_numa_memory(device_with, files):
    """Windows (WSL) and older drivers have none; the host's bytes come another way."""
    device_with(host_numa_memory=False)
    found, report = loaded(files["gzip"])
    assert found == TEXT
    assert report.engine == "host"
    assert "cannot map memory of the host" in report.passed_over["hardware"]


def test_an_older_driver():
    """It has no decompression call; loads go through the host, with that reason."""
    said = run_alone(
        """
        import gpuload
        from gpuload.device_array import close_pools
        from tests.helpers.device_loads import compressed, text
        raw = text(300_000)
        with gpuload.open(compressed(raw, "lz4"), device=0) as container:
            print(bytes(container.load()) == raw)
            print(container.report.engine)
            print(container.report.passed_over["hardware"])
            print(container.explain()[0].passed_over["hardware"])
            try:
                gpuload.load(compressed(raw, "lz4"), engine="hardware")
            except gpuload.errors.EngineUnavailableError as error:
                print(error)
        """,
        GPULOAD_FAKE_CUDA_VERSION="12060",
        CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING="1",
    )
    reason = "the driver supports CUDA 12.6; decompression in hardware came with CUDA 12.8"
    assert said.splitlines() == [
        "True",
        "host",
        reason,
        reason,
        f"the hardware engine cannot decode this: {reason}",
    ]


def test_the_report_names_who_decoded_slots_that_are_too_large_for_windows(cuda):
    """They are decoded as streams, by the host, whatever engine could take them."""
    data = compressed(TEXT, "lz4", chunk_size=4 << 20)
    found, report = loaded(data, verify=True, memory_limit=12 * MIB)
    assert found == TEXT
    assert not cuda.batches
    assert report.engine == "host"


# --- Streams --------------------------------------------------------------------------------------


class TorchStream:
    def __init__(self, stream):
        self.cuda_stream = int(stream.handle)


class CupyStream:
    def __init__(self, stream):
        self.ptr = int(stream.handle)


class OtherStream:
    def __init__(self, stream):
        self._stream = stream

    def __cuda_stream__(self):
        return 0, int(self._stream.handle)


STREAMS = {
    "cuda.core": lambda stream: stream,
    "handle": lambda stream: int(stream.handle),
    "torch": TorchStream,
    "CuPy": CupyStream,
    "protocol": OtherStream,
}


@each_way(*WAYS)
@pytest.mark.parametrize("maker", STREAMS)
def test_a_load_comes_after_the_work_of_its_stream(files, stream, maker, options):
    """A fill of the destination is still queued when the load begins, and must not win."""
    with allocate("DecompressMemory", len(TEXT), stream) as address:
        fill(address, len(TEXT), stream)
        out = UserArray(address, len(TEXT))
        array = gpuload.load(
            files["gzip"], out=out, stream=STREAMS[maker](stream), **QUICK | options
        )
        stream.sync()
        assert read(address, len(TEXT), stream) == TEXT
        assert bytes(array) == TEXT


def fill(address, size, stream):
    from cuda.core import Buffer

    Buffer.from_handle(address, size).fill(0xEE, stream=stream)


@each_way("engine", "trusted", "host")
def test_work_on_the_stream_sees_the_bytes(files, stream, options):
    """A copy that is queued after the load reads what was loaded."""
    array = gpuload.load(files["gzip"], device=0, stream=stream, **QUICK | options)
    address = array.__cuda_array_interface__["data"][0]
    with allocate("DecompressMemory", len(TEXT), stream) as target:
        copy(target, address, len(TEXT), stream)
        assert read(target, len(TEXT), stream) == TEXT


def test_what_is_no_stream(files):
    with pytest.raises(TypeError, match="stream must be a CUDA stream or its handle, not 'mine'"):
        gpuload.load(files["gzip"], device=0, stream="mine", **QUICK)


# --- Destinations of users ------------------------------------------------------------------------


KINDS = {
    "cuMemAlloc": True,
    "cuMemHostAlloc": False,
    "pool": False,
    "DecompressPool": True,
    "DecompressMemory": True,
    "HostNumaMemory": True,
}


@each_way(*WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_every_kind_is_a_destination(cuda, files, stream, kind, options):
    with allocate(kind, len(TEXT), stream) as address:
        out = UserArray(address, len(TEXT))
        array = gpuload.load(files["gzip"], out=out, stream=stream, **QUICK | options)
        assert array.__cuda_array_interface__["data"][0] == address
        assert read(address, len(TEXT), stream) == TEXT
    assert cuda.refusals == []
    assert cuda.overruns == []


@pytest.mark.parametrize("verify", [True, "auto"])
@pytest.mark.parametrize("trusted", [None, True])
@pytest.mark.parametrize("kind", KINDS)
def test_only_trusted_input_is_decoded_where_it_belongs(
    cuda, files, stream, kind, trusted, verify, written
):
    """And only into memory that the engine can reach."""
    with allocate(kind, len(TEXT), stream) as address:
        out = UserArray(address, len(TEXT))
        gpuload.load(files["gzip"], out=out, stream=stream, trusted=trusted, verify=verify, **QUICK)
    inside = [address <= target < address + len(TEXT) for target in written]
    assert len(inside) == sum(cuda.batches) > 0
    assert set(inside) == {bool(trusted) and KINDS[kind]}


@pytest.fixture
def written(cuda, monkeypatch):
    """Return where the engine writes, in the order of its work."""
    from tests.helpers.fakecuda import api_decompress

    decode, targets = api_decompress.decode, []

    def noted(cuda, stream, chunk):
        targets.append(chunk.target)
        return decode(cuda, stream, chunk)

    monkeypatch.setattr(api_decompress, "decode", noted)
    return targets


@pytest.mark.parametrize("engine", ["hardware", "host"])
@pytest.mark.parametrize("difference", [-1, 1, -(1 << 20), 1 << 20])
def test_memory_of_another_size(files, stream, engine, difference):
    size = len(TEXT) + difference
    said = f"out holds {size} bytes, .* decodes to {len(TEXT)}"
    with (
        allocate("DecompressMemory", size, stream) as address,
        pytest.raises(ValueError, match=said),
    ):
        gpuload.load(files["gzip"], out=UserArray(address, size), engine=engine, **QUICK)


@each_way("engine", "checked", "host")
@pytest.mark.parametrize("size", [0, 1, 100_000, 199_999, 200_001, 300_000])
def test_memory_of_another_size_for_a_file_that_does_not_state_its_own(stream, options, size):
    """Not a byte behind the array is written, also if the file turns out to be longer."""
    raw = TEXT[:200_000]
    data = lz4.frame.compress(raw, block_linked=False, block_size=4, store_size=False)
    room = MIB
    with allocate("DecompressMemory", room, stream) as address:
        write(address, b"\xa5" * room, stream)
        with pytest.raises(ValueError, match=f"out holds {size} bytes, .* decodes to "):
            gpuload.load(data, out=UserArray(address, size), stream=stream, **QUICK | options)
        assert read(address + size, room - size, stream) == b"\xa5" * (room - size)


def test_memory_of_the_right_size_for_a_file_that_does_not_state_its_own(stream):
    raw = TEXT[:200_000]
    data = lz4.frame.compress(raw, block_linked=False, block_size=4, store_size=False)
    for options in WAYS.values():
        with allocate("cuMemAlloc", len(raw), stream) as address:
            gpuload.load(data, out=UserArray(address, len(raw)), **QUICK | options)
            assert read(address, len(raw), stream) == raw


WRONG = {
    "element type": ({"typestr": "<i2"}, r"out has elements of type int16, the asset has uint8"),
    "byte order": ({"typestr": ">u4"}, r"out has elements of type >u4"),
    "read-only": ({"read_only": True}, "out is read-only; give a writable array"),
    "every other byte": ({"strides": (2,)}, "out is not contiguous; give a C-contiguous array"),
    "backwards": ({"strides": (-1,)}, "out is not contiguous"),
    "column by column": ({"shape": (3, MIB), "strides": (1, 3)}, "out is not contiguous"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_are_no_destination(cuda, files, stream, name):
    changes, said = WRONG[name]
    changes = dict(changes)
    with allocate("DecompressMemory", 2 * len(TEXT), stream) as address:
        changes["data"] = (address, changes.pop("read_only", False))
        with pytest.raises(ValueError, match=said):
            gpuload.load(files["gzip"], out=UserArray(address, len(TEXT), **changes), **QUICK)
    assert not cuda.batches


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (3, 1024, 1024)},
        {"shape": (3, 1024, 1024), "strides": (MIB, 1024, 1)},
        {"shape": (1, len(TEXT)), "strides": (99, 1)},
        {"typestr": "|u1", "strides": (1,)},
    ],
)
def test_shapes_of_a_destination(files, stream, changes):
    with allocate("DecompressMemory", len(TEXT), stream) as address:
        gpuload.load(files["gzip"], out=UserArray(address, len(TEXT), **changes), **QUICK)
        assert read(address, len(TEXT), stream) == TEXT


def test_a_destination_without_bytes(stream):
    array = gpuload.load(lz4.frame.compress(b""), out=UserArray(0, 0), **QUICK)
    assert bytes(array) == b""


# --- Memory ---------------------------------------------------------------------------------------


class Watched:
    """How much memory of `cuMemCreate` there is at most, on the device and on the host."""

    def __init__(self, cuda):
        self._memory = cuda.memory
        self.peak = 0

    def __call__(self, *arguments, **fields):
        made = self._create(*arguments, **fields)
        sizes = [a.size for a in self._memory.allocations.values() if a.kind == "created"]
        self.peak = max(self.peak, sum(sizes))
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


@pytest.mark.parametrize("verify", [True, "auto"])
@pytest.mark.parametrize("threads", [1, 4, 16])
@pytest.mark.parametrize("limit", [24 * MIB, 64 * MIB])
def test_scratch_memory_keeps_to_the_limit(cuda, large, watched, limit, threads, verify):
    found, _ = loaded(large, memory_limit=limit, threads=threads, verify=verify)
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


@pytest.mark.parametrize("limit", [1, 1000, 70_000, 140_000, 1 << 20])
@every_codec
def test_a_limit_of_next_to_nothing(codec, files, limit):
    """It refuses or slows down, and changes nothing of what comes out."""
    try:
        found, _ = loaded(files[codec], memory_limit=limit)
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
            made = own_stream() if own_streams else None
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


def own_stream():
    device = driver.device(0)
    device.set_current()
    return device.create_stream()


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


def test_warnings_name_the_caller(files):
    """Skipped chunks warn, and point to the line that loads."""
    file = BUILDERS["snappy"]([TEXT[:1000], TEXT[:2000]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gpuload.load(file.spoilt(1), device=0, on_error="skip", **QUICK)
    assert [warning.category for warning in caught] == [FormatWarning]
    assert caught[0].filename == __file__


def test_a_guarded_window_is_not_the_destination(cuda, files):
    """The default is a window with addresses without memory behind it."""
    sizes = []
    reserve = driver.mem_address_reserve

    def noted(size, alignment):
        sizes.append(size)
        return reserve(size, alignment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "mem_address_reserve", noted)
        loaded(files["gzip"])
    assert max(sizes) >= 256 * MIB
