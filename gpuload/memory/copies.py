"""Copies between addresses, on a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload import driver

if TYPE_CHECKING:
    from cuda.core import Stream

__all__ = ["copy"]


def copy(to: int, of: int, size: int, stream: Stream) -> None:
    """Copy `size` bytes from one address to another, after the work of a stream.

    Each address may be of any device or of the host; memory of the host that is not pinned must
    not change before the copy is done.

    Raises
    ------
    DriverError
        If the driver refuses.
    """
    if size:
        driver.memcpy_async(to, of, size, int(stream.handle))
