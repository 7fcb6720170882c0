"""Copies between addresses, on a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda.core import Buffer  # noqa: TID253 (see __init__.py)

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
        with driver.calling("cuMemcpyAsync", f"a copy of {size} bytes"):
            Buffer.from_handle(to, size).copy_from(Buffer.from_handle(of, size), stream=stream)
