"""A source that is listed while it is read: what has arrived is looked at where it lies.

Readers of formats walk over a file from one header to the next. With a call of the system for each
of them that takes longer than the link takes for the bytes between them; here they look into the
staging ring.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gpuload.sources import Source
from gpuload.turns import StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuload.codecs.base import Bytes

__all__ = ["ResidentSource"]

_NOTHING = memoryview(b"")


class ResidentSource(Source):
    """A source of which pieces arrive, which one thread walks over and others bring.

    Parameters
    ----------
    source : Source
        Where bytes come from that have not arrived, or are gone.
    """

    def __init__(self, source: Source) -> None:
        self.name, self.size, self.wrapped = source.name, source.size, source
        self._condition = threading.Condition()
        self._arrived: dict[int, tuple[Bytes, Callable[[], None]]] = {}
        self._view, self._start = _NOTHING, 0
        self._release: Callable[[], None] | None = None
        self._piece_size = 0
        self._passed = 0
        self._stopped = False

    def expect(self, piece_size: int) -> None:
        """Say that all of the source comes, in pieces of this size that follow one another."""
        self._piece_size = piece_size

    def publish(self, offset: int, view: Bytes, release: Callable[[], None]) -> None:
        """Show a piece that has arrived.

        Parameters
        ----------
        offset : int
            Of its first byte.
        view : ndarray of uint8
            Its bytes.
        release : callable
            Called once nobody looks at the piece any more, from any thread.
        """
        with self._condition:
            passed = self._stopped or offset + view.size <= self._passed
            if not passed:
                self._arrived[offset] = view, release
                self._condition.notify_all()
        if passed:
            release()

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`."""
        return self.wrapped.readinto(offset, view)

    def peek(self, offset: int, size: int) -> bytes:
        """See `Source.peek`."""
        view, start = self.resident(offset)
        at = offset - start
        if at >= 0 and at + size <= len(view):
            return bytes(view[at : at + size])
        return self.wrapped.peek(offset, size)

    def resident(self, offset: int) -> tuple[memoryview, int]:
        """See `Source.resident`; waits for the piece with the byte at an offset to arrive."""
        here = 0 <= offset - self._start < len(self._view)
        if not here and self._passed <= offset < self.size:
            self._advance(offset)
        return self._view, self._start

    def _advance(self, offset: int) -> None:
        """Let go of the pieces before an offset, and wait for the one with it."""
        first = offset // self._piece_size * self._piece_size if self._piece_size else None
        self._pass(offset if first is None else first)
        if first is None:
            return
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or first in self._arrived)
            if self._stopped:
                raise StoppedError
            data, self._release = self._arrived.pop(first)
        self._view, self._start = memoryview(data), first

    def _pass(self, offset: int) -> None:
        self._view, self._start = _NOTHING, 0
        with self._condition:
            self._passed = offset
            before = [at for at in self._arrived if at < offset]
            gone = [self._arrived.pop(at)[1] for at in before]
        if self._release is not None:
            gone.append(self._release)
            self._release = None
        with ExitStack() as releases:
            # All of them, even if one fails.
            for release in gone:
                releases.callback(release)

    def cancel(self) -> None:
        """See `Source.cancel`."""
        self.wrapped.cancel()

    def finish(self) -> None:
        """Let go of everything, now and when it arrives: nobody looks any more."""
        self._pass(self.size)

    def stop(self) -> None:
        """Let the thread that walks wait no more; what it holds it lets go of in `finish`."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
