"""Refusals of allocations, mappings and access, and what pointers say of themselves."""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from typing import TYPE_CHECKING

from tests.double.probe.asking import Driver, descriptors, group, location, properties

if TYPE_CHECKING:
    from tests.double.probe.asking import Note

MIB = 1 << 20
TWO = 2 * MIB
NUMA = (3, 0)

ATTRIBUTES = {
    2: "memory type",
    8: "managed",
    9: "device ordinal",
    10: "legacy IPC",
    13: "mapped",
    14: "handle types",
    16: "access flags",
    21: "decompress capable",
}


@group
def allocations(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    memory, pinned = cuda.memory(4 * MIB), cuda.pinned(MIB)
    note("cuMemAlloc of 0", cuda.code_of("cuMemAlloc", 0))
    note("cuMemAlloc of too much", cuda.code_of("cuMemAlloc", 1 << 50))
    note("cuMemFree inside", cuda("cuMemFree", memory + 4096))
    note("cuMemFree of pinned", cuda("cuMemFree", pinned))
    note("cuMemFree of an unknown address", cuda("cuMemFree", 0x1000))
    note("cuMemFreeHost of device memory", cuda("cuMemFreeHost", memory))
    note("cuMemFreeHost inside", cuda("cuMemFreeHost", pinned + 4096))
    note("cuMemFreeHost of null", cuda("cuMemFreeHost", 0))
    note("cuMemHostAlloc of 0", cuda.code_of("cuMemHostAlloc", 0, 0))
    note("cuMemHostAlloc, unknown flag", cuda.code_of("cuMemHostAlloc", 4096, 64))
    note("cuMemHostAlloc, all flags", cuda.code_of("cuMemHostAlloc", 4096, 7))
    stream = cuda.value("cuStreamCreate", 1)
    note("cuMemFreeAsync of cuMemAlloc", cuda("cuMemFreeAsync", cuda.memory(MIB), stream))
    note("cuMemFreeAsync of pinned", cuda("cuMemFreeAsync", pinned, stream))
    note("cuMemFreeAsync of null", cuda("cuMemFreeAsync", 0, stream))
    cuda.must("cuMemFree", memory)
    note("cuMemFree twice", cuda("cuMemFree", memory))
    cuda.must("cuMemFreeHost", pinned)
    note("cuMemFreeHost twice", cuda("cuMemFreeHost", pinned))
    mapped = cuda.mapped(TWO)
    note("cuMemFree of mapped memory", cuda("cuMemFree", mapped))
    note("cuMemFreeAsync of mapped memory", cuda("cuMemFreeAsync", mapped, stream))


@group
def registering(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    block = mmap.mmap(-1, 4 * MIB)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    note("size 0", cuda("cuMemHostRegister", address, 0, 0))
    note("null", cuda("cuMemHostRegister", 0, 4096, 0))
    note("unknown flag", cuda("cuMemHostRegister", address, 4096, 64))
    note("unaligned", cuda("cuMemHostRegister", address + 100, 5000, 0))
    note("unregister unaligned", cuda("cuMemHostUnregister", address + 100))
    note("never registered", cuda("cuMemHostUnregister", address))
    note("good", cuda("cuMemHostRegister", address, MIB, 2))
    note("again", cuda("cuMemHostRegister", address, MIB, 2))
    note("overlapping", cuda("cuMemHostRegister", address + MIB // 2, MIB, 2))
    note("the next pages", cuda("cuMemHostRegister", address + MIB, MIB, 2))
    out = cuda.value("cuMemHostGetDevicePointer", address + 64, 0)
    note("device pointer is the host pointer", out == address + 64)
    note("device pointer of an unknown address", cuda.code_of("cuMemHostGetDevicePointer", 4096, 0))
    for number, text in ATTRIBUTES.items():
        note(f"attribute {text}", cuda.attribute(number, address + 10))
    note("unregister inside", cuda("cuMemHostUnregister", address + 4096))
    note("unregister", cuda("cuMemHostUnregister", address))
    note("unregister twice", cuda("cuMemHostUnregister", address))
    note("attribute afterwards", cuda.attribute(2, address))
    _read_only(cuda, note)


def _read_only(cuda: Driver, note: Note) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(MIB))
        file.flush()
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        size, number = ctypes.c_size_t(MIB), file.fileno()
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, number, ctypes.c_long(0))
        private = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, number, ctypes.c_long(0))
        note("read-only mapping, no flags", cuda("cuMemHostRegister", address, MIB, 0))
        note("read-only mapping, DEVICEMAP", cuda("cuMemHostRegister", address, MIB, 2))
        note("read-only mapping, READ_ONLY", cuda("cuMemHostRegister", address, MIB, 10))
        note("attribute access flags", cuda.attribute(16, address))
        note("copy to it", cuda("cuMemcpyDtoH", address, cuda.memory(MIB), 16))
        note("private read-only mapping", cuda("cuMemHostRegister", private, MIB, 10))


@group
def pointers(cuda: Driver, note: Note) -> None:
    context = cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    made = {
        "cuMemAlloc": cuda.memory(MIB),
        "cuMemHostAlloc": cuda.pinned(MIB),
        "created": cuda.mapped(TWO),
        "created, capable": cuda.mapped(TWO, usage=2),
        "created on the host's node": cuda.mapped(TWO, location=NUMA),
        "created on the host's node, capable": cuda.mapped(TWO, location=NUMA, usage=2),
        "created, no access": cuda.mapped(TWO, access=False),
        "pool": cuda.value("cuMemAllocFromPoolAsync", MIB, cuda.pool(), stream),
        "pool, capable": cuda.value("cuMemAllocFromPoolAsync", MIB, cuda.pool(usage=2), stream),
        "pool on the host's node, capable": cuda.value(
            "cuMemAllocFromPoolAsync", MIB, cuda.pool(usage=2, location=NUMA), stream
        ),
    }
    cuda.must("cuStreamSynchronize", stream)
    for kind, address in made.items():
        for number, text in ATTRIBUTES.items():
            note(f"{kind}: {text}", cuda.attribute(number, address + 100))
        note(f"{kind}: capable at its end", cuda.attribute(21, address + MIB - 1))
        note(f"{kind}: has a host pointer", cuda.attribute(4, address) == address)
        note(f"{kind}: has a device pointer", cuda.attribute(3, address) == address)
        note(f"{kind}: has a pool", bool(cuda.attribute(17, address)))
        start = cuda.attribute(11, address + 100)
        note(f"{kind}: range starts at", _symbolic(start, {address: "start"}))
        note(f"{kind}: range size", cuda.attribute(12, address + 100))
        note(f"{kind}: address range", _address_range(cuda, address))
        note(f"{kind}: context", _symbolic(cuda.attribute(1, address), {context: "current"}))
        block = ctypes.create_string_buffer(16)
        note(f"{kind}: copy from it", cuda("cuMemcpyDtoH", block, address, 16))
    empty = ctypes.c_uint64(77)
    note(
        "pool, 0 bytes",
        cuda("cuMemAllocFromPoolAsync", ctypes.byref(empty), 0, cuda.pool(), stream),
    )
    note("pool, 0 bytes: null", empty.value == 0)
    note("cuMemHostAlloc, 0 bytes", cuda("cuMemHostAlloc", ctypes.byref(empty), 0, 0))
    note("cuMemHostAlloc, 0 bytes: null", empty.value == 0)


def _address_range(cuda: Driver, address: int) -> list[object]:
    base, size = ctypes.c_uint64(), ctypes.c_uint64()
    code = cuda("cuMemGetAddressRange", ctypes.byref(base), ctypes.byref(size), address + 100)
    return [code, _symbolic(base.value, {address: "start", 0: "null"}), size.value]


def _symbolic(value: int | None, names: dict[int, str]) -> str | None:
    return None if value is None else names.get(value, "null" if value == 0 else "other")


@group
def strange_pointers(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    reserved = cuda.value("cuMemAddressReserve", TWO, 0, 0, 0)
    freed = cuda.memory(64 * MIB)
    cuda.must("cuMemFree", freed)
    pageable = ctypes.create_string_buffer(64)
    for kind, address in (
        ("reserved", reserved),
        ("freed", freed),
        ("pageable", ctypes.addressof(pageable)),
        ("null", 0),
    ):
        for number in (1, 2, 8, 9, 13, 21):
            note(
                f"{kind}: attribute {number}",
                cuda.code_of("cuPointerGetAttribute", number, address),
            )
        outs = (ctypes.c_uint64 * 4)(*[0x77] * 4)
        where = (ctypes.c_void_p * 4)(*[ctypes.addressof(outs) + 8 * i for i in range(4)])
        code = cuda("cuPointerGetAttributes", 4, (ctypes.c_int * 4)(1, 2, 9, 21), where, address)
        note(f"{kind}: attributes 1, 2, 9, 21", [code, *(value & 0xFFFF_FFFF for value in outs)])
        note(f"{kind}: address range", _address_range(cuda, address - 100)[0])
    memory = cuda.memory(MIB)
    for number in (0, 22, 99):
        note(f"unknown attribute {number}", cuda.code_of("cuPointerGetAttribute", number, memory))
    for number in (8, 13, 21):
        out = (ctypes.c_uint8 * 8)(*[0xEE] * 8)
        cuda.must("cuPointerGetAttribute", out, number, memory)
        note(f"bytes of attribute {number}", bytes(out).hex())


@group
def creating(cuda: Driver, note: Note) -> None:
    cuda.use_device()

    def ask(text: str, size: int, prop: object, flags: int = 0) -> None:
        note(text, cuda.code_of("cuMemCreate", size, prop, flags))

    ask("good", TWO, properties())
    ask("size 0", 0, properties())
    ask("half the granularity", MIB, properties())
    ask("flags", TWO, properties(), 1)
    ask("no type", TWO, properties(kind=0))
    ask("unknown usage", TWO, properties(usage=8))
    ask("tile pool", TWO, properties(usage=1))
    ask("both usages", TWO, properties(usage=3))
    ask("no such device", TWO, properties(location=(1, 99)))
    ask("no location", TWO, properties(location=(0, 0)))
    ask("host", TWO, properties(location=(2, 0)))
    ask("host, capable", TWO, properties(usage=2, location=(2, 0)))
    ask("host with a handle type", TWO, properties(location=(2, 0), handle_types=1))
    ask("no such node", TWO, properties(location=(3, 99)))
    ask("current node", TWO, properties(location=(4, 0)))
    ask("device with a handle type", TWO, properties(handle_types=1))
    ask("too much", 1 << 50, properties())
    for place in ((1, 0), (2, 0), NUMA):
        for option in (0, 1):
            prop = properties(usage=2, location=place)
            out = ctypes.c_uint64()
            code = cuda("cuMemGetAllocationGranularity", ctypes.byref(out), prop, option)
            note(f"granularity {option} at {place}", [code, out.value])
    note(
        "granularity, unknown option",
        cuda.code_of("cuMemGetAllocationGranularity", properties(), 2),
    )


@group
def mapping(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    note("reserve 0", cuda.code_of("cuMemAddressReserve", 0, 0, 0, 0))
    note("reserve a page", cuda.code_of("cuMemAddressReserve", 4096, 0, 0, 0))
    note("reserve, alignment 3", cuda.code_of("cuMemAddressReserve", TWO, 3, 0, 0))
    note("reserve, alignment 4096", cuda.code_of("cuMemAddressReserve", TWO, 4096, 0, 0))
    note("reserve, flags", cuda.code_of("cuMemAddressReserve", TWO, 0, 0, 8))
    base = cuda.value("cuMemAddressReserve", 8 * MIB, 0, 0, 0)
    handle, other = cuda.created(4 * MIB), cuda.created(4 * MIB)
    note("unaligned", cuda("cuMemMap", base + 4096, 4 * MIB, 0, handle, 0))
    note("a part of the allocation", cuda("cuMemMap", base, TWO, 0, handle, 0))
    note("an offset", cuda("cuMemMap", base, TWO, TWO, handle, 0))
    note("past the allocation", cuda("cuMemMap", base, 8 * MIB, 0, handle, 0))
    note("size 0", cuda("cuMemMap", base, 0, 0, handle, 0))
    note("flags", cuda("cuMemMap", base, 4 * MIB, 0, handle, 1))
    note("an unreserved address", cuda("cuMemMap", 1 << 40, 4 * MIB, 0, handle, 0))
    note("null handle", cuda("cuMemMap", base, 4 * MIB, 0, 0, 0))
    note("good", cuda("cuMemMap", base, 4 * MIB, 0, handle, 0))
    note("again", cuda("cuMemMap", base, 4 * MIB, 0, handle, 0))
    note("overlapping", cuda("cuMemMap", base + TWO, 4 * MIB, 0, other, 0))
    _access(cuda, note, base)
    note("the second", cuda("cuMemMap", base + 4 * MIB, 4 * MIB, 0, other, 0))
    note("access of both", cuda("cuMemSetAccess", base, 8 * MIB, descriptors((1, 0, 3)), 1))
    note("access across", cuda("cuMemSetAccess", base + TWO, 4 * MIB, descriptors((1, 0, 3)), 1))
    note("free a reservation in use", cuda("cuMemAddressFree", base, 8 * MIB))
    note("unmap a part", cuda("cuMemUnmap", base, TWO))
    note("unmap half of each", cuda("cuMemUnmap", base + TWO, 4 * MIB))
    note("unmap both", cuda("cuMemUnmap", base, 8 * MIB))
    note("unmap twice", cuda("cuMemUnmap", base, 4 * MIB))
    note("unmap an unreserved address", cuda("cuMemUnmap", 1 << 40, 4 * MIB))
    note("unmap size 0", cuda("cuMemUnmap", base, 0))
    note("free a part", cuda("cuMemAddressFree", base, TWO))
    note("free inside", cuda("cuMemAddressFree", base + TWO, TWO))
    note("free", cuda("cuMemAddressFree", base, 8 * MIB))
    note("free twice", cuda("cuMemAddressFree", base, 8 * MIB))
    note("release", cuda("cuMemRelease", handle))


def _access(cuda: Driver, note: Note, base: int) -> None:
    size = 4 * MIB
    note("access", cuda("cuMemSetAccess", base, size, descriptors((1, 0, 3)), 1))
    note("access of a part", cuda("cuMemSetAccess", base, TWO, descriptors((1, 0, 3)), 1))
    note("access, unaligned", cuda("cuMemSetAccess", base, MIB, descriptors((1, 0, 3)), 1))
    note("access of too much", cuda("cuMemSetAccess", base, 8 * MIB, descriptors((1, 0, 3)), 1))
    note("access, no descriptors", cuda("cuMemSetAccess", base, size, None, 0))
    note("access, unknown flags", cuda("cuMemSetAccess", base, size, descriptors((1, 0, 2)), 1))
    note("access, no such device", cuda("cuMemSetAccess", base, size, descriptors((1, 99, 3)), 1))
    note("access of the host node", cuda("cuMemSetAccess", base, size, descriptors((3, 0, 3)), 1))
    note("access of the host", cuda("cuMemSetAccess", base, size, descriptors((2, 0, 3)), 1))
    _access_at(cuda, note, base)
    note("access, read only", cuda("cuMemSetAccess", base, size, descriptors((1, 0, 1)), 1))
    _access_at(cuda, note, base)
    note("write to it", cuda("cuMemsetD8Async", base, 0, 16, 0))
    note("access, none", cuda("cuMemSetAccess", base, size, descriptors((1, 0, 0)), 1))
    _access_at(cuda, note, base)


def _access_at(cuda: Driver, note: Note, base: int) -> None:
    for place in ((1, 0), (2, 0), (3, 0)):
        out = ctypes.c_uint64(77)
        code = cuda("cuMemGetAccess", ctypes.byref(out), location(*place), base)
        note(f"access at {place}", [code, out.value])


@group
def host_node_mapping(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    for text, place in (("node", NUMA), ("host", (2, 0))):
        address = cuda.mapped(TWO, usage=2, location=place, access=False)
        for kind in (2, 3):
            flags = descriptors((kind, 0, 3))
            note(f"{text}: access {kind}", cuda("cuMemSetAccess", address, TWO, flags, 1))
        both = descriptors((1, 0, 3), (place[0], 0, 3))
        note(f"{text}: both", cuda("cuMemSetAccess", address, TWO, both, 2))
        for at in ((1, 0), (2, 0), (3, 0)):
            out = ctypes.c_uint64(77)
            code = cuda("cuMemGetAccess", ctypes.byref(out), location(*at), address)
            note(f"{text}: access at {at}", [code, out.value])
        ctypes.memset(address, 5, TWO)
        back = ctypes.create_string_buffer(16)
        note(f"{text}: copy", cuda("cuMemcpyDtoH", back, address, 16))
        note(f"{text}: bytes", back.raw.hex())
