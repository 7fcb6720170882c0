"""Attributes of devices and pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.fakecuda.codes import (
    Code,
    CudaError,
    DeviceAttribute,
    LocationType,
    PointerAttribute,
)
from tests.helpers.fakecuda.memory import HOST, device

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver, Settings
    from tests.helpers.fakecuda.memory import Mapping

_HIGHEST_ATTRIBUTE = 147
_MEMORYTYPE_HOST, _MEMORYTYPE_DEVICE = 1, 2

#: Device attributes that say how memory behaves, read on an H200; all others are 0.
_DEVICE_TABLE = {
    10: 32,  # warp size
    16: 132,  # multiprocessors
    19: 1,  # CAN_MAP_HOST_MEMORY
    31: 1,  # CONCURRENT_KERNELS
    40: 3,  # ASYNC_ENGINE_COUNT
    41: 1,  # UNIFIED_ADDRESSING
    78: 1,  # STREAM_PRIORITIES_SUPPORTED
    83: 1,  # MANAGED_MEMORY
    89: 1,  # CONCURRENT_MANAGED_ACCESS
    91: 1,  # CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    99: 1,  # HOST_REGISTER_SUPPORTED
    102: 1,  # VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED
    103: 1,  # HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    112: 1,  # SPARSE_CUDA_ARRAY_SUPPORTED
    113: 1,  # READ_ONLY_HOST_REGISTER_SUPPORTED
    115: 1,  # MEMORY_POOLS_SUPPORTED
    119: 1,  # MEMPOOL_SUPPORTED_HANDLE_TYPES: file descriptors
    121: 1,  # DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED
    131: -1,  # NUMA_ID of the device's own memory: none
    141: 1,  # HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    142: 1,  # HOST_NUMA_MEMORY_POOLS_SUPPORTED
    144: 1,  # HOST_MEMORY_POOLS_SUPPORTED
    145: 1,  # HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
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
    return context.ordinal if context else -1


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
    PointerAttribute.RANGE_START_ADDR: lambda cuda, mapping, address: cuda.memory.range_of(mapping)[0],
    PointerAttribute.RANGE_SIZE: lambda cuda, mapping, address: cuda.memory.range_of(mapping)[1],
    PointerAttribute.MAPPED: lambda cuda, mapping, address: 1,
    PointerAttribute.ALLOWED_HANDLE_TYPES: lambda cuda, mapping, address: (
        mapping.allocation.handle_types
    ),
    PointerAttribute.ACCESS_FLAGS: lambda cuda, mapping, address: mapping.access.get(
        device(cuda.context.ordinal), 0
    ),
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
