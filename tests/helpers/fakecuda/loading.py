"""Put the double where the driver would be, once per process."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
from typing import TYPE_CHECKING, Any

from tests.helpers.fakecuda import build
from tests.helpers.fakecuda.abi import CALLS, DriverCall, find_call, put, put_optional
from tests.helpers.fakecuda.codes import DECOMPRESS_SINCE, Code
from tests.helpers.fakecuda.driver import FakeDriver

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULES = ("device", "memory", "vmm", "pool", "copy", "stream", "decompress")
_FIRST_FREE_SLOT = 16
_FOUND, _SYMBOL_NOT_FOUND, _VERSION_NOT_SUFFICIENT = range(3)
_STUB_SLOTS = ("cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString")
_DECOMPRESS_SLOT = 5


class Linker:
    """Callbacks for calls, and the answers of cuGetProcAddress."""

    def __init__(self, cuda: FakeDriver, library: ctypes.CDLL) -> None:
        self._cuda = cuda
        self._bind_slot = library.fakecuda_bind
        self._bind_slot.restype = ctypes.c_void_p
        self._bind_slot.argtypes = (ctypes.c_size_t, ctypes.c_void_p)
        self._alive: list[Any] = []
        self._addresses: dict[tuple[str, int], int] = {}
        self._next = _FIRST_FREE_SLOT
        self._bind(
            0,
            self._get_proc_address,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_uint64,
        )
        for slot, name in enumerate(_STUB_SLOTS, start=1):
            self._bind_call(slot, CALLS[name][-1])
        self._bind_call(_DECOMPRESS_SLOT, CALLS["cuMemBatchDecompressAsync"][-1])

    def address(self, name: str, version: int) -> int:
        """Return the function's address for a name the driver knows."""
        found = find_call(name, version)
        key = (name, found.since if found else -1)
        if key not in self._addresses:
            if found:
                self._addresses[key] = self._bind_call(self._slot(), found)
            else:
                self._addresses[key] = self._bind(self._slot(), self._not_modelled(name))
        return self._addresses[key]

    def _get_proc_address(
        self, symbol: int, out: int, version: int, flags: int, status: int
    ) -> int:
        try:
            return self._resolve(ctypes.string_at(symbol).decode(), out, version, status)
        except BaseException as error:  # noqa: BLE001 - C code is the caller
            return self._cuda.recorder.exception("cuGetProcAddress", error)

    def _resolve(self, name: str, out: int, version: int, status: int) -> int:
        if version > self._cuda.settings.driver_version:
            return Code.INVALID_VALUE
        address, verdict = 0, _SYMBOL_NOT_FOUND
        if self._exists(name):
            since = min((call.since for call in CALLS.get(name, ())), default=0)
            too_old = version < since
            address = 0 if too_old else self.address(name, version)
            verdict = _VERSION_NOT_SUFFICIENT if too_old else _FOUND
        put(ctypes.c_uint64, out, address)
        put_optional(ctypes.c_int, status, verdict)
        return Code.SUCCESS

    def _exists(self, name: str) -> bool:
        if name == "cuMemBatchDecompressAsync":
            return self._cuda.settings.driver_version >= DECOMPRESS_SINCE
        return name in CALLS or hasattr(importlib.import_module("cuda.bindings.driver"), name)

    def _slot(self) -> int:
        self._next += 1
        return self._next - 1

    def _bind_call(self, slot: int, call: DriverCall) -> int:
        return self._bind(slot, lambda *args: self._cuda.call(call, args), *call.types)

    def _bind(self, slot: int, function: Callable[..., int], *types: Any) -> int:
        callback = ctypes.CFUNCTYPE(ctypes.c_int, *types)(function)
        self._alive.append(callback)
        address = self._bind_slot(slot, ctypes.cast(callback, ctypes.c_void_p))
        if not address:
            raise RuntimeError("the double's row of entry points is full")
        return int(address)

    def _not_modelled(self, name: str) -> Callable[[], int]:
        return lambda: self._cuda.recorder.not_modelled(name)


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
    for module in _MODULES:
        importlib.import_module(f"tests.helpers.fakecuda.api_{module}")
    cuda = FakeDriver(version)
    cuda.library = library
    cuda.linker = Linker(cuda, library)
    atexit.register(library.fakecuda_shutdown)
    _loaded = cuda
    return cuda
