"""Calls about memory pools."""

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
    U8,
    driver_call,
    get,
    put,
)
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
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.memory import Mapping
    from tests.helpers.fakecuda.streams import Stream

_PINNED = 1
_SWITCHES = range(1, 4)
_RESET_ONLY = (PoolAttribute.RESERVED_MEM_HIGH, PoolAttribute.USED_MEM_HIGH)


def _pool(cuda: FakeDriver, handle: int) -> Pool:
    found = cuda.pools.get(handle)
    if found is None or found.destroyed:
        raise CudaError(Code.INVALID_VALUE, f"{handle:#x} is no pool")
    return found


@driver_call("cuMemPoolCreate", POINTER, POINTER, since=11020)
def mem_pool_create(cuda: FakeDriver, out: int, props: int) -> None:
    if get(I32, props) != _PINNED:
        raise CudaError(cuda.recorder.not_modelled("a pool that is not pinned"))
    location = place_of(cuda, get(I32, props, 2), get(I32, props, 3))
    usage = get(U16, props, 16)
    if usage & ~POOL_USAGE_HW_DECOMPRESS or any(get(U8, props, 34 + i) for i in range(54)):
        raise CudaError(Code.INVALID_VALUE, "usage or reserved bytes")
    made = Pool(cuda.new_handle(), location, capable=bool(usage))
    made.handle_types = get(I32, props, 1)
    made.maximum = get(SIZE, props, 3)
    cuda.pools[made.handle] = made
    put(HANDLE, out, made.handle)


@driver_call("cuMemPoolDestroy", HANDLE, since=11020)
def mem_pool_destroy(cuda: FakeDriver, handle: int) -> None:
    pool = _pool(cuda, handle)
    if pool.default:
        raise CudaError(Code.INVALID_VALUE, "a default pool")
    pool.destroyed = True
    cuda.forget_pool_if_empty(pool)


@driver_call("cuDeviceGetDefaultMemPool", POINTER, I32, since=11020)
@driver_call("cuDeviceGetMemPool", POINTER, I32, since=11020)
def device_get_mem_pool(cuda: FakeDriver, out: int, ordinal: int) -> None:
    if not 0 <= ordinal < cuda.settings.device_count:
        raise CudaError(Code.INVALID_DEVICE, f"device {ordinal}")
    put(HANDLE, out, cuda.default_pool(ordinal).handle)


@driver_call("cuMemPoolGetAttribute", HANDLE, I32, POINTER, since=11020)
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


@driver_call("cuMemPoolSetAttribute", HANDLE, I32, POINTER, since=11020)
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


@driver_call("cuMemPoolTrimTo", HANDLE, SIZE, since=11020)
def mem_pool_trim_to(cuda: FakeDriver, handle: int, keep: int) -> None:
    _pool(cuda, handle).trim(keep)


@driver_call("cuMemPoolSetAccess", HANDLE, POINTER, SIZE, since=11020)
def mem_pool_set_access(cuda: FakeDriver, handle: int, descs: int, count: int) -> None:
    pool = _pool(cuda, handle)
    for index in range(count):
        kind, place, flags = read_access(cuda, descs, index)
        if kind != LocationType.DEVICE or (place == pool.location and flags != Access.READ_WRITE):
            raise CudaError(Code.INVALID_VALUE, f"access of {place} set to {flags}")
        pool.access[place] = flags
        for mapping in cuda.memory.mappings():
            if mapping.allocation.pool == handle:
                cuda.memory.grant(mapping, place, flags)


@driver_call("cuMemPoolGetAccess", POINTER, HANDLE, POINTER, since=11020)
def mem_pool_get_access(cuda: FakeDriver, out: int, handle: int, location: int) -> None:
    place = place_of(cuda, get(I32, location), get(I32, location, 1))
    put(I32, out, _pool(cuda, handle).access.get(place, Access.NONE))


@driver_call("cuMemAllocAsync", POINTER, SIZE, HANDLE, since=11020)
def mem_alloc_async(cuda: FakeDriver, out: int, size: int, stream: int) -> None:
    chosen = cuda.scheduler.stream(stream, cuda.current)
    _allocate(cuda, out, size, cuda.default_pool(chosen.context.ordinal), chosen)


@driver_call("cuMemAllocFromPoolAsync", POINTER, SIZE, HANDLE, HANDLE, since=11020)
def mem_alloc_from_pool_async(
    cuda: FakeDriver, out: int, size: int, pool: int, stream: int
) -> None:
    _allocate(cuda, out, size, _pool(cuda, pool), cuda.scheduler.stream(stream, cuda.current))


def _allocate(cuda: FakeDriver, out: int, size: int, pool: Pool, stream: Stream) -> None:
    if size == 0:
        raise CudaError(Code.INVALID_VALUE, "size 0")
    if pool.maximum and pool.used + size > pool.maximum:
        raise CudaError(Code.OUT_OF_MEMORY, "the pool's maximum")
    if pool.on_device:
        cuda.charge(pool.location[1], pool.growth(size))
    made = cuda.memory.create("pool", size, pool.location, capable=pool.capable, pool=pool.handle)
    made.context = stream.context.handle
    mapping = cuda.memory.map_fresh(made)
    for place, flags in pool.access.items():
        cuda.memory.grant(mapping, place, flags)
    pool.allocate(size)
    mapping.ready = False
    cuda.scheduler.submit(stream, "allocation", lambda: _becomes_ready(mapping))
    put(U64, out, mapping.start)


@driver_call("cuMemFreeAsync", U64, HANDLE, since=11020)
def mem_free_async(cuda: FakeDriver, address: int, stream: int) -> None:
    chosen = cuda.scheduler.stream(stream, cuda.current)
    if address == 0:
        return
    mapping = cuda.memory.find(address)
    if mapping is None or mapping.start != address or mapping.freed:
        cuda.recorder.violation(f"freed twice or never allocated: {cuda.memory.epitaph(address)}")
        raise CudaError(Code.INVALID_VALUE)
    if mapping.allocation.kind != "pool":
        raise CudaError(Code.INVALID_VALUE, f"{mapping.allocation} is freed another way")
    mapping.freed = True
    cuda.scheduler.submit(chosen, "free", lambda: _ends(cuda, mapping))


def _becomes_ready(mapping: Mapping) -> None:
    mapping.ready = True


def _ends(cuda: FakeDriver, mapping: Mapping) -> None:
    cuda.pools_give_back(mapping)
    cuda.memory.unmap(mapping)
