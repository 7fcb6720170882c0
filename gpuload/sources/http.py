"""What fsspec's http can be told about a request, and what its answers tell before they are read.

A server that ignores the Range header sends the whole object (RFC 9110, section 14.2), which may be
larger than memory; one whose object is another by now says so in Content-Range and ETag (sections
14.4 and 8.8.3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuload.errors import RemoteError

__all__ = [
    "Expected",
    "changed",
    "ignored",
    "is_http",
    "range_options",
    "resized",
    "stall_options",
    "stream_options",
]

_WHOLE, _PART, _NO_PART = 200, 206, 416
_DOWNLOAD = "download the file and load the copy"


def is_http(files: Any) -> bool:
    """Return whether a file system is fsspec's http."""
    return type(files).__module__ == "fsspec.implementations.http"


def stall_options(files: Any, seconds: float) -> dict[str, Any]:
    """Return the options of a request that ends after so long without a byte.

    There are none where the user gave fsspec a time-out, and for other file systems.
    """
    if not is_http(files) or "timeout" in {*files.kwargs, *files.client_kwargs}:
        return {}
    import aiohttp

    return {"timeout": aiohttp.ClientTimeout(sock_connect=seconds, sock_read=seconds)}


def stream_options(files: Any, seconds: float) -> dict[str, Any]:
    """Return the options of `open` for a stream of a whole object, with the same time-out."""
    if not is_http(files):
        return {}
    # A stream has no use for a size; without one, it would be asked for again, by a method that
    # takes this time-out for one of its own.
    return {"block_size": 0, "size": 1, **stall_options(files, seconds)}


@dataclass(frozen=True)
class Expected:
    """The range that is asked for, of the object that was opened.

    Attributes
    ----------
    url : str
        The object.
    start, end, size : int
        The range, and the bytes that the object had when it was opened.
    etag : str
        The ETag that it had; empty if there was none.
    """

    url: str
    start: int
    end: int
    size: int
    etag: str

    async def check(self, response: Any) -> None:
        """Raise a RemoteError for an answer (of aiohttp) that is not the range of the object."""
        error = self._error(response.status, response.headers)
        if error:
            response.close()  # without reading what it sends
            raise error
        if response.status in (_WHOLE, _PART):
            response.read = partial(self._read, response)

    def _error(self, status: int, headers: Any) -> RemoteError | None:
        if status not in (_WHOLE, _PART, _NO_PART):
            return None
        size, etag = _size(status, headers), headers.get("ETag", "")
        if size not in (None, self.size):
            return changed(self.url, self.start, resized(self.size, size))
        # Weak tags that differ are of other content, too (section 8.8.3.2).
        if self.etag and etag and _opaque(etag) != _opaque(self.etag):
            what = f"its ETag was {self.etag} when it was opened and is {etag} now"
            return changed(self.url, self.start, what)
        if status == _WHOLE and self.end - self.start < self.size:
            return ignored(self.url, self.start, self.end - self.start, self.size)
        return self._other(headers) if status == _PART else None

    def _other(self, headers: Any) -> RemoteError | None:
        """Return the error for a part that is not the range that was asked for."""
        encoding = headers.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity":
            what = f"the part that came is encoded ({encoding}), although that was not asked for"
            return RemoteError(f"{self.url}: byte {self.start}: {what}; {_DOWNLOAD}")
        found, wanted = _range(headers), (self.start, self.end - 1)
        if found != wanted:
            came = "no range that the server names" if found is None else f"{found[0]}-{found[1]}"
            what = f"the bytes {wanted[0]}-{wanted[1]} were asked for, {came} came"
            return RemoteError(f"{self.url}: byte {self.start}: {what}; {_DOWNLOAD}")
        return None

    async def _read(self, response: Any) -> bytes:
        """Return the bytes of an answer, without reading more than a few that are too many."""
        wanted = self.end - self.start
        parts, size = [], 0
        while part := await response.content.readany():
            parts.append(part)
            size += len(part)
            if size > wanted:
                response.close()
                what = f"{wanted} bytes were asked for, more came"
                raise RemoteError(f"{self.url}: byte {self.start}: {what}; {_DOWNLOAD}")
        return b"".join(parts)


def range_options(files: Any, expected: Expected) -> dict[str, Any]:
    """Return the options of a request for a range; empty for file systems other than http."""
    if not is_http(files):
        return {}
    # Compressed on the way, it would be the range of another object.
    headers = {**files.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
    return {"headers": headers, "raise_for_status": expected.check}


def changed(url: str, offset: int, what: str) -> RemoteError:
    """Return the error for an object that is another than the one that was opened."""
    return RemoteError(
        f"{url}: byte {offset}: the object changed while it was read: {what}; load it again"
    )


def resized(before: int, now: int | None) -> str:
    """Return how an object with another size changed."""
    return f"it was {before} bytes long when opened and is {now} bytes long now"


def ignored(url: str, offset: int, wanted: int, got: int) -> RemoteError:
    """Return the error for a server that sends more than a part of a file."""
    return RemoteError(
        f"{url}: byte {offset}: {wanted} bytes were asked for, {got} came: the server does not "
        "send parts of files; download the file and load the copy"
    )


def _size(status: int, headers: Any) -> int | None:
    """Return the bytes of the object by an answer; None if it does not say."""
    stated = headers.get("Content-Length") if status == _WHOLE else _total(headers)
    return int(stated) if stated and stated.isdecimal() else None


def _total(headers: Any) -> str:
    # "bytes 0-99/1234", or "bytes */1234" of a range that is not there.
    total: str = headers.get("Content-Range", "").rpartition("/")[2]
    return total.strip()


def _range(headers: Any) -> tuple[int, int] | None:
    """Return the first byte and the last one of a part; None if the answer does not say."""
    found = re.match(r"bytes (\d{1,19})-(\d{1,19})/", headers.get("Content-Range", "").strip())
    return (int(found[1]), int(found[2])) if found else None


def _opaque(etag: str) -> str:
    """Return what the weak comparison of ETags compares (RFC 9110, section 8.8.3.2)."""
    return etag.removeprefix("W/")
