"""What the driver knows about an address (``cuPointerGetAttribute``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuload.driver.bindings import api, calling

__all__ = ["Pointer", "is_hw_decompress_capable", "pointer"]

#: ``CUpointer_attribute``.
_MEMORY_TYPE, _DEVICE_ORDINAL, _RANGE_START, _RANGE_SIZE, _HW_DECOMPRESS = 2, 9, 11, 12, 21


@dataclass(frozen=True)
class Pointer:
    """The allocation that an address is in.

    Attributes
    ----------
    memory_type : int
        ``CUmemorytype``: 1 for host memory, 2 for device memory, 4 for managed memory.
    device_id : int
        The device that it was allocated for.
    start, size : int
        First address and bytes of the allocation.
    """

    memory_type: int
    device_id: int
    start: int
    size: int


def is_hw_decompress_capable(address: int) -> bool:
    """Return whether the decompression engine may read and write at an address.

    ``CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE`` depends on how the memory was allocated, not
    on the device. False too for addresses that CUDA does not know, and for drivers that do not know
    the attribute.
    """
    return bool(_attribute(_HW_DECOMPRESS, address))


def pointer(address: int) -> Pointer | None:
    """Return the allocation that an address is in; None if CUDA does not know it."""
    values = [
        _attribute(name, address)
        for name in (_MEMORY_TYPE, _DEVICE_ORDINAL, _RANGE_START, _RANGE_SIZE)
    ]
    return None if None in values else Pointer(*map(int, values))


def _attribute(name: int, address: int) -> Any:
    """Return an attribute; None where the driver knows the address or the attribute not."""
    with calling("cuPointerGetAttribute", f"the memory at {address:#x}"):
        try:
            return api().pointer_get_attribute(name, address)
        except api().InvalidValueError:
            return None
