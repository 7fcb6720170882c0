"""Device memory whose size is found while it is filled: addresses first, memory as it goes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.driver import Location
from gpuload.errors import DriverError, MemoryLimitError
from gpuload.memory.base import OwnMemory
from gpuload.memory.mapped import map_memory, round_up, wait_for
from gpuload.memory.undo import run_all

if TYPE_CHECKING:
    from cuda.core import Stream

__all__ = ["GrowingMemory"]

#: Bytes that are added at a time: few calls, and little that is never used.
_STEP = 128 << 20


class GrowingMemory(OwnMemory):
    """Memory for one buffer, whose size is that of its addresses; memory is had by `grow`.

    What is there stays where it is while it grows; the decompression engine may use it.

    Parameters
    ----------
    device_id : int
        The device.

    Raises
    ------
    DriverError
        If the device has no virtual memory management.

    Attributes
    ----------
    size : int
        Bytes of the buffer that have memory behind them.
    """

    def __init__(self, device_id: int) -> None:
        if not driver.capabilities(device_id).virtual_memory:
            raise DriverError(f"device {device_id} has no virtual memory management (cuMemCreate)")
        super().__init__(device_id)
        self.size = 0
        self._location = Location.device(device_id)
        with driver.on_device(device_id):
            self._unit = driver.mem_granularity(self._location)
        # The buffer itself is not kept: it keeps this.
        self._address, self._most = 0, 0
        self._parts: list[tuple[int, int]] = []

    def grow(self, size: int) -> int:
        """Have memory behind at least the first `size` bytes; return behind how many there is.

        Raises
        ------
        MemoryLimitError
            If the device has not as much, or `size` is more than it can grow to.
        """
        if size <= self.size:
            return self.size
        if size > self._most:
            raise MemoryLimitError(f"{size} bytes, in addresses for at most {self._most}")
        least, room = round_up(size - self.size, self._unit), self._most - self.size
        try:
            self._add(min(max(least, _STEP), room))
        except MemoryLimitError:
            if least >= _STEP:
                raise
            self._add(least)
        return self.size

    def _add(self, more: int) -> None:
        start = self._address + self.size
        with driver.on_device(self._device_id):
            map_memory(start, more, self._location, [self._location])
            self._parts.append((start, more))
            self.size += more

    def _take(self, size: int, stream: Stream) -> tuple[int, int]:
        if self._address:
            raise DriverError("growing memory is for one buffer")
        self._most = round_up(size, self._unit)
        self._address = driver.mem_address_reserve(self._most, 0)
        return self._address, self._most

    def _give_back(self, address: int, kept: int, stream: Stream | None) -> None:
        # cuMemUnmap does not wait for work that still uses the memory.
        parts, self._parts = self._parts, []
        run_all([partial(wait_for, stream, address), partial(_free, address, kept, parts)])


def _free(address: int, reserved: int, parts: list[tuple[int, int]]) -> None:
    """Take memory and then addresses back; addresses with memory behind them stay."""
    run_all(partial(driver.mem_unmap, start, size) for start, size in parts)
    driver.mem_address_free(address, reserved)
