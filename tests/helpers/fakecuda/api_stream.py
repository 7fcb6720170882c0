"""Streams, events and host functions."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import (
    HANDLE,
    I32,
    POINTER,
    U32,
    U64,
    driver_call,
    put,
    put_optional,
)
from tests.helpers.fakecuda.codes import Code, CudaError
from tests.helpers.fakecuda.copies import finish
from tests.helpers.fakecuda.streams import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver

_BLOCKING_SYNC, _DISABLE_TIMING, _INTERPROCESS = 1, 2, 4
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_STREAM_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


@driver_call("cuStreamCreate", POINTER, U32, since=2000, context=True)
def stream_create(cuda: FakeDriver, out: int, flags: int) -> None:
    stream_create_with_priority(cuda, out, flags, 0)


@driver_call("cuStreamCreateWithPriority", POINTER, U32, I32, since=5050, context=True)
def stream_create_with_priority(cuda: FakeDriver, out: int, flags: int, priority: int) -> None:
    if flags not in (0, 1):
        raise CudaError(Code.INVALID_VALUE, f"stream flags {flags}")
    priority = min(max(priority, -5), 0)
    put(HANDLE, out, cuda.scheduler.create_stream(cuda.context, flags, priority).handle)


@driver_call("cuStreamDestroy", HANDLE, since=4000)
def stream_destroy(cuda: FakeDriver, handle: int) -> None:
    if handle in (0, LEGACY, PER_THREAD):
        raise CudaError(Code.INVALID_HANDLE, "a default stream")
    cuda.scheduler.destroy_stream(cuda.scheduler.stream(handle, cuda.current))


@driver_call("cuStreamSynchronize", HANDLE, since=2000)
def stream_synchronize(cuda: FakeDriver, handle: int) -> int:
    return finish(cuda, cuda.scheduler.stream(handle, cuda.current))


@driver_call("cuStreamQuery", HANDLE, since=2000)
def stream_query(cuda: FakeDriver, handle: int) -> int:
    stream = cuda.scheduler.stream(handle, cuda.current)
    done = cuda.scheduler.step(stream.tail)
    return stream.context.fault or (Code.SUCCESS if done else Code.NOT_READY)


@driver_call("cuStreamWaitEvent", HANDLE, HANDLE, U32, since=3020)
def stream_wait_event(cuda: FakeDriver, handle: int, event: int, flags: int) -> None:
    stream = cuda.scheduler.stream(handle, cuda.current)
    point = cuda.scheduler.event(event).point
    if flags not in (0, 1):
        raise CudaError(Code.INVALID_VALUE, f"wait flags {flags}")
    if point is not None:
        cuda.scheduler.submit(stream, "wait", lambda: None, (point,))


@driver_call("cuStreamGetFlags", HANDLE, POINTER, since=5050)
def stream_get_flags(cuda: FakeDriver, handle: int, out: int) -> None:
    put(U32, out, cuda.scheduler.stream(handle, cuda.current).flags)


@driver_call("cuStreamGetPriority", HANDLE, POINTER, since=5050)
def stream_get_priority(cuda: FakeDriver, handle: int, out: int) -> None:
    put(I32, out, cuda.scheduler.stream(handle, cuda.current).priority)


@driver_call("cuStreamGetCtx", HANDLE, POINTER, since=9020)
def stream_get_ctx(cuda: FakeDriver, handle: int, out: int) -> None:
    put(HANDLE, out, cuda.scheduler.stream(handle, cuda.current).context.handle)


@driver_call("cuStreamGetCtx", HANDLE, POINTER, POINTER, since=12050)
def stream_get_ctx_v2(cuda: FakeDriver, handle: int, out: int, green: int) -> None:
    put(HANDLE, out, cuda.scheduler.stream(handle, cuda.current).context.handle)
    put_optional(HANDLE, green, 0)


@driver_call("cuStreamGetDevice", HANDLE, POINTER, since=12080)
def stream_get_device(cuda: FakeDriver, handle: int, out: int) -> None:
    put(I32, out, cuda.scheduler.stream(handle, cuda.current).context.ordinal)


@driver_call("cuStreamGetId", HANDLE, POINTER, since=12000)
def stream_get_id(cuda: FakeDriver, handle: int, out: int) -> None:
    put(U64, out, id(cuda.scheduler.stream(handle, cuda.current)))


@driver_call("cuStreamIsCapturing", HANDLE, POINTER, since=10000)
def stream_is_capturing(cuda: FakeDriver, handle: int, out: int) -> None:
    cuda.scheduler.stream(handle, cuda.current)
    put(I32, out, 0)


@driver_call("cuStreamGetCaptureInfo", *[POINTER] * 7, since=12030)
def stream_get_capture_info_v3(
    cuda: FakeDriver, handle: int, status: int, number: int, graph: int, *outs: int
) -> None:
    cuda.scheduler.stream(handle, cuda.current)
    put(I32, status, 0)


@driver_call("cuEventCreate", POINTER, U32, since=2000, context=True)
def event_create(cuda: FakeDriver, out: int, flags: int) -> None:
    shared_and_timed = flags & _INTERPROCESS and not flags & _DISABLE_TIMING
    if flags > _BLOCKING_SYNC | _DISABLE_TIMING | _INTERPROCESS or shared_and_timed:
        raise CudaError(Code.INVALID_VALUE, f"event flags {flags}")
    put(HANDLE, out, cuda.scheduler.create_event(cuda.context, flags).handle)


@driver_call("cuEventDestroy", HANDLE, since=4000)
def event_destroy(cuda: FakeDriver, handle: int) -> None:
    cuda.scheduler.destroy_event(cuda.scheduler.event(handle))


@driver_call("cuEventRecord", HANDLE, HANDLE, since=2000)
def event_record(cuda: FakeDriver, event: int, stream: int) -> None:
    event_record_with_flags(cuda, event, stream, 0)


@driver_call("cuEventRecordWithFlags", HANDLE, HANDLE, U32, since=11010)
def event_record_with_flags(cuda: FakeDriver, event: int, handle: int, flags: int) -> None:
    found = cuda.scheduler.event(event)
    stream = cuda.scheduler.stream(handle, cuda.current)
    if flags:
        raise CudaError(Code.INVALID_VALUE, f"record flags {flags}")
    if stream.context is not found.context:
        raise CudaError(Code.INVALID_HANDLE, "event and stream of different contexts")
    cuda.scheduler.record(found, stream)


@driver_call("cuEventQuery", HANDLE, since=2000)
def event_query(cuda: FakeDriver, handle: int) -> int:
    event = cuda.scheduler.event(handle)
    done = event.point is None or cuda.scheduler.step(event.point)
    return event.context.fault or (Code.SUCCESS if done else Code.NOT_READY)


@driver_call("cuEventSynchronize", HANDLE, since=2000)
def event_synchronize(cuda: FakeDriver, handle: int) -> int:
    event = cuda.scheduler.event(handle)
    if event.point is not None:
        cuda.scheduler.run_until(event.point)
    cuda.after_synchronising()
    return event.context.fault


@driver_call("cuEventElapsedTime", POINTER, HANDLE, HANDLE, since=12080)
@driver_call("cuEventElapsedTime", POINTER, HANDLE, HANDLE, since=2000)
def event_elapsed_time(cuda: FakeDriver, out: int, first: int, second: int) -> int | None:
    events = [cuda.scheduler.event(first), cuda.scheduler.event(second)]
    if any(e.point is None or e.flags & _DISABLE_TIMING for e in events):
        raise CudaError(Code.INVALID_HANDLE, "an event without a time")
    if any(e.point is not None and not e.point.reached for e in events):
        return Code.NOT_READY
    ctypes.c_float.from_address(out).value = (events[1].time - events[0].time) * 1e3
    return None


@driver_call("cuLaunchHostFunc", HANDLE, POINTER, POINTER, since=10000)
def launch_host_func(cuda: FakeDriver, handle: int, function: int, data: int) -> None:
    if not function:
        raise CudaError(Code.INVALID_VALUE, "no function")
    stream = cuda.scheduler.stream(handle, cuda.current)
    cuda.scheduler.submit(stream, "host function", lambda: _HOST_FUNCTION(function)(data))


@driver_call("cuStreamAddCallback", HANDLE, POINTER, POINTER, U32, since=5000)
def stream_add_callback(
    cuda: FakeDriver, handle: int, function: int, data: int, flags: int
) -> None:
    if not function or flags:
        raise CudaError(Code.INVALID_VALUE, "no function, or flags")
    stream = cuda.scheduler.stream(handle, cuda.current)
    call = _STREAM_CALLBACK(function)
    cuda.scheduler.submit(stream, "callback", lambda: call(handle, stream.context.fault, data))
