"""A load seen from another thread."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from gpuload.sources import BytesSource
from gpuload.watch import Watch

#: Seconds after which a test has hung.
TIMEOUT = 30


class Noting(BytesSource):
    cancels = 0

    def cancel(self):
        self.cancels += 1


def test_goes_on_unless_it_is_cancelled():
    watch = Watch()
    assert not watch.cancelled
    watch.check()
    watch.progress(1, 2)
    watch.cancel()
    assert watch.cancelled
    for ask in (watch.check, lambda: watch.progress(1, 2)):
        with pytest.raises(CancelledError, match="the load was cancelled"):
            ask()


def test_reads_give_up():
    """Once the flag is set, so that none begins anew."""
    watch, source, seen = Watch(), Noting(b""), []
    source.cancel = lambda: seen.append(watch.cancelled)
    watch.reads(source)
    assert seen == []
    watch.cancel()
    assert seen == [True]


def test_only_those_of_the_latest_source():
    watch, first, second = Watch(), Noting(b""), Noting(b"")
    watch.reads(first)
    watch.reads(second)
    watch.cancel()
    assert (first.cancels, second.cancels) == (0, 1)


@pytest.mark.parametrize("before", [True, False])
def test_source_of_its_own_is_abandoned(before):
    """However late it is known: its reads are for nobody any more."""
    watch, source, seen = Watch(), BytesSource(b""), []
    source.abandon = lambda: seen.append(watch.cancelled)
    if before:
        watch.owns(source)
    watch.cancel()
    if not before:
        watch.owns(source)
    assert seen == [True]


def test_reads_of_a_source_that_comes_late_give_up():
    watch, source = Watch(), Noting(b"")
    watch.cancel()
    watch.reads(source)
    assert source.cancels == 1


def waiting(watch):
    """Wait in a thread; return it and a list for what it is told."""
    told = []
    thread = threading.Thread(target=lambda: told.append(watch.wait()), daemon=True)
    thread.start()
    return thread, told


@pytest.mark.parametrize("event", ["event", None])
def test_wait(event):
    watch = Watch()
    threads = [waiting(watch) for _ in range(3)]
    threads[0][0].join(0.05)
    assert all(thread.is_alive() for thread, _ in threads)
    if event:
        watch.submit(event)
    else:
        watch.end()
    for thread, told in threads:
        thread.join(TIMEOUT)
        assert told == [event]
    assert watch.wait() == event


def test_after_the_end_there_is_nothing_to_wait_for():
    watch = Watch()
    watch.submit("event")
    assert watch.wait() == "event"
    watch.end()
    assert watch.wait() is None


def test_who_waits_is_not_kept_by_cancelling():
    """The load says when it is over."""
    watch = Watch()
    thread, told = waiting(watch)
    watch.cancel()
    thread.join(0.05)
    assert thread.is_alive()
    watch.end()
    thread.join(TIMEOUT)
    assert told == [None]
