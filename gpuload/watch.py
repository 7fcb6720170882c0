"""A load seen from another thread: how far it is, and the wish to end it."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cuda.core import Event

    from gpuload.sources import Source

__all__ = ["Watch"]


class _Reads(Protocol):
    def cancel(self) -> None: ...


class Watch:
    """What others may know of a load while it goes on, and how they end it.

    Attributes
    ----------
    cancelled : bool
        Whether the load is to end.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._source: _Reads | None = None
        self._owned: Source | None = None
        self._submitted = threading.Event()
        self._event: Event | None = None

    def reads(self, source: _Reads) -> None:
        """Say whose reads are to give up when the load is cancelled."""
        self._source = source
        if self.cancelled:
            source.cancel()

    def owns(self, source: Source) -> None:
        """Say which source nobody needs any more when the load is cancelled."""
        self._owned = source
        if self.cancelled:
            source.abandon()

    def cancel(self) -> None:
        """End the load soon."""
        self.cancelled = True
        if self._owned is not None:
            self._owned.abandon()
        if self._source is not None:
            self._source.cancel()

    def progress(self, decoded: int, stored: int) -> None:
        """Check whether the load is to end; a `Progress` of `gpuload.pipeline`."""
        self.check()

    def check(self) -> None:
        """Raise CancelledError if the load is to end."""
        if self.cancelled:
            raise CancelledError("the load was cancelled")

    def submit(self, event: Event) -> None:
        """Say that all work is submitted, and that it is done with an event."""
        self._event = event
        self._submitted.set()

    def end(self) -> None:
        """Say that there is nothing to wait for any more."""
        self._event = None
        self._submitted.set()

    def wait(self) -> Event | None:
        """Wait until all work is submitted; return the event with which it is done, if it isn't."""
        self._submitted.wait()
        return self._event
