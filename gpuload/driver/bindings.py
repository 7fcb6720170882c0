"""The only importer of ``cuda.bindings``, and what its errors become.

``cuda.bindings._v2`` is marked private, so what the project uses of it is listed here, in
`Bindings`: mypy refuses a name that isn't in it, and a test looks each of them up. A rename is one
edit here and one where it is called.
"""
# ruff: noqa: D102 (the methods of the protocol are the driver's)

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Protocol, cast

from gpuload.driver.library import claim, error_name, function
from gpuload.errors import DriverError, MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

__all__ = ["Bindings", "api", "calling"]

_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"

#: What to do about errors that have one answer (CUDA driver API, "CUresult"). The second group ends
#: the context: every later call in the process fails with the same error.
_ADVICE = {
    "CUDA_ERROR_NOT_INITIALIZED": "was the process forked, or is it shutting down?",
    "CUDA_ERROR_DEINITIALIZED": "the process is shutting down",
    "CUDA_ERROR_INVALID_CONTEXT": "make a device current in this thread first",
    "CUDA_ERROR_NOT_SUPPORTED": "neither device nor driver can; `gpuload doctor` shows them",
    "CUDA_ERROR_NO_DEVICE": "is CUDA_VISIBLE_DEVICES set?",
    "CUDA_ERROR_INVALID_DEVICE": "`gpuload doctor` lists the devices",
}
_CONTEXT_ENDS = (
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_UNKNOWN",
)
_CONTEXT_LOST = "a fault on the device ended this process's CUDA context: start a new process"


class Bindings(Protocol):
    """The names of ``cuda.bindings._v2.driver`` that gpuload uses.

    Each function is the one of the CUDA driver API whose name it spells in another case. Pointers
    to structures are addresses.
    """

    DriverError: type[Exception]
    InvalidValueError: type[Exception]
    mem_access_desc_v1_dtype: np.dtype[np.void]
    mem_allocation_prop_v1_dtype: np.dtype[np.void]
    mem_pool_props_v1_dtype: np.dtype[np.void]

    def ctx_get_current(self) -> int: ...
    def ctx_get_device(self) -> int: ...
    def ctx_set_current(self, ctx: int) -> None: ...
    def device_get(self, ordinal: int) -> int: ...
    def device_total_mem_v2(self, dev: int) -> int: ...
    def mem_address_free(self, ptr: int, size: int) -> None: ...
    def mem_address_reserve(self, size: int, alignment: int, addr: int, flags: int) -> int: ...
    def mem_alloc_from_pool_async(self, bytesize: int, pool: int, h_stream: int) -> int: ...
    def mem_create(self, size: int, prop: int, flags: int) -> int: ...
    def mem_free_async(self, dptr: int, h_stream: int) -> None: ...
    def mem_get_allocation_granularity(self, prop: int, option: int) -> int: ...
    def mem_get_info_v2(self) -> tuple[int, int]: ...
    def mem_alloc_host_v2(self, bytesize: int) -> int: ...
    def mem_free_host(self, p: int) -> None: ...
    def mem_host_register_v2(self, p: int, bytesize: int, flags: int) -> None: ...
    def mem_host_unregister(self, p: int) -> None: ...
    def mem_map(self, ptr: int, size: int, offset: int, handle: int, flags: int) -> None: ...
    def mem_pool_create(self, pool_props: int) -> int: ...
    def mem_pool_destroy(self, pool: int) -> None: ...
    def mem_pool_set_attribute(self, pool: int, attr: int, value: int) -> None: ...
    def mem_release(self, handle: int) -> None: ...
    def mem_set_access(self, ptr: int, size: int, desc: int, count: int) -> None: ...
    def mem_unmap(self, ptr: int, size: int) -> None: ...
    def memcpy_async(self, dst: int, src: int, byte_count: int, h_stream: int) -> None: ...
    def pointer_get_attribute(self, attribute: int, ptr: int) -> Any: ...


@functools.cache
def api() -> Bindings:
    """Return the driver API of cuda-python, imported on the first call."""
    from cuda.bindings._v2 import driver  # noqa: TID251 (this is the one place)

    return cast("Bindings", driver)


@contextlib.contextmanager
def calling(name: str, purpose: str) -> Iterator[None]:
    """Turn the errors of a call into gpuload's.

    Parameters
    ----------
    name : str
        The function of the CUDA driver API that is called, by cuda.bindings or by cuda.core.
    purpose : str
        What for: "... for `purpose`" ends the message.

    Raises
    ------
    MemoryLimitError
        If the driver has no memory for it.
    DriverError
        If the call fails otherwise, or this process is a forked one.
    """
    claim()
    try:
        yield
    except Exception as error:
        # cuda.bindings, cuda.core and cuda.pathfinder share no base of their errors, and cuda.core
        # raises plain ones too.
        if type(error).__module__.partition(".")[0] != "cuda" and type(error) is not RuntimeError:
            raise
        code = getattr(error, "status", None) or _fault()
        raise _translated(name, purpose, code, str(error)) from error


def _fault() -> int | None:
    """Return the error that ended this thread's CUDA context, if one did.

    cuda.core sometimes tells only what it could not do.
    """
    synchronise = function("cuCtxSynchronize", 2000)
    code = synchronise() if synchronise else 0
    return code if error_name(code) in _CONTEXT_ENDS else None


def _translated(
    called: str, purpose: str, code: int | None, text: str
) -> DriverError | MemoryLimitError:
    # cuda.core's errors have no code; the text of most starts with its name.
    name = text.partition(":")[0] if code is None else error_name(code)
    failure = f"{called} failed: {name}" + ("" if code is None else f" ({code})")
    if name == _OUT_OF_MEMORY:
        return MemoryLimitError(
            f"no memory for {purpose}: {failure}{_free_bytes()}; lower memory_limit, or free some"
        )
    advice = _CONTEXT_LOST if name in _CONTEXT_ENDS else _ADVICE.get(name, "")
    return DriverError(f"{failure}, for {purpose}" + (f"; {advice}" if advice else ""))


def _free_bytes() -> str:
    """Return how much of the current device's memory is free, for a message."""
    try:
        free, total = api().mem_get_info_v2()
    except api().DriverError:
        return ""
    return f", with {free} of the device's {total} bytes free"
