"""Questions on which a driver may crash: each is a group, so that each has a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.double.probe.asking import Driver, group

if TYPE_CHECKING:
    from tests.double.probe.asking import Note

MIB = 1 << 20


@group
def destroyed_stream(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    cuda.must("cuStreamDestroy", stream)
    note("synchronise", cuda("cuStreamSynchronize", stream))
    note("query", cuda("cuStreamQuery", stream))
    note("destroy", cuda("cuStreamDestroy", stream))


@group
def destroyed_event(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    event = cuda.value("cuEventCreate", 0)
    cuda.must("cuEventDestroy", event)
    note("query", cuda("cuEventQuery", event))
    note("synchronise", cuda("cuEventSynchronize", event))
    note("destroy", cuda("cuEventDestroy", event))


@group
def released_handle(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    handle = cuda.created(2 * MIB)
    address = cuda.value("cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    cuda.must("cuMemRelease", handle)
    note("release twice", cuda("cuMemRelease", handle))
    note("map", cuda("cuMemMap", address, 2 * MIB, 0, handle, 0))


@group
def destroyed_pool(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    pool = cuda.pool()
    cuda.must("cuMemPoolDestroy", pool)
    note("allocate", cuda.code_of("cuMemAllocFromPoolAsync", MIB, pool, stream))
    note("destroy", cuda("cuMemPoolDestroy", pool))


@group
def bad_context(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    note("cuCtxSetCurrent", cuda("cuCtxSetCurrent", 0x1234_5678))


@group
def bad_stream(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    note("cuStreamSynchronize", cuda("cuStreamSynchronize", 0x1234_5678))


@group
def released_too_often(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    context, memory, mapped = cuda.use_device(), cuda.memory(MIB), cuda.mapped(2 * MIB)
    stream = cuda.value("cuStreamCreate", 1)
    pooled = cuda.value("cuMemAllocFromPoolAsync", MIB, cuda.pool(), stream)
    cuda.must("cuDevicePrimaryCtxRelease", 0)
    cuda.must("cuDevicePrimaryCtxRelease", 0)
    note("release again", cuda("cuDevicePrimaryCtxRelease", 0))
    note("cuMemAlloc", cuda.code_of("cuMemAlloc", MIB))
    note("cuMemFree", cuda("cuMemFree", memory))
    note("cuCtxGetCurrent", cuda.code_of("cuCtxGetCurrent"))
    note("attribute of memory", cuda.attribute(2, memory))
    note("attribute of mapped memory", cuda.attribute(2, mapped))
    note("attribute of pooled memory", cuda.attribute(2, pooled))
    note("retained again, the same", cuda.use_device() == context)
    note("cuMemAlloc afterwards", cuda.code_of("cuMemAlloc", MIB))
    note("cuMemFree of old memory", cuda("cuMemFree", memory))
    note("cuMemUnmap of old memory", cuda("cuMemUnmap", mapped, 2 * MIB))
    note("cuStreamSynchronize of the old stream", cuda("cuStreamSynchronize", stream))
