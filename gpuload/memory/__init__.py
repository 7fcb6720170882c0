"""Memory that the decompression engine may use, as memory resources of cuda.core.

Importing this package imports cuda.core, whose classes these extend. It is imported where a GPU is
used, after `gpuload.driver.unavailable` has said that there is one, and by nothing before.
"""

from gpuload import driver
from gpuload.memory.copies import copy
from gpuload.memory.growing import GrowingMemory
from gpuload.memory.mapped import DecompressMemory, HostNumaMemory, host_view
from gpuload.memory.pinned import PinnedMemory
from gpuload.memory.places import device_memory, staging_memory
from gpuload.memory.pool import DecompressPool
from gpuload.memory.ring import Slot, StagingRing
from gpuload.memory.undo import run_all

__all__ = [
    "DecompressMemory",
    "DecompressPool",
    "GrowingMemory",
    "HostNumaMemory",
    "PinnedMemory",
    "Slot",
    "StagingRing",
    "copy",
    "device_memory",
    "free_memory",
    "host_view",
    "run_all",
    "staging_memory",
]


def free_memory(device_id: int) -> int:
    """Return the free bytes of a device's memory, as the driver counts them."""
    return driver.memory_info(device_id)[0]
