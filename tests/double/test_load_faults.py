"""What goes wrong around a load to the double of a device: calls, memory, files, users, forks.

Whatever it is, an error of ours (or the source's own) comes out, nothing hangs, nothing is left
behind, and the next load works.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import time
import traceback

import lz4.frame
import numpy as np
import pytest

import gpuload
from gpuload.device_array import close_pools
from gpuload.errors import DriverError, FormatError, GpuloadError, MemoryLimitError
from gpuload.sources import BytesSource
from tests.helpers.device_loads import QUICK, clean_loads, compressed, run_alone, text
from tests.helpers.fakecuda import Code

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield


# --- What the driver refuses ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    """Return a file of five chunks, one of them a copy."""
    start, noise = text(131_072), np.random.default_rng(1).bytes(65_536)
    raw = start + noise + start
    return compressed(raw, "snappy"), raw


#: Calls that give something back. One that is refused leaves what it was to give back, whoever
#: asks; what cuda.core destroys it destroys without a word.
GIVING_BACK = {
    "cuDevicePrimaryCtxRelease",
    "cuEventDestroy",
    "cuMemAddressFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
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
def test_no_memory_at_any_step(cuda, big, name):
    # cuda.core says of events only that they could not be made.
    event = name == "cuEventCreate"
    error, said = (DriverError, "CUDA event") if event else (MemoryLimitError, name)
    made = count_of(cuda, name, big)
    assert made
    for after in range(min(made, 4)):
        cuda.fail_next(name, Code.OUT_OF_MEMORY, after=after)
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
    pressed = []

    def interrupt():
        if not pressed:
            pressed.append(True)
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

    source = Failing(big, len(big) // 2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        gpuload.load(source, device=0, memory_limit=12 * MIB, threads=2, engine=engine)
    assert_all_freed(cuda)
    assert bytes(gpuload.load(big, device=0, **QUICK)) == BIG


@pytest.mark.parametrize("engine", ["hardware", "host"])
def test_ctrl_c_again_while_a_slow_read_is_waited_for(engine):
    """The memory that the read fills must not be gone when it goes on."""
    script = """
        import gc, os, signal, time
        import gpuload
        from gpuload.device_array import close_pools
        from gpuload.sources import BytesSource
        from tests.helpers.device_loads import compressed, text

        class Slow(BytesSource):
            def readinto(self, offset, view):
                if len(view) > 1000:
                    for _ in range(2):
                        time.sleep(0.3)
                        os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.3)
                return super().readinto(offset, view)

        source = Slow(compressed(text(1 << 20), "gzip"))
        with gpuload.open(source, memory_limit=12 << 20, threads=1, engine=ENGINE) as container:
            try:
                container.load(device=0)
            except KeyboardInterrupt:
                print("given up", flush=True)
            time.sleep(1)
        gc.collect()
        close_pools()
        print(cuda.complaints() + cuda.leaks())
    """
    said = run_alone(script.replace("ENGINE", repr(engine)))
    assert said.splitlines() == ["given up", "[]"]


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
