"""Questions about kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import (
    HANDLE,
    I32,
    POINTER,
    SIZE,
    U32,
    driver_call,
    put,
    put_optional,
)
from tests.helpers.fakecuda.attributes import device_attribute
from tests.helpers.fakecuda.codes import Code, CudaError, FunctionAttribute
from tests.helpers.fakecuda.space import round_up

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.libraries import Kernel

#: Dynamic and static shared memory of a block, unless a program asks for more.
SHARED_OF_BLOCK = 48 << 10
# Of a block and of a multiprocessor, by the numbers of the device's attributes.
_THREADS_OF_BLOCK = 1
_THREADS, _SHARED, _REGISTERS, _BLOCKS, _SHARED_RESERVED = 39, 81, 82, 106, 111
# The units in which registers of a warp and shared memory of a block are given out.
_REGISTER_UNIT, _SHARED_UNIT = 256, 128
_WARP = 32
# A multiprocessor has so many parts, each with its own registers.
_PARTS = 4
#: Those that kernels of gpuload's, which know no clusters of blocks, answer with 0.
_OF_CLUSTERS = range(
    FunctionAttribute.CLUSTER_SIZE_MUST_BE_SET,
    FunctionAttribute.CLUSTER_SCHEDULING_POLICY_PREFERENCE + 1,
)


def _attribute(kernel: Kernel, number: int) -> int:
    entry, (major, minor) = kernel.entry, kernel.image.architecture
    known: dict[int, int] = {
        FunctionAttribute.MAX_THREADS_PER_BLOCK: kernel.most_threads,
        FunctionAttribute.SHARED_SIZE_BYTES: entry.shared,
        FunctionAttribute.CONST_SIZE_BYTES: 0,
        FunctionAttribute.LOCAL_SIZE_BYTES: entry.local,
        FunctionAttribute.NUM_REGS: entry.registers,
        FunctionAttribute.PTX_VERSION: 10 * major + minor,
        FunctionAttribute.BINARY_VERSION: 10 * major + minor,
        FunctionAttribute.CACHE_MODE_CA: 0,
        FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES: SHARED_OF_BLOCK - entry.shared,
        FunctionAttribute.PREFERRED_SHARED_MEMORY_CARVEOUT: -1,
        **dict.fromkeys(_OF_CLUSTERS, 0),
    }
    if number not in known:
        raise CudaError(Code.INVALID_VALUE, f"function attribute {number}")
    return known[number]


@driver_call("cuKernelGetAttribute", POINTER, I32, HANDLE, I32, since=12000, survives=True)
def kernel_get_attribute(cuda: FakeDriver, out: int, number: int, handle: int, device: int) -> None:
    kernel = cuda.libraries.kernel(handle)
    if not 0 <= device < cuda.settings.device_count:
        raise CudaError(Code.INVALID_DEVICE, f"device {device}")
    put(I32, out, _attribute(kernel, number))


@driver_call("cuFuncGetAttribute", POINTER, I32, HANDLE, since=2020)
def func_get_attribute(cuda: FakeDriver, out: int, number: int, handle: int) -> None:
    put(I32, out, _attribute(cuda.libraries.kernel_of(handle), number))


@driver_call("cuFuncGetParamInfo", HANDLE, SIZE, POINTER, POINTER, since=12040)
@driver_call("cuKernelGetParamInfo", HANDLE, SIZE, POINTER, POINTER, since=12040, survives=True)
def kernel_get_param_info(
    cuda: FakeDriver, handle: int, place: int, offset: int, size: int
) -> None:
    parameters = cuda.libraries.kernel(handle).entry.parameters
    if place not in parameters:
        raise CudaError(Code.INVALID_VALUE, f"parameter {place} of {len(parameters)}")
    put(SIZE, offset, parameters[place][0])
    put_optional(SIZE, size, parameters[place][1])


@driver_call(
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    *(POINTER, HANDLE, I32, SIZE),
    since=6050,
    context=True,
)
def occupancy_max_active_blocks(
    cuda: FakeDriver, out: int, handle: int, block: int, shared: int
) -> None:
    kernel = cuda.libraries.kernel(handle)
    if block <= 0:
        raise CudaError(Code.INVALID_VALUE, f"a block of {block} threads")
    put(I32, out, _active_blocks(cuda, kernel, block, shared))


@driver_call(
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    *(POINTER, HANDLE, I32, SIZE, U32),
    since=7000,
    context=True,
)
def occupancy_max_active_blocks_with_flags(
    cuda: FakeDriver, out: int, handle: int, block: int, shared: int, flags: int
) -> None:
    if flags not in (0, 1):
        raise CudaError(Code.INVALID_VALUE, f"flags {flags}")
    occupancy_max_active_blocks(cuda, out, handle, block, shared)


def _active_blocks(cuda: FakeDriver, kernel: Kernel, block: int, shared: int) -> int:
    """Return how many blocks of a kernel fit on a multiprocessor.

    Its launch bound does not count, though a launch beyond it is refused.
    """
    entry, ordinal = kernel.entry, cuda.context.ordinal

    def have(attribute: int) -> int:
        return device_attribute(cuda.settings, attribute, ordinal)

    if block > have(_THREADS_OF_BLOCK):
        raise CudaError(cuda.recorder.not_modelled(f"how many blocks of {block} threads fit"))
    if shared + entry.shared > SHARED_OF_BLOCK:
        return 0
    registers = max(round_up(entry.registers * _WARP, _REGISTER_UNIT), 1)
    warps = min(have(_THREADS) // _WARP, have(_REGISTERS) // _PARTS // registers * _PARTS)
    memory = round_up(shared + entry.shared, _SHARED_UNIT) + have(_SHARED_RESERVED)
    return min(have(_BLOCKS), warps // -(-block // _WARP), have(_SHARED) // memory)
