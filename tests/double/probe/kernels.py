"""Loading machine code, and questions about kernels.

The files ``raw_*.cubin`` beside this one are gpuload/kernels/raw.cu, compiled by NVRTC 13.5 for one
architecture each; its kernel copies bytes.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.double.probe.asking import Driver, group
from tests.double.probe.threads import answer, answer_in_children

if TYPE_CHECKING:
    from tests.double.probe.asking import Note
    from tests.double.probe.threads import Ask

NAME = b"raw_32"
BLOCK = 128


def image(architecture: int = 90) -> bytes:
    """Return the machine code for an architecture; 90 is the H200's."""
    return Path(__file__).with_name(f"raw_sm_{architecture}.cubin").read_bytes()


def load(cuda: Driver, code: bytes | None, out: Any = 0) -> int:
    """Load machine code, without options, and return the call's code."""
    out = ctypes.byref(ctypes.c_uint64()) if out == 0 else out
    return cuda("cuLibraryLoadData", out, code, None, None, 0, None, None, 0)


def loaded(cuda: Driver) -> int:
    """Return a library."""
    return cuda.value("cuLibraryLoadData", image(), None, None, 0, None, None, 0)


def launch(
    cuda: Driver, kernel: int, stream: int, arguments: tuple[int, int, int], **shape: Any
) -> int:
    """Launch a kernel with gpuload's parameters: operations, their number, statuses."""
    grid, block = shape.get("grid", (1, 1, 1)), shape.get("block", (BLOCK, 1, 1))
    shared = shape.get("shared", 0)
    operations, count, statuses = arguments
    values = ctypes.c_uint64(operations), ctypes.c_uint32(count), ctypes.c_uint64(statuses)
    pointers = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
    if not shape.get("extended"):
        words = (*grid, *block, shared, stream, pointers, None)
        return cuda("cuLaunchKernel", kernel, *words)
    config = struct.pack("<7IxxxxQQIxxxx", *grid, *block, shared, stream, 0, 0)
    return cuda("cuLaunchKernelEx", config, kernel, pointers, None)


NOTHING = (0, 0, 0)


class Kernels:
    """A library, its kernel and the kernel's function, and the questions about them."""

    def __init__(self, cuda: Driver) -> None:
        self.cuda = cuda
        self.stream = cuda.value("cuStreamCreate", 1)
        self.library, self.doomed = loaded(cuda), loaded(cuda)
        self.kernel = cuda.value("cuLibraryGetKernel", self.library, NAME)
        self.function = cuda.value("cuKernelGetFunction", self.kernel)
        self.word = ctypes.byref(ctypes.c_uint64())

    def questions(self) -> dict[str, Ask]:
        """Return one call of each sort that programs make."""
        cuda, word, kernel, function = self.cuda, self.word, self.kernel, self.function
        blocks = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return {
            "cuLibraryLoadData": lambda: load(cuda, image()),
            "cuLibraryLoadData, zeros": lambda: load(cuda, bytes(4096)),
            "cuLibraryGetKernel": lambda: cuda("cuLibraryGetKernel", word, self.library, NAME),
            "cuLibraryGetKernel, unknown": lambda: cuda(
                "cuLibraryGetKernel", word, self.library, b"raw_16"
            ),
            "cuKernelGetFunction": lambda: cuda("cuKernelGetFunction", word, kernel),
            "cuKernelGetAttribute": lambda: cuda("cuKernelGetAttribute", word, 0, kernel, 0),
            "cuFuncGetAttribute": lambda: cuda("cuFuncGetAttribute", word, 0, function),
            blocks: lambda: cuda(blocks, word, function, BLOCK, 0),
            **self._launches(),
            "cuLibraryUnload": lambda: cuda("cuLibraryUnload", self.doomed),
        }

    def _launches(self) -> dict[str, Ask]:
        cuda, stream, kernel, function = self.cuda, self.stream, self.kernel, self.function
        return {
            "cuLaunchKernel": lambda: launch(cuda, function, stream, NOTHING),
            "cuLaunchKernel of a kernel": lambda: launch(cuda, kernel, stream, NOTHING),
            "cuLaunchKernel, default stream": lambda: launch(cuda, function, 0, NOTHING),
            "kernel, default stream": lambda: launch(cuda, kernel, 0, NOTHING),
            "cuLaunchKernelEx": lambda: launch(cuda, kernel, stream, NOTHING, extended=True),
        }


@group
def kernels_with_context(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    answer(Kernels(cuda).questions(), note)
    note("at the end", cuda("cuCtxSynchronize"))


@group
def kernels_without_context(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    questions = Kernels(cuda).questions()
    thread = threading.Thread(target=answer, args=(questions, note))
    thread.start()
    thread.join()
    note("at the end", cuda("cuCtxSynchronize"))


@group
def kernels_forked_child(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    answer_in_children(Kernels(cuda).questions(), note)


@group
def kernels_before_any_context(cuda: Driver, note: Note) -> None:
    library = ctypes.c_uint64()
    note("load", load(cuda, image(), ctypes.byref(library)))
    kernel = ctypes.c_uint64()
    note("get", cuda("cuLibraryGetKernel", ctypes.byref(kernel), library, NAME))
    note("function", cuda.code_of("cuKernelGetFunction", kernel))
    note("attribute", cuda.code_of("cuKernelGetAttribute", 0, kernel, 0))
    note("unload", cuda("cuLibraryUnload", library))


@group
def kernels_after_fault(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    things = Kernels(cuda)
    slot = cuda.pinned(64)
    ctypes.memmove(slot, struct.pack("<QQQQQixxxxQQ", 16, 16, slot, 0, 0, 256, 0, 0), 64)
    note("launch", launch(cuda, things.kernel, things.stream, (slot, 1, slot)))
    note("first synchronisation", cuda("cuStreamSynchronize", things.stream))
    answer(things.questions(), note)


@group
def kernels_loading(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    code = image()
    note("good", load(cuda, code))
    note("zeros", load(cuda, bytes(4096)))
    note("text", load(cuda, b"no machine code at all\n" * 99))
    note("empty text", load(cuda, bytes(1)))
    note("null code", load(cuda, None))
    note("for another machine", load(cuda, code[:18] + b"\x3e\0" + code[20:]))
    for architecture in (80, 100):
        note(f"for sm_{architecture}", _steps(cuda, image(architecture)))
    library = loaded(cuda)
    for name in (b"raw_16", b"", b"raw_32 ", b"\xff"):
        note(f"kernel {name!r}", cuda.code_of("cuLibraryGetKernel", library, name))
    _handles(cuda, note, library)
    note("unload", cuda("cuLibraryUnload", library))


def _steps(cuda: Driver, code: bytes) -> list[int]:
    """Return what loading, getting a kernel and getting a function say, as far as it goes."""
    library, kernel = ctypes.c_uint64(), ctypes.c_uint64()
    codes = [load(cuda, code, ctypes.byref(library))]
    if not codes[-1]:
        codes.append(cuda("cuLibraryGetKernel", ctypes.byref(kernel), library, NAME))
    if not codes[-1]:
        codes.append(cuda.code_of("cuKernelGetFunction", kernel))
    return codes


def _handles(cuda: Driver, note: Note, library: int) -> None:
    count = cuda.value("cuLibraryGetKernelCount", library, version=12040)
    kernel = cuda.value("cuLibraryGetKernel", library, NAME)
    function = cuda.value("cuKernelGetFunction", kernel)
    note("kernels", count & 0xFFFF_FFFF)
    note("the same kernel", cuda.value("cuLibraryGetKernel", library, NAME) == kernel)
    enumerated = cuda.value("cuLibraryEnumerateKernels", 1, library, version=12040)
    note("the same, enumerated", enumerated == kernel)
    note("the same function", cuda.value("cuKernelGetFunction", kernel) == function)
    note("kernel and function differ", kernel != function)
    note("its library", cuda.value("cuKernelGetLibrary", kernel, version=12050) == library)
    name = ctypes.string_at(cuda.value("cuKernelGetName", kernel, version=12030))
    note("its name", name.decode())


@group
def kernels_attributes(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    things = Kernels(cuda)
    for number in range(-1, 17):
        for what, handle in (("function", things.function), ("kernel", things.kernel)):
            out = ctypes.c_int(77)
            code = cuda("cuFuncGetAttribute", ctypes.byref(out), number, handle)
            note(f"cuFuncGetAttribute {number} of a {what}", [code, out.value])
        out = ctypes.c_int(77)
        code = cuda("cuKernelGetAttribute", ctypes.byref(out), number, things.kernel, 0)
        note(f"cuKernelGetAttribute {number}", [code, out.value])
    note("device 99", cuda.code_of("cuKernelGetAttribute", 0, things.kernel, 99))
    for place in range(4):
        offset, size = ctypes.c_uint64(77), ctypes.c_uint64(77)
        outs = (ctypes.byref(offset), ctypes.byref(size))
        code = cuda("cuKernelGetParamInfo", things.kernel, place, *outs, version=12040)
        note(f"parameter {place}", [code, offset.value, size.value])
    for block in (-1, 0, 1, 32, 33, 96, 128, 129, 1024):
        for shared in (0, 1, 16 << 10, 48 << 10, (48 << 10) + 1, 200 << 10):
            out = ctypes.c_int(77)
            words = (ctypes.byref(out), things.function, block, shared)
            code = cuda("cuOccupancyMaxActiveBlocksPerMultiprocessor", *words)
            note(f"blocks of {block}, {shared} shared", [code, out.value])


@group
def kernels_null(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    library, stream = loaded(cuda), cuda.value("cuStreamCreate", 1)
    note("launch", launch(cuda, 0, stream, NOTHING))
    note("unload", cuda("cuLibraryUnload", 0))
    note("name", cuda.code_of("cuLibraryGetKernel", library, None))
    note("result", cuda("cuLibraryGetKernel", None, library, NAME))
    note("library", cuda.code_of("cuLibraryGetKernel", 0, NAME))
    note("function", cuda.code_of("cuKernelGetFunction", 0))
    note("attribute", cuda.code_of("cuFuncGetAttribute", 0, 0))
    note("attribute of a kernel", cuda.code_of("cuKernelGetAttribute", 0, 0, 0))
    note("library's result", load(cuda, image(), None))
