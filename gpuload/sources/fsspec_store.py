"""Folders of remote and virtual file systems as stores, by fsspec.

Requests run side by side, and are tried again as `gpuload.sources.remote` says.
"""

from __future__ import annotations

import errno
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.errors import FormatError, MissingDependencyError, RemoteError
from gpuload.sources import http
from gpuload.sources.attempts import Request, stall_timeout
from gpuload.sources.calls import calls_of
from gpuload.sources.faults import ShortAnswerError
from gpuload.sources.listing import ListedStore
from gpuload.sources.remote import IN_FLIGHT, LARGEST_PART, LOWEST_SPEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

__all__ = ["FsspecStore"]

#: Sizes that are asked for at a time.
_ASKED = 64
#: Sizes that are kept: whoever reads an object has asked for its size before.
_KEPT = 1 << 17
_GONE = (errno.ENOENT, errno.ENOTDIR)


class FsspecStore(ListedStore):
    """A folder of a file system of fsspec.

    Parameters
    ----------
    url : str
        The folder.

    Raises
    ------
    MissingDependencyError
        Without fsspec.
    OSError, ImportError, ValueError
        As `gpuload.sources.open_source` does for URLs.
    """

    remote = True

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._files, path = _opened(url)
        self._root = path.rstrip("/")
        self._calls = calls_of(self._files)
        self._seconds = stall_timeout()
        self._lock = threading.Lock()
        self._known: dict[str, int] = {}
        self._requests: weakref.WeakSet[Request] = weakref.WeakSet()

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """See `Store.sizes`.

        Raises
        ------
        RemoteError
            If no attempt succeeded, or the server does not state the size of an object.
        """
        asked = (partial(self._info, key) for key in keys)
        found = np.array([self._size(*pair) for pair in self._each(keys, asked)], np.int64)
        with self._lock:
            if len(self._known) > _KEPT:
                self._known.clear()
            self._known.update(zip(keys, found.tolist(), strict=True))
        return found

    def _each(
        self, keys: Sequence[str], starts: Iterator[Callable[[], Request]], most: int = _ASKED
    ) -> Iterator[tuple[str, Request]]:
        """Start requests, some at a time, and yield each when it is to be waited for."""
        running: deque[tuple[str, Request]] = deque()
        try:
            for key, start in zip(keys, starts, strict=True):
                running.append((key, start()))
                if len(running) >= most:
                    yield running.popleft()
            while running:
                yield running.popleft()
        finally:
            for _, request in running:
                request.cancel()

    def _size(self, key: str, request: Request) -> int:
        try:
            info = request.result()
        except RemoteError:
            raise
        except OSError as error:
            if _is_gone(error):
                return -1
            raise
        if info.get("type") == "directory":
            return -1
        size = info.get("size")
        if size is None:
            raise RemoteError(f"{self.location(key)}: the server does not say how large it is")
        return int(size)

    def readinto(self, key: str, offset: int, view: memoryview) -> None:
        """See `Store.readinto`.

        Raises
        ------
        RemoteError
            If other bytes came than were asked for, or no attempt succeeded.
        """
        size = self._known_size(key)
        if size < 0:
            raise self._broken(key, offset, "the object is not there (any more)")
        if offset + len(view) > size:
            message = f"the object ends here, bytes up to {offset + len(view)} were expected"
            raise self._broken(key, size, message)
        starts = range(0, len(view), LARGEST_PART)
        parts = [view[start : start + LARGEST_PART] for start in starts]
        asked = (
            partial(self._range, key, size, offset + start, offset + start + len(part))
            for start, part in zip(starts, parts, strict=True)
        )
        requests = self._each([key] * len(parts), asked, IN_FLIGHT)
        for part, (_, request) in zip(parts, requests, strict=True):
            part[:] = self._bytes(key, offset, request)

    def _known_size(self, key: str) -> int:
        with self._lock:
            size = self._known.get(key)
        return int(self.sizes([key])[0]) if size is None else size

    def _bytes(self, key: str, offset: int, request: Request) -> Any:
        try:
            return request.result()
        except RemoteError:
            raise
        except OSError as error:
            if _is_gone(error):
                raise self._broken(key, offset, "the object is not there any more") from None
            raise

    def _broken(self, key: str, offset: int, message: str) -> FormatError:
        return FormatError(message, source=self.location(key), offset=offset)

    def folders(self, prefix: str) -> list[str]:
        """See `ListedStore.folders`; a folder that is not there has none.

        Raises
        ------
        FormatError
            If all of the store cannot be listed, as most servers of http have it.
        """
        path = self._path(prefix) if prefix else self._root
        submit = partial(self._calls.submit, "ls", path, detail=True)
        try:
            entries = self._request(prefix, submit, self._seconds).result()
        except RemoteError:
            raise
        except OSError as error:
            if not _is_gone(error):
                raise
            if not prefix:
                message = "it cannot be listed; arrays in it can be opened by their own URLs"
                raise FormatError(message, source=self.name) from None
            return []
        names = {_child(entry["name"], path) for entry in entries if _is_folder(entry)}
        return sorted(names - {""})

    def cancel(self) -> None:
        """Let the reads that are under way give up, with a RemoteError."""
        with self._lock:
            requests = list(self._requests)
        for request in requests:
            request.cancel()

    def close(self) -> None:
        """See `Store.close`."""
        self.cancel()

    def _path(self, key: str) -> str:
        return f"{self._root}/{self.checked(key)}"

    def _info(self, key: str) -> Request:
        submit = partial(self._calls.submit, "info", self._path(key))
        return self._request(key, submit, self._seconds)

    def _range(self, key: str, size: int, start: int, end: int) -> Request:
        expected = http.Expected(self.location(key), start, end, size, "")
        options = http.range_options(self._files, expected)
        stall = http.stall_options(self._files, self._seconds)
        submit = partial(
            self._calls.submit,
            "cat_file",
            self._path(key),
            start=start,
            end=end,
            **options,
            **stall,
        )
        seconds = self._seconds + (end - start) / LOWEST_SPEED
        check = partial(self._check, key, start, end - start)
        return self._request(key, submit, seconds, f"byte {start}: ", check)

    def _request(
        self,
        key: str,
        submit: Callable[[], Future[Any]],
        seconds: float,
        where: str = "",
        check: Callable[[Any], None] | None = None,
    ) -> Request:
        request = Request(
            self._calls, submit, self.location(key), where, seconds=seconds, check=check
        )
        with self._lock:
            self._requests.add(request)
        return request

    def _check(self, key: str, start: int, wanted: int, data: bytes) -> None:
        if len(data) > wanted:
            raise http.ignored(self.location(key), start, wanted, len(data))
        if len(data) < wanted:
            raise ShortAnswerError(f"only {len(data)} of {wanted} bytes came")


def _opened(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise MissingDependencyError("fsspec", "remote", f"{url}: reading it") from None
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (AttributeError, TypeError) as error:
        # What some of its file systems say to URLs that they cannot read.
        raise OSError(f"fsspec cannot open {url}: {error}") from error
    return files, str(path)


def _is_gone(error: OSError) -> bool:
    """Return whether there is no such object."""
    # In memory, what is below "no such file" is a key of a dict.
    cause = error.__cause__
    in_memory = isinstance(cause, FileNotFoundError) and isinstance(cause.__cause__, KeyError)
    return error.errno in _GONE or in_memory


def _is_folder(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("type") == "directory"


def _child(name: str, folder: str) -> str:
    """Return the last part of a name in a folder; empty for what is elsewhere."""
    head, _, last = name.rstrip("/").rpartition("/")
    return last if head.strip("/") == folder.strip("/") else ""
