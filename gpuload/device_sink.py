"""Decoded bytes into the memory of a device."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.memory import StagingRing, copy, run_all, staging_memory

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from cuda.core import Event, Stream

    from gpuload.codecs.base import Bytes

__all__ = ["DeviceSink"]

_SLOT = 4 << 20


class DeviceSink:
    """An array in the memory of a device, which host threads write through a staging ring.

    Every thread that writes has a stream of its own. `close` waits for all of them.

    Parameters
    ----------
    device_id : int
        The device.
    address : int
        Of the array's first byte.
    size : int
        Bytes of the array.
    after : Event
        What must have happened before the array is written.
    memory_limit : int
        Most bytes of the staging ring.
    """

    ordered = False

    def __init__(
        self, device_id: int, address: int, size: int, after: Event, memory_limit: int
    ) -> None:
        self.device_id = device_id
        self.address = address
        self.size = size
        self._after = after
        self._local = threading.local()
        self._streams: list[Stream] = []
        slot = min(_SLOT, max(1, memory_limit // 4))
        slots = max(1, min(8, memory_limit // slot))
        with ExitStack() as undo:
            memory = staging_memory(device_id, undo)
            self._ring = StagingRing(memory, slots, slot, device_id=device_id)
            undo.callback(self._ring.close)
            self._free = undo.pop_all().close

    def slot(self, offset: int, size: int) -> Bytes | None:
        """See `Sink.slot`; the host cannot write the memory of a device."""
        return None

    def stream(self) -> Stream:
        """Return the stream of the calling thread, and make the device current in it."""
        if not hasattr(self._local, "stream"):
            device = driver.device(self.device_id)
            with driver.calling("cuStreamCreateWithPriority", "a load"):
                device.set_current()
                self._local.stream = device.create_stream()
                self._streams.append(self._local.stream)
                self._local.stream.wait(self._after)
        stream: Stream = self._local.stream
        return stream

    def write(self, offset: int, data: Bytes) -> None:
        """See `Sink.write`; a ValueError if the array ends before the data does."""
        self.check_room(offset, data.size)
        stream = self.stream()
        for start in range(0, data.size, self._ring.slot_size):
            part = data[start : start + self._ring.slot_size]
            slot = self._ring.acquire()
            slot.view[: part.size] = part
            try:
                copy(self.address + offset + start, slot.address, part.size, stream)
            finally:
                slot.release(stream)

    def check_room(self, offset: int, size: int) -> None:
        """Raise ValueError if `size` bytes at `offset` do not fit."""
        if offset + size > self.size:
            raise ValueError(f"out holds {self.size} bytes, the file decodes to more")

    def close(self) -> None:
        """Wait until everything is written, and free the ring."""
        streams, self._streams = self._streams, []
        run_all(
            [
                *[partial(_finish, stream) for stream in streams],
                self._free,
            ]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception:
            # What happened first matters more than what a broken context says afterwards.
            if error is None:
                raise


def _finish(stream: Stream) -> None:
    with driver.calling("cuStreamSynchronize", "the end of a load"):
        stream.sync()
    stream.close()
