"""A fixed number of host memory slots that are filled, copied from, and filled again."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from cuda.core import EventOptions  # noqa: TID253 (see __init__.py)

from gpuload import driver
from gpuload.errors import DriverError, GpuloadError
from gpuload.memory.mapped import host_view
from gpuload.memory.undo import Undo, run_all

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from cuda.core import Event, MemoryResource, Stream

__all__ = ["Slot", "StagingRing"]

#: Slots start on pages, so that a direct read may fill them.
_ALIGNMENT = 4096
_LAST_USE = "the last use of a staging slot"


class Slot:
    """A piece of a staging ring, held by who acquired it until it is released.

    Attributes
    ----------
    address : int
        Of its first byte, the same on the device and the host.
    view : ndarray of uint8
        Its bytes; not to be touched after the slot's release.
    """

    def __init__(
        self, ring: StagingRing, address: int, view: npt.NDArray[np.uint8], event: Event
    ) -> None:
        self.address = address
        self.view = view
        self._ring = ring
        self._event = event
        self._in_use = False
        self._held = False

    def release(self, stream: Stream | None = None) -> None:
        """Give the slot back to its ring.

        Parameters
        ----------
        stream : Stream, optional
            The one with the work that still uses the slot; the ring waits for what has been
            submitted to it so far. None if nothing was.

        Raises
        ------
        DriverError
            If the driver can't tell when that work is done, or had failed before.
        ValueError
            If the slot was released before.
        """
        if not self._held:
            raise ValueError("the slot is not held: it was released before")
        self._held = False
        try:
            if stream is not None:
                with driver.on_device(self._ring.device_id):
                    self._record(stream)
        finally:
            self._ring._take_back(self)

    def wait(self) -> None:
        """Wait for the last use of the slot, by who still holds it; see `use`."""
        if self._in_use:
            self._event.sync()
            self._in_use = False

    def use(self, stream: Stream) -> None:
        """Let `wait` and the ring wait for what a stream does with the slot so far.

        This is `release` for who goes on to hold the slot. Both are called within
        `gpuload.driver.calling`, with the device current.
        """
        stream.record(self._event)
        self._in_use = True

    def _record(self, stream: Stream) -> None:
        try:
            with driver.calling("cuEventRecord", _LAST_USE):
                stream.record(self._event)
            self._in_use = True
            self._ring._free_after(self._event)
        except GpuloadError:
            # Nobody could wait for it later, so it is now.
            with driver.calling("cuStreamSynchronize", _LAST_USE):
                stream.sync()
            raise

    def _wait(self) -> None:
        if self._in_use:
            with driver.calling("cuEventSynchronize", _LAST_USE):
                self._event.sync()
            self._in_use = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._held:
            self.release()


class StagingRing:
    """Slots of host memory, allocated once and used again and again, by any thread.

    Pinning memory is slower than filling it, so that is done once. `acquire` waits until the work
    that used a slot last is done; no memory is allocated after construction.

    Parameters
    ----------
    memory : MemoryResource
        Memory that both the CPU and the device may use, such as `HostNumaMemory`.
    slots : int
        How many.
    slot_size : int
        Bytes of each.
    device_id : int, optional
        The device that uses them, if `memory` does not say so.

    Raises
    ------
    MemoryLimitError, DriverError
        If there is not as much memory.
    """

    def __init__(
        self, memory: MemoryResource, slots: int, slot_size: int, *, device_id: int | None = None
    ) -> None:
        if slots < 1 or slot_size < 1:
            raise ValueError(f"a ring of {slots} slots of {slot_size} bytes holds nothing")
        self.slots = slots
        self.slot_size = slot_size
        self.device_id: int = memory.device_id if device_id is None else device_id
        self._closed = False
        self._changed = threading.Condition()
        self._free: deque[Slot] = deque()
        with driver.on_device(self.device_id), Undo() as undo:
            self._allocate(memory, undo)

    def _allocate(self, memory: MemoryResource, undo: Undo) -> None:
        device = driver.device(self.device_id)
        with driver.calling("cuStreamCreateWithPriority", "a staging ring"):
            # The buffer is freed after the work of this stream, which waits for the slots' uses.
            self._stream = driver.shield(device.create_stream())
        undo.add(self._stream.close)
        pitch = -(-self.slot_size // _ALIGNMENT) * _ALIGNMENT
        self._buffer = memory.allocate(self.slots * pitch, stream=self._stream)
        undo.add(self._buffer.close)
        view = host_view(self._buffer)
        for start in range(0, self.slots * pitch, pitch):
            with driver.calling("cuEventCreate", "a staging slot"):
                event = driver.shield(device.create_event(EventOptions(blocking_sync=True)))
            part = view[start : start + self.slot_size]
            self._free.append(Slot(self, self._buffer.handle + start, part, event))

    def acquire(self) -> Slot:
        """Return the slot that was released the longest ago, once its last use is over.

        Waits for another thread to release one if none is left.

        Raises
        ------
        DriverError
            If the ring is closed, also while this waits; or if the work that used the slot failed.
        """
        driver.claim()
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._closed)
            if self._closed:
                raise DriverError("the staging ring is closed and gives no more slots")
            slot = self._free.popleft()
        slot._held = True
        with driver.on_device(self.device_id), Undo() as undo:
            undo.add(slot.release)
            slot._wait()
        return slot

    def _free_after(self, event: Event) -> None:
        """Let the memory be freed after an event, even if nobody closes the ring."""
        with driver.calling("cuStreamWaitEvent", _LAST_USE):
            self._stream.wait(event)

    def _take_back(self, slot: Slot) -> None:
        with self._changed:
            self._free.append(slot)
            self._changed.notify()
            last = self._closed and len(self._free) == self.slots
        if last:
            self._finish()

    def close(self) -> None:
        """Free the memory once the last use of every slot is over.

        Slots that are still held are left to their holders: the last one to release its slot
        frees the memory.

        Raises
        ------
        DriverError
            If work that used a slot failed.
        """
        if driver.forked():
            return
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            idle = len(self._free) == self.slots
        if idle:
            self._finish()

    def _finish(self) -> None:
        waits = [slot._wait for slot in self._free]
        events = [slot._event.close for slot in self._free]
        with driver.on_device(self.device_id):
            run_all([*waits, self._buffer.close, self._stream.close, *events])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
