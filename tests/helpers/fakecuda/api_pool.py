"""Calls about memory pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import (
    HANDLE,
    I32,
    POINTER,
    SIZE,
    U8,
    U16,
    U64,
    driver_call,
    get,
    put,
)
from tests.helpers.fakecuda.allocations import device
from tests.helpers.fakecuda.api_memory import owned
from tests.helpers.fakecuda.api_vmm import place_of, read_access
from tests.helpers.fakecuda.codes import (
    POOL_USAGE_HW_DECOMPRESS,
    Access,
    Code,
    CudaError,
    LocationType,
    PoolAttribute,
)
from tests.helpers.fakecuda.pools import Pool

if TYPE_CHECKING:
    from tests.helpers.fakecuda.allocations import Mapping
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.streams import Stream

_PINNED, _MANAGED = 1, 2
_SWITCHES = range(1, 4)
_RESET_ONLY = (PoolAttribute.RESERVED_MEM_HIGH, PoolAttribute.USED_MEM_HIGH)


def _pool(cuda: FakeDriver, handle: int) -> Pool:
    found = cuda.pools.get(handle)
    if found is None or found.destroyed:
        raise CudaError(Code.INVALID_VALUE, f"{handle:#x} is no pool")
    return found


@driver_call("cuMemPoolCreate", POINTER, POINTER, since=11020, survives=True)
def mem_pool_create(cuda: FakeDriver, out: int, props: int) -> None:
    kind, handle_types, place, number = (get(I32, props, index) for index in range(4))
    if kind == _MANAGED:
        raise CudaError(cuda.recorder.not_modelled("cuMemPoolCreate of managed memory"))
    on_device = place == LocationType.DEVICE
    last = cuda.settings.device_count - 1 if on_device else cuda.settings.host_numa_id
    known = place == LocationType.HOST or 0 <= number <= last
    if kind != _PINNED or not known or any(get(U8, props, 34 + i) for i in range(54)):
        raise CudaError(Code.INVALID_VALUE, f"type {kind}, location {place} {number}, or reserved")
    location = place_of(cuda, place, number)
    capable = bool(get(U16, props, 16) & POOL_USAGE_HW_DECOMPRESS)
    made = Pool(cuda.new_handle(), location, capable, handle_types, get(SIZE, props, 3))
    cuda.pools[made.handle] = made
    put(HANDLE, out, made.handle)


@driver_call("cuMemPoolDestroy", HANDLE, since=11020, survives=True)
def mem_pool_destroy(cuda: FakeDriver, handle: int) -> None:
    pool = _pool(cuda, handle)
    if pool.default:
        raise CudaError(Code.INVALID_VALUE, "a default pool")
    pool.destroyed = True
    cuda.pools.forget_if_empty(pool)


@driver_call("cuDeviceGetDefaultMemPool", POINTER, I32, since=11020, survives=True)
@driver_call("cuDeviceGetMemPool", POINTER, I32, since=11020, survives=True)
def device_get_mem_pool(cuda: FakeDriver, out: int, ordinal: int) -> None:
    put(HANDLE, out, cuda.pools.default(place_of(cuda, LocationType.DEVICE, ordinal)).handle)


@driver_call("cuMemGetDefaultMemPool", POINTER, POINTER, I32, since=13000, survives=True)
@driver_call("cuMemGetMemPool", POINTER, POINTER, I32, since=13000, survives=True)
def mem_get_mem_pool(cuda: FakeDriver, out: int, location: int, kind: int) -> None:
    if kind != _PINNED:
        raise CudaError(cuda.recorder.not_modelled("cuMemGetMemPool of managed memory"))
    place = place_of(cuda, get(I32, location), get(I32, location, 1))
    put(HANDLE, out, cuda.pools.default(place).handle)


@driver_call("cuMemPoolGetAttribute", HANDLE, I32, POINTER, since=11020, survives=True)
def mem_pool_get_attribute(cuda: FakeDriver, handle: int, attribute: int, out: int) -> None:
    pool = _pool(cuda, handle)
    if attribute in _SWITCHES:
        return put(I32, out, pool.settings[attribute])
    counters = {
        PoolAttribute.RELEASE_THRESHOLD: pool.settings[PoolAttribute.RELEASE_THRESHOLD],
        PoolAttribute.RESERVED_MEM_CURRENT: pool.reserved,
        PoolAttribute.RESERVED_MEM_HIGH: pool.peak_reserved,
        PoolAttribute.USED_MEM_CURRENT: pool.used,
        PoolAttribute.USED_MEM_HIGH: pool.peak_used,
    }
    if attribute not in counters:
        raise CudaError(Code.INVALID_VALUE, f"pool attribute {attribute}")
    return put(U64, out, counters[PoolAttribute(attribute)])


@driver_call("cuMemPoolSetAttribute", HANDLE, I32, POINTER, since=11020, survives=True)
def mem_pool_set_attribute(cuda: FakeDriver, handle: int, attribute: int, value: int) -> None:
    pool = _pool(cuda, handle)
    if attribute in _SWITCHES:
        pool.settings[attribute] = get(I32, value)
    elif attribute == PoolAttribute.RELEASE_THRESHOLD:
        pool.settings[attribute] = get(U64, value)
    elif attribute in _RESET_ONLY and get(U64, value) == 0:
        pool.peak_reserved, pool.peak_used = pool.reserved, pool.used
    else:
        raise CudaError(Code.INVALID_VALUE, f"pool attribute {attribute}")


@driver_call("cuMemPoolTrimTo", HANDLE, SIZE, since=11020, survives=True)
def mem_pool_trim_to(cuda: FakeDriver, handle: int, keep: int) -> None:
    _pool(cuda, handle).trim(keep)


@driver_call("cuMemPoolSetAccess", HANDLE, POINTER, SIZE, since=11020, survives=True)
def mem_pool_set_access(cuda: FakeDriver, handle: int, descs: int, count: int) -> None:
    pool = _pool(cuda, handle)
    for index in range(count):
        kind, number, flags = read_access(descs, index)
        if kind != LocationType.DEVICE or flags == Access.READ:
            raise CudaError(Code.NOT_SUPPORTED, f"location type {kind}, access {flags}")
        place = place_of(cuda, kind, number)
        if place == pool.location and flags == Access.NONE:
            raise CudaError(Code.INVALID_DEVICE, "a device's access to its own pool")
        pool.access[place] = flags
        for mapping in cuda.memory.mappings():
            if mapping.allocation.pool == handle:
                cuda.memory.grant(mapping, place, flags)


@driver_call("cuMemPoolGetAccess", POINTER, HANDLE, POINTER, since=11020, survives=True)
def mem_pool_get_access(cuda: FakeDriver, out: int, handle: int, location: int) -> None:
    place = place_of(cuda, get(I32, location), get(I32, location, 1))
    put(I32, out, _pool(cuda, handle).access.get(place, Access.NONE))


@driver_call("cuMemAllocAsync", POINTER, SIZE, HANDLE, since=11020)
def mem_alloc_async(cuda: FakeDriver, out: int, size: int, stream: int) -> None:
    chosen = cuda.scheduler.stream(stream, cuda.current)
    _allocate(cuda, out, size, cuda.pools.default(device(chosen.context.ordinal)), chosen)


@driver_call("cuMemAllocFromPoolAsync", POINTER, SIZE, HANDLE, HANDLE, since=11020)
def mem_alloc_from_pool_async(
    cuda: FakeDriver, out: int, size: int, pool: int, stream: int
) -> None:
    _allocate(cuda, out, size, _pool(cuda, pool), cuda.scheduler.stream(stream, cuda.current))


def _allocate(cuda: FakeDriver, out: int, size: int, pool: Pool, stream: Stream) -> None:
    if size == 0:
        return put(U64, out, 0)
    if pool.maximum and pool.used + size > pool.maximum:
        raise CudaError(Code.OUT_OF_MEMORY, "the pool's maximum")
    pool.allocate(cuda, size)
    made = cuda.memory.create("pool", size, pool.location, capable=pool.capable, pool=pool.handle)
    mapping = cuda.memory.map_fresh(made)
    for place, flags in pool.access.items():
        cuda.memory.grant(mapping, place, flags)
    mapping.ready = False
    cuda.scheduler.submit(stream, "allocation", lambda: _becomes_ready(mapping))
    return put(U64, out, mapping.start)


def _becomes_ready(mapping: Mapping) -> None:
    mapping.ready = True


@driver_call("cuMemFreeAsync", U64, HANDLE, since=11020)
def mem_free_async(cuda: FakeDriver, address: int, stream: int) -> None:
    chosen = cuda.scheduler.stream(stream, cuda.current)
    if address == 0:
        return
    mapping = owned(cuda, address, ("pool", "device"))
    mapping.freed = True
    cuda.scheduler.submit(chosen, "free", lambda: _end(cuda, mapping))


def _end(cuda: FakeDriver, mapping: Mapping) -> None:
    if mapping.allocation.pool:
        cuda.pools.give_back(mapping)
    cuda.memory.unmap(mapping)
