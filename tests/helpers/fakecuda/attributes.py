"""Attributes of devices and pointers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.allocations import HOST, device
from tests.helpers.fakecuda.codes import (
    Access,
    Code,
    CudaError,
    DeviceAttribute,
    LocationType,
    PointerAttribute,
)

if TYPE_CHECKING:
    from tests.helpers.fakecuda.allocations import Mapping
    from tests.helpers.fakecuda.driver import FakeDriver, Settings

_HIGHEST_ATTRIBUTE = 147  # of CUDA 13.0
_MEMORYTYPE_HOST, _MEMORYTYPE_DEVICE = 1, 2

#: Every device attribute that is not 0, read on an H200 with driver 580.159.04.
_DEVICE_TABLE = {
    int(number): value
    for number, value in json.loads(
        Path(__file__).with_name("h200_attributes.json").read_text()
    ).items()
}


def device_attribute(settings: Settings, attribute: int, ordinal: int) -> int:
    """Return a device attribute."""
    if not 1 <= attribute <= _HIGHEST_ATTRIBUTE:
        raise CudaError(Code.INVALID_VALUE, f"device attribute {attribute}")
    if attribute in settings.attributes:
        return settings.attributes[attribute]
    computed = {
        DeviceAttribute.COMPUTE_CAPABILITY_MAJOR: settings.compute_capability[0],
        DeviceAttribute.COMPUTE_CAPABILITY_MINOR: settings.compute_capability[1],
        DeviceAttribute.MEM_DECOMPRESS_ALGORITHM_MASK: settings.algorithm_mask,
        DeviceAttribute.MEM_DECOMPRESS_MAXIMUM_LENGTH: settings.maximum_length,
        DeviceAttribute.HOST_NUMA_ID: settings.host_numa_id,
        33: ordinal,  # PCI_BUS_ID
    }
    return computed.get(attribute, _DEVICE_TABLE.get(attribute, 0))


def pointer_attribute(cuda: FakeDriver, attribute: int, address: int) -> int:
    """Return a pointer attribute, or refuse pointers that no allocation owns."""
    mapping = cuda.memory.find(address)
    if mapping is None:
        raise CudaError(Code.INVALID_VALUE, cuda.memory.epitaph(address))
    if not 1 <= attribute <= PointerAttribute.IS_HW_DECOMPRESS_CAPABLE:
        raise CudaError(Code.INVALID_VALUE, f"pointer attribute {attribute}")
    if attribute not in _POINTER_ANSWERS:
        raise CudaError(cuda.recorder.not_modelled(f"pointer attribute {attribute}"))
    return _POINTER_ANSWERS[PointerAttribute(attribute)](cuda, mapping, address)


def unknown_pointer_attribute(attribute: int) -> int:
    """Return what cuPointerGetAttributes says of a pointer that the driver does not know."""
    return -2 if attribute == PointerAttribute.DEVICE_ORDINAL else 0


def _memory_type(cuda: FakeDriver, mapping: Mapping, address: int) -> int:
    on_device = mapping.allocation.location[0] == LocationType.DEVICE
    return _MEMORYTYPE_DEVICE if on_device else _MEMORYTYPE_HOST


def _device_pointer(cuda: FakeDriver, mapping: Mapping, address: int) -> int:
    if not mapping.allows(device(cuda.context.ordinal), write=False):
        raise CudaError(Code.INVALID_VALUE, "not accessible from the current device")
    return address


def _host_pointer(cuda: FakeDriver, mapping: Mapping, address: int) -> int:
    if not mapping.allows(HOST, write=False):
        raise CudaError(Code.INVALID_VALUE, "not accessible from the host")
    return address


def _ordinal(cuda: FakeDriver, mapping: Mapping, address: int) -> int:
    kind, number = mapping.allocation.location
    if kind == LocationType.DEVICE:
        return number
    context = cuda.contexts.get(mapping.allocation.context)
    return context.ordinal if context else 0


def _access_flags(cuda: FakeDriver, mapping: Mapping, address: int) -> int:
    if _in_host_pool(mapping):
        return Access.READ_WRITE
    return mapping.access.get(device(cuda.some_context.ordinal), Access.NONE)


def _range_start(cuda: FakeDriver, mapping: Mapping, address: int) -> int:
    hidden = _in_host_pool(mapping) and _hidden(cuda, mapping)
    return 0 if hidden else cuda.memory.range_of(mapping)[0]


def _in_host_pool(mapping: Mapping) -> bool:
    return mapping.allocation.kind == "pool" and mapping.allocation.location == HOST


def _hidden(cuda: FakeDriver, mapping: Mapping) -> bool:
    return not mapping.allows(device(cuda.some_context.ordinal), write=False)


def address_range(cuda: FakeDriver, address: int) -> tuple[int, int]:
    """Return what cuMemGetAddressRange says; memory of the host's node has no base."""
    mapping = cuda.memory.find(address)
    if mapping is None or _hidden(cuda, mapping):
        raise CudaError(Code.NOT_FOUND, cuda.memory.epitaph(address))
    on_node = mapping.allocation.kind == "created" and mapping.allocation.location == HOST
    return 0 if on_node else mapping.start, mapping.size


_POINTER_ANSWERS = {
    PointerAttribute.CONTEXT: lambda cuda, mapping, address: mapping.allocation.context,
    PointerAttribute.MEMORY_TYPE: _memory_type,
    PointerAttribute.DEVICE_POINTER: _device_pointer,
    PointerAttribute.HOST_POINTER: _host_pointer,
    PointerAttribute.SYNC_MEMOPS: lambda cuda, mapping, address: 0,
    PointerAttribute.BUFFER_ID: lambda cuda, mapping, address: mapping.allocation.number,
    PointerAttribute.IS_MANAGED: lambda cuda, mapping, address: 0,
    PointerAttribute.DEVICE_ORDINAL: _ordinal,
    PointerAttribute.IS_LEGACY_CUDA_IPC_CAPABLE: lambda cuda, mapping, address: int(
        mapping.allocation.kind == "device"
    ),
    PointerAttribute.RANGE_START_ADDR: _range_start,
    PointerAttribute.RANGE_SIZE: lambda cuda, mapping, address: cuda.memory.range_of(mapping)[1],
    PointerAttribute.MAPPED: lambda cuda, mapping, address: 1,
    PointerAttribute.ALLOWED_HANDLE_TYPES: lambda cuda, mapping, address: (
        mapping.allocation.handle_types
    ),
    PointerAttribute.ACCESS_FLAGS: _access_flags,
    PointerAttribute.MEMPOOL_HANDLE: lambda cuda, mapping, address: mapping.allocation.pool,
    PointerAttribute.MAPPING_SIZE: lambda cuda, mapping, address: mapping.size,
    PointerAttribute.MAPPING_BASE_ADDR: lambda cuda, mapping, address: mapping.start,
    PointerAttribute.IS_HW_DECOMPRESS_CAPABLE: lambda cuda, mapping, address: int(
        mapping.allocation.capable
    ),
}

#: Attributes whose value is a word of 64 bits; all others are 32 bits.
WIDE_ATTRIBUTES = frozenset(
    {
        PointerAttribute.CONTEXT,
        PointerAttribute.DEVICE_POINTER,
        PointerAttribute.HOST_POINTER,
        PointerAttribute.BUFFER_ID,
        PointerAttribute.RANGE_START_ADDR,
        PointerAttribute.RANGE_SIZE,
        PointerAttribute.ALLOWED_HANDLE_TYPES,
        PointerAttribute.MEMPOOL_HANDLE,
        PointerAttribute.MAPPING_SIZE,
        PointerAttribute.MAPPING_BASE_ADDR,
    }
)
