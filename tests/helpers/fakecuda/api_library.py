"""Loading machine code and finding kernels in it.

Libraries and kernels belong to the process: what asks for no function goes on after a fault. And
loading is lazy, as it is by default (CUDA_MODULE_LOADING): only damaged cubins are refused at once.
Code for another GPU is refused when somebody asks for a kernel.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import HANDLE, POINTER, U32, driver_call, put
from tests.helpers.fakecuda.codes import Code, CudaError
from tests.helpers.fakecuda.cubin import read_image

if TYPE_CHECKING:
    from tests.helpers.fakecuda.cubin import Image
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.libraries import Library

#: Forms of code that a driver loads besides cubins, by how they start.
_OTHER_FORMS = {b"//": "PTX", b".v": "PTX", b"\n.": "PTX", b"\x50\xed": "fat binaries"}


@driver_call(
    "cuLibraryLoadData",
    *(POINTER, POINTER, POINTER, POINTER, U32, POINTER, POINTER, U32),
    since=12000,
    survives=True,
)
def library_load_data(
    cuda: FakeDriver,
    out: int,
    code: int,
    jit_options: int,
    jit_values: int,
    jit_count: int,
    options: int,
    values: int,
    count: int,
) -> None:
    _require(out and code, "a null pointer")
    if jit_count or count:
        raise CudaError(cuda.recorder.not_modelled("cuLibraryLoadData with options"))
    form = _OTHER_FORMS.get(ctypes.string_at(code, 2))
    if form:
        raise CudaError(cuda.recorder.not_modelled(f"cuLibraryLoadData of {form}"))
    put(HANDLE, out, cuda.libraries.load(read_image(code)).handle)


def _usable_image(cuda: FakeDriver, library: Library) -> Image:
    if library.image is None:
        raise CudaError(cuda.recorder.not_modelled("kernels of what is no machine code"))
    check_architecture(cuda, library.image)
    return library.image


def check_architecture(cuda: FakeDriver, image: Image) -> None:
    """Refuse machine code that the devices do not run."""
    capability = cuda.settings.compute_capability
    if not image.runs_on(capability):
        text = f"machine code for {image.architecture}, and the device is {capability}"
        raise CudaError(Code.NO_BINARY_FOR_GPU, text)


@driver_call("cuLibraryUnload", HANDLE, since=12000, survives=True)
def library_unload(cuda: FakeDriver, handle: int) -> None:
    cuda.libraries.unload(cuda.libraries.library(handle))


@driver_call("cuLibraryGetKernel", POINTER, HANDLE, POINTER, since=12000, survives=True)
def library_get_kernel(cuda: FakeDriver, out: int, handle: int, name: int) -> None:
    library = cuda.libraries.library(handle)
    _require(out and name, "a null pointer")
    text = ctypes.string_at(name).decode(errors="replace")
    put(HANDLE, out, cuda.libraries.find(library, _usable_image(cuda, library), text).handle)


@driver_call("cuLibraryGetKernelCount", POINTER, HANDLE, since=12040, survives=True)
def library_get_kernel_count(cuda: FakeDriver, out: int, handle: int) -> None:
    put(U32, out, len(_usable_image(cuda, cuda.libraries.library(handle)).entries))


@driver_call("cuLibraryEnumerateKernels", POINTER, U32, HANDLE, since=12040, survives=True)
def library_enumerate_kernels(cuda: FakeDriver, out: int, count: int, handle: int) -> None:
    library = cuda.libraries.library(handle)
    image = _usable_image(cuda, library)
    for index, name in enumerate(list(image.entries)[:count]):
        put(HANDLE, out, cuda.libraries.find(library, image, name).handle, index)


@driver_call("cuKernelGetLibrary", POINTER, HANDLE, since=12050, survives=True)
def kernel_get_library(cuda: FakeDriver, out: int, handle: int) -> None:
    put(HANDLE, out, cuda.libraries.kernel(handle).library.handle)


@driver_call("cuKernelGetFunction", POINTER, HANDLE, since=12000, context=True)
def kernel_get_function(cuda: FakeDriver, out: int, handle: int) -> None:
    kernel = cuda.libraries.kernel(handle)
    put(HANDLE, out, cuda.libraries.function(kernel, cuda.context))


@driver_call("cuFuncGetName", POINTER, HANDLE, since=12030)
@driver_call("cuKernelGetName", POINTER, HANDLE, since=12030, survives=True)
def kernel_get_name(cuda: FakeDriver, out: int, handle: int) -> None:
    put(POINTER, out, ctypes.addressof(cuda.libraries.kernel(handle).text))


def _require(condition: object, why: str) -> None:
    if not condition:
        raise CudaError(Code.INVALID_VALUE, why)
