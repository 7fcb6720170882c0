"""Virtual memory management: reservations, physical memory, mapping and access."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import (
    HANDLE,
    I32,
    POINTER,
    SIZE,
    U16,
    U32,
    U64,
    driver_call,
    get,
    put,
)
from tests.helpers.fakecuda.accounting import charge
from tests.helpers.fakecuda.allocations import HOST, device
from tests.helpers.fakecuda.codes import (
    MEM_USAGE_HW_DECOMPRESS,
    Access,
    Code,
    CudaError,
    LocationType,
)
from tests.helpers.fakecuda.space import GRANULARITY

if TYPE_CHECKING:
    from tests.helpers.fakecuda.allocations import Allocation, Mapping, Place
    from tests.helpers.fakecuda.driver import FakeDriver

_PINNED = 1


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise CudaError(Code.INVALID_VALUE, why)


def _aligned(*values: int) -> bool:
    return all(value % GRANULARITY == 0 for value in values)


def place_of(cuda: FakeDriver, kind: int, number: int) -> Place:
    """Return the place that a CUmemLocation means."""
    if kind == LocationType.DEVICE:
        if not 0 <= number < cuda.settings.device_count:
            raise CudaError(Code.INVALID_DEVICE, f"device {number}")
        return device(number)
    _require(kind in (LocationType.HOST, LocationType.HOST_NUMA), f"location type {kind}")
    return HOST


def _properties(cuda: FakeDriver, address: int) -> tuple[Place, int, int]:
    """Read a CUmemAllocationProp: place, requested handle types, usage."""
    _require(get(I32, address) == _PINNED, "allocation type")
    place = place_of(cuda, get(I32, address, 2), get(I32, address, 3))
    if get(I32, address, 2) == LocationType.HOST_NUMA:
        _require(get(I32, address, 3) == cuda.settings.host_numa_id, "no such NUMA node")
    handle_types = get(I32, address, 1)
    on_host = get(I32, address, 2) == LocationType.HOST
    _require(not (on_host and handle_types), "handle types for memory of the host")
    return place, handle_types, get(U16, address, 13)


@driver_call("cuMemGetAllocationGranularity", POINTER, POINTER, I32, since=10020, survives=True)
def mem_get_allocation_granularity(cuda: FakeDriver, out: int, prop: int, option: int) -> None:
    _properties(cuda, prop)
    _require(option in (0, 1), f"option {option}")
    put(SIZE, out, GRANULARITY)


@driver_call("cuMemAddressReserve", POINTER, SIZE, SIZE, U64, U64, since=10020, survives=True)
def mem_address_reserve(
    cuda: FakeDriver, out: int, size: int, alignment: int, hint: int, flags: int
) -> None:
    _require(size > 0 and _aligned(size) and flags == 0, f"size {size}, flags {flags}")
    _require(alignment & (alignment - 1) == 0, f"alignment {alignment} is no power of two")
    start = cuda.memory.space.reserve(size, alignment)
    cuda.memory.reservations[start] = size
    put(U64, out, start)


@driver_call("cuMemAddressFree", U64, SIZE, since=10020, survives=True)
def mem_address_free(cuda: FakeDriver, address: int, size: int) -> None:
    _require(cuda.memory.reservations.get(address) == size, "no reservation of this size here")
    if cuda.memory.between(address, address + size):
        cuda.recorder.violation(f"reservation {address:#x} freed while something is mapped in it")
        raise CudaError(Code.INVALID_VALUE, "still mapped")
    del cuda.memory.reservations[address]


@driver_call("cuMemCreate", POINTER, SIZE, POINTER, U64, since=10020, survives=True)
def mem_create(cuda: FakeDriver, out: int, size: int, prop: int, flags: int) -> None:
    place, handle_types, usage = _properties(cuda, prop)
    _require(size > 0 and _aligned(size) and flags == 0, f"size {size}, flags {flags}")
    if place[0] == LocationType.DEVICE:
        charge(cuda, place[1], size)
    capable = bool(usage & MEM_USAGE_HW_DECOMPRESS)
    made = cuda.memory.create("created", size, place, capable=capable, usage=usage)
    made.handle_types = handle_types
    made.asked = (get(I32, prop, 2), get(I32, prop, 3))
    made.handles = 1
    handle = cuda.new_handle()
    cuda.memory.handles[handle] = made
    put(HANDLE, out, handle)


@driver_call("cuMemRelease", HANDLE, since=10020, survives=True)
def mem_release(cuda: FakeDriver, handle: int) -> None:
    allocation = _created(cuda, handle)
    allocation.handles -= 1
    if allocation.handles == 0:
        del cuda.memory.handles[handle]
    cuda.memory.drop_if_unused(allocation)


@driver_call("cuMemRetainAllocationHandle", POINTER, U64, since=11000, survives=True)
def mem_retain_allocation_handle(cuda: FakeDriver, out: int, address: int) -> None:
    mapping = cuda.memory.find(address)
    _require(mapping is not None and mapping.allocation.kind == "created", "not mapped here")
    allocation = mapping.allocation  # type: ignore[union-attr]
    known = [h for h, one in cuda.memory.handles.items() if one is allocation]
    handle = known[0] if known else cuda.new_handle()
    allocation.handles += 1
    cuda.memory.handles[handle] = allocation
    put(HANDLE, out, handle)


@driver_call("cuMemGetAllocationPropertiesFromHandle", POINTER, HANDLE, since=10020, survives=True)
def mem_get_properties(cuda: FakeDriver, prop: int, handle: int) -> None:
    allocation = _created(cuda, handle)
    for index, value in enumerate((_PINNED, allocation.handle_types, *allocation.asked)):
        put(I32, prop, value, index)
    put(U64, prop, 0, 2)
    put(U64, prop, 0, 3)
    put(U16, prop, allocation.usage, 13)


@driver_call("cuMemMap", U64, SIZE, SIZE, HANDLE, U64, since=10020, survives=True)
def mem_map(
    cuda: FakeDriver, address: int, size: int, offset: int, handle: int, flags: int
) -> None:
    _require(size > 0 and flags == 0, f"size {size}, flags {flags}")
    allocation = _created(cuda, handle)
    if offset != 0 or size != allocation.size:
        raise CudaError(Code.NOT_SUPPORTED, "only whole allocations can be mapped")
    _require(_aligned(address), f"{address:#x} is not aligned")
    _require(cuda.memory.is_reserved(address, size), "the range is not reserved")
    _require(not cuda.memory.between(address, address + size), "something is mapped there")
    mapping = cuda.memory.map(address, allocation, offset, size)
    if not allocation.written:
        cuda.memory.poison(mapping)


@driver_call("cuMemUnmap", U64, SIZE, since=10020, survives=True)
def mem_unmap(cuda: FakeDriver, address: int, size: int) -> None:
    _require(size > 0 and cuda.memory.is_reserved(address, size), "the range is not reserved")
    if not cuda.memory.between(address, address + size):
        cuda.recorder.violation(f"unmapped, but nothing was mapped: {cuda.memory.epitaph(address)}")
    else:
        for mapping in _exactly(cuda, address, size):
            cuda.memory.unmap(mapping)


@driver_call("cuMemSetAccess", U64, SIZE, POINTER, SIZE, since=10020, survives=True)
def mem_set_access(cuda: FakeDriver, address: int, size: int, descs: int, count: int) -> None:
    _require(count > 0, "no descriptors")
    mappings = _exactly(cuda, address, size)
    for index in range(count):
        kind, number, flags = read_access(descs, index)
        on_device = kind == LocationType.DEVICE
        _require(not on_device or number < cuda.settings.device_count, f"device {number}")
        place = place_of(cuda, kind, number)
        if not on_device and any(m.allocation.location != HOST for m in mappings):
            raise CudaError(Code.NOT_SUPPORTED, "host access to memory of a device")
        for mapping in mappings:
            cuda.memory.grant(mapping, place, flags)


@driver_call("cuMemGetAccess", POINTER, POINTER, U64, since=10020, survives=True)
def mem_get_access(cuda: FakeDriver, out: int, location: int, address: int) -> None:
    mapping = cuda.memory.find(address)
    _require(mapping is not None, cuda.memory.epitaph(address))
    place = place_of(cuda, get(I32, location), get(I32, location, 1))
    put(U64, out, mapping.access.get(place, Access.NONE))  # type: ignore[union-attr]


def read_access(descs: int, index: int) -> tuple[int, int, int]:
    """Read a CUmemAccessDesc: location type, number and flags."""
    kind, number, flags = (get(U32, descs, 3 * index + at) for at in range(3))
    _require(flags in (Access.NONE, Access.READ, Access.READ_WRITE), f"access flags {flags}")
    return kind, number, flags


def _created(cuda: FakeDriver, handle: int) -> Allocation:
    allocation = cuda.memory.handles.get(handle)
    if allocation is None:
        if handle and not cuda.is_stale(handle):
            cuda.recorder.violation(f"{handle:#x} is no allocation handle; a driver may crash")
        raise CudaError(Code.INVALID_VALUE, "no allocation handle")
    return allocation


def _exactly(cuda: FakeDriver, address: int, size: int) -> list[Mapping]:
    """Return the mappings of a range that begins and ends with whole ones of cuMemMap."""
    found = cuda.memory.covering(address, size)
    _require(bool(found) and size > 0, f"{address:#x}, size {size}: not wholly mapped")
    _require(all(m.allocation.kind == "created" for m in found), "not mapped by cuMemMap")
    whole = found[0].start == address and found[-1].end == address + size
    _require(whole, "the range cuts a mapping")
    return found
