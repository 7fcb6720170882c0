"""Sets of memory, streams and engines that are kept from one load to the next."""

from __future__ import annotations

import atexit
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gpuload import driver
from gpuload.errors import GpuloadError
from gpuload.memory import run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Kept"]


class _Set(Protocol):
    def close(self) -> None: ...


SetT = TypeVar("SetT", bound=_Set)


class Kept(Generic[SetT]):
    """Sets that no load uses now, until the process ends.

    Parameters
    ----------
    most : int
        How many are kept; the oldest ones are closed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[SetT] = []
        atexit.register(self._release_at_exit)

    def take(self, fits: Callable[[SetT], bool]) -> SetT | None:
        """Return a set that fits, which is the caller's from now on; None if there is none."""
        with self._lock:
            for held in self._idle:
                if fits(held):
                    self._idle.remove(held)
                    return held
        return None

    @contextmanager
    def lend(self, held: SetT) -> Iterator[SetT]:
        """Lend a set, and keep it; one that an error went through is closed."""
        try:
            yield held
        except BaseException:
            # The first error says more than what a broken context says afterwards.
            with suppress(GpuloadError):
                held.close()
            raise
        self._keep(held)

    def _keep(self, held: SetT) -> None:
        with self._lock:
            self._idle.append(held)
            surplus = self._idle[: -self._most]
            del self._idle[: -self._most]
        with suppress(GpuloadError):
            # The load that gives its own back has succeeded, whatever happened to another.
            run_all(each.close for each in surplus)

    def release(self) -> None:
        """Close what is kept; a load makes it anew."""
        if driver.forked():
            return  # the lock may be held by a thread that is not here
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        run_all(each.close for each in idle)

    def _release_at_exit(self) -> None:
        with suppress(GpuloadError):
            self.release()
