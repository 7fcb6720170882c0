"""What goes wrong in a load to a device: corrupt chunks, refused calls, no memory, users who stop.

Nobody here has seen a real engine meet corrupt data. The double does it in three ways, "short",
"overrun" and "sticky"; whichever it is, the chunk is named and the others are right.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import signal
import threading
import traceback
import warnings

import lz4.frame
import numpy as np
import pytest

import gpuload
from gpuload import driver
from gpuload.chunks import Codec
from gpuload.device_array import close_pools
from gpuload.errors import (
    DecompressError,
    DriverError,
    EngineUnavailableError,
    FormatError,
    FormatWarning,
    GpuloadError,
    MemoryLimitError,
)
from gpuload.sources import BytesSource
from tests.helpers import device_loads, lz4_blocks
from tests.helpers.device_loads import (
    BUILDERS,
    UserArray,
    allocate,
    compressed,
    hang_ends_the_process,
    run_alone,
    text,
)
from tests.helpers.fakecuda import Code, api_decompress, decompress
from tests.helpers.handmade import CONTENT_SUM, INDEPENDENT, SIZE, V1, lz4_block, lz4_frame

MIB = 1 << 20
#: What a load has beside the result; small, so that staging is quick to make.
QUICK = {"memory_limit": 16 * MIB, "threads": 2}
CHUNKS, CHUNK = 10_000, 1024
#: LZ4 takes a frame for each chunk, and the host has to find the size of each.
FRAMES = 1_000
#: Not at an edge of anything.
BAD = 789

LOST = "ended this process's CUDA context: start a new process"

every_format = pytest.mark.parametrize("name", BUILDERS)
short_or_overrun = pytest.mark.parametrize("corruption", ["short", "overrun"])


@pytest.fixture(autouse=True)
def _clean(cuda):
    before = set(threading.enumerate())
    with hang_ends_the_process(120):
        yield
        assert set(threading.enumerate()) <= before, "no thread stays"
    with contextlib.suppress(GpuloadError):
        close_pools()


@pytest.fixture(scope="module")
def files():
    """Return files of 10,000 chunks (LZ4: 1,000 frames) by the name of their format."""
    raw = text(CHUNKS * CHUNK + CHUNK)
    parts = [raw[at : at + CHUNK] for at in range(0, CHUNKS * CHUNK, CHUNK)]
    counts = {"lz4": FRAMES}
    return {name: build(parts[: counts.get(name)]) for name, build in BUILDERS.items()}


def failures_of(data, **options):
    """Return what a load reports before it raises."""
    with pytest.raises(DecompressError) as caught:
        gpuload.load(data, device=0, **options)
    return caught.value.failures


def load_quietly(data, **options):
    """Load without complaints about skipped chunks; return the bytes and the report."""
    with warnings.catch_warnings(), gpuload.open(data, **options) as container:
        warnings.simplefilter("ignore", FormatWarning)
        return bytes(container.load(device=0)), container.report


# --- One corrupt chunk among 10,000 ---------------------------------------------------------------


@every_format
def test_a_corrupt_chunk_on_the_host(cuda, files, name):
    file = files[name]
    [failure] = failures_of(file.spoilt(BAD), engine="host")
    assert_names_the_chunk(failure, file)
    assert (failure.driver_code, failure.blame) == (None, "")
    assert not cuda.batches


def assert_names_the_chunk(failure, file):
    offset, size = file.places[BAD]
    assert (failure.source, failure.asset, failure.chunk) == ("<bytes>", "", BAD)
    assert (failure.offset, failure.stored_size) == (offset, size)
    # An LZ4 frame states the size of all its blocks, not of each.
    assert failure.expected_size == (None if file.codec == Codec.LZ4 else CHUNK)
    assert not failure.checksum
    assert failure.reason


@short_or_overrun
@every_format
def test_a_corrupt_chunk_on_the_engine(cuda, files, name, corruption):
    """The window is tainted and was decoded again: no other chunk is reported."""
    cuda.settings.corruption = corruption
    file = files[name]
    [failure] = failures_of(file.spoilt(BAD), engine="hardware")
    assert_names_the_chunk(failure, file)
    assert (failure.driver_code, failure.blame) == (None, "size")
    # The double stops before the first byte, or writes 4,096 bytes behind the slot.
    slot = slot_of(file)
    said = 0 if corruption == "short" else slot + cuda.settings.overrun
    assert failure.actual_size == said
    assert f"the engine reports {said} bytes" in failure.reason
    assert sum(cuda.batches) == len(file.parts)
    assert bool(cuda.overruns) == (corruption == "overrun")


def slot_of(file):
    """Return the bytes that the corrupt chunk may take, at most (LZ4: 255 times its payload)."""
    return 255 * file.places[BAD][1] if file.codec == Codec.LZ4 else CHUNK


@short_or_overrun
@pytest.mark.parametrize("name", ["snappy", "bgzf"])
def test_a_corrupt_chunk_is_skipped(cuda, files, name, corruption):
    cuda.settings.corruption = corruption
    file = files[name]
    with gpuload.open(file.spoilt(BAD), on_error="skip", **QUICK) as container:
        with pytest.warns(FormatWarning, match=f"^<bytes>: chunk {BAD} at byte ") as told:
            array = container.load(device=0)
        assert len(told) == 1
        assert bytes(array) == file.with_zeros(BAD)
        [failure] = container.report.failures
        assert_names_the_chunk(failure, file)
        assert failure.blame == "size"
        assert container.report.engine == "hardware"


@short_or_overrun
def test_a_chunk_of_unknown_size_cannot_be_skipped(cuda, files, corruption):
    """Nobody knows how many zeros it would take."""
    cuda.settings.corruption = corruption
    [failure] = failures_of(files["lz4"].spoilt(BAD), on_error="skip", **QUICK)
    assert_names_the_chunk(failure, files["lz4"])
    assert "cannot be skipped" in failure.reason


@pytest.mark.parametrize("verify", [True, False])
@short_or_overrun
def test_several_corrupt_chunks_in_several_windows(cuda, files, corruption, verify):
    cuda.settings.corruption = corruption
    file, bad = files["bgzf"], [0, 1, 4_000, 4_001, 9_999]
    data, report = load_quietly(file.spoilt(*bad), on_error="skip", verify=verify, **QUICK)
    assert data == file.with_zeros(*bad)
    assert [failure.chunk for failure in report.failures] == bad
    assert {failure.blame for failure in report.failures} == {"size"}
    assert len(cuda.batches) > 2


@short_or_overrun
@every_format
def test_what_the_host_cannot_decode_either_is_no_success_of_a_retry(cuda, files, name, corruption):
    cuda.settings.corruption = corruption
    file = files[name]
    [failure] = failures_of(file.spoilt(BAD), on_error="retry-host", **QUICK)
    assert_names_the_chunk(failure, file)


@every_format
def test_failures_are_collected_by_verify(files, name):
    file = files[name]
    with gpuload.open(file.spoilt(5, BAD), device=0, engine="hardware", **QUICK) as container:
        report = container.verify()
    assert [failure.chunk for failure in report.failures] == [5, BAD]


@pytest.mark.parametrize("on_error", ["raise", "skip", "retry-host"])
@every_format
def test_a_corrupt_chunk_that_ends_the_context(cuda, files, name, on_error):
    cuda.settings.corruption = "sticky"
    options = QUICK | {"threads": 1}
    with pytest.raises(DriverError, match=LOST):
        gpuload.load(files[name].spoilt(BAD), device=0, on_error=on_error, **options)
    with pytest.raises(DriverError, match=LOST):
        gpuload.load(files[name].data, device=0, **options)
    assert bytes(gpuload.load(files[name].data, device="cpu")) == files[name].raw


@pytest.mark.parametrize(
    "call",
    [
        lambda device, stream: stream.record(),
        lambda device, stream: stream.sync(),
        lambda device, stream: device.create_event(),
        lambda device, stream: device.create_stream(),
    ],
    ids=["record", "sync", "create_event", "create_stream"],
)
def test_a_lost_context_is_named_by_whatever_call_is_next(cuda, call):
    """With several threads, any call may be the first to hear of a fault."""
    device, stream = driver.device(0), new_stream()
    for context in cuda.contexts.values():
        context.fault = Code.ILLEGAL_ADDRESS
    with pytest.raises(DriverError, match=LOST), driver.calling("a call", "a test"):
        call(device, stream)


def test_an_overrun_past_the_window_is_a_fault_and_no_damage(cuda, files):
    """Behind the window are addresses without memory."""
    cuda.settings.corruption, cuda.settings.overrun = "overrun", 32 * MIB
    with pytest.raises(DriverError, match=LOST):
        gpuload.load(files["snappy"].spoilt(BAD), device=0, **QUICK | {"threads": 1})
    assert cuda.overruns


def test_the_destination_of_a_user_is_no_neighbour_of_corrupt_chunks(cuda, files):
    """Without trust the engine writes to windows of ours, whatever memory it is given."""
    cuda.settings.corruption = "overrun"
    file = files["lz4"]
    stream = new_stream()
    size = len(file.raw)
    with allocate("DecompressMemory", size + MIB, stream) as address:
        device_loads.write(address + size, b"\xa5" * MIB, stream)
        failures_of(file.spoilt(FRAMES - 1), out=UserArray(address, size), **QUICK)
        assert device_loads.read(address + size, MIB, stream) == b"\xa5" * MIB
    stream.close()


def new_stream():
    device = driver.device(0)
    device.set_current()
    return device.create_stream()


def test_an_engine_that_decodes_to_wrong_bytes(files, wrong_byte):
    """The size is right, and only a checksum shows it: it is the engine that failed."""
    file = files["bgzf"]
    [failure] = failures_of(file.data, verify=True, **QUICK)
    assert failure.checksum
    wrong_byte.clear()
    with gpuload.open(file.data, verify=True, on_error="retry-host", **QUICK) as container:
        assert bytes(container.load(device=0)) == file.raw
        assert container.report.failures == []
    assert wrong_byte, "it did decode to a wrong byte"


@pytest.fixture
def wrong_byte(monkeypatch):
    """Let the engine get a byte wrong; the list tells that it did, and clearing it repeats it."""
    right, done = decompress.decode, []

    def decode(cuda, stream, chunk):
        right(cuda, stream, chunk)
        if not done:
            done.append(chunk)
            at = cuda.memory.host_address(chunk.target)
            ctypes.c_uint8.from_address(at).value ^= 1

    monkeypatch.setattr(api_decompress, "decode", decode)
    return done


# --- What the driver refuses ----------------------------------------------------------------------


SMALL = text(300_000)


@pytest.fixture(scope="module")
def small():
    """Return a file of five chunks, one of them a copy."""
    noise = np.random.default_rng(1).bytes(65_536)
    raw = SMALL[:131_072] + noise + SMALL[131_072 : 2 * 131_072]
    return compressed(raw, "snappy"), raw


def test_a_refused_chunk_is_named(cuda, small):
    """The longest compressed chunk comes first in the batch; here all but the last are as long."""
    data, _ = small
    lower_the_maximum(cuda, 60_000)
    [failure] = failures_of(data, **QUICK)
    assert (failure.chunk, failure.blame, failure.driver_code) == (0, "index", Code.INVALID_VALUE)
    assert "CUDA_ERROR_INVALID_VALUE (1)" in failure.reason
    assert "retry-host" in failure.reason, "what to do next"
    assert failure.expected_size == 65_536


def lower_the_maximum(cuda, length):
    """Let the driver refuse what it said it would take."""
    driver.capabilities(0)  # read, and remembered by cuda.core
    cuda.settings.maximum_length = length


@pytest.mark.parametrize("code", [Code.INVALID_VALUE, Code.NOT_PERMITTED])
def test_a_refusal_that_names_no_chunk(cuda, small, code):
    data, _ = small
    cuda.fail_next("cuMemBatchDecompressAsync", code)
    failures = failures_of(data, **QUICK)
    assert [failure.chunk for failure in failures] == list(range(5))
    assert {failure.blame for failure in failures} == {"none"}
    assert {failure.driver_code for failure in failures} == {code}


@pytest.mark.parametrize("verify", [True, "auto"])
def test_refused_chunks_are_decoded_again_if_asked_for(cuda, small, verify):
    data, raw = small
    lower_the_maximum(cuda, 60_000)
    with gpuload.open(data, on_error="retry-host", verify=verify, **QUICK) as container:
        assert bytes(container.load(device=0)) == raw
        assert container.report.failures == []
    assert cuda.refusals


def test_refused_chunks_are_skipped_if_asked_for(cuda, small):
    data, raw = small
    lower_the_maximum(cuda, 60_000)
    loaded, report = load_quietly(data, on_error="skip", **QUICK)
    [failure] = report.failures
    assert loaded == bytes(65_536) + raw[65_536:]
    assert (failure.chunk, failure.blame) == (0, "index")


def test_a_driver_that_does_not_support_it_after_all(cuda, small):
    """The next engine takes over, with the reason."""
    data, raw = small
    driver.capabilities(0)
    cuda.settings.algorithm_mask = 0
    with gpuload.open(data, **QUICK) as container:
        assert bytes(container.load(device=0)) == raw
        assert container.report.engine == "host"
        assert "CUDA_ERROR_NOT_SUPPORTED (801)" in container.report.passed_over["hardware"]


def test_a_driver_that_does_not_support_what_was_asked_for_by_name(cuda, small):
    data, raw = small
    driver.capabilities(0)
    cuda.settings.algorithm_mask = 0
    with pytest.raises(EngineUnavailableError, match=r"CUDA_ERROR_NOT_SUPPORTED \(801\)"):
        gpuload.load(data, device=0, engine="hardware", **QUICK)
    loaded = gpuload.load(data, device=0, engine="hardware", on_error="retry-host", **QUICK)
    assert bytes(loaded) == raw


#: Calls that give something back. One that is refused leaves what it was to give back, whoever
#: asks; what cuda.core destroys it destroys without a word.
GIVING_BACK = {
    "cuDevicePrimaryCtxRelease",
    "cuEventDestroy",
    "cuMemAddressFree",
    "cuMemFreeAsync",
    "cuMemPoolDestroy",
    "cuMemRelease",
    "cuMemUnmap",
    "cuStreamDestroy",
}
#: Calls whose refusal is an answer too, such as attributes that a driver does not know.
MAY_BE_SILENT = GIVING_BACK | {
    "cuCtxGetCurrent",
    "cuDeviceGetAttribute",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuMemBatchDecompressAsync",
    "cuMemGetInfo",
    "cuPointerGetAttribute",
}


def calls_of_a_good_load(cuda, small, options):
    before = cuda.recorder.calls.copy()
    assert attempt(*small, options) == ""
    return cuda.recorder.calls - before


@pytest.mark.parametrize(
    "options",
    [{}, {"verify": True}, {"engine": "host"}, {"trusted": True}],
    ids=["engine", "checked", "host", "trusted"],
)
def test_every_call_of_a_load_may_fail(cuda, small, options):
    """An error or the right bytes, nothing left behind, and the next load works."""
    calls_of_a_good_load(cuda, small, options)
    calls = calls_of_a_good_load(cuda, small, options)
    assert len(calls) > 10
    problems = []
    for name, times in sorted(calls.items()):
        for after in range(min(times, 5)) if not options else sorted({0, times - 1}):
            problems += fail_once(cuda, small, name, after, options)
    assert not problems, "\n".join(problems)


def fail_once(cuda, small, name, after, options):
    """Load while one call fails; return what is wrong with that."""
    data, raw = small
    cuda.fail_next(name, Code.INVALID_VALUE, after=after)
    said = attempt(data, raw, options)
    silent = said == "" and not cuda.recorder.pending_injections()
    problems = [] if said in ("", "loading", "closing") else [said]
    if silent and name not in MAY_BE_SILENT:
        problems.append("no error")
    cuda.recorder._injections.clear()
    may_stay = said == "closing" or name in GIVING_BACK
    problems += leftovers(cuda, small, may_stay=may_stay)
    return [f"{name} after {after}: {problem}" for problem in problems]


def attempt(data, raw, options):
    """Load and free; return what happened, in a frame of its own that keeps nothing."""
    step = "loading"
    try:
        array = gpuload.load(data, device=0, **QUICK, **options)
        same = bytes(array) == raw
        step = "closing"
        del array
        close_pools()
    except GpuloadError:
        return step
    except Exception as error:  # noqa: BLE001 (whatever it is, it is reported)
        return "".join(traceback.format_exception(error))
    return "" if same else "other bytes"


def leftovers(cuda, small, *, may_stay):
    """Return what a failed load left behind, and whether a good one works; start afresh then."""
    found = []
    with contextlib.suppress(GpuloadError):
        close_pools()
    gc.collect()
    if not may_stay:
        found += [f"left behind: {leak}" for leak in cuda.leaks()]
    found += cuda.complaints()
    said = attempt(*small, {})
    found += [f"the next load: {said}"] if said else []
    gc.collect()
    cuda.reset()
    return found


# --- No memory ------------------------------------------------------------------------------------


BIG = text(4 * MIB)


@pytest.fixture(scope="module")
def big():
    return compressed(BIG, "gzip")


def test_no_room_for_the_result(cuda, big):
    cuda.settings.total_memory = 2 * MIB
    with pytest.raises(
        MemoryLimitError, match=rf"no memory for {len(BIG)} bytes .*of the device's "
    ):
        gpuload.load(big, device=0, **QUICK)
    assert_all_freed(cuda)


def test_no_room_for_the_windows(cuda, big):
    """The result fits, what is decoded into does not."""
    cuda.settings.total_memory = len(BIG) + MIB
    with pytest.raises(MemoryLimitError, match=r"no memory for \d+ bytes of device 0"):
        gpuload.load(big, device=0, **QUICK)
    assert_all_freed(cuda)
    cuda.settings.total_memory = len(BIG) + 64 * MIB
    assert bytes(gpuload.load(big, device=0, **QUICK)) == BIG


def assert_all_freed(cuda):
    gc.collect()
    close_pools()
    assert cuda.leaks() == []


@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "name",
    [
        "cuMemCreate",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemAllocFromPoolAsync",
        "cuMemPoolCreate",
        "cuStreamCreateWithPriority",
        "cuEventCreate",
        "cuMemcpyAsync",
    ],
)
def test_no_memory_at_any_step(cuda, big, name, after):
    made = count_of(cuda, name, big)
    if made <= after:
        pytest.skip(f"a load calls {name} {made} times")
    cuda.fail_next(name, Code.OUT_OF_MEMORY, after=after)
    # cuda.core says of events only that they could not be made.
    event = name == "cuEventCreate"
    error, said = (DriverError, "CUDA event") if event else (MemoryLimitError, name)
    with pytest.raises(error, match=said):
        gpuload.load(big, device=0, **QUICK)
    assert_all_freed(cuda)
    assert bytes(gpuload.load(big, device=0, **QUICK)) == BIG


def count_of(cuda, name, data):
    """Return how often a load makes a call."""
    before = cuda.recorder.calls[name]
    gpuload.load(data, device=0, **QUICK)
    assert_all_freed(cuda)
    return cuda.recorder.calls[name] - before


def test_more_output_than_is_allowed(cuda, big):
    with pytest.raises(MemoryLimitError, match=r"over the limit of 1000000.*max_output"):
        gpuload.load(big, device=0, max_output=1_000_000, **QUICK)
    assert not cuda.batches
    assert_all_freed(cuda)


def test_more_output_than_is_allowed_of_a_size_that_is_not_stated(cuda):
    data = lz4_without_size(text(300_000))
    with pytest.raises(MemoryLimitError, match=r"over the limit of 200000.*max_output"):
        gpuload.load(data, device=0, max_output=200_000, **QUICK)
    assert_all_freed(cuda)


def lz4_without_size(raw):
    options = {"block_linked": False, "block_size": 4, "store_size": False}
    return lz4.frame.compress(raw, **options)


# --- Sources and users ----------------------------------------------------------------------------


class Failing(BytesSource):
    """A source that does something once its bytes from an offset on are read."""

    def __init__(self, data, offset, act):
        super().__init__(data)
        self.offset, self.act = offset, act

    def readinto(self, offset, view):
        # Windows are read, headers are only looked at.
        if len(view) > 1000 and offset + len(view) > self.offset:
            self.act()
        return super().readinto(offset, view)


@pytest.mark.parametrize("engine", ["hardware", "host"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_read_that_fails_in_the_middle(cuda, big, engine, threads):
    error = OSError(errno.EIO, "the disk is broken")

    def fail():
        raise error

    options = {"memory_limit": 12 * MIB, "threads": threads, "engine": engine}
    with pytest.raises(OSError, match="the disk is broken") as caught:
        gpuload.load(Failing(big, len(big) // 2, fail), device=0, **options)
    assert caught.value is error
    # Its frames would keep what the load made.
    error.__traceback__ = caught = None
    assert_all_freed(cuda)


@pytest.mark.parametrize("engine", ["hardware", "host"])
def test_a_file_that_shrinks_meanwhile(cuda, big, engine, tmp_path):
    path = tmp_path / "file.bgz"
    path.write_bytes(big)
    options = {"memory_limit": 12 * MIB, "threads": 1, "engine": engine}
    with gpuload.open(path, **options) as container:
        os.truncate(path, len(big) // 2)
        with pytest.raises(FormatError, match=rf"byte {len(big) // 2}: .*ends here") as caught:
            container.load(device=0)
        assert str(path) in str(caught.value)
        assert caught.value.offset == len(big) // 2
        del caught
    assert cuda.batches or engine == "host", "some windows were decoded"
    assert_all_freed(cuda)


@pytest.mark.parametrize("engine", ["hardware", "host"])
def test_ctrl_c(cuda, big, engine):
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    source = Failing(big, len(big) // 2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        gpuload.load(source, device=0, memory_limit=12 * MIB, threads=2, engine=engine)
    assert_all_freed(cuda)
    assert bytes(gpuload.load(big, device=0, **QUICK)) == BIG


# --- Forks ----------------------------------------------------------------------------------------


FORKED = """
    import os, sys, warnings
    import gpuload
    from gpuload.device_array import close_pools
    from gpuload.errors import DriverError
    from tests.helpers.device_loads import compressed, text
    warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads around
    raw = text(300_000)
    data = compressed(raw, "lz4")
    container = gpuload.open(data, memory_limit=16 << 20)
    array = container.load(device=0)
    child = os.fork()
    if not child:
        told = 0
        calls = {
            "load to the device": lambda: gpuload.load(data, device=0),
            "load again": lambda: container.load(device="cuda"),
            "ask for the engine": lambda: gpuload.load(data, engine="hardware", device=0),
            "copy to the host": array.to_host,
            "export": array.__dlpack__,
        }
        for what, call in calls.items():
            try:
                call()
            except DriverError as error:
                told += "forked" in str(error)
            else:
                print(what, "did not fail", flush=True)
        for way in ({"device": "cpu"}, {"engine": "host", "device": "cpu"}):
            told += bytes(gpuload.load(data, **way)) == raw
        print(told, "of 7", flush=True)
        del array, container, calls, call
        close_pools()
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(bytes(array) == raw, bytes(container.load(device=0)) == raw)
    del array
    container.close()
    close_pools()
    print(cuda.complaints() + cuda.leaks())
"""


def test_a_fork_after_use():
    """The child is told, and leaves the parent's memory alone."""
    assert run_alone(FORKED).splitlines() == ["7 of 7", "0", "True True", "[]"]


def test_a_fork_before_use():
    said = run_alone(
        """
        import os, sys
        import gpuload
        from gpuload.device_array import close_pools
        from tests.helpers.device_loads import compressed, text
        raw = text(300_000)
        data = compressed(raw, "lz4")
        child = os.fork()
        if not child:
            sys.exit(bytes(gpuload.load(data, device="cpu")) != raw)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(bytes(gpuload.load(data, device=0)) == raw)
        """
    )
    assert said.splitlines() == ["0", "True"]


def test_damage_that_no_checksum_shows_any_more_is_still_found(cuda):
    """Where a device keeps the bytes, the host's LZ4 decoder may not count on a content checksum.

    LZ4 block format: a match offset of 0 is invalid; what it would copy nobody has written.
    """
    literals = lz4_blocks.Sequence(b"abcdefgh", 0, 4096 - 8 - 5)
    bad = lz4_blocks.write(literals, lz4_blocks.Sequence(b"12345"))
    frame = lz4_frame(
        lz4_block(bad), flags=V1 | INDEPENDENT | SIZE | CONTENT_SUM, size=4096, content=b"other"
    )
    lower_the_maximum(cuda, 1)
    for on_error in ("raise", "retry-host"):
        failures = failures_of(frame, on_error=on_error, **QUICK)
        assert [failure.chunk for failure in failures] == [0]
        cuda.settings.maximum_length = 1
