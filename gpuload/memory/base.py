"""What our memory resources share: buffers are tracked, failures kept, `close` raises them."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

from cuda.core import Buffer, MemoryResource  # noqa: TID253 (a base class; see __init__.py)

from gpuload import driver
from gpuload.errors import DriverError, GpuloadError

if TYPE_CHECKING:
    from cuda.core import Stream

__all__ = ["OwnMemory"]

#: Failures of `deallocate` that are kept as notes of the first one.
_NOTES = 8


class OwnMemory(MemoryResource):  # type: ignore[misc] # cuda.core has no types for mypy
    """A memory resource of cuda.core that can be closed.

    A subclass says how memory is taken and given back. cuda.core drops the exceptions of
    `deallocate`, which may run at any time and on any thread; they are kept, and raised by `close`.

    Parameters
    ----------
    device_id : int
        The device that the memory is for.

    Raises
    ------
    DriverError
        If there is no such device.
    """

    def __init__(self, device_id: int) -> None:
        driver.device(device_id)
        self._device_id = device_id
        self._closed = False
        self._failure: GpuloadError | None = None
        # Each use of these is one atomic operation: garbage collection may call `deallocate` in
        # the middle of any code here, so that a lock might be held by its own thread.
        self._taken: dict[int, Any] = {}
        self._buffers: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()

    @property
    def device_id(self) -> int:
        """The device that the memory is for."""
        return self._device_id

    @property
    def is_device_accessible(self) -> bool:
        """True: the device may read and write it."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """Whether the CPU may read and write it."""
        return False

    @property
    def is_managed(self) -> bool:
        """False: the memory stays where it is."""
        return False

    def allocate(self, size: int, *, stream: Stream) -> Buffer:
        """Return a buffer.

        Parameters
        ----------
        size : int
            In bytes. A buffer of 0 bytes takes no memory and has no address.
        stream : Stream
            The stream after whose work the memory is freed.

        Raises
        ------
        MemoryLimitError
            If there is not as much memory.
        DriverError
            If the driver refuses, or this resource is closed.
        ValueError
            If `size` is negative.
        """
        if size < 0:
            raise ValueError(f"the size of a buffer must not be negative, but is {size}")
        if self._closed:
            raise DriverError(f"{type(self).__name__} is closed and gives no more buffers")
        with driver.on_device(self._device_id):
            buffer = self._buffer(size, stream)
        if size:
            self._buffers[buffer.handle] = buffer
        return buffer

    def _buffer(self, size: int, stream: Stream) -> Buffer:
        address = 0
        if size:
            address, kept = self._take(size, stream)
            self._taken[address] = kept
        try:
            with driver.calling("cuCtxGetCurrent", "a buffer"):
                buffer = Buffer.from_handle(address, size, mr=self, stream=stream)
            return driver.shield(buffer)
        except BaseException:
            # Not on `stream`, which is likely to be what was wrong; nothing uses the memory yet.
            self.deallocate(address, size, stream=None)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Stream | None) -> None:
        """Free a buffer's memory after the work of a stream; cuda.core calls this.

        Does nothing in a forked process, whose parent owns the memory.
        """
        kept = self._taken.pop(int(ptr), None)
        if kept is None or driver.forked():
            return
        try:
            with driver.on_device(self._device_id):
                self._give_back(int(ptr), kept, stream)
        except GpuloadError as error:
            self._keep(error)

    def _keep(self, error: GpuloadError) -> None:
        if self._failure is None:
            self._failure = error
        elif len(getattr(self._failure, "__notes__", ())) < _NOTES:
            self._failure.add_note(str(error))

    def close(self) -> None:
        """Free all memory; buffers that are still open are closed first.

        Raises
        ------
        DriverError
            What went wrong in freeing, now or earlier; everything else was freed nevertheless.
        """
        if self._closed or driver.forked():
            return
        self._closed = True
        try:
            self._finish()
        except GpuloadError as error:
            self._keep(error)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def _take(self, size: int, stream: Stream) -> tuple[int, Any]:
        """Return the address of new memory, and what `_give_back` must know about it."""

    @abstractmethod
    def _give_back(self, address: int, kept: Any, stream: Stream | None) -> None:
        """Free memory after the work of a stream."""

    def _finish(self) -> None:
        """Free what is left when the resource is closed."""
        for buffer in list(self._buffers.values()):
            buffer.close()
