"""What this process can use: is there CUDA, what can a device do, how much memory is free."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuload.driver import library
from gpuload.driver.bindings import api, calling
from gpuload.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cuda.core import Device

__all__ = [
    "Capabilities",
    "capabilities",
    "current_device",
    "device",
    "memory_info",
    "on_device",
    "unavailable",
]

#: ``cuGetProcAddress_v2``, through which cuda-python finds every function, came with CUDA 12.0.
_OLDEST = "CUDA 12.0"
#: ``CUresult``.
_NOT_INITIALIZED, _NO_DEVICE = 3, 100
#: The modules without which there is no CUDA, and what brings them.
_PACKAGES = {"cuda.bindings._v2.driver": "cuda-bindings>=13.5", "cuda.core": "cuda-core>=1.2"}


def unavailable() -> str:
    """Return why CUDA can't be used in this process; empty if it can.

    The first call initialises CUDA (``cuInit``) where there is a driver; no device is touched and
    cuda-python is not imported. Later calls cost nothing.
    """
    return library.forked() or _unavailable()


@functools.cache
def _unavailable() -> str:
    loaded = library.load()
    if loaded is None:
        return f"there is no CUDA driver ({library.LIBRARY} was not found); install NVIDIA's driver"
    # Looking for the packages imports the first parts of them, so it comes second.
    for module, package in _PACKAGES.items():
        if not _installed(module):
            return f"{package} is not installed: pip install '{package}'"
    if not hasattr(loaded, "cuGetProcAddress_v2"):
        return f"the CUDA driver is older than {_OLDEST}: update it"
    return _without_devices(library.initialise())


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _without_devices(code: int) -> str:
    """Return why there is no device to use after ``cuInit`` returned `code`."""
    if code not in (0, _NO_DEVICE):
        hint = "; had CUDA been used before this process was forked?" * (code == _NOT_INITIALIZED)
        name = library.error_name(code)
        return f"the CUDA driver does not start: cuInit failed with {name}{hint}"
    if not code and library.device_count():
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    return f"the CUDA driver sees no device{hidden}"


@dataclass(frozen=True)
class Capabilities:
    """What a device and its driver can do.

    Attributes
    ----------
    name : str
        The product's name.
    compute_capability : (int, int)
        (9, 0) for Hopper, (10, 0) for Blackwell.
    driver_version : (int, int)
        The CUDA version that the driver supports.
    decompress_mask : int
        Bits of ``CUmemDecompressAlgorithm`` that the device decompresses in hardware: DEFLATE 1,
        Snappy 2, LZ4 4. 0 if it has no decompression engine, or the driver does not know of one.
    decompress_max_length : int
        Most bytes of one decompression; 0 likewise.
    sparse_arrays, memory_pools, virtual_memory : bool
        Whether ``cuMemMapArrayAsync``, ``cuMemPoolCreate`` and ``cuMemCreate`` work.
    host_numa_memory : bool
        Whether ``cuMemCreate`` makes memory of a host NUMA node.
    host_numa_id : int
        The host NUMA node that is nearest to the device; -1 on a host without NUMA.
    total_memory : int
        Bytes of device memory.
    multiprocessors : int
        How many of them share the device's work.
    """

    name: str
    compute_capability: tuple[int, int]
    driver_version: tuple[int, int]
    decompress_mask: int
    decompress_max_length: int
    sparse_arrays: bool
    memory_pools: bool
    virtual_memory: bool
    host_numa_memory: bool
    host_numa_id: int
    total_memory: int
    multiprocessors: int


def capabilities(device_id: int) -> Capabilities:
    """Return what a device can do.

    Attributes come from cuda.core (``cuDeviceGetAttribute``), which answers 0 for those that an
    older driver does not know; the size of the memory from ``cuDeviceTotalMem``.

    Raises
    ------
    DriverError
        If there is no such device, or this process is a forked one.
    """
    found = device(device_id)
    with calling("cuDeviceGetAttribute", f"what device {device_id} can do"):
        properties = found.properties
        return Capabilities(
            name=found.name,
            compute_capability=tuple(found.compute_capability),
            driver_version=library.driver_version(),
            decompress_mask=properties.mem_decompress_algorithm_mask,
            decompress_max_length=properties.mem_decompress_maximum_length,
            sparse_arrays=properties.sparse_cuda_array_supported,
            memory_pools=properties.memory_pools_supported,
            virtual_memory=properties.virtual_memory_management_supported,
            host_numa_memory=properties.host_numa_virtual_memory_management_supported,
            host_numa_id=properties.host_numa_id,
            total_memory=api().device_total_mem_v2(api().device_get(device_id)),
            multiprocessors=properties.multiprocessor_count,
        )


def device(device_id: int) -> Device:
    """Return cuda.core's object for a device.

    Raises
    ------
    DriverError
        If there is no such device, or no CUDA in this process.
    """
    reason = unavailable()
    if reason:
        raise DriverError(f"device {device_id} can't be used: {reason}")
    from cuda.core import Device

    with calling("cuInit", "the list of devices"):
        try:
            return Device(device_id)
        except ValueError:
            count = library.device_count()
            raise DriverError(
                f"there is no device {device_id}: this process sees {count}, numbered from 0"
            ) from None


def current_device() -> int:
    """Return the device that is current in this thread; 0 where none is.

    Raises
    ------
    DriverError
        If there is no CUDA in this process.
    """
    device(0)
    with calling("cuCtxGetDevice", "the current device"):
        return api().ctx_get_device() if api().ctx_get_current() else 0


@contextlib.contextmanager
def on_device(device_id: int) -> Iterator[None]:
    """Make a device current in this thread, and afterwards the one that was.

    A thread that had none keeps this one, as the CUDA runtime would do it. cuda.core makes its
    primary context current; ``cuCtxGetCurrent`` and ``cuCtxSetCurrent`` bring the other back.
    """
    chosen = device(device_id)
    with calling("cuCtxSetCurrent", f"device {device_id}"):
        before = api().ctx_get_current()
        # Also where the context is current already: cuda.core keeps count in each thread.
        chosen.set_current()
    try:
        yield
    finally:
        if before:
            with calling("cuCtxSetCurrent", "the device that was current before"):
                api().ctx_set_current(before)


def memory_info(device_id: int) -> tuple[int, int]:
    """Return the free and the total bytes of a device's memory (``cuMemGetInfo``)."""
    with on_device(device_id), calling("cuMemGetInfo", f"device {device_id}"):
        return api().mem_get_info_v2()
