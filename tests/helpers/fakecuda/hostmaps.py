"""What the process's own mappings allow, read from the kernel."""

from __future__ import annotations

import ctypes
import errno
import mmap
from pathlib import Path

#: Linux 5.14: bring all pages, or say that some cannot be had.
_MADV_POPULATE_READ = 22


def present(address: int, size: int) -> bool:
    """Return whether the kernel can bring all pages of a range; True where it cannot tell."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    failed = advise(start, address + size - start, _MADV_POPULATE_READ)
    return not failed or ctypes.get_errno() == errno.EINVAL


def writable(address: int, size: int) -> bool:
    """Return whether every byte of a range is mapped for writing."""
    at = address
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split(maxsplit=2)[:2]
        start, end = (int(text, 16) for text in span.split("-"))
        if start <= at < end:
            if "w" not in rights:
                return False
            at = end
            if at >= address + size:
                return True
    return False
