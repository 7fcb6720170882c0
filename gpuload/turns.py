"""Threads that work side by side: an order of turns among them, and their end."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["StoppedError", "Turns", "join"]


class StoppedError(Exception):
    """Another window failed, or the caller gave up."""


class Turns:
    """Lets numbered pieces of work through one after the other."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = 0
        self.stopped = False

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Hold the turn of number `number`; wait for those before it to have had theirs."""
        with self._condition:
            self._condition.wait_for(lambda: self.stopped or self._next == number)
            self.check()
        yield
        with self._condition:
            self._next = number + 1
            self._condition.notify_all()

    def check(self) -> None:
        """Raise StoppedError after `stop`."""
        if self.stopped:
            raise StoppedError

    def stop(self) -> None:
        """Let nobody have a turn any more."""
        with self._condition:
            self.stopped = True
            self._condition.notify_all()


def join(pool: ThreadPoolExecutor, workers: list[Future[None]]) -> None:
    """Wait for the threads of a pool, whatever happens: they use memory that is freed next."""
    while True:
        try:
            # Not by joining the threads, which an interrupted join takes for ended (before 3.13).
            wait(workers)
            pool.shutdown()
        except KeyboardInterrupt:
            continue
        return
