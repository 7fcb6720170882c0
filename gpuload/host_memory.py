"""Host memory for results."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpuload.errors import MemoryLimitError

__all__ = ["allocate", "available", "reserve"]

#: Linux's flag for memory that counts only once it is touched; Python 3.11 has no name for it.
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def allocate(size: int, what: str) -> npt.NDArray[np.uint8]:
    """Return `size` bytes of memory; what is in them is undefined.

    Raises
    ------
    MemoryLimitError
        If the system has not got them; `what` says what they are for.
    """
    try:
        return np.empty(size, np.uint8)
    except (MemoryError, ValueError):
        raise MemoryLimitError(f"{what}: no memory for the {size} bytes it decodes to") from None


def available() -> int | None:
    """Return how many bytes of memory the system says that there are; None if it does not."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) << 10
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def reserve(size: int) -> npt.NDArray[np.uint8] | None:
    """Return address space for up to `size` bytes, which takes memory only where it is written.

    None where the system has no such thing, or not for so many bytes.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        pages = mmap.mmap(-1, max(1, size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except (OSError, OverflowError, ValueError):
        return None
    return np.frombuffer(pages, np.uint8)[:size]
