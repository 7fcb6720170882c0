"""Where decoded bytes go: memory, a descriptor, or nowhere.

A sink is written at offsets of the decoded bytes. One that is `ordered` takes its writes one after
the other from offset 0 on; any other takes them from several threads at once.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuload.codecs.base import Bytes

__all__ = ["CountingSink", "DescriptorSink", "MemorySink", "NullSink", "Sink"]


class Sink(Protocol):
    """Takes decoded bytes."""

    ordered: bool

    def slot(self, offset: int, size: int) -> Bytes | None:
        """Return the memory of these bytes to decode into, or None if there is none."""

    def write(self, offset: int, data: Bytes) -> None:
        """Take the bytes at `offset`; `data` may be reused afterwards."""


class MemorySink:
    """An array in host memory.

    Parameters
    ----------
    array : ndarray of uint8
        One-dimensional and contiguous.
    """

    ordered = False

    def __init__(self, array: Bytes) -> None:
        self._array = array

    def slot(self, offset: int, size: int) -> Bytes | None:
        """See `Sink.slot`."""
        return self._array[offset : offset + size]

    def write(self, offset: int, data: Bytes) -> None:
        """See `Sink.write`; a ValueError if the array ends before the data does."""
        if offset + data.size > self._array.size:
            raise ValueError(f"out holds {self._array.size} bytes, the file decodes to more")
        self._array[offset : offset + data.size] = data


class DescriptorSink:
    """An open file descriptor.

    Parameters
    ----------
    fd : int
        Open for writing.
    positional : bool
        Whether it is a regular file that starts out empty and may be written at any offset.
    """

    def __init__(self, fd: int, *, positional: bool) -> None:
        self._fd = fd
        self.ordered = not positional

    def slot(self, offset: int, size: int) -> Bytes | None:
        """See `Sink.slot`."""
        return None

    def write(self, offset: int, data: Bytes) -> None:
        """See `Sink.write`."""
        view = memoryview(data)
        while view:
            written = self._write(view, offset)
            view = view[written:]
            offset += written

    def _write(self, view: memoryview, offset: int) -> int:
        if not self.ordered:
            return os.pwrite(self._fd, view, offset)
        try:
            return os.write(self._fd, view)
        except BlockingIOError:
            # Whoever made the pipe non-blocking still wants all of its bytes.
            ready = select.poll()
            ready.register(self._fd, select.POLLOUT)
            ready.poll()
            return 0


class NullSink:
    """Counts only: what is decoded is thrown away."""

    ordered = False

    def slot(self, offset: int, size: int) -> Bytes | None:
        """See `Sink.slot`."""
        return None

    def write(self, offset: int, data: Bytes) -> None:
        """See `Sink.write`."""


class CountingSink:
    """A sink that knows whether anything was written to it.

    Parameters
    ----------
    sink : Sink
        Where the bytes go.

    Attributes
    ----------
    written : bool
        Whether any went there, or may have gone there in part.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.ordered = sink.ordered
        self.written = False

    def slot(self, offset: int, size: int) -> Bytes | None:
        """See `Sink.slot`."""
        return self._sink.slot(offset, size)

    def write(self, offset: int, data: Bytes) -> None:
        """See `Sink.write`."""
        self.written = True
        self._sink.write(offset, data)
