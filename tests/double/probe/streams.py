"""Streams, events, pools, and the decompression call of a device without an engine."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tests.double.probe.asking import (
    INDEX_UNTOUCHED,
    Driver,
    descriptors,
    group,
    location,
    pool_properties,
)

if TYPE_CHECKING:
    from tests.double.probe.asking import Note

MIB = 1 << 20


@group
def streams(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    note("create, flags 2", cuda.code_of("cuStreamCreate", 2))
    note("destroy, null", cuda("cuStreamDestroy", 0))
    note("destroy, legacy", cuda("cuStreamDestroy", 1))
    note("query legacy", cuda("cuStreamQuery", 1))
    note("query per-thread", cuda("cuStreamQuery", 2))
    low, high = ctypes.c_int(), ctypes.c_int()
    note("priorities", cuda("cuCtxGetStreamPriorityRange", ctypes.byref(low), ctypes.byref(high)))
    note("lowest and highest", [low.value, high.value])
    for asked in (-99, 99, -2):
        stream = cuda.value("cuStreamCreateWithPriority", 1, asked)
        cuda.must("cuStreamGetPriority", stream, ctypes.byref(low))
        note(f"priority {asked}", low.value)
    flags = ctypes.c_uint()
    for text, handle in (("legacy", 1), ("null", 0), ("per-thread", 2), ("mine", stream)):
        note(
            f"flags of {text}", [cuda("cuStreamGetFlags", handle, ctypes.byref(flags)), flags.value]
        )
    context = cuda.code_of("cuCtxPopCurrent")
    note("pop", context)
    note("pop an empty stack", cuda.code_of("cuCtxPopCurrent"))
    cuda.use_device()
    note("release", cuda("cuDevicePrimaryCtxRelease", 0))


@group
def events(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    for flags in (1, 2, 3, 4, 6, 8, 16):
        note(f"create, flags {flags}", cuda.code_of("cuEventCreate", flags))
    fresh, plain = cuda.value("cuEventCreate", 0), cuda.value("cuEventCreate", 0)
    untimed = cuda.value("cuEventCreate", 2)
    elapsed = ctypes.byref(ctypes.c_float())
    note("query, not recorded", cuda("cuEventQuery", fresh))
    note("synchronise, not recorded", cuda("cuEventSynchronize", fresh))
    note("wait, not recorded", cuda("cuStreamWaitEvent", stream, fresh, 0))
    note("wait, flags 2", cuda("cuStreamWaitEvent", stream, fresh, 2))
    cuda.must("cuEventRecord", plain, stream)
    cuda.must("cuEventRecord", untimed, stream)
    cuda.must("cuStreamSynchronize", stream)
    note("elapsed, not recorded", cuda("cuEventElapsedTime", elapsed, plain, fresh))
    note("elapsed, untimed", cuda("cuEventElapsedTime", elapsed, plain, untimed))
    note("elapsed", cuda("cuEventElapsedTime", elapsed, plain, plain))
    note("record flags 2", cuda("cuEventRecordWithFlags", plain, stream, 2))
    note("record, null event", cuda("cuEventRecord", 0, stream))
    note("destroy, null", cuda("cuEventDestroy", 0))
    note("query, null", cuda("cuEventQuery", 0))
    note("host function, null", cuda("cuLaunchHostFunc", stream, 0, 0))


@group
def pools(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)

    def create(text: str, props: object) -> None:
        note(f"create {text}", cuda.code_of("cuMemPoolCreate", props))

    create("good", pool_properties(0, (1, 0), 0))
    create("capable", pool_properties(2, (1, 0), 0))
    create("unknown usage", pool_properties(4, (1, 0), 0))
    create("usage 1", pool_properties(1, (1, 0), 0))
    create("reserved bytes", pool_properties(0, (1, 0), 0, reserved=1))
    create("no type", pool_properties(0, (1, 0), 0, kind=0))
    create("no such device", pool_properties(0, (1, 99), 0))
    create("host", pool_properties(0, (2, 0), 0))
    create("host, capable", pool_properties(2, (2, 0), 0))
    create("host node, capable", pool_properties(2, (3, 0), 0))
    create("no such node", pool_properties(2, (3, 99), 0))
    pool = cuda.pool(usage=2)
    for number in range(16):
        out = ctypes.c_uint64(0)
        code = cuda("cuMemPoolGetAttribute", pool, number, ctypes.byref(out))
        note(f"attribute {number}", [code, out.value])
    value = ctypes.c_uint64(1 << 40)
    for number in (0, 1, 4, 5, 6, 7, 8, 9):
        note(f"set {number}", cuda("cuMemPoolSetAttribute", pool, number, ctypes.byref(value)))
    note("set 6 to 0", cuda("cuMemPoolSetAttribute", pool, 6, ctypes.byref(ctypes.c_uint64(0))))
    note("alloc 0", cuda.code_of("cuMemAllocFromPoolAsync", 0, pool, stream))
    note("alloc too much", cuda.code_of("cuMemAllocFromPoolAsync", 1 << 50, pool, stream))
    _access(cuda, note, pool)
    _life(cuda, note, pool, stream)


def _access(cuda: Driver, note: Note, pool: int) -> None:
    for text, triple in (
        ("own", (1, 0, 3)),
        ("own, none", (1, 0, 0)),
        ("own, read", (1, 0, 1)),
        ("host", (2, 0, 3)),
        ("host node", (3, 0, 3)),
    ):
        note(f"set access, {text}", cuda("cuMemPoolSetAccess", pool, descriptors(triple), 1))
    node = cuda.pool(usage=2, location=(3, 0))
    host = cuda.pool(location=(2, 0))
    for text, one in (("device", pool), ("node", node), ("host", host)):
        for place in ((1, 0), (2, 0), (3, 0)):
            out = ctypes.c_int(77)
            code = cuda("cuMemPoolGetAccess", ctypes.byref(out), one, location(*place))
            note(f"access of {place} to the {text} pool", [code, out.value])
    for flags in (3, 0, 1):
        note(
            f"node pool, set {flags}",
            cuda("cuMemPoolSetAccess", node, descriptors((1, 0, flags)), 1),
        )


def _life(cuda: Driver, note: Note, pool: int, stream: int) -> None:
    memory = cuda.value("cuMemAllocFromPoolAsync", MIB, pool, stream)
    counters = []
    for number in (5, 7):
        out = ctypes.c_uint64(0)
        cuda.must("cuMemPoolGetAttribute", pool, number, ctypes.byref(out))
        counters.append(out.value)
    note("reserved and used", counters)
    note("cuMemFree inside", cuda("cuMemFree", memory + 4096))
    note("cuMemFreeAsync inside", cuda("cuMemFreeAsync", memory + 4096, stream))
    note("cuMemFreeAsync", cuda("cuMemFreeAsync", memory, stream))
    note("cuMemFreeAsync twice", cuda("cuMemFreeAsync", memory, stream))
    other = cuda.value("cuMemAllocFromPoolAsync", MIB, pool, stream)
    note("cuMemFree", cuda("cuMemFree", other))
    kept = cuda.value("cuMemAllocFromPoolAsync", MIB, pool, stream)
    note("destroy with an allocation", cuda("cuMemPoolDestroy", pool))
    note("free afterwards", cuda("cuMemFreeAsync", kept, stream))
    default = cuda.value("cuDeviceGetDefaultMemPool", 0)
    note("destroy the default pool", cuda("cuMemPoolDestroy", default))
    note("destroy null", cuda("cuMemPoolDestroy", 0))
    note("at the end", cuda("cuCtxSynchronize"))


@group
def decompression(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    memory = cuda.memory(4 * MIB)
    for number in (136, 137):
        out = ctypes.c_int(77)
        cuda.must("cuDeviceGetAttribute", ctypes.byref(out), number, 0)
        note(f"device attribute {number}", out.value)

    def ask(text: str, params: object, count: int, flags: int, handle: int) -> None:
        index = ctypes.c_uint64(INDEX_UNTOUCHED)
        code = cuda(
            "cuMemBatchDecompressAsync",
            params,
            count,
            flags,
            ctypes.byref(index),
            handle,
            version=12080,
        )
        note(text, [code, index.value == INDEX_UNTOUCHED])

    good = (ctypes.c_uint64 * 8)(16, 16, memory + MIB, memory, memory + 2 * MIB, 1, 0, 0)
    ask("good", good, 1, 0, stream)
    ask("null params", None, 1, 0, stream)
    ask("count 0", good, 0, 0, stream)
    ask("flags 1", good, 1, 1, stream)
    ask("legacy stream", good, 1, 0, 0)
    good[4] = 0
    ask("null target", good, 1, 0, stream)


@group
def device_attributes(cuda: Driver, note: Note) -> None:
    for number in range(151):
        out = ctypes.c_int(77)
        code = cuda("cuDeviceGetAttribute", ctypes.byref(out), number, 0)
        note(str(number), [code, out.value])


@group
def accounting(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    free, total = ctypes.c_uint64(), ctypes.c_uint64()

    def used(text: str) -> None:
        cuda.must("cuStreamSynchronize", stream)
        cuda.must("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        note(text, total.value - free.value - before)

    cuda.must("cuMemFree", cuda.memory(4096))
    before = 0
    used("at the beginning")
    before = total.value - free.value
    small, large = cuda.memory(4096), cuda.memory(3 * MIB)
    used("4 KiB and 3 MiB of cuMemAlloc")
    cuda.must("cuMemFree", small)
    cuda.must("cuMemFree", large)
    used("freed")
    handle = cuda.created(2 * MIB)
    used("2 MiB created")
    cuda.must("cuMemRelease", handle)
    used("released")
    pool = cuda.pool()
    memory = cuda.value("cuMemAllocFromPoolAsync", MIB, pool, stream)
    used("1 MiB of a pool")
    cuda.must("cuMemFreeAsync", memory, stream)
    used("freed and synchronised")
    threshold = ctypes.c_uint64(1 << 40)
    cuda.must("cuMemPoolSetAttribute", pool, 4, ctypes.byref(threshold))
    memory = cuda.value("cuMemAllocFromPoolAsync", 100 * MIB, pool, stream)
    used("100 MiB of a pool with a threshold")
    cuda.must("cuMemFreeAsync", memory, stream)
    used("freed, with the threshold")
    cuda.must("cuMemPoolTrimTo", pool, 0)
    used("trimmed")
    pinned = cuda.pinned(64 * MIB)
    used("64 MiB pinned")
    cuda.must("cuMemFreeHost", pinned)
