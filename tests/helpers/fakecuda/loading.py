"""Put the double where the driver would be, once per process."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import os
from typing import TYPE_CHECKING, Any

from tests.helpers.fakecuda import build
from tests.helpers.fakecuda.abi import CALLS, DriverCall, find_call
from tests.helpers.fakecuda.codes import DECOMPRESS_SINCE, Code, CudaError
from tests.helpers.fakecuda.driver import FakeDriver

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULES = (
    *("device", "memory", "vmm", "pool", "copy", "stream", "decompress"),
    *("library", "kernel", "launch"),
)
#: What the library needs of Python's C API.
_PYTHON_CALLS = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_Fetch", "PyErr_Restore")
#: What stub.cpp exports by name, in the order of its slots.
_EXPORTED = (
    "cuGetProcAddress",
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuMemBatchDecompressAsync",
)


class Linker:
    """C functions for the calls, and the names that the driver knows."""

    def __init__(self, cuda: FakeDriver, library: ctypes.CDLL) -> None:
        self._cuda = cuda
        self._bind_slot = library.fakecuda_bind
        self._bind_slot.restype = ctypes.c_void_p
        self._bind_slot.argtypes = (ctypes.c_size_t, ctypes.c_void_p)
        self._alive: list[Any] = []
        self._addresses: dict[tuple[str, int], int] = {}
        for name in _EXPORTED:
            self._bind_call(CALLS[name][-1])

    def resolve(self, name: str, version: int) -> int | None:
        """Return a function's address, 0 if the name was no call yet, None if it is none."""
        if version > self._cuda.settings.driver_version:
            raise CudaError(Code.INVALID_VALUE, f"version {version}")
        if name not in CALLS and name not in _names_of_bindings():
            return None
        if name == "cuMemBatchDecompressAsync":
            version = version if self._cuda.settings.driver_version >= DECOMPRESS_SINCE else 0
        found = find_call(name, version)
        if found is None and name in CALLS:
            return 0
        return self._addresses.get((name, found.since if found else 0)) or self._bind_new(
            name, found
        )

    def _bind_new(self, name: str, call: DriverCall | None) -> int:
        if call is not None:
            return self._bind_call(call)
        return self._bind(name, 0, lambda: self._cuda.recorder.not_modelled(name))

    def _bind_call(self, call: DriverCall) -> int:
        return self._bind(
            call.name, call.since, lambda *args: self._cuda.call(call, args), *call.types
        )

    def _bind(self, name: str, since: int, function: Callable[..., int], *types: Any) -> int:
        callback = ctypes.CFUNCTYPE(ctypes.c_int, *types)(function)
        address = self._bind_slot(len(self._alive), ctypes.cast(callback, ctypes.c_void_p))
        if not address:
            raise RuntimeError("the double's row of entry points is full")
        self._alive.append(callback)
        self._addresses[(name, since)] = int(address)
        return int(address)


@functools.cache
def _names_of_bindings() -> frozenset[str]:
    """Return every call that cuda.bindings knows, modelled here or not.

    Not before somebody asks for a name without a model: a program that only looks for a driver
    must not find cuda.bindings imported.
    """
    try:
        bindings = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return frozenset()
    return frozenset(name for name in dir(bindings) if name.startswith("cu") and name[2].isupper())


_loaded: FakeDriver | None = None


def load() -> FakeDriver:
    """Load the double as libcuda.so.1 and return it; later calls return the same one.

    ``GPULOAD_FAKE_CUDA_VERSION`` makes it an older driver, whose library lacks later symbols.
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    version = int(os.environ.get("GPULOAD_FAKE_CUDA_VERSION", "13000"))
    path = build.library(with_decompress=version >= DECOMPRESS_SINCE)
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.fakecuda_python(*(getattr(ctypes.pythonapi, name) for name in _PYTHON_CALLS))
    for module in _MODULES:
        importlib.import_module(f"tests.helpers.fakecuda.api_{module}")
    cuda = FakeDriver(version)
    cuda.library = library
    cuda.linker = Linker(cuda, library)
    atexit.register(library.fakecuda_shutdown)
    _loaded = cuda
    return cuda
