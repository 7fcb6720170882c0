"""An order of turns among threads."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["StoppedError", "Turns"]


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
