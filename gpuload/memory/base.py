"""What our memory resources share: buffers are tracked, failures kept, `close` raises them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

from cuda.core import Buffer, MemoryResource  # noqa: TID253 (a base class; see __init__.py)

from gpuload import driver
from gpuload.errors import GpuloadError

if TYPE_CHECKING:
    from cuda.core import Stream

__all__ = ["OwnMemory"]


class OwnMemory(MemoryResource):  # type: ignore[misc] (cuda.core has no types for mypy)
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
        # Only single operations on these, which are atomic: garbage collection may call
        # `deallocate` in the middle of any code here, so a lock could be held already.
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
        """False: the memory does not move."""
        return False

    def allocate(self, size: int, *, stream: Stream) -> Buffer:
        """Return a buffer.

        Parameters
        ----------
        size : int
            In bytes. A buffer of 0 bytes takes no memory and has no address.
        stream : Stream
            The stream whose work the memory is freed after.

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
            raise driver.closed(f"this {type(self).__name__}")
        with driver.on_device(self._device_id):
            address = self._allocate(size, stream) if size else 0
            with driver.calling("cuStreamGetCtx", f"a buffer of {size} bytes"):
                # If this fails it has called `deallocate`.
                buffer = Buffer.from_handle(address, size, mr=self, stream=stream)
        if size:
            self._buffers[address] = buffer
        return buffer

    def _allocate(self, size: int, stream: Stream) -> int:
        address, kept = self._take(size, stream)
        self._taken[address] = kept
        return address

    def deallocate(self, ptr: Any, size: int, *, stream: Stream) -> None:
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
        self._finish()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _take(self, size: int, stream: Stream) -> tuple[int, Any]:
        """Return the address of new memory, and what `_give_back` must know of it."""
        raise NotImplementedError

    def _give_back(self, address: int, kept: Any, stream: Stream) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        for buffer in list(self._buffers.values()):
            buffer.close()

    def _keep(self, error: GpuloadError) -> None:
        if self._failure is None:
            self._failure = error
        else:
            self._failure.add_note(str(error))
