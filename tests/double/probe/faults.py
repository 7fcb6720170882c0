"""What still works once a kernel has written where it may not."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tests.double.probe.asking import Driver, group
from tests.double.probe.threads import Things, answer

if TYPE_CHECKING:
    from tests.double.probe.asking import Note

_STORE_TO_NOWHERE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry f() {
    .reg .u64 %a;
    .reg .u32 %v;
    mov.u64 %a, 16;
    mov.u32 %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
\0"""


def break_context(cuda: Driver, stream: int) -> None:
    """Queue work that faults."""
    module = cuda.value("cuModuleLoadData", _STORE_TO_NOWHERE)
    function = cuda.value("cuModuleGetFunction", module, b"f")
    cuda.must("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)


@group
def after_fault(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    things = Things(cuda)
    break_context(cuda, things.stream)
    note("first synchronisation", cuda("cuStreamSynchronize", things.stream))
    answer(things.questions(), note)
    word = ctypes.c_uint64()
    note("cuDevicePrimaryCtxRetain", cuda("cuDevicePrimaryCtxRetain", ctypes.byref(word), 0))
    note("cuDevicePrimaryCtxReset", cuda("cuDevicePrimaryCtxReset", 0))
    note("retain again", cuda("cuDevicePrimaryCtxRetain", ctypes.byref(word), 0))
    note("cuCtxSetCurrent", cuda("cuCtxSetCurrent", word.value))
    note("cuMemAlloc after all that", cuda.code_of("cuMemAlloc", 4096))


@group
def reset_after_fault(cuda: Driver, note: Note) -> None:
    context = cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    break_context(cuda, stream)
    note("first synchronisation", cuda("cuStreamSynchronize", stream))
    word = ctypes.c_uint64()
    note("cuDevicePrimaryCtxRetain", cuda("cuDevicePrimaryCtxRetain", ctypes.byref(word), 0))
    note("cuDevicePrimaryCtxReset", cuda("cuDevicePrimaryCtxReset", 0))
    note("cuMemAlloc in the old context", cuda.code_of("cuMemAlloc", 4096))
    note("retain", cuda("cuDevicePrimaryCtxRetain", ctypes.byref(word), 0))
    note("it is the same", word.value == context)
    note("cuCtxSetCurrent", cuda("cuCtxSetCurrent", word.value))
    note("cuMemAlloc", cuda.code_of("cuMemAlloc", 4096))


@group
def call_in_host_function(cuda: Driver, note: Note) -> None:
    cuda.use_device()
    stream = cuda.value("cuStreamCreate", 1)
    inside: list[int] = []

    def work(data: int | None) -> None:
        inside.append(cuda.code_of("cuMemAlloc", 4096))
        inside.append(cuda("cuStreamQuery", stream))
        inside.append(cuda.code_of("cuDriverGetVersion"))

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(work)
    cuda.must("cuLaunchHostFunc", stream, function, 0)
    cuda.must("cuStreamSynchronize", stream)
    note("cuMemAlloc, cuStreamQuery, cuDriverGetVersion", inside)
