"""Loading machine code and finding kernels in it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import HANDLE, POINTER, U32, driver_call, put
from tests.helpers.fakecuda.codes import Code, CudaError
from tests.helpers.fakecuda.cubin import read_image

if TYPE_CHECKING:
    from tests.helpers.fakecuda.cubin import Image
    from tests.helpers.fakecuda.driver import FakeDriver

#: Forms of code that a driver loads besides cubins, by how they start.
_OTHER_FORMS = {b"//": "PTX", b".v": "PTX", b"\n.": "PTX", b"\x50\xed": "fat binaries"}


@driver_call(
    "cuLibraryLoadData",
    *(POINTER, POINTER, POINTER, POINTER, U32, POINTER, POINTER, U32),
    since=12000,
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
    image = read_image(code)
    check_architecture(cuda, image)
    put(HANDLE, out, cuda.libraries.load(image).handle)


def check_architecture(cuda: FakeDriver, image: Image) -> None:
    """Refuse machine code that the devices do not run."""
    capability = cuda.settings.compute_capability
    if not image.runs_on(capability):
        text = f"machine code for {image.architecture}, and the device is {capability}"
        raise CudaError(Code.NO_BINARY_FOR_GPU, text)


@driver_call("cuLibraryUnload", HANDLE, since=12000)
def library_unload(cuda: FakeDriver, handle: int) -> None:
    cuda.libraries.unload(cuda.libraries.library(handle))


@driver_call("cuLibraryGetKernel", POINTER, HANDLE, POINTER, since=12000)
def library_get_kernel(cuda: FakeDriver, out: int, handle: int, name: int) -> None:
    library = cuda.libraries.library(handle)
    _require(out and name, "a null pointer")
    text = ctypes.string_at(name).decode(errors="replace")
    put(HANDLE, out, cuda.libraries.find(library, text).handle)


@driver_call("cuLibraryGetKernelCount", POINTER, HANDLE, since=12040)
def library_get_kernel_count(cuda: FakeDriver, out: int, handle: int) -> None:
    put(U32, out, len(cuda.libraries.library(handle).image.entries))


@driver_call("cuLibraryEnumerateKernels", POINTER, U32, HANDLE, since=12040)
def library_enumerate_kernels(cuda: FakeDriver, out: int, count: int, handle: int) -> None:
    library = cuda.libraries.library(handle)
    for index, name in enumerate(list(library.image.entries)[:count]):
        put(HANDLE, out, cuda.libraries.find(library, name).handle, index)


@driver_call("cuKernelGetLibrary", POINTER, HANDLE, since=12050)
def kernel_get_library(cuda: FakeDriver, out: int, handle: int) -> None:
    put(HANDLE, out, cuda.libraries.kernel(handle).library.handle)


@driver_call("cuKernelGetFunction", POINTER, HANDLE, since=12000, context=True)
def kernel_get_function(cuda: FakeDriver, out: int, handle: int) -> None:
    kernel = cuda.libraries.kernel(handle)
    put(HANDLE, out, cuda.libraries.function(kernel, cuda.context))


@driver_call("cuFuncGetName", POINTER, HANDLE, since=12030)
@driver_call("cuKernelGetName", POINTER, HANDLE, since=12030)
def kernel_get_name(cuda: FakeDriver, out: int, handle: int) -> None:
    put(POINTER, out, ctypes.addressof(cuda.libraries.kernel(handle).text))


def _require(condition: object, why: str) -> None:
    if not condition:
        raise CudaError(Code.INVALID_VALUE, why)
