"""Refusals of copies and fills."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tests.double.probe.asking import GROUPS, Driver, descriptors, group

if TYPE_CHECKING:
    from tests.double.probe.asking import Note

MIB = 1 << 20
TWO = 2 * MIB


class Places:
    """Addresses that copies go to and come from."""

    def __init__(self, cuda: Driver) -> None:
        cuda.use_device()
        self.stream = cuda.value("cuStreamCreate", 1)
        self.block = ctypes.create_string_buffer(4 * MIB)
        self.pageable = ctypes.addressof(self.block)
        self.pinned, self.memory = cuda.pinned(4 * MIB), cuda.memory(4 * MIB)

    def strange(self, cuda: Driver, name: str) -> int:
        """Return an address of which a driver should not copy 16 bytes."""
        if name == "freed":
            freed = cuda.memory(64 * MIB)
            cuda.must("cuMemFree", freed)
            return freed
        if name == "reserved":
            return cuda.value("cuMemAddressReserve", 4 * MIB, 0, 0, 0)
        if name == "inaccessible":
            return cuda.mapped(TWO, access=False)
        past = self.memory + 4 * MIB - 8
        return {"past": past, "pageable": self.pageable, "pinned": self.pinned}.get(name, 0)


def _copies_group(name: str, size: int = 16) -> None:
    def ask(cuda: Driver, note: Note) -> None:
        places = Places(cuda)
        memory, pinned, pageable, stream = (
            places.memory,
            places.pinned,
            places.pageable,
            places.stream,
        )
        at = places.strange(cuda, name)
        note("HtoD to", cuda("cuMemcpyHtoD", at, pageable, size))
        note("DtoH from", cuda("cuMemcpyDtoH", pageable + MIB, at, size))
        note("HtoDAsync to", cuda("cuMemcpyHtoDAsync", at, pinned, size, stream))
        note("DtoHAsync from", cuda("cuMemcpyDtoHAsync", pinned, at, size, stream))
        note("DtoDAsync to", cuda("cuMemcpyDtoDAsync", at, memory, size, stream))
        note("DtoDAsync from", cuda("cuMemcpyDtoDAsync", memory, at, size, stream))
        note("memcpyAsync to", cuda("cuMemcpyAsync", at, memory, size, stream))
        note("memcpyAsync from", cuda("cuMemcpyAsync", memory, at, size, stream))
        note("after the copies", cuda("cuStreamSynchronize", stream))
        note("memset", cuda("cuMemsetD8Async", at, 0, size, stream))
        note("after the memset", cuda("cuStreamSynchronize", stream))

    GROUPS[f"copies_{name}{'' if size else '_size_0'}"] = ask


for _name in ("past", "reserved", "inaccessible", "freed", "null", "pageable", "pinned"):
    _copies_group(_name)
_copies_group("null", 0)


@group
def copies(cuda: Driver, note: Note) -> None:
    places = Places(cuda)
    memory, pageable, stream = places.memory, places.pageable, places.stream
    note("memset D32, unaligned", cuda("cuMemsetD32Async", memory + 1, 0, 4, stream))
    note("memset D16, unaligned", cuda("cuMemsetD16Async", memory + 1, 0, 4, stream))
    note("DtoD overlapping", cuda("cuMemcpyDtoD", memory, memory + 8, 64))
    note("memcpy, pageable to pageable", cuda("cuMemcpy", pageable, pageable + MIB, 16))
    note("HtoD from device memory", cuda("cuMemcpyHtoD", memory, memory + MIB, 16))
    note("DtoH to device memory", cuda("cuMemcpyDtoH", memory, memory + MIB, 16))
    note("at the end", cuda("cuCtxSynchronize"))


@group
def adjacent_mappings(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    base = cuda.value("cuMemAddressReserve", 8 * MIB, 0, 0, 0)
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
            "cuMemcpyBatchAsync",
            targets,
            sources,
            sizes,
            other.get("count", 2),
            attributes,
            firsts,
            other.get("kinds", 1),
            other.get("stream", stream),
            version=13000,
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
