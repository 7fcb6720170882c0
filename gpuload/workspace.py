"""What one thread of a load needs to have windows decoded on a device."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.engines.choice import HARDWARE
from gpuload.memory import copy, device_memory, host_view, staging_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt
    from cuda.core import Buffer, MemoryResource, Stream

__all__ = ["READS_OVER_THE_LINK", "Sizes", "Workspace"]

#: What memory from cuMemCreate is taken in, on every device so far.
_UNIT = 2 << 20
#: Addresses without memory behind each window, to catch writes past its end.
_GUARD = 256 << 20
#: Engines that are given stored bytes in memory of the host. What others are given is copied to the
#: device first: a copy reaches 55 GB/s, kernels that read over the link 37 to 46 on an H200.
READS_OVER_THE_LINK = frozenset({HARDWARE})


@dataclass(frozen=True)
class Sizes:
    """Bytes of a workspace's memory.

    Attributes
    ----------
    stored : int
        On the host, for the stored bytes of a window.
    actual : int
        On the host, for the words with the decoded sizes.
    landed : int
        On the device, for stored bytes that engines read there.
    window : int
        On the device, for decoded bytes that do not go where they belong at once.
    guard : bool
        Whether some engine might write behind the window.
    """

    stored: int = 0
    actual: int = 0
    landed: int = 0
    window: int = 0
    guard: bool = False

    @classmethod
    def largest(cls, sizes: Iterable[Sizes]) -> Sizes:
        """Return the sizes that each of some fits in."""
        known = [cls(), *sizes]
        return cls(
            stored=max(each.stored for each in known),
            actual=max(each.actual for each in known),
            landed=max(each.landed for each in known),
            window=max(each.window for each in known),
            guard=any(each.guard for each in known),
        )

    @property
    def total(self) -> int:
        """Bytes of all of it, as it is taken."""
        parts = (self.stored, self.actual, self.landed, self.window)
        return sum(-(-size // _UNIT) * _UNIT for size in parts)


class Workspace:
    """Staging, and a window on the device.

    Parameters
    ----------
    device_id : int
        The device, which is current.
    stream : Stream
        What the thread does, it does on this one.
    sizes : Sizes
        Of the largest window.

    Attributes
    ----------
    stored : ndarray of uint8
        Where the stored bytes are read to.
    actual : Buffer
        For the decoded sizes.
    window : int
        Address of the window on the device; 0 if there is none.
    """

    def __init__(self, device_id: int, stream: Stream, sizes: Sizes) -> None:
        self.stream = stream
        self._sizes = sizes
        with ExitStack() as undo:
            self._undo = undo
            host = self._host = staging_memory(device_id, undo)
            self._fetched: Buffer | None = None
            self._staging = self._allocate(host, max(1, sizes.stored))
            self.actual = self._allocate(host, max(4, sizes.actual))
            guard = _GUARD if sizes.guard else 0
            self.window = self._on_device(device_id, sizes.window, guard)
            self._landed = self._on_device(device_id, sizes.landed, 0)
            self.stored = host_view(self._staging)
            # Pinned memory is freed at once, whoever still uses it.
            undo.callback(self._finish)
            #: Waits for the stream and frees everything.
            self.close = undo.pop_all().close

    def _on_device(self, device_id: int, size: int, guard: int) -> int:
        if not size:
            return 0
        memory = device_memory(device_id, self._undo, guard=guard)
        return int(self._allocate(memory, size).handle)

    def _allocate(self, memory: MemoryResource, size: int) -> Buffer:
        with driver.calling("cuMemAlloc", f"{size} bytes for windows"):
            buffer = driver.shield(memory.allocate(size, stream=self.stream))
        self._undo.callback(buffer.close)
        return buffer

    def _finish(self) -> None:
        with driver.calling("cuStreamSynchronize", "the last use of a window"):
            self.stream.sync()

    def fetched(self, size: int) -> npt.NDArray[np.uint8]:
        """Return pinned memory for decoded bytes on their way to the host; the same every time."""
        if self._fetched is None or self._fetched.size < size:
            self._fetched = self._allocate(self._host, max(1, size))
        return host_view(self._fetched)[:size]

    def source(self, size: int, engine: int) -> int:
        """Return where an engine finds the first `size` bytes of `stored`."""
        staging = int(self._staging.handle)
        if engine in READS_OVER_THE_LINK or size > self._sizes.landed:
            return staging
        copy(self._landed, staging, size, self.stream)
        return self._landed
