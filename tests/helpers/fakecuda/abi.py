"""The table of calls: how a Python function becomes a C function of the driver.

A module of calls registers functions like this::

    @driver_call("cuMemAlloc", POINTER, SIZE, since=3020)
    def mem_alloc(cuda: FakeDriver, out: int, size: int) -> None: ...

The function gets the double and the C arguments as integers (null is 0). It returns nothing for
success, or raises :class:`~tests.helpers.fakecuda.codes.CudaError`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.helpers.fakecuda.codes import Code, CudaError

POINTER = ctypes.c_uint64
HANDLE = ctypes.c_uint64
SIZE = ctypes.c_uint64
U64 = ctypes.c_uint64
U32 = ctypes.c_uint32
I32 = ctypes.c_int32
U16 = ctypes.c_uint16
U8 = ctypes.c_uint8

Handler = Callable[..., "int | None"]


@dataclass(frozen=True)
class DriverCall:
    """One version of one entry point.

    Attributes
    ----------
    name : str
        The name without a version suffix, as cuGetProcAddress takes it.
    since : int
        The CUDA version from which on the name means this version.
    needs_context : bool
        Whether a thread without a current context is answered INVALID_CONTEXT.
    needs_init : bool
        Whether the call is refused before cuInit.
    survives : bool
        Whether the call still works once a fault has ended the context, or it was destroyed.
    """

    name: str
    since: int
    types: tuple[Any, ...]
    handler: Handler
    needs_context: bool
    needs_init: bool
    survives: bool


#: Every modelled call; several versions of one name are ordered by `since`.
CALLS: dict[str, list[DriverCall]] = {}


def driver_call(
    name: str,
    *types: Any,
    since: int,
    context: bool = False,
    init: bool = True,
    survives: bool = False,
) -> Callable[[Handler], Handler]:
    """Return a decorator that enters a function into the table of calls."""

    def enter(handler: Handler) -> Handler:
        call = DriverCall(name, since, types, handler, context, init, survives)
        CALLS.setdefault(name, []).append(call)
        CALLS[name].sort(key=lambda one: one.since)
        return handler

    return enter


def find_call(name: str, version: int) -> DriverCall | None:
    """Return what a name means to a program built for a CUDA version."""
    fitting = [call for call in CALLS.get(name, ()) if call.since <= version]
    return fitting[-1] if fitting else None


def put(kind: Any, address: int, value: int, index: int = 0) -> None:
    """Store a value where a caller's pointer points; a null pointer is refused."""
    _element(kind, address, index).value = value


def get(kind: Any, address: int, index: int = 0) -> int:
    """Read element `index` of a caller's array; a null pointer is refused."""
    return int(_element(kind, address, index).value)


def put_optional(kind: Any, address: int, value: int) -> None:
    """Store a value unless the pointer is null."""
    if address:
        put(kind, address, value)


def _element(kind: Any, address: int, index: int) -> Any:
    if not address:
        raise CudaError(Code.INVALID_VALUE, "null pointer")
    return kind.from_address(address + index * ctypes.sizeof(kind))
