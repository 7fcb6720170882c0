"""Memory from ``cuMemCreate`` that the decompression engine may use, on the device or the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload import driver
from gpuload.driver import Location
from gpuload.errors import DriverError
from gpuload.memory.base import OwnMemory
from gpuload.memory.undo import Undo, run_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cuda.core import Buffer, Stream

__all__ = [
    "DecompressMemory",
    "HostNumaMemory",
    "host_view",
    "map_memory",
    "round_up",
    "wait_for",
]


@dataclass(frozen=True, slots=True)
class _Mapping:
    """Memory at reserved addresses: `size` of the `reserved` bytes have memory behind them."""

    address: int
    size: int
    reserved: int

    def free(self) -> None:
        driver.mem_unmap(self.address, self.size)
        driver.mem_address_free(self.address, self.reserved)


def _map(size: int, reserved: int, location: Location, access: Sequence[Location]) -> _Mapping:
    """Map new memory; what was done is taken back if a step fails."""
    with Undo() as undo:
        address = driver.mem_address_reserve(reserved, 0)
        undo.add(driver.mem_address_free, address, reserved)
        map_memory(address, size, location, access)
    return _Mapping(address, size, reserved)


def map_memory(address: int, size: int, location: Location, access: Sequence[Location]) -> None:
    """Put new memory at reserved addresses; what was done is taken back if a step fails."""
    with Undo() as undo:
        handle = driver.mem_create(size, location)
        try:
            driver.mem_map(address, size, handle)
            undo.add(driver.mem_unmap, address, size)
        finally:
            # The mapping keeps the memory, so that unmapping is all it takes to free it.
            driver.mem_release(handle)
        driver.mem_set_access(address, size, access)


def round_up(size: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-size // unit) * unit


class _MappedMemory(OwnMemory):
    """Memory of one place, mapped in units of `granularity` bytes.

    Parameters
    ----------
    device_id : int
        The device that uses it.
    location : Location
        Where it is.
    access : sequence of Location
        Who may read and write it.
    guard : int
        Bytes of addresses without memory, at least, behind each buffer's memory.
    """

    def __init__(
        self, device_id: int, location: Location, access: Sequence[Location], guard: int
    ) -> None:
        super().__init__(device_id)
        if guard < 0:
            raise ValueError(f"a guard must not be negative, but is {guard}")
        self._location = location
        self._access = access
        with driver.on_device(device_id):
            #: The unit, in bytes, in which memory is taken.
            self.granularity = driver.mem_granularity(location)
        self._guard = round_up(guard, self.granularity)

    def _take(self, size: int, stream: Stream) -> tuple[int, _Mapping]:
        mapped = round_up(size, self.granularity)
        mapping = _map(mapped, mapped + self._guard, self._location, self._access)
        return mapping.address, mapping

    def _give_back(self, address: int, kept: _Mapping, stream: Stream | None) -> None:
        # cuMemUnmap does not wait for work that still uses the memory.
        run_all([partial(wait_for, stream, address), kept.free])


def wait_for(stream: Stream | None, address: int) -> None:
    """Wait for the work of a stream that may use memory."""
    if stream is not None:
        with driver.calling("cuStreamSynchronize", f"the last use of the memory at {address:#x}"):
            stream.sync()


class DecompressMemory(_MappedMemory):
    """Device memory that the decompression engine may use, with a guard behind it if wanted.

    The decompression call has no bound for what it writes. A guard makes a write past the end of a
    buffer's memory a fault instead of damage to other data; that memory ends at the next multiple
    of `granularity`.

    Parameters
    ----------
    device_id : int
        The device.
    guard : int, optional
        Bytes of addresses without memory, at least, behind each buffer's memory.

    Raises
    ------
    DriverError
        If the device has no virtual memory management.
    """

    def __init__(self, device_id: int, *, guard: int = 0) -> None:
        if not driver.capabilities(device_id).virtual_memory:
            raise DriverError(f"device {device_id} has no virtual memory management (cuMemCreate)")
        place = Location.device(device_id)
        super().__init__(device_id, place, [place], guard)


class HostNumaMemory(_MappedMemory):
    """Host memory that CPU threads fill and the decompression engine reads over the link.

    It is on the NUMA node that is nearest to the device. `host_view` gives a buffer's bytes.

    Parameters
    ----------
    device_id : int
        The device.

    Raises
    ------
    DriverError
        If the device or its driver can't use such memory.
    """

    def __init__(self, device_id: int) -> None:
        known = driver.capabilities(device_id)
        if not known.host_numa_memory:
            raise DriverError(f"device {device_id} can't map memory of host NUMA nodes")
        node = Location.host_numa(known.host_numa_id)
        super().__init__(device_id, node, [Location.device(device_id), node], guard=0)

    @property
    def is_host_accessible(self) -> bool:
        """True: the CPU may read and write it."""
        return True


class _HostBytes:
    """A buffer to NumPy (its array interface, version 3); the array keeps it, and it the buffer."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (buffer.size,),
            "data": (buffer.handle, False),
        }


def host_view(buffer: Buffer) -> npt.NDArray[np.uint8]:
    """Return the bytes of a buffer that the CPU may use, without a copy.

    The array keeps the buffer from being freed, but not from being closed; it must not be used
    after that.

    Raises
    ------
    ValueError
        If the buffer is in device memory.
    """
    if not buffer.is_host_accessible:
        raise ValueError("the buffer is in device memory, which the CPU can't use")
    if not buffer.size:
        return np.empty(0, np.uint8)
    return np.asarray(_HostBytes(buffer))
