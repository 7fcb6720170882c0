"""Pinned memory for the batches of the SM engine, each piece with the event of its last use."""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.batch import PARAMS_DTYPE
from gpuload.memory import host_view, run_all
from gpuload.memory.undo import Undo

if TYPE_CHECKING:
    import numpy.typing as npt
    from cuda.core import Buffer, Event

__all__ = ["NOT_WRITTEN", "Slot", "Slots"]

#: What stands in a status until a kernel writes it.
NOT_WRITTEN = 0xFFFFFFFF
#: The smallest slot, in operations.
_SMALLEST = 64
_ONE = struct.Struct("<QQqqqi20x")
_STATUS = 4


class Slot:
    """Memory for the parameters and the statuses of one batch.

    Parameters
    ----------
    buffer : Buffer
        Pinned memory.
    event : Event
        To record behind the batch.

    Attributes
    ----------
    capacity : int
        Operations that it has room for.
    params, statuses : int
        Their addresses, for the host and the device alike.
    status_view : ndarray of uint32, shape (capacity,)
        The statuses.
    """

    def __init__(self, buffer: Buffer, event: Event) -> None:
        self.buffer = buffer
        self.event = event
        self.capacity: int = buffer.size // (PARAMS_DTYPE.itemsize + _STATUS)
        size = PARAMS_DTYPE.itemsize * self.capacity
        self._bytes = host_view(buffer)
        self._params = self._bytes[:size].view(PARAMS_DTYPE)
        self.params = int(buffer.handle)
        self.statuses = self.params + size
        self.status_view: npt.NDArray[np.uint32] = self._bytes[size:].view(np.uint32)

    def write(self, params: npt.NDArray[np.void]) -> None:
        """Write the parameters of a batch; nothing is known of its statuses yet."""
        self._params[: params.size] = params
        self.status_view[: params.size] = NOT_WRITTEN

    def write_one(self, *fields: int) -> None:
        """Write the parameters of a batch of one operation, in their order in `PARAMS_DTYPE`."""
        _ONE.pack_into(self._bytes, 0, *fields)
        self.status_view[0] = NOT_WRITTEN

    def close(self) -> None:
        """Free it; no work on a device may use it any more."""
        self.event.close()
        self.buffer.close()


class Slots:
    """Slots that are used again and again, by any thread: pinning memory takes long.

    Parameters
    ----------
    device_id : int
        The device that uses them.
    """

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._lock = threading.Lock()
        self._free: dict[int, list[Slot]] = {}

    def take(self, count: int) -> Slot:
        """Return a slot for at least `count` operations, whatever it holds.

        Raises
        ------
        MemoryLimitError
            If there is not as much memory.
        """
        capacity = max(_SMALLEST, 1 << (count - 1).bit_length())
        with self._lock:
            free = self._free.get(capacity)
            if free:
                return free.pop()
        return self._make(capacity)

    def _make(self, capacity: int) -> Slot:
        from cuda.core import LegacyPinnedMemoryResource

        device, size = driver.device(self._device_id), capacity * (PARAMS_DTYPE.itemsize + _STATUS)
        with driver.calling("cuEventCreate", "a batch of kernels"):
            event = driver.shield(device.create_event())
        with Undo() as undo:
            undo.add(event.close)
            with driver.calling("cuMemAllocHost", f"{size} bytes of pinned memory"):
                buffer = driver.shield(LegacyPinnedMemoryResource().allocate(size))
        return Slot(buffer, event)

    def give_back(self, slot: Slot) -> None:
        """Let a slot be taken again; no work on a device may use it any more."""
        with self._lock:
            self._free.setdefault(slot.capacity, []).append(slot)

    def close(self) -> None:
        """Free the slots that were given back."""
        with self._lock:
            slots = [slot for free in self._free.values() for slot in free]
            self._free.clear()
        if not driver.forked():
            run_all(slot.close for slot in slots)
