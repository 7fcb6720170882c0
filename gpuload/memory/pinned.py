"""Pinned memory of the host whose failures are told: those of cuda.core's own are dropped."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.memory.base import OwnMemory
from gpuload.memory.mapped import wait_for
from gpuload.memory.undo import run_all

if TYPE_CHECKING:
    from cuda.core import Stream

__all__ = ["PinnedMemory"]


class PinnedMemory(OwnMemory):
    """Memory from ``cuMemAllocHost``, which the CPU and the device read and write.

    Parameters
    ----------
    device_id : int
        The device that uses it.
    """

    @property
    def is_host_accessible(self) -> bool:
        """True: the CPU may read and write it."""
        return True

    def _take(self, size: int, stream: Stream) -> tuple[int, int]:
        return driver.mem_alloc_host(size), size

    def _give_back(self, address: int, kept: int, stream: Stream | None) -> None:
        # It is freed at once, whoever still uses it.
        run_all([partial(wait_for, stream, address), partial(driver.mem_free_host, address)])
