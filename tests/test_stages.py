"""The clock of a load."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from gpuload import stages
from gpuload.stages import STAGES, Stage, Stages


@pytest.mark.parametrize(
    ("intervals", "busy"),
    [
        ([], 0),
        ([(1, 2)], 1),
        ([(1, 2), (3, 5)], 3),
        ([(3, 5), (1, 2)], 3),
        ([(1, 4), (2, 3)], 3),
        ([(1, 3), (2, 4)], 3),
        ([(1, 2), (2, 3)], 2),
        ([(1, 2), (1, 2)], 1),
        ([(1, 1)], 0),
        ([(0, 9), (1, 2), (8, 10), (12, 13)], 11),
    ],
)
def test_busy_is_when_anybody_works(intervals, busy):
    seconds = sum(stop - start for start, stop in intervals)
    stage = Stage(bytes=66, seconds=seconds, intervals=intervals)
    assert stage.busy == busy
    assert stage.rate == (66 / busy if busy else 0)


def test_measure():
    clock = Stages()
    with clock.measure("read", 100):
        inside = clock.now()
    with clock.measure("read", 11):
        pass
    read = clock.stages["read"]
    assert read.bytes == 111
    (start, stop), (later, _) = read.intervals
    assert 0 <= start <= inside <= stop <= later
    assert read.seconds == pytest.approx(sum(stop - start for start, stop in read.intervals))
    assert list(clock.used()) == ["read"]


def test_what_fails_is_measured_too():
    clock = Stages()
    with pytest.raises(ZeroDivisionError), clock.measure("decode", 5):
        raise ZeroDivisionError
    assert clock.stages["decode"].bytes == 5


def test_add():
    clock = Stages()
    clock.add("copy", 10, 1.0, 3.0)
    clock.add("copy", 20, 2.0, 4.0)
    copy = clock.used()["copy"]
    assert (copy.bytes, copy.seconds, copy.busy, copy.rate) == (30, 4.0, 3.0, 10.0)


def test_all_stages_are_there_in_order():
    clock = Stages()
    assert tuple(clock.stages) == STAGES
    assert clock.used() == {}
    clock.add("write", 0, 0, 0)
    clock.add("index", 0, 0, 0)
    assert list(clock.used()) == ["index", "write"]


def test_threads():
    clock = Stages()

    def work():
        for _ in range(200):
            clock.add("read", 1, 0.0, 1.0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = clock.stages["read"]
    assert (read.bytes, read.seconds, len(read.intervals)) == (1600, 1600.0, 1600)


class TestProfilers:
    @pytest.fixture(autouse=True)
    def _fresh(self, monkeypatch):
        stages._nvtx.cache_clear()
        for name in stages._PROFILED:
            monkeypatch.delenv(name, raising=False)
        yield
        stages._nvtx.cache_clear()

    @pytest.fixture
    def ranges(self, monkeypatch):
        """Pretend that nvtx is installed; return what it is told."""
        told = []
        nvtx = types.ModuleType("nvtx")
        nvtx.__spec__ = types.SimpleNamespace()
        nvtx.push_range = lambda name, domain: told.append(("push", name, domain))
        nvtx.pop_range = lambda domain: told.append(("pop", domain))
        monkeypatch.setitem(sys.modules, "nvtx", nvtx)
        return told

    def test_ranges(self, ranges, monkeypatch):
        monkeypatch.setenv("NVTX_INJECTION64_PATH", "/some/library.so")
        with Stages().measure("read", 1), pytest.raises(KeyError), Stages().range("submit"):
            raise KeyError
        assert ranges == [
            ("push", "read", "gpuload"),
            ("push", "submit", "gpuload"),
            ("pop", "gpuload"),
            ("pop", "gpuload"),
        ]

    def test_nobody_looks(self, ranges):
        with Stages().measure("read", 1):
            pass
        assert ranges == []

    def test_not_installed(self, monkeypatch):
        monkeypatch.setenv("NVTX_INJECTION64_PATH", "/some/library.so")
        monkeypatch.setattr(stages.importlib.util, "find_spec", lambda name: None)
        with Stages().measure("read", 1):
            pass
