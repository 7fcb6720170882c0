"""Let the calling thread write for the workers, where a write may wait for ever.

A write to a pipe blocks until somebody reads. Ctrl-C interrupts it in the main thread only: a
worker blocked there would keep the process from ending.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gpuload.turns import StoppedError

if TYPE_CHECKING:
    from gpuload.codecs.base import Bytes
    from gpuload.sinks import Sink

__all__ = ["Handover"]


class Handover:
    """A sink whose writes another thread makes, one after the other.

    Parameters
    ----------
    sink : Sink
        An ordered one.
    """

    ordered = True

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._condition = threading.Condition()
        self._waiting: tuple[int, Bytes] | None = None
        self._stopped = False

    def slot(self, offset: int, size: int) -> Bytes | None:
        """See `Sink.slot`."""
        return self._sink.slot(offset, size)

    def write(self, offset: int, data: Bytes) -> None:
        """Hand bytes over and wait until they are written."""
        with self._condition:
            self._waiting = (offset, data)
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._waiting is None or self._stopped)
            if self._stopped:
                raise StoppedError

    def serve(self, timeout: float) -> None:
        """Write what is handed over, if anything is within `timeout` seconds or until `wake`."""
        with self._condition:
            if self._waiting is None:
                self._condition.wait(timeout)
            waiting = self._waiting
        if waiting is not None:
            self._sink.write(*waiting)
            with self._condition:
                self._waiting = None
                self._condition.notify_all()

    def wake(self, *_: object) -> None:
        """End the waiting of `serve`."""
        with self._condition:
            self._condition.notify_all()

    def stop(self) -> None:
        """Let nobody wait any more."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
