"""Copies and fills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import (
    HANDLE,
    I32,
    POINTER,
    SIZE,
    U8,
    U16,
    U32,
    U64,
    driver_call,
    get,
    put_optional,
)
from tests.helpers.fakecuda.codes import SIZE_MAX, Code, CudaError
from tests.helpers.fakecuda.copies import (
    ANY,
    DEVICE,
    HOST_SIDE,
    check_range,
    finish,
    submit_copy,
    submit_copy_read_now,
    submit_fill,
)
from tests.helpers.fakecuda.streams import LEGACY

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver

_ATTRIBUTES_BYTES = 24  # CUmemcpyAttributes: order, two locations, flags
_ORDER_STREAM, _ORDER_DURING_CALL, _ORDER_ANY = 1, 2, 3


def _copy(
    cuda: FakeDriver, to: tuple[int, str], out_of: tuple[int, str], size: int, stream: int
) -> None:
    chosen = cuda.scheduler.stream(stream, cuda.current)
    if size == 0:
        return
    target = check_range(cuda, chosen, to[0], size, write=True, kind=to[1])
    source = check_range(cuda, chosen, out_of[0], size, write=False, kind=out_of[1])
    submit_copy(cuda, chosen, target, source)


def _copy_and_wait(
    cuda: FakeDriver, to: tuple[int, str], out_of: tuple[int, str], size: int
) -> int:
    _copy(cuda, to, out_of, size, LEGACY)
    return finish(cuda, cuda.scheduler.stream(LEGACY, cuda.current))


@driver_call("cuMemcpy", U64, U64, SIZE, since=4000, context=True)
def memcpy(cuda: FakeDriver, target: int, source: int, size: int) -> int:
    return _copy_and_wait(cuda, (target, ANY), (source, ANY), size)


@driver_call("cuMemcpyAsync", U64, U64, SIZE, HANDLE, since=4000)
def memcpy_async(cuda: FakeDriver, target: int, source: int, size: int, stream: int) -> None:
    _copy(cuda, (target, ANY), (source, ANY), size, stream)


@driver_call("cuMemcpyHtoD", U64, U64, SIZE, since=3020, context=True)
def memcpy_htod(cuda: FakeDriver, target: int, source: int, size: int) -> int:
    return _copy_and_wait(cuda, (target, DEVICE), (source, HOST_SIDE), size)


@driver_call("cuMemcpyHtoDAsync", U64, U64, SIZE, HANDLE, since=3020)
def memcpy_htod_async(cuda: FakeDriver, target: int, source: int, size: int, stream: int) -> None:
    _copy(cuda, (target, DEVICE), (source, HOST_SIDE), size, stream)


@driver_call("cuMemcpyDtoH", U64, U64, SIZE, since=3020, context=True)
def memcpy_dtoh(cuda: FakeDriver, target: int, source: int, size: int) -> int:
    return _copy_and_wait(cuda, (target, HOST_SIDE), (source, DEVICE), size)


@driver_call("cuMemcpyDtoHAsync", U64, U64, SIZE, HANDLE, since=3020)
def memcpy_dtoh_async(cuda: FakeDriver, target: int, source: int, size: int, stream: int) -> None:
    _copy(cuda, (target, HOST_SIDE), (source, DEVICE), size, stream)


@driver_call("cuMemcpyDtoD", U64, U64, SIZE, since=3020, context=True)
def memcpy_dtod(cuda: FakeDriver, target: int, source: int, size: int) -> None:
    _copy(cuda, (target, DEVICE), (source, DEVICE), size, LEGACY)


@driver_call("cuMemcpyDtoDAsync", U64, U64, SIZE, HANDLE, since=3020)
def memcpy_dtod_async(cuda: FakeDriver, target: int, source: int, size: int, stream: int) -> None:
    _copy(cuda, (target, DEVICE), (source, DEVICE), size, stream)


@driver_call(
    "cuMemcpyBatchAsync",
    POINTER,
    POINTER,
    POINTER,
    SIZE,
    POINTER,
    POINTER,
    SIZE,
    POINTER,
    HANDLE,
    since=12080,
)
def memcpy_batch_async_v1(
    cuda: FakeDriver,
    targets: int,
    sources: int,
    sizes: int,
    count: int,
    attributes: int,
    firsts: int,
    kinds: int,
    fail_index: int,
    stream: int,
) -> None:
    put_optional(SIZE, fail_index, SIZE_MAX)
    memcpy_batch_async(cuda, targets, sources, sizes, count, attributes, firsts, kinds, stream)


@driver_call(
    "cuMemcpyBatchAsync",
    POINTER,
    POINTER,
    POINTER,
    SIZE,
    POINTER,
    POINTER,
    SIZE,
    HANDLE,
    since=13000,
)
def memcpy_batch_async(
    cuda: FakeDriver,
    targets: int,
    sources: int,
    sizes: int,
    count: int,
    attributes: int,
    firsts: int,
    kinds: int,
    stream: int,
) -> None:
    if stream in (0, LEGACY):
        raise CudaError(Code.INVALID_VALUE, "the legacy default stream")
    if count == 0 or kinds == 0 or kinds > count:
        raise CudaError(Code.INVALID_VALUE, f"count {count}, {kinds} attributes")
    orders = _orders(attributes, firsts, kinds, count)
    chosen = cuda.scheduler.stream(stream, cuda.current)
    ready = []
    for index in range(count):
        size = get(SIZE, sizes, index)
        if size == 0:
            raise CudaError(Code.INVALID_VALUE, f"copy {index} has size 0")
        target = check_range(cuda, chosen, get(U64, targets, index), size, write=True, kind=ANY)
        source = check_range(cuda, chosen, get(U64, sources, index), size, write=False, kind=ANY)
        ready.append((target, source))
    for order, (target, source) in zip(orders, ready, strict=True):
        submit = submit_copy_read_now if order == _ORDER_DURING_CALL else submit_copy
        submit(cuda, chosen, target, source)


def _orders(attributes: int, firsts: int, kinds: int, count: int) -> list[int]:
    """Return the source access order of each copy of a batch."""
    starts = [get(SIZE, firsts, kind) for kind in range(kinds)]
    if starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= count:
        raise CudaError(Code.INVALID_VALUE, f"attribute indices {starts}")
    orders = [get(I32, attributes + kind * _ATTRIBUTES_BYTES) for kind in range(kinds)]
    if not all(order in (_ORDER_STREAM, _ORDER_DURING_CALL, _ORDER_ANY) for order in orders):
        raise CudaError(Code.INVALID_VALUE, f"source access orders {orders}")
    ends = [*starts[1:], count]
    return [
        o for o, start, end in zip(orders, starts, ends, strict=True) for _ in range(start, end)
    ]


def _fill(cuda: FakeDriver, address: int, pattern: bytes, count: int, stream: int) -> None:
    chosen = cuda.scheduler.stream(stream, cuda.current)
    if address % len(pattern):
        raise CudaError(Code.INVALID_VALUE, f"{address:#x} is not aligned to {len(pattern)}")
    if count:
        size = count * len(pattern)
        target = check_range(cuda, chosen, address, size, write=True, kind=DEVICE)
        submit_fill(cuda, chosen, target, pattern)


@driver_call("cuMemsetD8Async", U64, U8, SIZE, HANDLE, since=3020)
def memset_d8_async(cuda: FakeDriver, address: int, value: int, count: int, stream: int) -> None:
    _fill(cuda, address, value.to_bytes(1, "little"), count, stream)


@driver_call("cuMemsetD16Async", U64, U16, SIZE, HANDLE, since=3020)
def memset_d16_async(cuda: FakeDriver, address: int, value: int, count: int, stream: int) -> None:
    _fill(cuda, address, value.to_bytes(2, "little"), count, stream)


@driver_call("cuMemsetD32Async", U64, U32, SIZE, HANDLE, since=3020)
def memset_d32_async(cuda: FakeDriver, address: int, value: int, count: int, stream: int) -> None:
    _fill(cuda, address, value.to_bytes(4, "little"), count, stream)


@driver_call("cuMemsetD8", U64, U8, SIZE, since=3020, context=True)
def memset_d8(cuda: FakeDriver, address: int, value: int, count: int) -> None:
    _fill(cuda, address, value.to_bytes(1, "little"), count, LEGACY)


@driver_call("cuMemsetD32", U64, U32, SIZE, since=3020, context=True)
def memset_d32(cuda: FakeDriver, address: int, value: int, count: int) -> None:
    _fill(cuda, address, value.to_bytes(4, "little"), count, LEGACY)
