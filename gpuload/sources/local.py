"""Files of the local system, and copies of its pipes.

The CPU reads local files with ``pread`` and never by a mapping: a file that shrinks while it is
read must give an error, and touching a page that lost its file kills the process instead. (What
`gpuload.staging` maps is pinned, and read by a device alone.)
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
from typing import TYPE_CHECKING, BinaryIO

from gpuload.sources.base import Source
from gpuload.sources.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LocalFile", "SpoolError", "SpooledFile", "open_path", "spool"]

#: Bytes of a pipe that are kept in memory before its copy goes to a temporary file.
_SPOOL_IN_MEMORY = 32 << 20
_SPOOL_STEP = 1 << 20
_POLL_MILLISECONDS = 200
#: Opening a FIFO would wait for who writes to it, and nothing could end that.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)


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
        #: Reads that are under way: the system gives the number of a closed file to the next one.
        self._reads, self._closed, self._lock = 0, False, threading.Lock()
        self._fd = os.open(path, _FLAGS)
        try:
            self.size = self._regular_size()
        except OSError:
            self.close()
            raise
        self.descriptor = self._fd

    def _regular_size(self) -> int:
        status = os.fstat(self._fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, "is a directory, not a file", self.name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(29, "is no regular file; read it through spool()", self.name)
        return status.st_size

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`.

        Raises
        ------
        OSError
            Of the system; with the file's name, and the offset in its text. Also if it is closed.
        """
        done = 0
        self._begin()
        try:
            while done < len(view):
                got = os.preadv(self._fd, [view[done:]], offset + done)
                if got == 0:
                    break
                done += got
        except OSError as error:
            raise self._failed(error, offset + done) from error
        finally:
            self._end()
        return done

    def peek(self, offset: int, size: int) -> bytes:
        """See `Source.peek`."""
        wanted = max(0, min(size, self.size - offset))
        self._begin()
        try:
            data = os.pread(self._fd, wanted, offset)
        except OSError as error:
            raise self._failed(error, offset) from error
        finally:
            self._end()
        # One call is enough for nearly every header.
        return data if len(data) == wanted else super().peek(offset, size)

    def _failed(self, error: OSError, offset: int) -> OSError:
        return OSError(error.errno, f"byte {offset}: {error.strerror}", self.name)

    def _begin(self) -> None:
        with self._lock:
            if self._closed:
                text = f"{os.strerror(errno.EBADF)}: it is closed; open it again"
                raise OSError(errno.EBADF, text, self.name)
            self._reads += 1

    def _end(self) -> None:
        with self._lock:
            self._reads -= 1
            self._release()

    def _release(self) -> None:
        if self._closed and not self._reads and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """See `Source.close`; reads that are under way come to their end first."""
        with self._lock:
            self._closed = True
            self.descriptor = None
            self._release()


class SpoolError(OSError):
    """The copy of a stream cannot be written."""


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


def spool(stream: BinaryIO, name: str, stop: Stop | None = None) -> Source:
    """Copy a stream that cannot seek (a pipe) and return the copy as a source.

    Up to 32 MiB stay in memory; more goes to an unnamed file in the temporary directory. The room
    there is the only bound: a stream does not say how long it is.

    Raises
    ------
    SpoolError
        If the copy cannot be written, as where the temporary directory is full.
    OSError
        Of the stream; ECANCELED once `stop` is cancelled.
    """
    # The file lives as long as the source does, which closes it.
    file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_IN_MEMORY)  # noqa: SIM115
    try:
        _copy(stream, file, name, stop or Stop())
        return SpooledFile(file, name)
    except BaseException:
        with contextlib.suppress(OSError):  # of what could not be written before
            file.close()
        raise


def _copy(
    stream: BinaryIO, file: tempfile.SpooledTemporaryFile[bytes], name: str, stop: Stop
) -> None:
    size = 0
    while True:
        stop.check(name)
        if isinstance(stream, io.FileIO):
            _wait_for_data(stream.fileno(), lambda: stop.check(name))
        data: bytes | None = stream.read(_SPOOL_STEP)
        if data:
            _write(file, data, name, size)
            size += len(data)
        elif data is not None:  # None is what a non-blocking pipe gives for "not yet"
            return


def _write(file: tempfile.SpooledTemporaryFile[bytes], data: bytes, name: str, offset: int) -> None:
    try:
        file.write(data)
        file.flush()
    except OSError as error:
        what = (
            f"byte {offset}: its copy in {tempfile.gettempdir()} cannot be written: "
            f"{error.strerror or error}; set TMPDIR to one with more room"
        )
        raise SpoolError(error.errno, what, name) from error


def _wait_for_data(fd: int, check: Callable[[], None]) -> None:
    """Wait until a read does not block, or a check that is made now and then raises.

    Python sees signals meanwhile: one that comes right before a read blocks is not seen until the
    read is over.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not poll.poll(_POLL_MILLISECONDS):
        check()


def open_path(path: str, started: Callable[[Stop], object] | None = None) -> Source:
    """Open a file; pipes and other files that cannot seek are copied.

    Parameters
    ----------
    path : str
        The file.
    started : callable, optional
        Is given what cancels the copy.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return LocalFile(path)
    stop = Stop()
    if started is not None:
        started(stop)
    fd = os.open(path, _FLAGS)
    with open(fd, "rb", buffering=0) as stream:
        return spool(stream, path, stop)
