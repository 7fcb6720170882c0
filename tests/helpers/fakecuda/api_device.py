"""Calls about the driver, devices and contexts."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import (
    HANDLE,
    I32,
    POINTER,
    SIZE,
    U32,
    U64,
    driver_call,
    put,
    put_optional,
)
from tests.helpers.fakecuda.attributes import device_attribute
from tests.helpers.fakecuda.codes import Code, CudaError
from tests.helpers.fakecuda.contexts import destroy

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.streams import Context

_PER_THREAD_STREAMS = 2
_FOUND, _SYMBOL_NOT_FOUND, _VERSION_NOT_SUFFICIENT = range(3)
_TEXTS: dict[str, ctypes.Array[ctypes.c_char]] = {}


def _ordinal(cuda: FakeDriver, device: int) -> int:
    if not 0 <= device < cuda.settings.device_count:
        raise CudaError(Code.INVALID_DEVICE, f"device {device}")
    return device


def _context(cuda: FakeDriver, handle: int) -> Context:
    found = cuda.contexts.get(handle)
    if found is None:
        cuda.recorder.violation(f"{handle:#x} is no context; a real driver crashes")
        raise CudaError(Code.INVALID_CONTEXT)
    return found


@driver_call(
    "cuGetProcAddress",
    *(POINTER, POINTER, I32, U64, POINTER),
    since=12000,
    init=False,
    survives=True,
)
def get_proc_address(
    cuda: FakeDriver, symbol: int, out: int, version: int, flags: int, status: int
) -> None:
    if flags & _PER_THREAD_STREAMS:
        raise CudaError(cuda.recorder.not_modelled("cuGetProcAddress for per-thread streams"))
    address = cuda.linker.resolve(ctypes.string_at(symbol).decode(), version)
    put(U64, out, address or 0)
    verdicts = {None: _SYMBOL_NOT_FOUND, 0: _VERSION_NOT_SUFFICIENT}
    put_optional(I32, status, verdicts.get(address, _FOUND))


@driver_call("cuInit", U32, since=2000, init=False, survives=True)
def init(cuda: FakeDriver, flags: int) -> None:
    if flags:
        raise CudaError(Code.INVALID_VALUE, "flags")
    if cuda.settings.device_count == 0:
        raise CudaError(Code.NO_DEVICE)
    cuda.initialised = True


@driver_call("cuDriverGetVersion", POINTER, since=2020, init=False, survives=True)
def driver_get_version(cuda: FakeDriver, out: int) -> None:
    put(I32, out, cuda.settings.driver_version)


@driver_call("cuGetErrorName", I32, POINTER, since=6000, init=False, survives=True)
def get_error_name(cuda: FakeDriver, error: int, out: int) -> None:
    prefix = "CUDA_ERROR_" if error else "CUDA_"
    _put_text(out, prefix + _code(error, out).name)


@driver_call("cuGetErrorString", I32, POINTER, since=6000, init=False, survives=True)
def get_error_string(cuda: FakeDriver, error: int, out: int) -> None:
    _put_text(out, _code(error, out).name.lower().replace("_", " "))


def _code(error: int, out: int) -> Code:
    if error not in tuple(Code):
        put(U64, out, 0)
        raise CudaError(Code.INVALID_VALUE, f"error code {error}")
    return Code(error)


def _put_text(out: int, text: str) -> None:
    kept = _TEXTS.setdefault(text, ctypes.create_string_buffer(text.encode()))
    put(U64, out, ctypes.addressof(kept))


@driver_call("cuDeviceGetCount", POINTER, since=2000, survives=True)
def device_get_count(cuda: FakeDriver, out: int) -> None:
    put(I32, out, cuda.settings.device_count)


@driver_call("cuDeviceGet", POINTER, I32, since=2000, survives=True)
def device_get(cuda: FakeDriver, out: int, ordinal: int) -> None:
    put(I32, out, _ordinal(cuda, ordinal))


@driver_call("cuDeviceGetName", POINTER, I32, I32, since=2000, survives=True)
def device_get_name(cuda: FakeDriver, out: int, length: int, device: int) -> None:
    text = f"Double of a GPU {_ordinal(cuda, device)}".encode()[: length - 1] + b"\0"
    ctypes.memmove(out, text, len(text))


@driver_call("cuDeviceGetUuid", POINTER, I32, since=11040, survives=True)
@driver_call("cuDeviceGetUuid", POINTER, I32, since=9020, survives=True)
def device_get_uuid(cuda: FakeDriver, out: int, device: int) -> None:
    ctypes.memmove(out, bytes([0xFA, 0xCE, _ordinal(cuda, device)]) + bytes(13), 16)


@driver_call("cuDeviceTotalMem", POINTER, I32, since=3020, survives=True)
def device_total_mem(cuda: FakeDriver, out: int, device: int) -> None:
    _ordinal(cuda, device)
    put(SIZE, out, cuda.settings.total_memory)


@driver_call("cuDeviceGetAttribute", POINTER, I32, I32, since=2000, survives=True)
def device_get_attribute(cuda: FakeDriver, out: int, attribute: int, device: int) -> None:
    put(I32, out, device_attribute(cuda.settings, attribute, _ordinal(cuda, device)))


@driver_call("cuDevicePrimaryCtxRetain", POINTER, I32, since=7000, survives=True)
def primary_ctx_retain(cuda: FakeDriver, out: int, device: int) -> None:
    context = cuda.context_of(_ordinal(cuda, device))
    if context.destroyed and context.fault:
        raise CudaError(context.fault, "a process never recovers from a fault")
    context.destroyed = False
    context.retained += 1
    put(HANDLE, out, context.handle)


@driver_call("cuDevicePrimaryCtxRelease", I32, since=11000, survives=True)
@driver_call("cuDevicePrimaryCtxRelease", I32, since=7000, survives=True)
def primary_ctx_release(cuda: FakeDriver, device: int) -> None:
    context = cuda.context_of(_ordinal(cuda, device))
    if context.retained == 0:
        raise CudaError(Code.INVALID_CONTEXT, "released more often than retained")
    context.retained -= 1
    if context.retained == 0:
        destroy(cuda, context)


@driver_call("cuDevicePrimaryCtxReset", I32, since=11000, survives=True)
@driver_call("cuDevicePrimaryCtxReset", I32, since=7000, survives=True)
def primary_ctx_reset(cuda: FakeDriver, device: int) -> None:
    destroy(cuda, cuda.context_of(_ordinal(cuda, device)))


@driver_call("cuDevicePrimaryCtxGetState", I32, POINTER, POINTER, since=7000, survives=True)
def primary_ctx_get_state(cuda: FakeDriver, device: int, flags: int, active: int) -> None:
    put(U32, flags, 0)
    put(I32, active, int(cuda.context_of(_ordinal(cuda, device)).retained > 0))


@driver_call("cuCtxGetCurrent", POINTER, since=4000, survives=True)
def ctx_get_current(cuda: FakeDriver, out: int) -> None:
    put(HANDLE, out, cuda.current.handle if cuda.current else 0)


@driver_call("cuCtxSetCurrent", HANDLE, since=4000, survives=True)
def ctx_set_current(cuda: FakeDriver, handle: int) -> None:
    chosen = _context(cuda, handle) if handle else None
    if cuda.context_stack:
        cuda.context_stack.pop()
    if chosen is not None:
        cuda.context_stack.append(chosen)


@driver_call("cuCtxPushCurrent", HANDLE, since=4000, survives=True)
def ctx_push_current(cuda: FakeDriver, handle: int) -> None:
    cuda.context_stack.append(_context(cuda, handle))


@driver_call("cuCtxPopCurrent", POINTER, since=4000, context=True, survives=True)
def ctx_pop_current(cuda: FakeDriver, out: int) -> None:
    popped = cuda.context_stack.pop()
    if out:
        put(HANDLE, out, popped.handle)


@driver_call("cuCtxGetDevice", POINTER, since=2000, context=True, survives=True)
def ctx_get_device(cuda: FakeDriver, out: int) -> None:
    put(I32, out, cuda.context.ordinal)


@driver_call("cuCtxGetDevice", POINTER, HANDLE, since=13000, survives=True)
def ctx_get_device_v2(cuda: FakeDriver, out: int, handle: int) -> None:
    put(I32, out, (_context(cuda, handle) if handle else cuda.context).ordinal)


@driver_call("cuCtxGetStreamPriorityRange", POINTER, POINTER, since=5050, context=True)
def ctx_get_stream_priority_range(cuda: FakeDriver, least: int, greatest: int) -> None:
    put(I32, least, 0)
    put(I32, greatest, -5)


@driver_call("cuCtxSynchronize", since=2000, context=True)
def ctx_synchronize(cuda: FakeDriver) -> int:
    return _synchronize(cuda, cuda.context)


@driver_call("cuCtxSynchronize", HANDLE, since=13000)
def ctx_synchronize_v2(cuda: FakeDriver, handle: int) -> int:
    return _synchronize(cuda, _context(cuda, handle) if handle else cuda.context)


def _synchronize(cuda: FakeDriver, context: Context) -> int:
    cuda.scheduler.synchronize_context(context)
    cuda.after_synchronising()
    return context.fault


@driver_call("cuDeviceCanAccessPeer", POINTER, I32, I32, since=4000, survives=True)
def device_can_access_peer(cuda: FakeDriver, out: int, device: int, peer: int) -> None:
    _ordinal(cuda, device)
    _ordinal(cuda, peer)
    put(I32, out, 0)
