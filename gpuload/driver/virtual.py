"""Virtual memory management: memory that the decompression engine may use, mapped where we say.

Each function is one call of the CUDA driver API, section "Virtual Memory Management". cuda.core's
VirtualMemoryResource can't set the usage flag that the decompression engine asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuload.driver.bindings import api, calling
from gpuload.driver.library import driver_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = [
    "DECOMPRESS_SINCE",
    "HW_DECOMPRESS",
    "Location",
    "mem_address_free",
    "mem_address_reserve",
    "mem_create",
    "mem_granularity",
    "mem_map",
    "mem_release",
    "mem_set_access",
    "mem_unmap",
]

#: The driver that knows the decompression engine.
DECOMPRESS_SINCE = (12, 8)
#: ``CU_MEM_CREATE_USAGE_HW_DECOMPRESS`` and ``CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS``.
HW_DECOMPRESS = 2
#: ``CUmemLocationType``.
_DEVICE, _HOST_NUMA = 1, 3
#: ``CU_MEM_ALLOCATION_TYPE_PINNED``, ``CU_MEM_ACCESS_FLAGS_PROT_READWRITE`` and
#: ``CU_MEM_ALLOC_GRANULARITY_MINIMUM``.
PINNED, READ_WRITE, _MINIMUM = 1, 3, 0


class Location(NamedTuple):
    """Where memory is, or who may use it (``CUmemLocation``)."""

    kind: int
    number: int

    @classmethod
    def device(cls, device_id: int) -> Location:
        """Return the memory of a device."""
        return cls(_DEVICE, device_id)

    @classmethod
    def host_numa(cls, node: int) -> Location:
        """Return the memory of a host NUMA node; 0 where the host has none (``cuMemCreate``)."""
        return cls(_HOST_NUMA, max(node, 0))

    def __str__(self) -> str:
        if self.kind == _DEVICE:
            return f"device {self.number}"
        return f"host NUMA node {self.number}"

    def fill(self, record: npt.NDArray[np.void]) -> None:
        """Write this into a ``CUmemLocation``.

        Field by field: it holds a union, and assigning a tuple would end by zeroing the number.
        """
        record["type"] = self.kind
        record["id"] = self.number


def usage() -> int:
    """Return the usage flag for the decompression engine; 0 for drivers that would refuse it."""
    return HW_DECOMPRESS if driver_version() >= DECOMPRESS_SINCE else 0


def _properties(location: Location) -> npt.NDArray[np.void]:
    """Return a ``CUmemAllocationProp`` of pinned memory for the decompression engine.

    The caller must keep it in a variable: an array's address does not keep the array.
    """
    properties = np.zeros(1, api().mem_allocation_prop_v1_dtype)
    properties["type"] = PINNED
    properties["alloc_flags"]["usage"] = usage()
    location.fill(properties["location"])
    return properties


def mem_granularity(location: Location) -> int:
    """Return the unit of sizes and addresses (``cuMemGetAllocationGranularity``), in bytes."""
    with calling("cuMemGetAllocationGranularity", f"memory of {location}"):
        properties = _properties(location)
        return api().mem_get_allocation_granularity(properties.ctypes.data, _MINIMUM)


def mem_create(size: int, location: Location) -> int:
    """Return the handle of new memory that the decompression engine may use (``cuMemCreate``).

    Parameters
    ----------
    size : int
        A multiple of `mem_granularity`, in bytes.
    location : Location
        Where.

    Raises
    ------
    MemoryLimitError
        If there is not as much.
    """
    with calling("cuMemCreate", f"{size} bytes of {location}"):
        properties = _properties(location)
        return api().mem_create(size, properties.ctypes.data, 0)


def mem_address_reserve(size: int, alignment: int) -> int:
    """Return the start of `size` bytes of unused addresses (``cuMemAddressReserve``)."""
    with calling("cuMemAddressReserve", f"{size} bytes of addresses"):
        return api().mem_address_reserve(size, alignment, 0, 0)


def mem_map(address: int, size: int, handle: int) -> None:
    """Put the first `size` bytes of memory at reserved addresses (``cuMemMap``)."""
    with calling("cuMemMap", f"{size} bytes at {address:#x}"):
        api().mem_map(address, size, 0, handle, 0)


def mem_set_access(address: int, size: int, locations: Sequence[Location]) -> None:
    """Let devices and host nodes read and write a mapped range (``cuMemSetAccess``)."""
    with calling("cuMemSetAccess", f"{' and '.join(map(str, locations))} at {address:#x}"):
        rights = np.zeros(len(locations), api().mem_access_desc_v1_dtype)
        rights["flags_"] = READ_WRITE
        for index, location in enumerate(locations):
            location.fill(rights[index : index + 1]["location"])
        api().mem_set_access(address, size, rights.ctypes.data, len(rights))


def mem_unmap(address: int, size: int) -> None:
    """Take memory away from its addresses (``cuMemUnmap``).

    The call does not wait for work that uses them; the caller has waited.
    """
    with calling("cuMemUnmap", f"{size} bytes at {address:#x}"):
        api().mem_unmap(address, size)


def mem_release(handle: int) -> None:
    """Give up a handle; the memory stays while it is mapped (``cuMemRelease``)."""
    with calling("cuMemRelease", f"memory {handle:#x}"):
        api().mem_release(handle)


def mem_address_free(address: int, size: int) -> None:
    """Give reserved addresses back (``cuMemAddressFree``)."""
    with calling("cuMemAddressFree", f"{size} bytes at {address:#x}"):
        api().mem_address_free(address, size)
