"""Launches: every refusal at submission, and the queueing of the work."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import HANDLE, POINTER, U32, U64, driver_call, get
from tests.helpers.fakecuda.api_kernel import SHARED_OF_BLOCK
from tests.helpers.fakecuda.api_library import check_architecture
from tests.helpers.fakecuda.codes import Code, CudaError
from tests.helpers.fakecuda.launches import Launch, is_known

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.libraries import Kernel

_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_MOST_THREADS = (1024, 1024, 64)


@driver_call("cuLaunchKernel", HANDLE, *(U32,) * 7, HANDLE, POINTER, POINTER, since=4000)
def launch_kernel(cuda: FakeDriver, function: int, *rest: int) -> None:
    shape, (shared, stream, parameters, extra) = rest[:6], rest[6:]
    _launch(cuda, function, shape, (shared, stream, parameters, extra))


@driver_call("cuLaunchKernelEx", POINTER, HANDLE, POINTER, POINTER, since=11060)
def launch_kernel_ex(
    cuda: FakeDriver, config: int, function: int, parameters: int, extra: int
) -> None:
    # CUlaunchConfig: seven words, the stream, attributes and their number.
    *shape, shared = (get(U32, config, index) for index in range(7))
    stream, attributes = get(U64, config, 4), get(U32, config, 12)
    if attributes:
        raise CudaError(cuda.recorder.not_modelled("cuLaunchKernelEx with attributes"))
    _launch(cuda, function, tuple(shape), (shared, stream, parameters, extra))


def _launch(cuda: FakeDriver, function: int, shape: tuple[int, ...], rest: tuple[int, ...]) -> None:
    shared, handle, parameters, extra = rest
    kernel = cuda.libraries.kernel(function)
    stream = cuda.scheduler.stream(handle, cuda.current)
    if kernel.functions.get(stream.context.handle) != function != kernel.handle:
        raise CudaError(Code.INVALID_HANDLE, "function and stream of different contexts")
    # Not only when the kernel was found: a test may have chosen another device since.
    check_architecture(cuda, kernel.image)
    _check_shape(kernel, shape, shared)
    values = _values(kernel, parameters)
    if extra or not is_known(kernel.entry) or not shape[1:3] == shape[4:6] == (1, 1):
        raise CudaError(cuda.recorder.not_modelled(f"this launch of {kernel.entry.name}"))
    work = Launch(cuda, stream, kernel.entry.name, (shape[0], shape[3]), *values)
    work.check_arrays()
    cuda.launches.append((work.kernel, work.count))
    cuda.scheduler.submit(stream, work.kernel, work.run)


def _check_shape(kernel: Kernel, shape: tuple[int, ...], shared: int) -> None:
    limits = (*_MOST_BLOCKS, *_MOST_THREADS)
    if not all(0 < size <= most for size, most in zip(shape, limits, strict=True)):
        raise CudaError(Code.INVALID_VALUE, f"grid {shape[:3]}, block {shape[3:]}")
    threads = shape[3] * shape[4] * shape[5]
    if threads > kernel.most_threads:
        raise CudaError(Code.INVALID_VALUE, f"{threads} threads of {kernel.most_threads} at most")
    if shared + kernel.entry.shared > SHARED_OF_BLOCK:
        raise CudaError(Code.INVALID_VALUE, f"{shared} bytes of shared memory")


def _values(kernel: Kernel, pointers: int) -> list[int]:
    """Copy the parameters, which the caller may change once the call has returned."""
    places = sorted(kernel.entry.parameters.items())
    values = []
    for place, (_, size) in places:
        address = get(U64, pointers, place)
        if not address:
            raise CudaError(Code.INVALID_VALUE, f"a null pointer to parameter {place}")
        values.append(int.from_bytes(ctypes.string_at(address, size), "little"))
    return values
