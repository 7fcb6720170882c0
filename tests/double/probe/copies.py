"""Refusals of copies and fills."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tests.double.probe.asking import Driver, group

if TYPE_CHECKING:
    from tests.double.probe.asking import Note

MIB = 1 << 20
TWO = 2 * MIB


@group
def copies(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    block = ctypes.create_string_buffer(4 * MIB)
    pageable, pinned, memory = ctypes.addressof(block), cuda.pinned(4 * MIB), cuda.memory(4 * MIB)
    reserved = cuda.value("cuMemAddressReserve", 4 * MIB, 0, 0, 0)
    inaccessible = cuda.mapped(TWO, access=False)
    freed = cuda.memory(64 * MIB)
    cuda.must("cuMemFree", freed)
    targets = {
        "past the end": (memory + 4 * MIB - 8, 16),
        "reserved": (reserved, 16),
        "inaccessible": (inaccessible, 16),
        "freed": (freed, 16),
        "null": (0, 16),
        "null, size 0": (0, 0),
        "pageable": (pageable, 16),
        "pinned": (pinned, 16),
    }
    for text, (address, size) in targets.items():
        note(f"HtoD to {text}", cuda("cuMemcpyHtoD", address, pageable, size))
        note(f"DtoH from {text}", cuda("cuMemcpyDtoH", pageable + MIB, address, size))
        note(f"HtoDAsync to {text}", cuda("cuMemcpyHtoDAsync", address, pinned, size, stream))
        note(f"DtoHAsync from {text}", cuda("cuMemcpyDtoHAsync", pinned, address, size, stream))
        note(f"DtoDAsync to {text}", cuda("cuMemcpyDtoDAsync", address, memory, size, stream))
        note(f"DtoDAsync from {text}", cuda("cuMemcpyDtoDAsync", memory, address, size, stream))
        note(f"memcpyAsync to {text}", cuda("cuMemcpyAsync", address, memory, size, stream))
        note(f"memcpyAsync from {text}", cuda("cuMemcpyAsync", memory, address, size, stream))
        note(f"memset {text}", cuda("cuMemsetD8Async", address, 0, size, stream))
        note(f"afterwards, {text}", cuda("cuStreamSynchronize", stream))
    note("HtoD from device memory", cuda("cuMemcpyHtoD", memory, memory + MIB, 16))
    note("DtoH to device memory", cuda("cuMemcpyDtoH", memory, memory + MIB, 16))
    note("memcpy, pageable to pageable", cuda("cuMemcpy", pageable, pageable + MIB, 16))
    note("DtoD overlapping", cuda("cuMemcpyDtoD", memory, memory + 8, 64))
    note("memset D32, unaligned", cuda("cuMemsetD32Async", memory + 1, 0, 4, stream))
    note("memset D16, unaligned", cuda("cuMemsetD16Async", memory + 1, 0, 4, stream))
    note("at the end", cuda("cuCtxSynchronize"))


@group
def adjacent_mappings(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    base = cuda.value("cuMemAddressReserve", 8 * MIB, 0, 0, 0)
    from tests.double.probe.asking import descriptors  # noqa: PLC0415

    for index in range(2):
        handle = cuda.created(TWO)
        cuda.must("cuMemMap", base + index * TWO, TWO, 0, handle, 0)
        cuda.must("cuMemRelease", handle)
    cuda.must("cuMemSetAccess", base, 4 * MIB, descriptors((1, 0, 3)), 1)
    block = ctypes.create_string_buffer(8 * MIB)
    at = ctypes.addressof(block)
    note("HtoD across both", cuda("cuMemcpyHtoD", base + MIB, at, TWO))
    note("HtoD past both", cuda("cuMemcpyHtoD", base + 3 * MIB, at, TWO))
    note("memset across both", cuda("cuMemsetD8Async", base + MIB, 0, TWO, 0))
    note("memset past both", cuda("cuMemsetD8Async", base + 3 * MIB, 0, TWO, 0))
    note("at the end", cuda("cuCtxSynchronize"))


@group
def batches_of_copies(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    memory, pinned = cuda.memory(4 * MIB), cuda.pinned(4 * MIB)
    pageable = ctypes.create_string_buffer(4096)

    def ask(text: str, to: int, out_of: int, **other: int) -> None:
        targets, sources = (ctypes.c_uint64 * 2)(to, memory), (ctypes.c_uint64 * 2)(out_of, pinned)
        sizes = (ctypes.c_uint64 * 2)(other.get("size", 16), 16)
        attributes = (ctypes.c_int32 * 6)(other.get("order", 1))
        firsts = (ctypes.c_uint64 * 1)(other.get("first", 0))
        code = cuda(
            "cuMemcpyBatchAsync", targets, sources, sizes, other.get("count", 2), attributes,
            firsts, other.get("kinds", 1), other.get("stream", stream), version=13000,
        )
        note(text, [code, cuda("cuCtxSynchronize")])

    ask("good", memory, pinned)
    ask("count 0", memory, pinned, count=0)
    ask("no attributes", memory, pinned, kinds=0)
    ask("first index 1", memory, pinned, first=1)
    ask("order 0", memory, pinned, order=0)
    ask("order 4", memory, pinned, order=4)
    ask("order during the call", memory, pinned, order=2)
    ask("order any", memory, pinned, order=3)
    ask("legacy stream", memory, pinned, stream=0)
    ask("legacy stream by its number", memory, pinned, stream=1)
    ask("size 0", memory, pinned, size=0)
    ask("null target", 0, pinned)
    ask("pageable source", memory, ctypes.addressof(pageable))
    ask("past the end", memory + 4 * MIB - 8, pinned)
