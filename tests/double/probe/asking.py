"""Call the driver through cuGetProcAddress and note what it says."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

Note = Callable[[str, Any], None]
Group = Callable[["Driver", Note], None]

#: The groups of questions, by name.
GROUPS: dict[str, Group] = {}

INDEX_UNTOUCHED = 0x5A5A_5A5A_5A5A_5A5A


def group(function: Group) -> Group:
    """Enter a function into the groups of questions, under its own name."""
    GROUPS[function.__name__] = function
    return function


class Driver:
    """libcuda.so.1, every call by name."""

    def __init__(self, *, init: bool = True) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self._known: dict[tuple[str, int], Any] = {}
        if init:
            self.must("cuInit", 0)

    def address(self, name: str, version: int = 12000) -> int:
        """Return a call's address as a program built for a CUDA version gets it."""
        out = ctypes.c_void_p()
        status = ctypes.c_int(-1)
        code = self.library.cuGetProcAddress_v2(
            name.encode(), ctypes.byref(out), version, ctypes.c_uint64(0), ctypes.byref(status)
        )
        if code or not out.value:
            raise LookupError(f"{name} for {version}: code {code}, status {status.value}")
        return out.value

    def __call__(self, name: str, *args: Any, version: int = 12000) -> int:
        """Make a call and return its code; integers are passed as 64-bit words."""
        key = (name, version)
        if key not in self._known:
            self._known[key] = ctypes.CFUNCTYPE(ctypes.c_int)(self.address(name, version))
        words = [ctypes.c_uint64(a & (2**64 - 1)) if isinstance(a, int) else a for a in args]
        return int(self._known[key](*words))

    def must(self, name: str, *args: Any, version: int = 12000) -> None:
        """Make a call that the following questions need."""
        code = self(name, *args, version=version)
        if code:
            raise RuntimeError(f"{name} gave {code}")

    def value(self, name: str, *args: Any, version: int = 12000) -> int:
        """Make a call whose first parameter is a result of up to 64 bits, and return that."""
        out = ctypes.c_uint64(0)
        self.must(name, ctypes.byref(out), *args, version=version)
        return out.value

    def code_of(self, name: str, *args: Any, version: int = 12000) -> int:
        """Make a call whose first parameter is a result, and return its code."""
        return self(name, ctypes.byref(ctypes.c_uint64(0)), *args, version=version)

    def use_device(self) -> int:
        """Make device 0's primary context current and return its handle."""
        context = self.value("cuDevicePrimaryCtxRetain", 0)
        self.must("cuCtxSetCurrent", context)
        return context

    def memory(self, size: int) -> int:
        """Return device memory from cuMemAlloc."""
        return self.value("cuMemAlloc", size)

    def pinned(self, size: int) -> int:
        """Return host memory from cuMemHostAlloc."""
        return self.value("cuMemHostAlloc", size, 0)

    def created(self, size: int, *, usage: int = 0, location: tuple[int, int] = (1, 0)) -> int:
        """Return a handle of cuMemCreate."""
        return self.value("cuMemCreate", size, properties(usage, location), 0)

    def mapped(
        self, size: int, *, usage: int = 0, location: tuple[int, int] = (1, 0), access: bool = True
    ) -> int:
        """Return an address where memory of cuMemCreate is mapped, accessible from device 0."""
        address = self.value("cuMemAddressReserve", size, 0, 0, 0)
        handle = self.created(size, usage=usage, location=location)
        self.must("cuMemMap", address, size, 0, handle, 0)
        self.must("cuMemRelease", handle)
        if access:
            self.must("cuMemSetAccess", address, size, descriptors((1, 0, 3)), 1)
        return address

    def pool(self, *, usage: int = 0, location: tuple[int, int] = (1, 0), maximum: int = 0) -> int:
        """Return a pool."""
        return self.value("cuMemPoolCreate", pool_properties(usage, location, maximum))

    def attribute(self, number: int, address: int) -> int | None:
        """Return a pointer attribute of up to 64 bits, or the code in brackets as text."""
        out = ctypes.c_uint64(0)
        code = self("cuPointerGetAttribute", ctypes.byref(out), number, address)
        return None if code else out.value


def properties(usage: int = 0, location: tuple[int, int] = (1, 0), **other: int) -> Any:
    """Return a CUmemAllocationProp."""
    words = (ctypes.c_int32 * 8)()
    words[0], words[1] = other.get("kind", 1), other.get("handle_types", 0)
    words[2], words[3] = location
    words[6] = usage << 16
    return words


def pool_properties(usage: int, location: tuple[int, int], maximum: int, **other: int) -> Any:
    """Return a CUmemPoolProps."""
    words = (ctypes.c_int32 * 22)()
    words[0], words[1] = other.get("kind", 1), other.get("handle_types", 0)
    words[2], words[3] = location
    words[6], words[7] = maximum & 0xFFFF_FFFF, maximum >> 32
    words[8] = usage
    words[20] = other.get("reserved", 0)
    return words


def descriptors(*triples: tuple[int, int, int]) -> Any:
    """Return an array of CUmemAccessDesc: location type, id, flags."""
    words = (ctypes.c_int32 * (3 * len(triples)))()
    for index, triple in enumerate(triples):
        words[3 * index : 3 * index + 3] = triple
    return words


def location(kind: int, number: int) -> Any:
    """Return a CUmemLocation."""
    return (ctypes.c_int32 * 2)(kind, number)
