"""A memory pool that the decompression engine may use."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.errors import DriverError, GpuloadError
from gpuload.memory.base import OwnMemory
from gpuload.memory.undo import Undo

if TYPE_CHECKING:
    from cuda.core import Stream

__all__ = ["DecompressPool"]

#: What a pool may keep: everything.
_KEEP_ALL = 2**64 - 1


class DecompressPool(OwnMemory):
    """Device memory in stream order, from a pool of our own.

    The pool keeps what was freed for the next load, instead of giving it back to the driver at
    every synchronisation. Closing it does so; buffers that are still open then stay valid, and the
    pool goes with the last of them.

    Parameters
    ----------
    device_id : int
        The device.

    Raises
    ------
    DriverError
        If the device has no memory pools.
    """

    def __init__(self, device_id: int) -> None:
        super().__init__(device_id)
        if not driver.capabilities(device_id).memory_pools:
            raise DriverError(f"device {device_id} has no memory pools (cuMemPoolCreate)")
        with driver.on_device(device_id), Undo() as undo:
            self._pool = driver.pool_create(device_id)
            undo.add(driver.pool_destroy, self._pool)
            driver.pool_keep(self._pool, _KEEP_ALL)
            # A pool that is forgotten without being closed would keep its memory for ever.
            self._forgotten = weakref.finalize(self, _destroy_quietly, device_id, self._pool)
            self._forgotten.atexit = False

    def _take(self, size: int, stream: Stream) -> tuple[int, Stream]:
        return driver.pool_allocate(self._pool, size, int(stream.handle)), stream

    def _give_back(self, address: int, kept: Stream, stream: Stream | None) -> None:
        driver.pool_free(address, int((stream or kept).handle))

    def _finish(self) -> None:
        self._forgotten.detach()
        _destroy(self._device_id, self._pool)


def _destroy(device_id: int, pool: int) -> None:
    with driver.on_device(device_id):
        driver.pool_destroy(pool)


def _destroy_quietly(device_id: int, pool: int) -> None:
    if not driver.forked():
        with contextlib.suppress(GpuloadError):
            _destroy(device_id, pool)
