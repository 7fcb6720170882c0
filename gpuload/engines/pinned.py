"""Pinned host memory for small arrays that go to a device and come back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.memory import run_all

if TYPE_CHECKING:
    from cuda.core import Buffer

__all__ = ["PinnedBlocks"]

#: The smallest block, in bytes.
_SMALLEST = 4096


class PinnedBlocks:
    """Blocks of pinned host memory that are used again and again, by any thread.

    Pinning memory takes longer than most batches have. Both the host and the device that is current
    when a block is made may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[Buffer]] = {}

    def take(self, size: int) -> Buffer:
        """Return a block of at least `size` bytes, whatever it holds.

        Raises
        ------
        MemoryLimitError
            If there is not as much memory.
        """
        rounded = max(_SMALLEST, 1 << (size - 1).bit_length())
        with self._lock:
            free = self._free.setdefault(rounded, [])
            if free:
                return free.pop()
        from cuda.core import LegacyPinnedMemoryResource

        with driver.calling("cuMemAllocHost", f"{rounded} bytes of pinned memory"):
            return driver.shield(LegacyPinnedMemoryResource().allocate(rounded))

    def give_back(self, block: Buffer) -> None:
        """Let a block be taken again; no work on a device may use it any more."""
        with self._lock:
            self._free.setdefault(block.size, []).append(block)

    def close(self) -> None:
        """Free the blocks that were given back."""
        with self._lock:
            blocks = [block for free in self._free.values() for block in free]
            self._free.clear()
        if not driver.forked():
            run_all(block.close for block in blocks)
