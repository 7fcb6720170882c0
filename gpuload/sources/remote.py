"""Objects of remote and virtual file systems, by fsspec.

Large reads are parts that are requested side by side, small reads get blocks that are kept (see
`gpuload.sources.read_ahead`). A request that fails in a way that may pass is tried again, three
times, with pauses of 0.2, 0.6 and 1.8 seconds. An attempt ends after 60 seconds without an answer:
with http, that is without another byte, elsewhere without all of it, with one second more for each
64 KiB; the environment variable ``GPULOAD_REMOTE_TIMEOUT`` holds another number of seconds.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuload.errors import RemoteError
from gpuload.sources import http
from gpuload.sources.attempts import Request, stall_timeout
from gpuload.sources.base import Source
from gpuload.sources.calls import calls_of
from gpuload.sources.copies import Copying
from gpuload.sources.faults import ShortAnswerError
from gpuload.sources.local import LocalFile
from gpuload.sources.read_ahead import BLOCK, ReadAhead

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from gpuload.sources.calls import Calls

__all__ = ["FsspecSource", "open_object"]

#: Parts of large reads that are in flight at a time, beyond one a reading thread.
IN_FLIGHT = 8
#: Bytes of a part; reads that are not that large have smaller ones.
LARGEST_PART = 8 << 20
#: Bytes a second of one request; what comes more slowly is taken for stalled.
LOWEST_SPEED = 64 << 10
#: Most bytes of an object; chunk tables have no room for more.
_LARGEST = (1 << 63) - 1


class FsspecSource(Source):
    """An object of a remote or virtual file system of fsspec.

    Memory is bounded: by parts of 8 MiB, eight of them and one for each thread that reads, and by
    16 blocks of 1 MiB.

    Parameters
    ----------
    files : fsspec.AbstractFileSystem
        The file system.
    path : str
        The object in it.
    size : int
        Its bytes.
    name : str
        What to call it in messages.
    etag : str
        The ETag that it had when `size` was found; a server that names another one meanwhile
        has another object.
    """

    remote = True

    def __init__(self, files: Any, path: str, size: int, name: str, *, etag: str = "") -> None:
        self.name = name
        self.size = size
        self._etag = etag
        self._files, self._path = files, path
        self._calls = calls_of(files)
        self._seconds = stall_timeout()
        self._abandoned = False
        self._lock = threading.Lock()
        self._requests: weakref.WeakSet[Request] = weakref.WeakSet()
        self._blocks = ReadAhead(self._request, size)
        self._more = threading.BoundedSemaphore(IN_FLIGHT)

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`.

        Raises
        ------
        RemoteError
            If other bytes came than were asked for, the object is not the one that was opened any
            more, no attempt succeeded, or the read was cancelled.
        OSError
            If it is clear that another attempt would not succeed.
        """
        end = min(offset + len(view), self.size)
        wanted = end - offset
        if wanted <= 0:
            return 0
        if wanted <= BLOCK or self._blocks.holds(offset, end):
            view[:wanted] = self._blocks.read(offset, end)
        else:
            self._read_parts(offset, view[:wanted])
        return wanted

    def peek(self, offset: int, size: int) -> bytes:
        """See `Source.peek`."""
        end = min(offset + size, self.size)
        if 0 < end - offset <= BLOCK:
            return self._blocks.read(offset, end)
        return super().peek(offset, size)

    def cancel(self) -> None:
        """See `Source.cancel`."""
        self._blocks.keep_done()
        with self._lock:
            requests = list(self._requests)
        for request in requests:
            request.cancel()

    def abandon(self) -> None:
        """See `Source.abandon`."""
        self._abandoned = True
        self.cancel()

    def close(self) -> None:
        """See `Source.close`."""
        self.cancel()
        self._blocks.clear()

    def _read_parts(self, offset: int, view: memoryview) -> None:
        """Fill a view by parts side by side, as many as there may be."""
        running: deque[tuple[memoryview, Request]] = deque()
        size = min(max(BLOCK, len(view) // IN_FLIGHT), LARGEST_PART)
        try:
            for start in range(0, len(view), size):
                # A thread's only part is always allowed, so that none waits for another's.
                while running and not self._more.acquire(blocking=False):
                    self._finish(running)
                part = view[start : start + size]
                begin = offset + start
                running.append((part, self._request(begin, begin + len(part))))
            while running:
                self._finish(running)
        finally:
            for _, request in running:
                request.cancel()
            self._release(len(running) - 1)

    def _finish(self, running: deque[tuple[memoryview, Request]]) -> None:
        part, request = running[0]
        part[:] = request.result()
        running.popleft()
        self._release(min(1, len(running)))

    def _release(self, parts: int) -> None:
        if parts > 0:
            self._more.release(parts)

    def _request(self, start: int, end: int) -> Request:
        expected = http.Expected(self.name, start, end, self.size, self._etag)
        options = http.range_options(self._files, expected)
        return self._register(
            Request(
                self._calls,
                partial(self._range, start=start, end=end, **options),
                self.name,
                f"byte {start}: ",
                seconds=self._seconds + (end - start) / LOWEST_SPEED,
                check=partial(self._check, start, end - start),
            )
        )

    def _range(self, **options: Any) -> Future[Any]:
        stall = http.stall_options(self._files, self._seconds)
        return self._calls.submit("cat_file", self._path, **options, **stall)

    def _register(self, request: Request) -> Request:
        with self._lock:
            self._requests.add(request)
        if self._abandoned:
            request.cancel()
        return request

    def _check(self, start: int, wanted: int, data: bytes) -> None:
        """Refuse an answer that is not as long as it should be."""
        got = len(data)
        if got > wanted:
            raise http.ignored(self.name, start, wanted, got)
        if got < wanted:
            self._check_size(start)
            raise ShortAnswerError(f"only {got} of {wanted} bytes came")

    def _check_size(self, offset: int) -> None:
        """Raise a RemoteError if the object has another size by now."""
        request = self._register(_info(self._calls, self._path, self.name, self._seconds))
        size = None
        with contextlib.suppress(OSError):  # the answer that was too short says enough
            size = request.result().get("size")
        if size not in (None, self.size):
            raise http.changed(self.name, offset, http.resized(self.size, size))


def open_object(
    files: Any, path: str, url: str, started: Callable[[Request | Copying], object] | None = None
) -> Source:
    """Open an object of a file system of fsspec.

    Parameters
    ----------
    files : fsspec.AbstractFileSystem
        The file system.
    path : str
        The object in it.
    url : str
        What to call it.
    started : callable, optional
        Is given the request for its size, and the copy, which can be cancelled.

    Returns
    -------
    Source
        A local file for what is one. Objects whose server states no size, or does not send parts of
        them, are copied first (see `gpuload.sources.local.spool`).

    Raises
    ------
    OSError
        With the reason that lies at the bottom of what fsspec raised.
    RemoteError
        If no attempt succeeded.
    """
    if type(files).__module__ == "fsspec.implementations.local":
        return LocalFile(path, url)
    seconds = stall_timeout()
    request = _info(calls_of(files), path, url, seconds)
    if started is not None:
        started(request)
    info = request.result()
    size = info.get("size")
    if size is None or info.get("partial") is False:
        copying = Copying(files, path, url, http.stream_options(files, seconds))
        if started is not None:
            started(copying)
        return copying.result()
    if not 0 <= size <= _LARGEST:
        raise RemoteError(f"{url}: the server states a size of {size} bytes: no object has that")
    return FsspecSource(files, path, int(size), url, etag=info.get("ETag") or "")


def _info(calls: Calls, path: str, url: str, seconds: float) -> Request:
    def submit() -> Future[Any]:
        calls.files.invalidate_cache(path)
        return calls.submit("info", path)

    return Request(calls, submit, url, seconds=seconds)
