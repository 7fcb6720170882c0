"""What launches are refused, and what memory a kernel may not touch."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

from tests.double.probe.asking import GROUPS, Driver, descriptors, group
from tests.double.probe.kernels import BLOCK, NAME, NOTHING, Kernels, launch, load, loaded
from tests.double.probe.kernels import image as machine_code

if TYPE_CHECKING:
    from tests.double.probe.asking import Note

MIB = 1 << 20
TWO = 2 * MIB
_RAW = 256
_OPERATION = struct.Struct("<QQQQQi20x")

#: Groups whose launch is meant to touch what it may not.
FAULTING: list[str] = []

SHAPES: dict[str, dict[str, Any]] = {
    "good": {},
    "grid of 0": {"grid": (0, 1, 1)},
    "grid of 0 rows": {"grid": (1, 0, 1)},
    "grid of 0 layers": {"grid": (1, 1, 0)},
    "grid of 2^31": {"grid": (1 << 31, 1, 1)},
    "grid of 65536 rows": {"grid": (1, 65536, 1)},
    "grid of 65536 layers": {"grid": (1, 1, 65536)},
    "block of 0": {"block": (0, 1, 1)},
    "block of 0 rows": {"block": (BLOCK, 0, 1)},
    "block of 1": {"block": (1, 1, 1)},
    "block of 129, above the bound": {"block": (BLOCK + 1, 1, 1)},
    "block of 64 x 3": {"block": (64, 3, 1)},
    "block of 1024": {"block": (1024, 1, 1)},
    "block of 1025": {"block": (1025, 1, 1)},
    "block of 65 layers": {"block": (1, 1, 65)},
    "shared 48 KiB": {"shared": 48 << 10},
    "shared 48 KiB and 1": {"shared": (48 << 10) + 1},
    "shared 200 KiB": {"shared": 200 << 10},
}


@group
def kernels_shapes(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    things = Kernels(cuda)
    for text, shape in SHAPES.items():
        for extended in (False, True):
            code = launch(cuda, things.kernel, things.stream, NOTHING, extended=extended, **shape)
            which = "Ex" if extended else ""
            note(f"cuLaunchKernel{which}, {text}", [code, cuda("cuCtxSynchronize")])


@group
def kernels_streams(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    things = Kernels(cuda)
    for text, stream in (("null", 0), ("legacy", 1), ("per-thread", 2), ("mine", things.stream)):
        code = launch(cuda, things.kernel, stream, NOTHING)
        note(text, [code, cuda("cuCtxSynchronize")])


def _parameters_group(name: str, count: int) -> None:
    def ask(cuda: Driver, note: Note) -> None:
        cuda.use_device()
        things = Kernels(cuda)
        pointers = (ctypes.c_void_p * 3)() if count else None
        shape = (1, 1, 1, BLOCK, 1, 1, 0)
        words = (things.kernel, *shape, things.stream, pointers, None)
        note("launch", cuda("cuLaunchKernel", *words))

    GROUPS[name] = ask


_parameters_group("kernels_without_parameters", 0)
_parameters_group("kernels_null_parameters", 3)


def _handle_group(name: str, make: str) -> None:
    def ask(cuda: Driver, note: Note) -> None:
        cuda.use_device()
        stream, library = cuda.value("cuStreamCreate", 1), loaded(cuda)
        handle = cuda.value("cuLibraryGetKernel", library, NAME)
        if make == "function":
            handle = cuda.value("cuKernelGetFunction", handle)
        cuda.must("cuLibraryUnload", library)
        if make == "library":
            note("get", cuda.code_of("cuLibraryGetKernel", library, NAME))
            note("unload", cuda("cuLibraryUnload", library))
            return
        handle = 0x1234_5678 if make == "nothing" else handle
        note("attribute", cuda.code_of("cuFuncGetAttribute", 0, handle))
        note("launch", launch(cuda, handle, stream, NOTHING))

    GROUPS[name] = ask


for _what in ("kernel", "function", "library"):
    _handle_group(f"kernels_unloaded_{_what}", _what)
_handle_group("kernels_bad_handle", "nothing")


@group
def kernels_truncated(cuda: Driver, note: Note) -> None:
    """A header whose sections are zeros; enough of them that reading on is harmless."""
    cuda.use_device()
    code = machine_code()
    note("header only", load(cuda, code[:64] + bytes(4 * MIB)))
    note("half", load(cuda, code[: len(code) // 2] + bytes(4 * MIB)))


class Operation:
    """One copy of 64 bytes by the kernel, with everything in pinned memory, or as a test says."""

    def __init__(self, cuda: Driver) -> None:
        cuda.use_device()
        self.cuda, self.things = cuda, Kernels(cuda)
        self.pinned = cuda.pinned(4096)
        ctypes.memset(self.pinned, 7, 4096)
        self.source, self.target = self.pinned + 1024, self.pinned + 2048
        self.word, self.statuses = self.pinned + 512, self.pinned + 768

    def ask(self, note: Note, *, operations: int = 0, shift: int = 0) -> None:
        """Launch, and note what the call says, what waiting says, and whether CUDA goes on."""
        at = self.pinned + shift
        places = (self.word, self.source, self.target, _RAW)
        ctypes.memmove(at, _OPERATION.pack(64, 64, *places), _OPERATION.size)
        arguments = (operations or at, 1, self.statuses)
        note("launch", launch(self.cuda, self.things.kernel, self.things.stream, arguments))
        note("synchronise", self.cuda("cuStreamSynchronize", self.things.stream))
        note("allocate", self.cuda.code_of("cuMemAlloc", 4096))


def _strange(cuda: Driver, name: str) -> int:
    """Return an address from which on a kernel should not reach 64 bytes."""
    if name == "freed":
        freed = cuda.memory(64 * MIB)
        cuda.must("cuMemFree", freed)
        return freed
    if name == "reserved":
        return cuda.value("cuMemAddressReserve", 4 * MIB, 0, 0, 0)
    if name == "unmapped":
        mapped = cuda.mapped(TWO)
        cuda.must("cuMemUnmap", mapped, TWO)
        return mapped
    if name == "read_only":
        mapped = cuda.mapped(TWO)
        cuda.must("cuMemSetAccess", mapped, TWO, descriptors((1, 0, 1)), 1)
        return mapped
    return cuda.mapped(TWO, access=False) if name == "inaccessible" else 0


def _memory_group(column: str, place: str) -> None:
    def ask(cuda: Driver, note: Note) -> None:
        one = Operation(cuda)
        block = ctypes.create_string_buffer(4096)
        at = ctypes.addressof(block) if place == "pageable" else _strange(cuda, place)
        if column != "operations":
            setattr(one, column, at)
        one.ask(note, operations=at if column == "operations" else 0)

    GROUPS[f"kernels_{column}_{place}"] = ask
    if (column, place) != ("source", "read_only"):
        FAULTING.append(f"kernels_{column}_{place}")


for _place in ("null", "freed", "reserved", "unmapped", "inaccessible", "pageable", "read_only"):
    for _column in ("source", "target"):
        _memory_group(_column, _place)
for _column in ("operations", "word", "statuses"):
    _memory_group(_column, "unmapped")


@group
def kernels_copy(cuda: Driver, note: Note) -> None:
    one = Operation(cuda)
    ctypes.memset(one.source, 9, 64)
    one.ask(note)
    word, status = (ctypes.c_uint32.from_address(at).value for at in (one.word, one.statuses))
    note("size and status", [word, status])
    note("copied", ctypes.string_at(one.target, 65) == b"\t" * 64 + b"\7")


def _unaligned_group(column: str, by: int) -> None:
    def ask(cuda: Driver, note: Note) -> None:
        one = Operation(cuda)
        if column != "operations":
            setattr(one, column, getattr(one, column) + by)
        one.ask(note, shift=by if column == "operations" else 0)

    GROUPS[f"kernels_unaligned_{column}"] = ask
    FAULTING.append(f"kernels_unaligned_{column}")


for _column, _by in (("operations", 4), ("word", 2), ("statuses", 2)):
    _unaligned_group(_column, _by)
