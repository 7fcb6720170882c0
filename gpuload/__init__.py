"""gpuload: load compressed files into memory, faster than they could be loaded raw.

The names below are imported when they are used, so that ``import gpuload`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuload.array_container import ArrayContainer, LazyArray
    from gpuload.arrays import Array
    from gpuload.compression import compress
    from gpuload.container import Container
    from gpuload.loader import Load, load, load_async, load_many, open  # noqa: A004
    from gpuload.options import Options

__all__ = [
    "Array",
    "ArrayContainer",
    "Container",
    "LazyArray",
    "Load",
    "Options",
    "compress",
    "errors",
    "load",
    "load_async",
    "load_many",
    "open",
]
__version__ = "0.1.0"

_HOMES = {
    "Array": "gpuload.arrays",
    "ArrayContainer": "gpuload.array_container",
    "Container": "gpuload.container",
    "LazyArray": "gpuload.array_container",
    "Load": "gpuload.loader",
    "Options": "gpuload.options",
    "compress": "gpuload.compression",
    "load": "gpuload.loader",
    "load_async": "gpuload.loader",
    "load_many": "gpuload.loader",
    "open": "gpuload.loader",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("gpuload.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'gpuload' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
