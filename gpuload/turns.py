"""Threads that work side by side: an order of turns among them, and their end."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import ThreadPoolExecutor

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
    """Do work in a thread of its own, and wait; Ctrl-C has it cancelled, and is raised at its end.

    Parameters
    ----------
    work : callable
        What to do.
    cancel : callable
        Makes `work` end soon.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 (for who waits)
            done.set_exception(error)

    interrupt: KeyboardInterrupt | None = None
    thread = threading.Thread(target=run, name="gpuload-load")
    thread.start()
    while True:
        try:
            wait([done])
            thread.join()
            break
        except KeyboardInterrupt as error:
            interrupt = error
            cancel()
    if interrupt is not None:
        raise interrupt
    return done.result()


def join(
    pool: ThreadPoolExecutor, workers: list[Future[None]], give_up: Callable[[], object]
) -> None:
    """Wait for the threads of a pool, whatever happens: they use memory that is freed next.

    Parameters
    ----------
    pool : ThreadPoolExecutor
        The threads.
    workers : list of Future
        What they do.
    give_up : callable
        Called again and again as long as there is anything to wait for.
    """
    while True:
        try:
            # Not by joining the threads, which an interrupted join takes for ended (before 3.13).
            while wait(workers, timeout=_INTERVAL).not_done:
                give_up()
            pool.shutdown()
        except KeyboardInterrupt:
            continue
        return
