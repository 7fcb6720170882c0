"""NVRTC, the compiler of kernels: is it here, and what does it compile for.

cuda.core compiles with the library that cuda.pathfinder finds. The questions here go to that same
library by ctypes, since cuda.core has no words for them and takes a third of a second to import.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from dataclasses import dataclass

from gpuload.errors import MissingDependencyError

__all__ = ["Nvrtc", "find", "lacking", "missing"]

#: What cuda-bindings 13 calls: NVRTC's ABI is one of a major version.
_MAJOR = 13
_PURPOSE = "compiling GPU kernels"


@dataclass(frozen=True)
class Nvrtc:
    """The compiler that was found.

    Attributes
    ----------
    version : (int, int)
        The CUDA version that it belongs to.
    architectures : tuple of int
        What it compiles for: 90 is ``sm_90``, compute capability 9.0.
    """

    version: tuple[int, int]
    architectures: tuple[int, ...]

    def __str__(self) -> str:
        return "NVRTC {}.{}".format(*self.version)


@functools.cache
def find() -> Nvrtc | None:
    """Return the compiler, of whatever version; None if there is none.

    The first call loads the library, some 60 ms; nothing is compiled.
    """
    if not _installed("cuda.pathfinder"):
        return None
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        # Its "not found" is a RuntimeError, and so is a library that does not load.
        library = ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)
        return Nvrtc(_version(library), _architectures(library))
    except (RuntimeError, OSError, AttributeError):
        return None


@functools.cache
def lacking() -> str:
    """Return what has to be installed before kernels can be compiled; empty if nothing."""
    if not _installed("cuda.core"):
        return "cuda-core"
    found = find()
    if found is None:
        return "nvidia-cuda-nvrtc"
    # One of another version may be all that the loader finds, or loaded by another library.
    wrong = found.version[0] != _MAJOR
    return f"NVRTC {_MAJOR} (what was found is {found})" if wrong else ""


def missing() -> MissingDependencyError | None:
    """Return the error that names what is lacking, and the extra that brings it."""
    library = lacking()
    return MissingDependencyError(library, "cuda", _PURPOSE) if library else None


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _version(library: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _architectures(library: ctypes.CDLL) -> tuple[int, ...]:
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(numbers)
    return tuple(numbers)
