"""Copies by address, pinned memory, and pages of files that a device may read."""

from __future__ import annotations

from gpuload.driver.bindings import api, calling

__all__ = [
    "mem_alloc_host",
    "mem_free_host",
    "mem_host_register",
    "mem_host_unregister",
    "memcpy_async",
    "submit_copy",
]

#: ``CU_MEMHOSTREGISTER_DEVICEMAP`` and ``_READ_ONLY``: the first alone is refused for pages that
#: this process may only read.
_DEVICEMAP, _READ_ONLY = 0x02, 0x08


def memcpy_async(to: int, of: int, size: int, stream: int) -> None:
    """Copy between two addresses of any kind, after the work of a stream (``cuMemcpyAsync``)."""
    with calling("cuMemcpyAsync", f"a copy of {size} bytes"):
        api().memcpy_async(to, of, size, stream)


def submit_copy(to: int, of: int, size: int, stream: int) -> None:
    """Copy as `memcpy_async` does, within a block of `gpuload.driver.calling` around many."""
    api().memcpy_async(to, of, size, stream)


def mem_alloc_host(size: int) -> int:
    """Return the address of pinned memory of the host (``cuMemAllocHost``)."""
    with calling("cuMemAllocHost", f"{size} bytes of pinned memory"):
        return api().mem_alloc_host_v2(size)


def mem_free_host(address: int) -> None:
    """Free pinned memory; no work may use it any more (``cuMemFreeHost``)."""
    with calling("cuMemFreeHost", f"the pinned memory at {address:#x}"):
        api().mem_free_host(address)


def mem_host_register(address: int, size: int) -> None:
    """Pin mapped pages that the process may read, so that devices read them where they are.

    Pages that the kernel cannot bring (the file has shrunk, the disk fails) are an error and no
    signal; pages that are pinned stay, whatever becomes of their file.
    """
    with calling("cuMemHostRegister", f"{size} bytes of a file at {address:#x}"):
        api().mem_host_register_v2(address, size, _DEVICEMAP | _READ_ONLY)


def mem_host_unregister(address: int) -> None:
    """Take back `mem_host_register`; no work on a device may use the pages any more."""
    with calling("cuMemHostUnregister", f"the pages at {address:#x}"):
        api().mem_host_unregister(address)
