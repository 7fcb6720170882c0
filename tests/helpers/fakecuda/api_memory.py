"""Allocations that need no stream, host memory, and questions about pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import (
    I32,
    POINTER,
    SIZE,
    U32,
    U64,
    driver_call,
    get,
    put,
    put_optional,
)
from tests.helpers.fakecuda.accounting import charge, device_memory_used
from tests.helpers.fakecuda.allocations import HOST, device
from tests.helpers.fakecuda.attributes import (
    WIDE_ATTRIBUTES,
    address_range,
    pointer_attribute,
    unknown_pointer_attribute,
)
from tests.helpers.fakecuda.codes import Access, Code, CudaError
from tests.helpers.fakecuda.hostmaps import present, writable

if TYPE_CHECKING:
    from tests.helpers.fakecuda.allocations import Mapping
    from tests.helpers.fakecuda.driver import FakeDriver

_HOST_ALLOC_KNOWN = 7
_REGISTER_READ_ONLY = 8
_REGISTER_KNOWN = 15


@driver_call("cuMemGetInfo", POINTER, POINTER, since=3020, context=True)
def mem_get_info(cuda: FakeDriver, free: int, total: int) -> None:
    put(SIZE, free, cuda.settings.total_memory - device_memory_used(cuda, cuda.context.ordinal))
    put(SIZE, total, cuda.settings.total_memory)


@driver_call("cuMemAlloc", POINTER, SIZE, since=3020, context=True)
def mem_alloc(cuda: FakeDriver, out: int, size: int) -> None:
    if size == 0:
        raise CudaError(Code.INVALID_VALUE, "size 0")
    place = device(cuda.context.ordinal)
    charge(cuda, cuda.context.ordinal, size)
    made = cuda.memory.create("device", size, place, capable=True, context=cuda.context.handle)
    mapping = cuda.memory.map_fresh(made)
    cuda.memory.grant(mapping, place, Access.READ_WRITE)
    put(U64, out, mapping.start)


@driver_call("cuMemFree", U64, since=3020)
def mem_free(cuda: FakeDriver, address: int) -> None:
    if address == 0:
        return
    mapping = owned(cuda, address, ("device", "pool"))
    _wait_and_unmap(cuda, mapping)


@driver_call("cuMemGetAddressRange", POINTER, POINTER, U64, since=3020, context=True)
def mem_get_address_range(cuda: FakeDriver, base: int, size: int, address: int) -> None:
    start, length = address_range(cuda, address)
    put_optional(U64, base, start)
    put_optional(SIZE, size, length)


@driver_call("cuMemAllocHost", POINTER, SIZE, since=3020, context=True)
def mem_alloc_host(cuda: FakeDriver, out: int, size: int) -> None:
    mem_host_alloc(cuda, out, size, 0)


@driver_call("cuMemHostAlloc", POINTER, SIZE, U32, since=2020, context=True)
def mem_host_alloc(cuda: FakeDriver, out: int, size: int, flags: int) -> None:
    if flags & ~_HOST_ALLOC_KNOWN:
        raise CudaError(Code.INVALID_VALUE, f"flags {flags}")
    if size == 0:
        return put(U64, out, 0)
    context = cuda.context.handle
    made = cuda.memory.create("host", size, HOST, context=context, flags=flags)
    mapping = cuda.memory.map_fresh(made)
    _grant_everywhere(cuda, mapping, Access.READ_WRITE)
    return put(U64, out, mapping.start)


@driver_call("cuMemFreeHost", U64, since=2000)
def mem_free_host(cuda: FakeDriver, address: int) -> None:
    if address:
        _wait_and_unmap(cuda, owned(cuda, address, ("host",)))


@driver_call("cuMemHostRegister", U64, SIZE, U32, since=6050, context=True)
def mem_host_register(cuda: FakeDriver, address: int, size: int, flags: int) -> None:
    if address == 0 or size == 0 or flags & ~_REGISTER_KNOWN:
        raise CudaError(Code.INVALID_VALUE, f"{address:#x}, size {size}, flags {flags}")
    if cuda.memory.between(address, address + size):
        raise CudaError(Code.HOST_MEMORY_ALREADY_REGISTERED)
    read_only = bool(flags & _REGISTER_READ_ONLY)
    if not read_only and not writable(address, size):
        raise CudaError(Code.INVALID_VALUE, "a read-only mapping without READ_ONLY")
    if not present(address, size):
        raise CudaError(Code.INVALID_VALUE, "pages that have lost their file")
    mapping = cuda.memory.register(address, size, flags, cuda.context.handle)
    _grant_everywhere(cuda, mapping, Access.READ if read_only else Access.READ_WRITE)


@driver_call("cuMemHostUnregister", U64, since=4000)
def mem_host_unregister(cuda: FakeDriver, address: int) -> None:
    mapping = cuda.memory.find(address)
    if mapping is None or mapping.allocation.kind != "registered":
        raise CudaError(Code.HOST_MEMORY_NOT_REGISTERED)
    if mapping.start != address:
        raise CudaError(Code.INVALID_VALUE, "inside the registered range")
    _wait_and_unmap(cuda, mapping)


@driver_call("cuMemHostGetDevicePointer", POINTER, U64, U32, since=3020)
def mem_host_get_device_pointer(cuda: FakeDriver, out: int, address: int, flags: int) -> None:
    mapping = cuda.memory.find(address)
    if mapping is None or mapping.allocation.kind not in ("host", "registered") or flags:
        raise CudaError(Code.INVALID_VALUE, cuda.memory.epitaph(address))
    put(U64, out, address)


@driver_call("cuPointerGetAttribute", POINTER, I32, U64, since=4000, survives=True)
def pointer_get_attribute(cuda: FakeDriver, out: int, attribute: int, address: int) -> None:
    value = pointer_attribute(cuda, attribute, address)
    _put_attribute(out, attribute, value)


@driver_call("cuPointerGetAttributes", U32, POINTER, POINTER, U64, since=7000, survives=True)
def pointer_get_attributes(
    cuda: FakeDriver, count: int, attributes: int, outs: int, address: int
) -> None:
    for index in range(count):
        attribute = get(I32, attributes, index)
        try:
            value = pointer_attribute(cuda, attribute, address)
        except CudaError:
            value = unknown_pointer_attribute(attribute)
        _put_attribute(get(U64, outs, index), attribute, value)


def _put_attribute(out: int, attribute: int, value: int) -> None:
    kind = U64 if attribute in WIDE_ATTRIBUTES else I32
    put(kind, out, value)


def owned(cuda: FakeDriver, address: int, kinds: tuple[str, ...]) -> Mapping:
    """Return the memory that a pointer may free."""
    mapping = cuda.memory.find(address)
    if mapping is None or mapping.start != address or mapping.freed:
        text = cuda.memory.epitaph(address)
        if not cuda.memory.is_stale(address):
            cuda.recorder.violation(f"freed twice or never allocated: {text}")
        raise CudaError(Code.INVALID_VALUE, text)
    if mapping.allocation.kind not in kinds:
        raise CudaError(Code.INVALID_VALUE, f"{mapping.allocation} is freed another way")
    return mapping


def _wait_and_unmap(cuda: FakeDriver, mapping: Mapping) -> None:
    context = cuda.contexts.get(mapping.allocation.context, cuda.some_context)
    cuda.scheduler.synchronize_context(context)
    if context.fault:
        raise CudaError(context.fault, "work that the call waited for ended the context")
    if mapping.allocation.pool:
        cuda.pools.give_back(mapping)
    cuda.memory.unmap(mapping)


def _grant_everywhere(cuda: FakeDriver, mapping: Mapping, flags: int) -> None:
    cuda.memory.grant(mapping, HOST, Access.READ_WRITE)
    for ordinal in range(cuda.settings.device_count):
        cuda.memory.grant(mapping, device(ordinal), flags)
