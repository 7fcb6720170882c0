"""What works before cuInit, without a context, on a new thread and in a forked child."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from typing import TYPE_CHECKING, Any

from tests.double.probe.asking import (
    Driver,
    descriptors,
    group,
    location,
    pool_properties,
    properties,
)

if TYPE_CHECKING:
    from tests.double.probe.asking import Note

MIB = 1 << 20


@group
def symbols(cuda: Driver, note: Note) -> None:
    def ask(name: str, version: int, *, with_status: bool) -> list[Any]:
        out, status = ctypes.c_void_p(1), ctypes.c_int(-1)
        at = ctypes.byref(status) if with_status else None
        code = cuda.library.cuGetProcAddress_v2(
            name.encode(), ctypes.byref(out), version, ctypes.c_uint64(0), at
        )
        return [code, bool(out.value), status.value]

    for name, version in (
        ("cuNoSuchCall", 12000),
        ("cuMemCreate", 12000),
        ("cuMemCreate", 9000),
        ("cuMemCreate", 13050),
        ("cuMemCreate", 99000),
        ("cuMemBatchDecompressAsync", 12050),
        ("cuMemBatchDecompressAsync", 12060),
        ("cuMemBatchDecompressAsync", 12080),
        ("cuMemBatchDecompressAsync", 13000),
    ):
        for with_status in (True, False):
            answer = ask(name, version, with_status=with_status)
            note(f"{name} for {version}, status {with_status}", answer)


@group
def before_init(_: Driver, note: Note) -> None:
    cuda = Driver(init=False)
    note("cuDeviceGetCount", cuda.code_of("cuDeviceGetCount"))
    note("cuDriverGetVersion", cuda.code_of("cuDriverGetVersion"))
    note("cuCtxGetCurrent", cuda.code_of("cuCtxGetCurrent"))
    note("cuMemAlloc", cuda.code_of("cuMemAlloc", 1))
    note("cuMemCreate", cuda.code_of("cuMemCreate", 2 * MIB, properties(), 0))
    note("cuStreamSynchronize", cuda("cuStreamSynchronize", 0))
    note("cuInit flags", cuda("cuInit", 1))


before_init.needs_init = False  # type: ignore[attr-defined]


class Things:
    """One of everything, made while a context was current."""

    def __init__(self, cuda: Driver) -> None:
        self.cuda = cuda
        self.memory = cuda.memory(4 * MIB)
        self.doomed = cuda.memory(4 * MIB)
        self.pinned = cuda.pinned(MIB)
        self.doomed_pinned = cuda.pinned(MIB)
        self.stream = cuda.value("cuStreamCreate", 1)
        self.doomed_stream = cuda.value("cuStreamCreate", 1)
        self.event = cuda.value("cuEventCreate", 0)
        self.doomed_event = cuda.value("cuEventCreate", 0)
        cuda.must("cuEventRecord", self.event, self.stream)
        self.pool = cuda.pool()
        self.pooled = cuda.value("cuMemAllocFromPoolAsync", MIB, self.pool, self.stream)
        self.mapped = cuda.mapped(2 * MIB)
        self.doomed_mapped = cuda.mapped(2 * MIB)
        self.handle = cuda.created(2 * MIB)
        self.pageable = ctypes.create_string_buffer(4096)
        cuda.must("cuCtxSynchronize")

    def ask(self, note: Note) -> None:
        """Make one call of each sort that programs make while they work and tear down."""
        self._ask_working(note)
        self._ask_streams(note)
        self._ask_memory(note)
        self._ask_teardown(note)

    def _ask_working(self, note: Note) -> None:
        cuda = self.cuda
        pageable = ctypes.addressof(self.pageable)
        note("cuCtxGetCurrent", cuda.code_of("cuCtxGetCurrent"))
        note("cuCtxGetDevice", cuda.code_of("cuCtxGetDevice"))
        note("cuCtxSynchronize", cuda("cuCtxSynchronize"))
        note("cuDeviceGetCount", cuda.code_of("cuDeviceGetCount"))
        note("cuDeviceGetAttribute", cuda.code_of("cuDeviceGetAttribute", 75, 0))
        note("cuMemGetInfo", cuda("cuMemGetInfo", *[ctypes.byref(ctypes.c_uint64())] * 2))
        note("cuMemcpyHtoD", cuda("cuMemcpyHtoD", self.memory, pageable, 16))
        note("cuMemcpyDtoH", cuda("cuMemcpyDtoH", pageable, self.memory, 16))
        note(
            "cuMemcpyHtoDAsync",
            cuda("cuMemcpyHtoDAsync", self.memory, self.pinned, 16, self.stream),
        )
        note("cuMemcpyAsync", cuda("cuMemcpyAsync", self.memory, self.pinned, 16, self.stream))
        note(
            "cuMemcpyAsync, default stream", cuda("cuMemcpyAsync", self.memory, self.pinned, 16, 0)
        )
        note("cuMemsetD8Async", cuda("cuMemsetD8Async", self.memory, 0, 16, self.stream))
        for number in (1, 2, 3, 9, 21):
            note(
                f"cuPointerGetAttribute {number}",
                cuda.code_of("cuPointerGetAttribute", number, self.memory),
            )
        note("cuPointerGetAttribute, pinned", cuda.code_of("cuPointerGetAttribute", 2, self.pinned))
        outs = (ctypes.c_uint64 * 1)()
        where = (ctypes.c_void_p * 1)(ctypes.addressof(outs))
        numbers = (ctypes.c_int * 1)(2)
        note(
            "cuPointerGetAttributes", cuda("cuPointerGetAttributes", 1, numbers, where, self.memory)
        )
        note("cuMemGetAddressRange", cuda("cuMemGetAddressRange", None, None, self.memory))
        self._ask_decompress(note)

    def _ask_decompress(self, note: Note) -> None:
        params = (ctypes.c_uint8 * 64)()
        index = ctypes.c_uint64(0)
        code = self.cuda(
            "cuMemBatchDecompressAsync",
            params,
            1,
            0,
            ctypes.byref(index),
            self.stream,
            version=12080,
        )
        note("cuMemBatchDecompressAsync", code)

    def _ask_streams(self, note: Note) -> None:
        cuda, stream, event = self.cuda, self.stream, self.event
        note("cuStreamQuery", cuda("cuStreamQuery", stream))
        note("cuStreamSynchronize", cuda("cuStreamSynchronize", stream))
        note("cuStreamSynchronize, default stream", cuda("cuStreamSynchronize", 0))
        note("cuEventRecord", cuda("cuEventRecord", event, stream))
        note("cuStreamWaitEvent", cuda("cuStreamWaitEvent", stream, event, 0))
        cuda("cuStreamSynchronize", stream)
        note("cuEventQuery", cuda("cuEventQuery", event))
        note("cuEventSynchronize", cuda("cuEventSynchronize", event))
        note(
            "cuStreamGetPriority", cuda("cuStreamGetPriority", stream, ctypes.byref(ctypes.c_int()))
        )
        note("cuStreamGetFlags", cuda("cuStreamGetFlags", stream, ctypes.byref(ctypes.c_int())))
        note("cuStreamGetCtx", cuda("cuStreamGetCtx", stream, ctypes.byref(ctypes.c_uint64())))
        note("cuStreamGetId", cuda("cuStreamGetId", stream, ctypes.byref(ctypes.c_uint64())))
        capturing = ctypes.byref(ctypes.c_int())
        note("cuStreamIsCapturing", cuda("cuStreamIsCapturing", stream, capturing))
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
        note("cuLaunchHostFunc", cuda("cuLaunchHostFunc", stream, function, 0))
        cuda("cuStreamSynchronize", stream)

    def _ask_memory(self, note: Note) -> None:
        cuda = self.cuda
        note("cuMemAlloc", cuda.code_of("cuMemAlloc", 4096))
        note("cuMemHostAlloc", cuda.code_of("cuMemHostAlloc", 4096, 0))
        note("cuStreamCreate", cuda.code_of("cuStreamCreate", 1))
        note("cuEventCreate", cuda.code_of("cuEventCreate", 0))
        note("cuMemPoolCreate", cuda.code_of("cuMemPoolCreate", pool_properties(0, (1, 0), 0)))
        note(
            "cuMemAllocFromPoolAsync",
            cuda.code_of("cuMemAllocFromPoolAsync", 4096, self.pool, self.stream),
        )
        note(
            "cuMemAllocFromPoolAsync, default stream",
            cuda.code_of("cuMemAllocFromPoolAsync", 4096, self.pool, 0),
        )
        note("cuMemCreate", cuda.code_of("cuMemCreate", 2 * MIB, properties(), 0))
        note("cuMemAddressReserve", cuda.code_of("cuMemAddressReserve", 2 * MIB, 0, 0, 0))
        note(
            "cuMemGetAllocationGranularity",
            cuda.code_of("cuMemGetAllocationGranularity", properties(), 0),
        )
        note(
            "cuMemSetAccess",
            cuda("cuMemSetAccess", self.mapped, 2 * MIB, descriptors((1, 0, 3)), 1),
        )
        note("cuMemGetAccess", cuda.code_of("cuMemGetAccess", location(1, 0), self.mapped))
        note("cuMemPoolTrimTo", cuda("cuMemPoolTrimTo", self.pool, 0))
        note(
            "cuMemPoolGetAttribute",
            cuda("cuMemPoolGetAttribute", self.pool, 5, ctypes.byref(ctypes.c_uint64())),
        )

    def _ask_teardown(self, note: Note) -> None:
        cuda = self.cuda
        note("cuMemUnmap", cuda("cuMemUnmap", self.doomed_mapped, 2 * MIB))
        note("cuMemAddressFree", cuda("cuMemAddressFree", self.doomed_mapped, 2 * MIB))
        note("cuMemRelease", cuda("cuMemRelease", self.handle))
        note("cuMemFreeAsync", cuda("cuMemFreeAsync", self.pooled, self.stream))
        note("cuMemPoolDestroy", cuda("cuMemPoolDestroy", self.pool))
        note("cuMemFree", cuda("cuMemFree", self.doomed))
        note("cuMemFree, null", cuda("cuMemFree", 0))
        note("cuMemFreeHost", cuda("cuMemFreeHost", self.doomed_pinned))
        note("cuEventDestroy", cuda("cuEventDestroy", self.doomed_event))
        note("cuStreamDestroy", cuda("cuStreamDestroy", self.doomed_stream))
        note("cuCtxSetCurrent, null", cuda("cuCtxSetCurrent", 0))
        note("cuDevicePrimaryCtxRelease", cuda("cuDevicePrimaryCtxRelease", 0))


@group
def with_context(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    Things(cuda).ask(note)


@group
def without_context(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    things = Things(cuda)
    thread = threading.Thread(target=things.ask, args=(note,))
    thread.start()
    thread.join()


@group
def forked_child(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    things = Things(cuda)
    answers: dict[str, Any] = {}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        things.ask(lambda name, answer: answers.update({name: answer}))
        answers["cuInit"] = cuda("cuInit", 0)
        os.write(writer, json.dumps(answers).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    for name, answer in json.loads(text or '{"crashed": true}').items():
        note(name, answer)
