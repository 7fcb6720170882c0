"""What works before cuInit, without a context, on a new thread and in a forked child."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import threading
from collections.abc import Callable
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
_PATIENCE = 3.0

Ask = Callable[[], int]


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
        self.block = ctypes.create_string_buffer(4096)
        self.word = ctypes.byref(ctypes.c_uint64())
        self.function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
        cuda.must("cuCtxSynchronize")

    def questions(self) -> dict[str, Ask]:
        """Return one call of each sort that programs make, in an order that works."""
        parts = (self._devices, self._copies, self._pointers, self._streams, self._memory)
        found: dict[str, Ask] = {}
        for part in (*parts, self._teardown):
            found.update(part())
        return found

    def _devices(self) -> dict[str, Ask]:
        cuda, word = self.cuda, self.word
        return {
            "cuCtxGetCurrent": lambda: cuda("cuCtxGetCurrent", word),
            "cuCtxGetDevice": lambda: cuda("cuCtxGetDevice", word),
            "cuDeviceGetCount": lambda: cuda("cuDeviceGetCount", word),
            "cuDeviceGetAttribute": lambda: cuda("cuDeviceGetAttribute", word, 75, 0),
            "cuMemGetInfo": lambda: cuda("cuMemGetInfo", word, word),
            "cuCtxSynchronize": lambda: cuda("cuCtxSynchronize"),
        }

    def _copies(self) -> dict[str, Ask]:
        cuda, memory, pinned, stream = self.cuda, self.memory, self.pinned, self.stream
        pageable = ctypes.addressof(self.block)
        params = (ctypes.c_uint8 * 64)()
        return {
            "cuMemcpyHtoD": lambda: cuda("cuMemcpyHtoD", memory, pageable, 16),
            "cuMemcpyDtoH": lambda: cuda("cuMemcpyDtoH", pageable, memory, 16),
            "cuMemcpyHtoDAsync": lambda: cuda("cuMemcpyHtoDAsync", memory, pinned, 16, stream),
            "cuMemcpyAsync": lambda: cuda("cuMemcpyAsync", memory, pinned, 16, stream),
            "cuMemcpyAsync, default stream": lambda: cuda("cuMemcpyAsync", memory, pinned, 16, 0),
            "cuMemsetD8Async": lambda: cuda("cuMemsetD8Async", memory, 0, 16, stream),
            "cuMemBatchDecompressAsync": lambda: cuda(
                "cuMemBatchDecompressAsync", params, 1, 0, self.word, stream, version=12080
            ),
        }

    def _pointers(self) -> dict[str, Ask]:
        cuda, word, memory = self.cuda, self.word, self.memory
        found = {
            f"cuPointerGetAttribute {number}": lambda number=number: cuda(
                "cuPointerGetAttribute", word, number, memory
            )
            for number in (1, 2, 3, 9, 21)
        }
        outs = (ctypes.c_void_p * 1)(ctypes.addressof(word._obj))
        numbers = (ctypes.c_int * 1)(2)
        return {
            **found,
            "cuPointerGetAttribute, pinned": lambda: cuda(
                "cuPointerGetAttribute", word, 2, self.pinned
            ),
            "cuPointerGetAttributes": lambda: cuda(
                "cuPointerGetAttributes", 1, numbers, outs, memory
            ),
            "cuMemGetAddressRange": lambda: cuda("cuMemGetAddressRange", word, word, memory),
        }

    def _streams(self) -> dict[str, Ask]:
        cuda, stream, event, word = self.cuda, self.stream, self.event, self.word
        return {
            "cuStreamSynchronize": lambda: cuda("cuStreamSynchronize", stream),
            "cuStreamSynchronize, default stream": lambda: cuda("cuStreamSynchronize", 0),
            "cuStreamQuery": lambda: cuda("cuStreamQuery", stream),
            "cuEventRecord": lambda: cuda("cuEventRecord", event, stream),
            "cuStreamWaitEvent": lambda: cuda("cuStreamWaitEvent", stream, event, 0),
            "cuEventSynchronize": lambda: cuda("cuEventSynchronize", event),
            "cuEventQuery": lambda: cuda("cuEventQuery", event),
            "cuStreamGetPriority": lambda: cuda("cuStreamGetPriority", stream, word),
            "cuStreamGetFlags": lambda: cuda("cuStreamGetFlags", stream, word),
            "cuStreamGetCtx": lambda: cuda("cuStreamGetCtx", stream, word),
            "cuStreamGetId": lambda: cuda("cuStreamGetId", stream, word),
            "cuStreamIsCapturing": lambda: cuda("cuStreamIsCapturing", stream, word),
            "cuLaunchHostFunc": lambda: cuda("cuLaunchHostFunc", stream, self.function, 0),
        }

    def _memory(self) -> dict[str, Ask]:
        cuda, word, pool, stream = self.cuda, self.word, self.pool, self.stream
        access = descriptors((1, 0, 3))
        return {
            "cuMemAlloc": lambda: cuda("cuMemAlloc", word, 4096),
            "cuMemHostAlloc": lambda: cuda("cuMemHostAlloc", word, 4096, 0),
            "cuStreamCreate": lambda: cuda("cuStreamCreate", word, 1),
            "cuEventCreate": lambda: cuda("cuEventCreate", word, 0),
            "cuMemPoolCreate": lambda: cuda("cuMemPoolCreate", word, pool_properties(0, (1, 0), 0)),
            "cuMemAllocFromPoolAsync": lambda: cuda(
                "cuMemAllocFromPoolAsync", word, 4096, pool, stream
            ),
            "cuMemAllocFromPoolAsync, default stream": lambda: cuda(
                "cuMemAllocFromPoolAsync", word, 4096, pool, 0
            ),
            "cuMemCreate": lambda: cuda("cuMemCreate", word, 2 * MIB, properties(), 0),
            "cuMemAddressReserve": lambda: cuda("cuMemAddressReserve", word, 2 * MIB, 0, 0, 0),
            "cuMemGetAllocationGranularity": lambda: cuda(
                "cuMemGetAllocationGranularity", word, properties(), 0
            ),
            "cuMemSetAccess": lambda: cuda("cuMemSetAccess", self.mapped, 2 * MIB, access, 1),
            "cuMemGetAccess": lambda: cuda("cuMemGetAccess", word, location(1, 0), self.mapped),
            "cuMemPoolTrimTo": lambda: cuda("cuMemPoolTrimTo", pool, 0),
            "cuMemPoolGetAttribute": lambda: cuda("cuMemPoolGetAttribute", pool, 5, word),
        }

    def _teardown(self) -> dict[str, Ask]:
        cuda, mapped = self.cuda, self.doomed_mapped
        return {
            "cuMemUnmap": lambda: cuda("cuMemUnmap", mapped, 2 * MIB),
            "cuMemAddressFree": lambda: cuda("cuMemAddressFree", mapped, 2 * MIB),
            "cuMemRelease": lambda: cuda("cuMemRelease", self.handle),
            "cuMemFreeAsync": lambda: cuda("cuMemFreeAsync", self.pooled, self.stream),
            "cuMemPoolDestroy": lambda: cuda("cuMemPoolDestroy", self.pool),
            "cuMemFree": lambda: cuda("cuMemFree", self.doomed),
            "cuMemFree, null": lambda: cuda("cuMemFree", 0),
            "cuMemFreeHost": lambda: cuda("cuMemFreeHost", self.doomed_pinned),
            "cuEventDestroy": lambda: cuda("cuEventDestroy", self.doomed_event),
            "cuStreamDestroy": lambda: cuda("cuStreamDestroy", self.doomed_stream),
            "cuCtxSetCurrent, null": lambda: cuda("cuCtxSetCurrent", 0),
            "cuDevicePrimaryCtxRelease": lambda: cuda("cuDevicePrimaryCtxRelease", 0),
        }


def answer(questions: dict[str, Ask], note: Note) -> None:
    """Note the answer to each question."""
    for name, ask in questions.items():
        note(name, ask())


@group
def with_context(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    answer(Things(cuda).questions(), note)


@group
def without_context(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    questions = Things(cuda).questions()
    thread = threading.Thread(target=answer, args=(questions, note))
    thread.start()
    thread.join()


@group
def forked_child(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    answer_in_children({"cuInit": lambda: cuda("cuInit", 0), **Things(cuda).questions()}, note)


def answer_in_children(questions: dict[str, Ask], note: Note) -> None:
    """Note the answer to each question in a forked child, and in another once one hangs."""
    left = list(questions)
    while left:
        done = _ask_in_child(questions, left, note)
        if done < len(left):
            note(left[done], "hangs")
        left = left[done + 1 :]


def _ask_in_child(questions: dict[str, Ask], names: list[str], note: Note) -> int:
    """Ask in a forked child until it hangs; return how many answers came."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for name in names:
            os.write(writer, struct.pack("i", questions[name]()))
        os._exit(0)
    os.close(writer)
    done = 0
    while select.select([reader], [], [], _PATIENCE)[0]:
        data = os.read(reader, 4)
        if not data:
            break
        note(names[done], struct.unpack("i", data)[0])
        done += 1
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return done
