"""The driver's shared library itself, by ctypes: what must be known before cuda-python is imported.

Importing cuda-python takes a third of a second; finding out that there is no GPU must not. One more
function is called from here because cuda-python drops a part of its answer: see `decompress.py`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from gpuload.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "LIBRARY",
    "claim",
    "device_count",
    "driver_version",
    "error_name",
    "forked",
    "function",
    "initialise",
    "load",
]

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

#: The process that initialised CUDA, if one did.
_owner: int | None = None


@functools.cache
def load() -> ctypes.CDLL | None:
    """Return the driver's library; None where there is none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def function(name: str, since: int, *arguments: Any) -> Callable[..., int] | None:
    """Return a function of the driver; None if it has none of that name and version.

    ``cuGetProcAddress`` (CUDA driver API, "Driver Entry Point Access") gives the variant that fits
    the version asked for, whatever newer ones the library exports.

    Parameters
    ----------
    name : str
        Without a version suffix.
    since : int
        The CUDA version whose variant is wanted, as ``1000 * major + 10 * minor``.
    arguments : ctypes types
        Of its parameters.
    """
    lookup = getattr(load(), "cuGetProcAddress_v2", None)
    if lookup is None:
        return None
    address = ctypes.c_void_p()
    code = lookup(
        name.encode(), ctypes.byref(address), ctypes.c_int(since), ctypes.c_uint64(0), None
    )
    if code or not address.value:
        return None
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(address.value)


def driver_version() -> tuple[int, int]:
    """Return the CUDA version that the driver supports; (0, 0) if it can't be told.

    ``cuDriverGetVersion`` may be called before ``cuInit`` and touches no device.
    """
    ask = function("cuDriverGetVersion", 2020, ctypes.c_void_p)
    number = ctypes.c_int()
    if ask is None or ask(ctypes.byref(number)):
        return 0, 0
    return number.value // 1000, number.value % 1000 // 10


def initialise() -> int:
    """Initialise CUDA in this process (``cuInit``), and return the driver's code."""
    global _owner
    initialiser = function("cuInit", 2000, ctypes.c_uint)
    if initialiser is None:
        return 3  # CUDA_ERROR_NOT_INITIALIZED
    code = initialiser(0)
    if not code:
        _owner = os.getpid()
    return code


def device_count() -> int:
    """Return the number of devices that this process sees (``cuDeviceGetCount``)."""
    ask = function("cuDeviceGetCount", 2000, ctypes.c_void_p)
    count = ctypes.c_int()
    if ask is None or ask(ctypes.byref(count)):
        return 0
    return count.value


def error_name(code: int) -> str:
    """Return the driver's name of an error code, such as ``CUDA_ERROR_NOT_SUPPORTED``.

    ``cuGetErrorName`` says no to codes that it does not know; those are called by their number.
    """
    ask = function("cuGetErrorName", 6000, ctypes.c_int, ctypes.c_void_p)
    name = ctypes.c_char_p()
    if ask is None or ask(code, ctypes.byref(name)) or not name.value:
        return f"CUDA error {code}"
    return name.value.decode()


def forked() -> str:
    """Return why a forked process can't use CUDA; empty if this isn't one.

    CUDA works only in the process that initialised it: a child made by fork has its state, but not
    its threads and mappings. Finalisers call this too, and leave the parent's memory alone.
    """
    if _owner is None or _owner == os.getpid():
        return ""
    return (
        f"process {os.getpid()} was forked from process {_owner} after that had used CUDA, and "
        "CUDA does not survive a fork: start processes with the 'spawn' or 'forkserver' method of "
        "multiprocessing, or use engine='host' in them"
    )


def claim() -> None:
    """Take CUDA for this process.

    Raises
    ------
    DriverError
        If the process that has it is a parent of this one.
    """
    global _owner
    reason = forked()
    if reason:
        raise DriverError(reason)
    _owner = os.getpid()
