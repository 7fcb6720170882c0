"""Which kind of memory serves a purpose on a device, by what the device can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.memory.mapped import DecompressMemory, HostNumaMemory
from gpuload.memory.pinned import PinnedMemory
from gpuload.memory.pool import DecompressPool

if TYPE_CHECKING:
    from contextlib import ExitStack

    from cuda.core import MemoryResource

__all__ = ["device_memory", "staging_memory"]


def staging_memory(device_id: int, undo: ExitStack) -> MemoryResource:
    """Return memory that the host writes and the device reads.

    Parameters
    ----------
    device_id : int
        The device.
    undo : ExitStack
        Closes the resource, where it has to be closed.
    """
    if driver.capabilities(device_id).host_numa_memory:
        return undo.enter_context(HostNumaMemory(device_id))
    return undo.enter_context(PinnedMemory(device_id))


def device_memory(device_id: int, undo: ExitStack, *, guard: int = 0) -> MemoryResource:
    """Return memory of a device, with a guard of so many bytes behind each buffer.

    Raises
    ------
    DriverError
        If the device has no such memory.
    """
    if guard or driver.capabilities(device_id).virtual_memory:
        return undo.enter_context(DecompressMemory(device_id, guard=guard))
    return undo.enter_context(DecompressPool(device_id))
