"""`load_async`: loads to the double of a device that go on in a thread of their own."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

import lz4.block
import lz4.frame
import pytest

import gpuload
from gpuload import lease
from gpuload.errors import FormatError, FormatWarning
from gpuload.memory import copy
from gpuload.sources import BytesSource
from gpuload.watch import Watch
from tests.helpers.device_loads import (
    UserArray,
    allocate,
    clean_loads,
    compressed,
    new_stream,
    read,
    run_alone,
    write,
)
from tests.helpers.handmade import (
    BGZF_EOF,
    INDEPENDENT,
    SIZE,
    V1,
    bgzf_block,
    lz4_block,
    lz4_frame,
)
from tests.helpers.overlapped_loads import (
    QUICK,
    find_rows,
    mixed,
    small_ranges,
    spy,
)

RAW = mixed(900_000)
#: Small, and with blocks of which any number lies in a range.
DATA = lz4.frame.compress(RAW, block_size=4, block_linked=False)
#: Seconds after which a test has hung.
TIMEOUT = 60

each_feed = pytest.mark.parametrize("feed", ["walked", "scanned"])


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield
        lease.release()


@pytest.fixture
def loads(monkeypatch):
    small_ranges(monkeypatch)
    return spy(monkeypatch)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    return tmp_path / "file"


class Gated(BytesSource):
    """A source whose reads from an offset on wait until they are let through.

    Attributes
    ----------
    reached : threading.Event
        Set once a read waits.
    """

    def __init__(self, data=DATA, offset=0):
        super().__init__(data, "gated")
        self.offset, self.reached, self.opened = offset, threading.Event(), threading.Event()
        self.patience = 1

    def readinto(self, offset, view):
        if offset + len(view) > self.offset and len(view) > 1000:
            self.reached.set()
            if not self.opened.wait(TIMEOUT):
                raise TimeoutError("nobody let it go on")
        return super().readinto(offset, view)

    def cancel(self):
        self.patience -= 1
        if self.patience <= 0:
            self.opened.set()


# --- From start to end ----------------------------------------------------------------------------


@each_feed
@pytest.mark.parametrize("way", ["read", "mapped"])
def test_a_load(loads, monkeypatch, path, feed, way):
    find_rows(monkeypatch, feed)
    load = gpuload.load_async(path, way=way, **QUICK)
    array = load.result(TIMEOUT)
    assert bytes(array) == RAW
    assert load.result() is array
    assert load.done()
    assert load.ready is None
    assert (load.stats.raw_size, load.stats.stored_size) == (len(RAW), len(DATA))
    assert load.stats.ways == {way: len(DATA)}
    assert loads.ended == [("load_unlisted", "done")]


def test_returns_before_the_file_is_read(loads):
    source = Gated()
    load = gpuload.load_async(source, **QUICK)
    assert source.reached.wait(TIMEOUT)
    assert not load.done()
    with pytest.raises(TimeoutError, match=r"not over after 0\.01 seconds"):
        load.result(0.01)
    source.opened.set()
    assert bytes(load.result(TIMEOUT)) == RAW


def test_to_the_host():
    load = gpuload.load_async(DATA, device="cpu")
    assert load.ready is None
    load.wait()
    assert bytes(load.result(TIMEOUT)) == RAW
    assert load.stats.engine == "host"


def test_many_at_a_time(loads, path):
    started = [gpuload.load_async(path, **QUICK) for _ in range(6)]
    assert [bytes(load.result(TIMEOUT)) == RAW for load in started] == [True] * 6


@pytest.mark.parametrize("options", [{"threads": 0}, {"engine": "none"}, {"verify": "no"}])
def test_options_are_checked_at_once(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        gpuload.load_async(DATA, **options)


# --- Streams --------------------------------------------------------------------------------------


@each_feed
def test_work_that_waits_sees_the_bytes(loads, monkeypatch, path, feed):
    """Without the host: `wait` puts an event before what is submitted afterwards."""
    find_rows(monkeypatch, feed)
    stream = new_stream()
    with (
        allocate("DecompressMemory", len(RAW), stream) as address,
        allocate("DecompressMemory", len(RAW), stream) as target,
    ):
        write(address, bytes(len(RAW)), stream)
        load = gpuload.load_async(path, out=UserArray(address, len(RAW)), **QUICK)
        load.wait(stream)
        copy(target, address, len(RAW), stream)
        assert read(target, len(RAW), stream) == RAW
        load.result(TIMEOUT)
    stream.close()
    assert loads.done == ["load_unlisted"]


def test_ready_is_an_event(loads, monkeypatch, path):
    """As long as there is work to wait for; the load itself waits for it, too."""
    from cuda.core import Event

    seen, submit = [], Watch.submit

    def submitted(self, event):
        seen.append(event)
        submit(self, event)

    monkeypatch.setattr(Watch, "submit", submitted)
    load = gpuload.load_async(path, **QUICK)
    assert bytes(load.result(TIMEOUT)) == RAW
    assert seen
    assert all(isinstance(event, Event) for event in seen)
    seen.clear()


# --- What fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [0, "cpu"])
def test_a_broken_file(loads, device):
    load = gpuload.load_async(DATA[:-40_000], **QUICK | {"device": device, "engine": "auto"})
    for _ in range(2):
        with pytest.raises(FormatError, match="the file ends"):
            load.result(TIMEOUT)
    assert load.done()
    assert load.ready is None
    load.wait()
    with pytest.raises(RuntimeError, match="the load has failed"):
        load.stats  # noqa: B018


def test_no_file(loads, tmp_path):
    load = gpuload.load_async(tmp_path / "absent", **QUICK)
    with pytest.raises(FileNotFoundError):
        load.result(TIMEOUT)


def test_warnings_come_with_the_result():
    load = gpuload.load_async(bgzf_block(b"abc"), device="cpu")
    with pytest.warns(FormatWarning, match="end-of-file block") as caught:
        assert bytes(load.result(TIMEOUT)) == b"abc"
    assert caught[0].filename == __file__
    assert bytes(gpuload.load_async(bgzf_block(b"abc") + BGZF_EOF, device="cpu").result()) == b"abc"


def test_threads_that_cannot_be_started(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            gpuload.load_async(DATA, device="cpu")


# --- Cancelling -----------------------------------------------------------------------------------


@each_feed
@pytest.mark.parametrize("offset", [0, 300_000, 600_000])
def test_cancelled(loads, monkeypatch, feed, offset):
    find_rows(monkeypatch, feed)
    source = Gated(offset=offset)
    load = gpuload.load_async(source, **QUICK)
    assert source.reached.wait(TIMEOUT)
    load.cancel()
    with pytest.raises(CancelledError):
        load.result(TIMEOUT)
    assert load.done()
    assert load.ready is None
    assert bytes(gpuload.load(DATA, **QUICK)) == RAW


@pytest.mark.parametrize("offset", [0, 300_000])
def test_cancelled_step_by_step(loads, offset):
    source = Gated(compressed(mixed(4_000_000), "snappy"), offset)
    source.patience = 2
    load = gpuload.load_async(source, **QUICK | {"engine": "hardware"})
    assert source.reached.wait(TIMEOUT)
    load.cancel()
    with pytest.raises(CancelledError):
        load.result(TIMEOUT)


@each_feed
@pytest.mark.parametrize("way", ["read", "mapped"])
def test_cancelled_at_any_time(loads, monkeypatch, path, feed, way):
    """The bytes, or a CancelledError; nothing stays."""
    find_rows(monkeypatch, feed)
    for number in range(12):
        load = gpuload.load_async(path, way=way, **QUICK)
        time.sleep(number / 200)
        load.cancel()
        try:
            assert bytes(load.result(TIMEOUT)) == RAW
        except CancelledError as error:
            error.__traceback__ = None
    assert bytes(gpuload.load(path, **QUICK)) == RAW


def test_cancelled_after_the_end(loads, path):
    load = gpuload.load_async(path, **QUICK)
    load.result(TIMEOUT)
    load.cancel()
    assert bytes(load.result()) == RAW


def test_cancelled_twice(loads):
    source = Gated()
    load = gpuload.load_async(source, **QUICK)
    assert source.reached.wait(TIMEOUT)
    load.cancel()
    load.cancel()
    with pytest.raises(CancelledError):
        load.result(TIMEOUT)


# --- The end of the process -----------------------------------------------------------------------


@pytest.mark.parametrize("feed", ["walked", "scanned"])
@pytest.mark.parametrize("delay", [0, 0.02, 0.1])
def test_a_load_that_nobody_waits_for(tmp_path, feed, delay):
    """The process ends when it is over, or has failed; it neither hangs nor crashes."""
    script = """
        import faulthandler, time
        faulthandler.dump_traceback_later(30, exit=True)
        import lz4.frame, pytest
        import gpuload
        from tests.helpers.overlapped_loads import QUICK, find_rows, mixed, small_ranges
        patch = pytest.MonkeyPatch()
        small_ranges(patch)
        find_rows(patch, FEED)
        data = lz4.frame.compress(mixed(3_000_000), block_size=4, block_linked=False)
        load = gpuload.load_async(data, **QUICK)
        time.sleep(DELAY)
        print("ends")
        """
    said = run_alone(script.replace("FEED", repr(feed)).replace("DELAY", str(delay)))
    assert said == "ends"


def test_nobody_sees_an_array_of_theirs_before_it_is_right(loads, monkeypatch, tmp_path):
    """A block that is not full is found at the end, and has the load begin again."""
    find_rows(monkeypatch, "scanned")
    raw = mixed(10 * 65536)
    parts = [raw[start : start + 65536] for start in range(0, len(raw), 65536)]
    parts[5] = parts[5][:1000]
    wanted = b"".join(parts)
    flags = V1 | INDEPENDENT | SIZE
    blocks = [lz4_block(lz4.block.compress(part, store_size=False)) for part in parts]
    (tmp_path / "file").write_bytes(lz4_frame(*blocks, flags=flags, size=len(wanted)))
    stream = new_stream()
    with allocate("cuMemAlloc", len(wanted), stream) as address:
        out = UserArray(address, len(wanted))
        load = gpuload.load_async(tmp_path / "file", out=out, stream=stream, **QUICK)
        load.wait(stream)
        assert read(address, len(wanted), stream) == wanted
        load.result(TIMEOUT)
    assert loads.ended[0][1] != "done"
    stream.close()
