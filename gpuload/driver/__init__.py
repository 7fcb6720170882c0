"""The CUDA driver: all that gpuload needs of it and cuda.core does not have.

What cuda.core has (devices, streams, events, buffers, programs, launches) is used from there. This
package is the only one that imports ``cuda.bindings``; importing it imports none of cuda-python.

Everything here raises `DriverError`, which names the call, the driver's error and what was wanted,
or `MemoryLimitError` where the driver has no memory.
"""

from gpuload.driver.bindings import calling
from gpuload.driver.decompress import decompress_unavailable, mem_batch_decompress_async
from gpuload.driver.devices import (
    Capabilities,
    capabilities,
    current_device,
    device,
    memory_info,
    on_device,
    unavailable,
)
from gpuload.driver.forks import shield
from gpuload.driver.library import claim, device_count, error_name, forked
from gpuload.driver.pointers import Pointer, is_hw_decompress_capable, pointer
from gpuload.driver.pools import (
    pool_allocate,
    pool_create,
    pool_destroy,
    pool_free,
    pool_keep,
)
from gpuload.driver.transfers import (
    mem_alloc_host,
    mem_free_host,
    mem_host_register,
    mem_host_unregister,
    memcpy_async,
    submit_copy,
)
from gpuload.driver.virtual import (
    Location,
    mem_address_free,
    mem_address_reserve,
    mem_create,
    mem_granularity,
    mem_map,
    mem_release,
    mem_set_access,
    mem_unmap,
)

__all__ = [
    "Capabilities",
    "Location",
    "Pointer",
    "calling",
    "capabilities",
    "claim",
    "current_device",
    "decompress_unavailable",
    "device",
    "device_count",
    "error_name",
    "forked",
    "is_hw_decompress_capable",
    "mem_address_free",
    "mem_address_reserve",
    "mem_alloc_host",
    "mem_batch_decompress_async",
    "mem_create",
    "mem_free_host",
    "mem_granularity",
    "mem_host_register",
    "mem_host_unregister",
    "mem_map",
    "mem_release",
    "mem_set_access",
    "mem_unmap",
    "memcpy_async",
    "memory_info",
    "on_device",
    "pointer",
    "pool_allocate",
    "pool_create",
    "pool_destroy",
    "pool_free",
    "pool_keep",
    "shield",
    "submit_copy",
    "unavailable",
]
