"""Byte ranges of local files, of bytes in memory and of fsspec objects.

Every read is positional and safe from several threads at once. Local files are read with ``pread``,
never mapped: a file that shrinks while it is read must give an error, and a page of a mapping that
lost its file kills the process instead.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import tempfile
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from gpuload.errors import FormatError, GpuloadError, MissingDependencyError, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = [
    "BytesSource",
    "FsspecSource",
    "LocalFile",
    "Source",
    "open_source",
    "spool",
]

#: Bytes of a pipe that are kept in memory before its copy goes to a temporary file.
_SPOOL_IN_MEMORY = 32 << 20
_SPOOL_STEP = 1 << 20
_POLL_MILLISECONDS = 200


class Source(ABC):
    """Random access to the bytes of one file.

    Attributes
    ----------
    name : str
        What error messages call it.
    size : int
        Bytes in it, as it was opened.
    """

    name: str
    size: int

    @abstractmethod
    def readinto(self, offset: int, view: memoryview) -> int:
        """Read into a writable byte view from `offset` on; return how many bytes were there."""

    def peek(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`, fewer only where the source ends."""
        buffer = bytearray(max(0, min(size, self.size - offset)))
        return bytes(buffer[: self.readinto(offset, memoryview(buffer))])

    def peek_exact(self, offset: int, size: int) -> bytes:
        """Return the `size` bytes at `offset`; a FormatError if the source ends before."""
        data = self.peek(offset, size)
        if len(data) != size:
            raise self.cut_short(offset, data, size)
        return data

    def read_exact(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes at `offset`.

        Raises
        ------
        FormatError
            If the source ends before the view is full.
        """
        got = self.readinto(offset, view)
        if got != len(view):
            raise self.truncated(offset + got, len(view) - got)

    def truncated(self, offset: int, missing: int) -> FormatError:
        """Return the error for a source that ends at `offset` with `missing` bytes still wanted."""
        shrunk = f" (it was {self.size} bytes long when opened)" if offset < self.size else ""
        return self.broken(offset, f"the file ends here, {missing} bytes too early{shrunk}")

    def cut_short(self, offset: int, got: bytes, wanted: int) -> FormatError:
        """Return the error for an `offset` (maybe past the end) that gave only `got`."""
        end = min(offset + len(got), self.size)
        return self.truncated(end, offset + wanted - end)

    def broken(self, offset: int, message: str) -> FormatError:
        """Return the error for framing that is broken at `offset`."""
        return FormatError(message, source=self.name, offset=offset)

    def close(self) -> None:  # noqa: B027 (bytes in memory have nothing to release)
        """Release the file; reading afterwards is an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LocalFile(Source):
    """A regular file, read with ``preadv``.

    Parameters
    ----------
    path : str or os.PathLike
        An OSError of opening it is passed on.
    name : str, optional
        What to call it in messages; default its path.
    """

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        self.name = name or os.fspath(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = self._regular_size()
        except OSError:
            self.close()
            raise

    def _regular_size(self) -> int:
        status = os.fstat(self._fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, "is a directory, not a file", self.name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(29, "is no regular file; read it through spool()", self.name)
        return status.st_size

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`."""
        done = 0
        while done < len(view):
            got = os.preadv(self._fd, [view[done:]], offset + done)
            if got == 0:
                break
            done += got
        return done

    def peek(self, offset: int, size: int) -> bytes:
        """See `Source.peek`."""
        # One call covers nearly every header; only a short answer takes the general way.
        data = os.pread(self._fd, max(0, min(size, self.size - offset)), offset)
        return data if len(data) == size or not data else super().peek(offset, size)

    def close(self) -> None:
        """See `Source.close`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class BytesSource(Source):
    """The content of a bytes-like object.

    Parameters
    ----------
    data : bytes-like
        Any object with a contiguous buffer; it is not copied and must not change while it is
        loaded.
    name : str
        What to call it in messages.
    """

    def __init__(self, data: Buffer, name: str = "<bytes>") -> None:
        view = memoryview(data)
        if not view.c_contiguous:
            raise TypeError(
                "source must be a path, a URL or bytes-like, not an array that is not contiguous; "
                "copy it first"
            )
        self._view = view.cast("B") if view.nbytes else memoryview(b"")
        self.name = name
        self.size = len(self._view)

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`."""
        part = self._view[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """See `Source.close`; the object may be resized again."""
        self._view.release()


class SpooledFile(Source):
    """A temporary copy of a pipe, in memory while it is small."""

    def __init__(self, file: tempfile.SpooledTemporaryFile[bytes], name: str) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.name = name
        self.size = file.seek(0, os.SEEK_END)

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`."""
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(view)

    def close(self) -> None:
        """See `Source.close`."""
        self._file.close()


class FsspecSource(Source):
    """An object of a remote or virtual file system of fsspec.

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
    """

    def __init__(self, files: Any, path: str, size: int, name: str) -> None:
        self._files = files
        self._path = path
        self.size = size
        self.name = name

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`.

        Raises
        ------
        FormatError
            If less came than there was when the source was opened.
        RemoteError
            If more came than was asked for, as from an HTTP server that ignores the Range header,
            which it may (RFC 9110, section 14.2).
        OSError
            For everything that the file system raises.
        """
        end = min(offset + len(view), self.size)
        if end <= offset:
            return 0
        with _fsspec_errors(self.name):
            data = self._files.cat_file(self._path, start=offset, end=end)
        wanted, got = end - offset, len(data)
        if got > wanted:
            raise RemoteError(
                f"{self.name}: byte {offset}: {wanted} bytes were asked for, {got} came: the "
                "server does not send parts of files; download the file and load the copy"
            )
        if got < wanted:
            raise self.truncated(offset + got, wanted - got)
        view[:got] = data
        return got


@contextlib.contextmanager
def _fsspec_errors(url: str) -> Iterator[None]:
    """Turn whatever a file system of fsspec raises into an OSError with a reason and the URL."""
    try:
        yield
    except (GpuloadError, ImportError, MemoryError):
        raise
    except Exception as error:  # each file system has its own errors, without a common base
        raise OSError(*_cause(error), url) from error


def _cause(error: BaseException) -> tuple[int, str]:
    """Return the error number and the reason of what a file system of fsspec raised."""
    # Of whatever keeps it from a URL, its http makes a FileNotFoundError of that URL.
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    status = getattr(error, "status", None)  # of aiohttp's ClientResponseError
    if isinstance(status, int):
        number = errno.ENOENT if status == 404 else errno.EIO
        return number, f"the server answers {status} {getattr(error, 'message', '')}".rstrip()
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT, os.strerror(errno.ENOENT)
    number = _system_number(error)
    if number:
        return number, os.strerror(number)
    return errno.EIO, str(error) or type(error).__name__


def _system_number(error: BaseException) -> int:
    """Return the error number that the system gave; 0 if it gave none."""
    import ssl

    # OpenSSL and getaddrinfo have numbers of their own.
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError):
        return 0
    return (error.errno in errno.errorcode and error.errno) or 0


def spool(stream: BinaryIO, name: str) -> Source:
    """Copy a stream that cannot seek (a pipe) and return the copy as a source.

    Up to 32 MiB stay in memory; more goes to an unnamed file in the temporary directory.
    """
    # The file lives as long as the source does, which closes it.
    file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_IN_MEMORY)  # noqa: SIM115
    while True:
        if isinstance(stream, io.FileIO):
            _wait_for_data(stream.fileno())
        data: bytes | None = stream.read(_SPOOL_STEP)
        if data:
            file.write(data)
        elif data is not None:  # None is what a non-blocking pipe gives for "not yet"
            return SpooledFile(file, name)


def _wait_for_data(fd: int) -> None:
    """Wait until a read does not block, and let Python see signals meanwhile.

    A signal that comes right before a read blocks is not seen until the read is over.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not poll.poll(_POLL_MILLISECONDS):
        pass


def open_source(source: str | os.PathLike[str] | Buffer) -> Source:
    """Open a path, an fsspec URL or a bytes-like object.

    Parameters
    ----------
    source : str, os.PathLike or bytes-like
        A str with ``://`` in it is a URL, any other str a path; bytes-like objects are the content
        itself.

    Returns
    -------
    Source
        Pipes and other files that cannot seek are copied first (see `spool`).

    Raises
    ------
    OSError
        As the file system says; for a URL with the reason that lies at the bottom of it.
    MissingDependencyError
        For a URL without fsspec.
    ImportError
        For a URL that fsspec needs another package for; the message names it.
    ValueError
        For a URL of a protocol that fsspec does not know.
    TypeError
        For anything else.
    """
    if isinstance(source, str) and "://" in source:
        return _open_url(source)
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source))
    if not _has_buffer(source):
        raise TypeError(f"source must be a path, a URL or bytes-like, not {type(source).__name__}")
    return BytesSource(source)


def _has_buffer(source: object) -> bool:
    try:
        memoryview(source)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _open_url(url: str) -> Source:
    try:
        import fsspec
    except ImportError:
        raise MissingDependencyError("fsspec", "remote", f"{url}: reading it") from None
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (AttributeError, TypeError) as error:
        # What some of its file systems say to URLs that they cannot read.
        raise OSError(f"fsspec cannot open {url}: {error}") from error
    with _fsspec_errors(url):
        size = files.size(path)
        if size is not None:
            return FsspecSource(files, path, int(size), url)
        # A server that does not say how long a file is will hardly send a part of it.
        with files.open(path, "rb") as stream:
            return spool(stream, url)


def _open_path(path: str) -> Source:
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return LocalFile(path)
    with open(path, "rb", buffering=0) as stream:
        return spool(stream, path)
