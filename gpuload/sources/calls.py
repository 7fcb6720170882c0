"""Calls of an fsspec file system that can be given up.

An asynchronous file system is called on its own event loop, where calls run side by side and can be
cancelled. A synchronous one need not bear several calls at a time (fsspec makes an instance a
thread for that reason) and its calls cannot be stopped: it gets one at a time, in a thread that is
left behind where it stalls.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["Calls", "ThreadCall", "calls_of"]

_CHECK_INTERVAL = 0.1


class Calls:
    """Calls of an asynchronous file system.

    Parameters
    ----------
    files : fsspec.asyn.AsyncFileSystem
        The file system.
    """

    #: Whether more than one call can run at a time.
    several = True

    def __init__(self, files: Any) -> None:
        self.files = files

    def turn(self, stopped: threading.Event) -> AbstractContextManager[None]:
        """Wait until a call may run; a CancelledError if `stopped` is set before."""
        return contextlib.nullcontext()

    def submit(self, method: str, *arguments: Any, **options: Any) -> Future[Any]:
        """Start a method of the file system; cancelling the future ends it."""
        import asyncio

        loop = self.files.loop
        coroutine = getattr(self.files, f"_{method}")(*arguments, **options)
        return asyncio.run_coroutine_threadsafe(coroutine, loop)


class ThreadCalls(Calls):
    """Calls of a synchronous file system.

    Parameters
    ----------
    files : fsspec.AbstractFileSystem
        The file system.
    """

    several = False

    def __init__(self, files: Any) -> None:
        super().__init__(files)
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def turn(self, stopped: threading.Event) -> Iterator[None]:
        """See `Calls.turn`."""
        while not self._turn.acquire(timeout=_CHECK_INTERVAL):
            if stopped.is_set():
                raise CancelledError
        try:
            yield
        finally:
            self._turn.release()

    def submit(self, method: str, *arguments: Any, **options: Any) -> Future[Any]:
        """Start a method of the file system; cancelling the future leaves it alone."""
        call = ThreadCall(lambda: getattr(self.files, method)(*arguments, **options))
        call.thread.start()
        return call


class ThreadCall(Future[Any]):
    """A call in a thread of its own, which has ended when the result is there."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        # A thread that is left behind must not keep the interpreter from ending.
        name = "gpuload-remote"
        self.thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)

    def _run(self, call: Callable[[], Any]) -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits any more
            try:
                self.set_result(call())
            except InvalidStateError:
                raise
            except BaseException as error:  # noqa: BLE001 (whoever waits shall get it)
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        """See `concurrent.futures.Future.result`."""
        try:
            return super().result(timeout)
        finally:
            if self.done() and not self.cancelled():
                self.thread.join()


def calls_of(files: Any) -> Calls:
    """Return the way to call a file system."""
    return Calls(files) if getattr(files, "async_impl", False) else ThreadCalls(files)
