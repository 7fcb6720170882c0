"""Requests that are tried again, a bounded number of times and each for a bounded time.

A connection that breaks, an answer that is too short or does not come, and a server that is busy
(HTTP statuses 408, 425, 429 and from 500 on, but for 501 and 505) are worth another attempt; an
object that is not there, or not for this user, is not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from gpuload.errors import GpuloadError, RemoteError
from gpuload.sources.faults import Fault, diagnose

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from gpuload.sources.calls import Calls

__all__ = ["PAUSES", "TIMEOUT", "TIMEOUT_VARIABLE", "Request", "stall_timeout"]

#: Seconds before the second attempt, the third and so on.
PAUSES = (0.2, 0.6, 1.8)
#: Seconds in which an answer must come.
TIMEOUT = 60.0
#: The environment variable with another number of seconds.
TIMEOUT_VARIABLE = "GPULOAD_REMOTE_TIMEOUT"
_SLOW = f"if the server is that slow, set {TIMEOUT_VARIABLE} to more seconds"
_BROKEN = "try again later, or download the file and load the copy"


def stall_timeout() -> float:
    """Return the seconds of `TIMEOUT_VARIABLE` in the environment, else `TIMEOUT`."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text or TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ValueError(f"{TIMEOUT_VARIABLE} must be a number of seconds above 0, not {text!r}")
    return seconds


class Request:
    """One request, driven by whoever waits for its result; safe from several threads.

    Parameters
    ----------
    calls : Calls
        The file system.
    submit : callable
        Starts an attempt and returns its future.
    url, where : str
        The object, and the place in it (may be empty), for messages.
    seconds : float
        How long an attempt may take.
    check : callable, optional
        Gets an answer; raises where another attempt is needed, or a GpuloadError where none helps.

    Attributes
    ----------
    done : bool
        Whether the result is there.
    """

    def __init__(
        self,
        calls: Calls,
        submit: Callable[[], Future[Any]],
        url: str,
        where: str = "",
        *,
        seconds: float,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self._calls, self._submit, self._check = calls, submit, check
        self._url, self._where, self._seconds = url, where, seconds
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._running: Future[Any] | None = None
        self._began = 0.0
        self._answer: Any = None
        self.done = False
        if calls.several:
            with contextlib.suppress(Exception):  # which the next attempt meets again
                self._start()

    def result(self) -> Any:
        """Wait for the answer.

        Raises
        ------
        OSError
            For a fault that stays, with its number and the URL.
        RemoteError
            After the last attempt, or after `cancel`.
        ImportError, MemoryError, GpuloadError
            As the file system, or the check, raised it.
        """
        with self._lock:
            if not self.done:
                self._answer = self._try()
                self.done = True
            return self._answer

    def cancel(self) -> None:
        """Let whoever waits for the result give up."""
        self._stopped.set()
        running = self._running
        if running:
            running.cancel()

    def _try(self) -> Any:
        began = time.monotonic()
        for pause in (*PAUSES, None):
            try:
                return self._attempt()
            except CancelledError:
                raise self._given_up() from None
            except (GpuloadError, ImportError, MemoryError):
                raise
            except Exception as error:
                fault = self._diagnose(error)
                if fault.final:
                    raise fault.error(self._url) from error
                if pause is None:
                    raise self._exhausted(fault, time.monotonic() - began) from error
            if self._stopped.wait(pause):
                raise self._given_up()
        raise AssertionError

    def _attempt(self) -> Any:
        with self._calls.turn(self._stopped):
            try:
                running = self._running or self._start()
                left = self._began + self._seconds - time.monotonic()
                answer = running.result(max(0.0, left))
            finally:
                self._end()
        if self._check:
            self._check(answer)
        return answer

    def _start(self) -> Future[Any]:
        self._began = time.monotonic()
        running = self._running = self._submit()
        if self._stopped.is_set():
            running.cancel()
        return running

    def _end(self) -> None:
        running, self._running = self._running, None
        if running:
            running.cancel()

    def _diagnose(self, error: Exception) -> Fault:
        if not isinstance(error, TimeoutError):
            return diagnose(error)
        seconds = time.monotonic() - self._began
        reason = f"no answer, or only a part of one, in {seconds:.1f} s"
        return Fault(errno.ETIMEDOUT, reason, final=False)

    def _exhausted(self, fault: Fault, seconds: float) -> RemoteError:
        advice = _SLOW if fault.number == errno.ETIMEDOUT else _BROKEN
        text = f"{self._where}{fault.reason} ({1 + len(PAUSES)} attempts in {seconds:.1f} s)"
        error = RemoteError(f"{self._url}: {text}; {advice}")
        error.errno = fault.number
        return error

    def _given_up(self) -> RemoteError:
        return RemoteError(f"{self._url}: {self._where}the read was cancelled")
