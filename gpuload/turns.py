"""Threads that work side by side: an order of turns among them, and their end."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["StoppedError", "Turns", "interruptible", "join"]

T = TypeVar("T")

#: Seconds between attempts to have others give up.
_INTERVAL = 0.1


class StoppedError(Exception):
    """Another window failed, or the caller gave up."""


class Turns:
    """Lets numbered pieces of work through one after the other.

    Each wakes the next and nobody else: many threads that wake up to find that they have to wait on
    keep Python from those with work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        #: For each number that is waited with, a lock that is held until its turn comes.
        self._gates: dict[int, threading.Lock] = {}
        self.stopped = False

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Hold the turn of number `number`; wait for those before it to have had theirs."""
        self._wait(number)
        self.check()
        yield
        with self._lock:
            self._next = number + 1
            gate = self._gates.pop(self._next, None)
        if gate is not None:
            gate.release()

    def _wait(self, number: int) -> None:
        with self._lock:
            if self.stopped or self._next == number:
                return
            gate = self._gates[number] = threading.Lock()
            gate.acquire()
        with gate:
            pass

    def check(self) -> None:
        """Raise StoppedError after `stop`."""
        if self.stopped:
            raise StoppedError

    def stop(self) -> None:
        """Let nobody have a turn any more."""
        with self._lock:
            self.stopped = True
            gates = list(self._gates.values())
            self._gates.clear()
        for gate in gates:
            gate.release()


def interruptible(work: Callable[[], T], cancel: Callable[[], object]) -> T:
    """Do work in a thread of its own, and wait for its end, whatever a signal's handler raises.

    Ctrl-C and what other handlers raise has the work cancelled, and is raised at its end: until
    then memory is in use that the caller would free.

    Parameters
    ----------
    work : callable
        What to do.
    cancel : callable
        Makes `work` end soon.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    # Not by joining the thread, which an interrupted join takes for ended (before 3.13).
    ended = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 (for who waits)
            errors.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=run, name="gpuload-load")
    interrupts: list[BaseException] = []
    while not ended.is_set():
        try:
            if interrupts:
                cancel()
            if thread.ident is None:
                _start(thread, run)
            ended.wait()
        except BaseException as interrupt:  # noqa: BLE001 (raised below)
            interrupts.append(interrupt)
    error = next(iter([*interrupts, *errors]), None)
    # Errors hold frames, which must not hold the errors.
    interrupts.clear()
    errors.clear()
    if error is None:
        return results[0]
    try:
        raise error
    finally:
        del error


def _start(thread: threading.Thread, work: Callable[[], None]) -> None:
    """Start a thread; without one, work here."""
    try:
        thread.start()
    except RuntimeError:
        work()


def join(
    pool: ThreadPoolExecutor, workers: list[Future[None]], give_up: Callable[[], object]
) -> None:
    """Wait for the threads of a pool, whatever happens: they use memory that is freed next.

    What a signal's handler raises meanwhile, Ctrl-C for one, is raised at the end.

    Parameters
    ----------
    pool : ThreadPoolExecutor
        The threads.
    workers : list of Future
        What they do.
    give_up : callable
        Called again and again as long as there is anything to wait for.
    """
    interrupts: list[BaseException] = []
    while not _joined(pool, workers, give_up, interrupts):
        pass
    if interrupts:
        try:
            raise interrupts[0]
        finally:
            interrupts.clear()


def _joined(
    pool: ThreadPoolExecutor,
    workers: list[Future[None]],
    give_up: Callable[[], object],
    interrupts: list[BaseException],
) -> bool:
    try:
        if interrupts:
            give_up()
        # Not by joining the threads, which an interrupted join takes for ended (before 3.13).
        while wait(workers, timeout=_INTERVAL).not_done:
            give_up()
        pool.shutdown()
    except BaseException as interrupt:  # noqa: BLE001 (raised by who calls)
        interrupts.append(interrupt)
        return False
    return True
