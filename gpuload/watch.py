"""A load seen from another thread: how far it is, and the wish to end it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cuda.core import Event

__all__ = ["Watch"]


class Watch:
    """What others may know of a load while it goes on, and how they end it.

    Attributes
    ----------
    cancelled : bool
        Set it to end the load at the next piece.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._submitted = threading.Event()
        self._events: list[Event] = []

    def submit(self, events: list[Event]) -> None:
        """Say that all work is submitted, and that it is done with these events."""
        self._events = events
        self._submitted.set()

    def end(self) -> None:
        """Say that there is nothing to wait for any more."""
        self._submitted.set()

    def wait(self) -> list[Event]:
        """Wait until all work is submitted; return the events with which it is done."""
        self._submitted.wait()
        return self._events
