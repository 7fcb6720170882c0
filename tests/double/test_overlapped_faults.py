"""Faults around overlapped loads to the double: calls, memory, users, forks.

Whatever it is, an error of ours or the right bytes come out, nothing is left behind, no thread
stays, and the next load works.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import traceback

import lz4.frame
import pytest

import gpuload
from gpuload import lease
from gpuload.device_array import close_pools
from gpuload.errors import GpuloadError
from gpuload.overlapped import Overlapped
from gpuload.sources import LocalFile
from tests.helpers.device_loads import clean_loads, run_alone
from tests.helpers.fakecuda import Code
from tests.helpers.overlapped_loads import QUICK, find_rows, mixed, small_ranges

RAW = mixed(500_000)
FILES = {
    "lz4": lz4.frame.compress(
        RAW, block_size=4, block_linked=False, block_checksum=True, store_size=False
    ),
    "lz4 with its size": lz4.frame.compress(RAW, block_size=4, block_linked=False),
}
#: Calls that give something back: one that is refused leaves what it was to give back.
GIVING_BACK = {
    "cuDevicePrimaryCtxRelease",
    "cuEventDestroy",
    "cuMemAddressFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuMemPoolDestroy",
    "cuMemRelease",
    "cuMemUnmap",
    "cuStreamDestroy",
}

each_way = pytest.mark.parametrize("way", ["read", "mapped"])
each_feed = pytest.mark.parametrize("feed", ["walked", "scanned"])


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield
        with contextlib.suppress(GpuloadError):
            lease.release()


@pytest.fixture
def paths(tmp_path, monkeypatch):
    small_ranges(monkeypatch, pieces=2)
    made = {name: tmp_path / name for name in FILES}
    for name, path in made.items():
        path.write_bytes(FILES[name])
    return made


# --- What the driver refuses ----------------------------------------------------------------------


def attempt(path, way):
    """Load and free everything; return what happened, in a frame that keeps nothing."""
    step = "loading"
    try:
        array = gpuload.load(path, way=way, **QUICK)
        same = bytes(array) == RAW
        step = "closing"
        del array
        lease.release()
        close_pools()
    except GpuloadError:
        return step
    except Exception as error:  # noqa: BLE001 (whatever it is, it is reported)
        return "".join(traceback.format_exception(error)[-3:])
    return "" if same else "other bytes"


def calls_of_a_load(cuda, path, way):
    before = cuda.recorder.calls.copy()
    assert attempt(path, way) == ""
    return cuda.recorder.calls - before


#: What statistics are made from, and what a reading thread begins with.
CLOCK = {"cuEventElapsedTime", "cuEventQuery"}
ENTRY = {"cuCtxSetCurrent", "cuDeviceGetCount", "cuDevicePrimaryCtxRetain"}


@pytest.mark.parametrize(
    "group",
    [
        "others",
        pytest.param("clock"),
        pytest.param("entry"),
    ],
)
@each_way
@each_feed
def test_every_call_may_fail(cuda, paths, monkeypatch, feed, way, group):
    find_rows(monkeypatch, feed)
    # What is of a known size goes to other memory than what is not.
    name = "lz4" if feed == "walked" else "lz4 with its size"
    for _ in range(2):
        calls = calls_of_a_load(cuda, paths[name], way)
    assert len(calls) > 10
    problems = []
    for call in sorted(chosen(calls, group)):
        for after in sorted({0, calls[call] // 2}):
            problems += fail_once(cuda, paths[name], way, call, after)
    assert not problems, "\n".join(problems)


def chosen(calls, group):
    groups = {"clock": CLOCK, "entry": ENTRY}
    others = set(calls) - CLOCK - ENTRY - {"cuStreamSynchronize"}
    return set(calls) & groups[group] if group in groups else others


@pytest.mark.parametrize(
    "way",
    [
        "read",
        pytest.param("mapped"),
    ],
)
@each_feed
def test_waiting_for_a_stream_may_fail(cuda, paths, monkeypatch, feed, way):
    find_rows(monkeypatch, feed)
    for _ in range(2):
        calls = calls_of_a_load(cuda, paths["lz4"], way)
    problems = []
    for after in range(calls["cuStreamSynchronize"]):
        problems += fail_once(cuda, paths["lz4"], way, "cuStreamSynchronize", after)
    assert not problems, "\n".join(problems)


def fail_once(cuda, path, way, call, after):
    """Load while one call fails; return what is wrong with that."""
    cuda.fail_next(call, Code.INVALID_VALUE, after=after)
    said = attempt(path, way)
    problems = [] if said in ("", "loading", "closing") else [said]
    cuda.recorder._injections.clear()
    # What failed without a word was giving back.
    may_stay = said in ("", "closing") or call in GIVING_BACK
    problems += leftovers(cuda, path, way, may_stay=may_stay)
    return [f"{call} after {after}: {problem}" for problem in problems]


def leftovers(cuda, path, way, *, may_stay):
    """Return what a load left behind, and whether a good one works; start afresh then."""
    for give_back in (lease.release, close_pools):
        with contextlib.suppress(GpuloadError):
            give_back()
    gc.collect()
    found = [] if may_stay else [f"left behind: {leak}" for leak in cuda.leaks()]
    found += cuda.complaints()
    found += [f"a thread: {each.name}" for each in threading.enumerate() if "gpuload" in each.name]
    said = attempt(path, way)
    found += [f"the next load: {said}"] if said else []
    gc.collect()
    cuda.reset()
    return found


@each_way
@each_feed
def test_a_device_that_faults(cuda, paths, monkeypatch, feed, way):
    """An error, and no hang; nothing works on that device any more."""
    find_rows(monkeypatch, feed)
    right = Overlapped._submit

    def submit(self, landed):
        cuda.queue_fault(int(landed.landing.stream.handle))
        right(self, landed)

    monkeypatch.setattr(Overlapped, "_submit", submit)
    assert attempt(paths["lz4"], way) == "loading"


# --- Users ----------------------------------------------------------------------------------------


class Pressing(LocalFile):
    """A file while whose bytes from an offset on are read somebody presses Ctrl-C."""

    def __init__(self, path, offset):
        super().__init__(path)
        self.offset, self.pressed = offset, False

    def readinto(self, offset, view):
        if not self.pressed and len(view) > 1000 and offset + len(view) > self.offset:
            self.pressed = True
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
        return super().readinto(offset, view)


@pytest.fixture
def keyboard():
    """Interrupt the program but not the double, which is Python where a driver is not."""

    def press(number, frame):
        while frame is not None:
            if "fakecuda" in frame.f_code.co_filename:
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    before = {number: signal.signal(number, press) for number in (signal.SIGINT, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@each_feed
@pytest.mark.parametrize("offset", range(0, 390_000, 65_536))
def test_ctrl_c(cuda, keyboard, paths, monkeypatch, feed, offset):
    """While the main thread waits for a read, for rows, for the device, or for nothing at all."""
    find_rows(monkeypatch, feed)
    with pytest.raises(KeyboardInterrupt):
        gpuload.load(Pressing(paths["lz4"], offset), way="read", **QUICK)
    assert not [each.name for each in threading.enumerate() if "gpuload" in each.name]
    assert attempt(paths["lz4"], "read") == ""
    assert cuda.leaks() == []


def test_ctrl_c_twice_while_the_walk_waits_for_the_disk(tmp_path):
    """What the walk looks at must not be gone when it goes on."""
    script = """
        import faulthandler, gc, os, signal, threading, time
        faulthandler.dump_traceback_later(30, exit=True)
        import pytest
        import gpuload
        from gpuload import lease
        from gpuload.device_array import close_pools
        from gpuload.overlapped import Overlapped
        from gpuload.sources import LocalFile
        from tests.helpers.device_loads import compressed
        from tests.helpers.overlapped_loads import QUICK, find_rows, mixed, small_ranges

        class Slow(LocalFile):
            def peek(self, offset, size):
                if threading.current_thread().name == "gpuload-index" and offset > 100_000:
                    for _ in range(2):
                        time.sleep(0.3)
                        os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.5)
                return super().peek(offset, size)

        patch = pytest.MonkeyPatch()
        small_ranges(patch, pieces=2)
        find_rows(patch, "walked")
        with open(PATH, "wb") as file:
            file.write(compressed(mixed(900_000), "lz4"))
        source = Slow(PATH)
        try:
            gpuload.load(source, way="mapped", **QUICK)
        except KeyboardInterrupt:
            print("given up", [t.name for t in threading.enumerate() if "gpuload" in t.name])
        time.sleep(1)
        lease.release()
        gc.collect()
        close_pools()
        print(cuda.complaints() + cuda.leaks())
        """
    script = script.replace("PATH", repr(os.fspath(tmp_path / "file")))
    assert run_alone(script).splitlines() == ["given up []", "[]"]


# --- Threads and forks ----------------------------------------------------------------------------


@each_way
@each_feed
def test_four_threads_at_once(paths, monkeypatch, feed, way):
    find_rows(monkeypatch, feed)
    results, failures = [], []
    ready = threading.Barrier(4)

    def run(name):
        try:
            ready.wait(60)
            for _ in range(3):
                array = gpuload.load(paths[name], way=way, **QUICK)
                results.append(bytes(array) == RAW)
                del array
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(name,)) for name in [*FILES, *FILES]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures
    assert results == [True] * 12


@each_way
@each_feed
def test_a_fork_after_use(tmp_path, feed, way):
    """The child is told, and leaves the parent's memory alone."""
    script = """
        import os, sys, warnings
        import pytest
        import gpuload
        from gpuload import lease
        from gpuload.device_array import close_pools
        from gpuload.errors import DriverError
        from tests.helpers.device_loads import compressed
        from tests.helpers.overlapped_loads import QUICK, find_rows, mixed, small_ranges
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads around
        patch = pytest.MonkeyPatch()
        small_ranges(patch)
        find_rows(patch, FEED)
        raw, path = mixed(700_000), PATH
        with open(path, "wb") as file:
            file.write(compressed(raw, "snappy"))
        array = gpuload.load(path, way=WAY, **QUICK)
        child = os.fork()
        if not child:
            told = 0
            calls = [
                lambda: gpuload.load(path, way=WAY, **QUICK),
                lambda: gpuload.load_many([path, path], **QUICK),
                lambda: gpuload.load_async(path, **QUICK).result(),
                array.to_host,
            ]
            for call in calls:
                try:
                    call()
                except DriverError as error:
                    told += "forked" in str(error)
            lease.release()
            print(told, bytes(gpuload.load(path, device="cpu")) == raw, flush=True)
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(bytes(array) == raw, bytes(gpuload.load(path, way=WAY, **QUICK)) == raw)
        del array
        lease.release()
        close_pools()
        print(cuda.complaints() + cuda.leaks())
        """
    names = {"FEED": feed, "WAY": way, "PATH": os.fspath(tmp_path / "file")}
    for name, value in names.items():
        script = script.replace(name, repr(value))
    assert run_alone(script).splitlines() == ["4 True", "0", "True True", "[]"]
