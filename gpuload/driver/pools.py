"""Memory pools that the decompression engine may use.

Each function is one call of the CUDA driver API, section "Stream Ordered Memory Allocator".
cuda.core's pools can't set the usage flag that the decompression engine asks for.
"""

from __future__ import annotations

import numpy as np

from gpuload.driver.bindings import api, calling
from gpuload.driver.virtual import PINNED, Location, usage

__all__ = ["pool_allocate", "pool_create", "pool_destroy", "pool_free", "pool_keep"]

#: ``CU_MEMPOOL_ATTR_RELEASE_THRESHOLD``.
_RELEASE_THRESHOLD = 4


def pool_create(device_id: int) -> int:
    """Return a new pool of a device's memory (``cuMemPoolCreate``)."""
    with calling("cuMemPoolCreate", f"a memory pool on device {device_id}"):
        properties = np.zeros(1, api().mem_pool_props_v1_dtype)
        properties["alloc_type"] = PINNED
        properties["usage"] = usage()
        Location.device(device_id).fill(properties["location"])
        return api().mem_pool_create(properties.ctypes.data)


def pool_keep(pool: int, size: int) -> None:
    """Let a pool keep up to `size` free bytes for later allocations (``cuMemPoolSetAttribute``).

    By default it gives all of them back at every synchronisation.
    """
    with calling("cuMemPoolSetAttribute", "the release threshold of a memory pool"):
        threshold = np.array([size], np.uint64)
        api().mem_pool_set_attribute(pool, _RELEASE_THRESHOLD, threshold.ctypes.data)


def pool_allocate(pool: int, size: int, stream: int) -> int:
    """Return the address of `size` bytes for work in stream order (``cuMemAllocFromPoolAsync``).

    Raises
    ------
    MemoryLimitError
        If the device has not got as much.
    """
    with calling("cuMemAllocFromPoolAsync", f"{size} bytes of a memory pool"):
        return api().mem_alloc_from_pool_async(size, pool, stream)


def pool_free(address: int, stream: int) -> None:
    """Give memory back to its pool in stream order (``cuMemFreeAsync``)."""
    with calling("cuMemFreeAsync", f"the memory at {address:#x}"):
        api().mem_free_async(address, stream)


def pool_destroy(pool: int) -> None:
    """Destroy a pool as soon as all of its memory has come back (``cuMemPoolDestroy``)."""
    with calling("cuMemPoolDestroy", "a memory pool"):
        api().mem_pool_destroy(pool)
