"""Memory and a stream for each part of an array that is on its way to a device.

A part is read into pinned memory, copied to the device, decoded there, and passed through filters
on the stream of its station, while other parts are at other stations. Stations are kept for the
next load: pinning memory is slower than filling it.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.engines.making import make_engine
from gpuload.engines.sums import DeviceSums
from gpuload.filters.device import DeviceFilters
from gpuload.kept import Kept
from gpuload.memory import device_memory, host_view, run_all, staging_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cuda.core import Buffer, Event, MemoryResource, Stream

    from gpuload.array_shape import Shape
    from gpuload.codecs.base import Bytes
    from gpuload.engines.base import DeviceBatch, Engine

__all__ = ["Station", "Stations", "release", "stations"]

#: Stations are kept for as many shapes.
_KEPT = 1
_PAGE = 4096
#: The number of the memory that holds an element instead of decoded sizes.
_ELEMENT = -1


class Station:
    """A place for one part at a time.

    Parameters
    ----------
    shared : Stations
        The stations that it is one of; their device is current.
    host, memory : MemoryResource
        What the host writes and the device reads, and what is on the device.

    Attributes
    ----------
    stream : Stream
        What all of its work is ordered on.
    stored : ndarray of uint8
        Pinned memory for stored bytes.
    landing, first, second : int
        Addresses on the device: of stored bytes, and of decoded ones before and behind a filter.
    """

    def __init__(self, shared: Stations, host: MemoryResource, memory: MemoryResource) -> None:
        device_id, shape = shared.device_id, shared.shape
        self.shared, self.shape = shared, shape
        self._host = host
        self._actual: dict[int, Buffer] = {}
        self._decoded: Buffer | None = None
        with ExitStack() as undo:
            with driver.calling("cuStreamCreateWithPriority", "a part of an array"):
                self.stream: Stream = driver.shield(driver.device(device_id).create_stream())
            undo.callback(self.stream.close)
            staged = self._allocate(host, shape.stored)
            undo.callback(staged.close)
            self.stored, self.stored_address = host_view(staged), int(staged.handle)
            self.landing, self.first, self.second = (
                self._on_device(memory, size, undo)
                for size in (shape.landing, shape.first, shape.second)
            )
            self._undo = undo.pop_all()

    def _on_device(self, memory: MemoryResource, size: int, undo: ExitStack) -> int:
        if not size:
            return 0
        buffer = self._allocate(memory, size)
        undo.callback(buffer.close)
        return int(buffer.handle)

    def _allocate(self, memory: MemoryResource, size: int) -> Buffer:
        with driver.calling("cuMemCreate", f"{size} bytes for a part of an array"):
            return driver.shield(memory.allocate(max(size, _PAGE), stream=self.stream))

    @property
    def decoded(self) -> Bytes:
        """Pinned memory for what the host decodes; it is there once somebody asks."""
        return host_view(self._decoded_buffer())

    @property
    def decoded_address(self) -> int:
        """Its address, for the host and the device alike."""
        return int(self._decoded_buffer().handle)

    def _decoded_buffer(self) -> Buffer:
        if self._decoded is None:
            self._decoded = self._allocate(self._host, self.shape.decoded)
        return self._decoded

    @property
    def on_host(self) -> int:
        """Bytes of pinned memory."""
        return self.shape.stored + (self.shape.decoded if self._decoded is not None else 0)

    def actual(self, count: int, number: int) -> Buffer:
        """Return memory for `count` decoded sizes, which the device writes and the host reads.

        There is one for each `number` from 0 on; it is used again for the next part.
        """
        found = self._actual.get(number)
        if found is None or found.size < 4 * count:
            if found is not None:
                found.close()
            found = self._actual[number] = self._words(count)
        return found

    def _words(self, count: int) -> Buffer:
        with driver.calling("cuMemAllocHost", f"{count} decoded sizes"):
            size = max(1 << 16, 4 << count.bit_length())
            return driver.shield(self._host.allocate(size, stream=self.stream))

    def element(self, content: bytes) -> int:
        """Return the address of one element that the device reads; of the last one only."""
        words = self.actual(-(-len(content) // 4), _ELEMENT)
        host_view(words)[: len(content)] = np.frombuffer(content, np.uint8)
        return int(words.handle)

    def wait_for(self, event: Event) -> None:
        """Let the stream wait for an event."""
        with driver.calling("cuStreamWaitEvent", "a part of an array"):
            self.stream.wait(event)

    def record(self) -> Event:
        """Return an event behind the work of the stream so far."""
        with driver.calling("cuEventRecord", "a part of an array"):
            return driver.shield(self.stream.record())

    def sync(self) -> None:
        """Wait for all work of the stream."""
        with driver.calling("cuStreamSynchronize", "a part of an array"):
            self.stream.sync()

    def close(self) -> None:
        """Wait for all work, and free everything."""
        pinned = [*self._actual.values(), *([self._decoded] if self._decoded is not None else [])]
        run_all([self.sync, *(each.close for each in pinned), self._undo.close])


class Stations:
    """Some stations, and the engines and other work that they share.

    Parameters
    ----------
    device_id : int
        The device, which is current.
    shape : Shape
        How many, and the bytes of their pieces of memory.
    """

    def __init__(self, device_id: int, shape: Shape) -> None:
        self.device_id, self.shape = device_id, shape
        self._engines: dict[tuple[str, int], Engine[DeviceBatch]] = {}
        self._lock = threading.Lock()
        with ExitStack() as undo:
            host = staging_memory(device_id, undo)
            memory = device_memory(device_id, undo)
            self.all: list[Station] = []
            undo.callback(lambda: run_all(station.close for station in self.all))
            for _ in range(shape.count):
                self.all.append(Station(self, host, memory))
            self.sums, self.filters = DeviceSums(device_id), DeviceFilters(device_id)
            undo.callback(lambda: run_all([self.sums.close, self.filters.close]))
            undo.callback(lambda: run_all(each.close for each in self._engines.values()))
            self._undo = undo.pop_all()

    @property
    def on_host(self) -> int:
        """Bytes of pinned memory."""
        return sum(station.on_host for station in self.all)

    def on_device(self, engines: Iterable[str]) -> int:
        """Return the bytes on the device, where these engines have decoded."""
        scratch = self.shape.scratch * self.shape.count if "nvcomp" in engines else 0
        return self.shape.on_device - self.shape.scratch * self.shape.count + scratch

    def engine(self, name: str, scratch_limit: int) -> Engine[DeviceBatch]:
        """Return an engine by its name."""
        with self._lock:
            key = name, scratch_limit
            if key not in self._engines:
                made = make_engine(name, self.device_id, scratch_limit=scratch_limit)
                self._engines[key] = made
            return self._engines[key]

    def close(self) -> None:
        """Wait for all work, and free everything."""
        with driver.on_device(self.device_id):
            self._undo.close()


_kept: Kept[Stations] = Kept(_KEPT)


@contextmanager
def stations(device_id: int, shape: Shape, most: tuple[int, int]) -> Iterator[Stations]:
    """Lend stations; those that an error went through are not used again.

    Parameters
    ----------
    device_id : int
        The device, which is current.
    shape : Shape
        What is needed; what is lent may have more.
    most : tuple of (int, int)
        Bytes that they may take on the host, and on the device.
    """
    driver.claim()

    def fits(held: Stations) -> bool:
        enough = held.shape.has_room_for(shape)
        small = held.shape.on_host <= most[0] and held.shape.on_device <= most[1]
        return held.device_id == device_id and enough and small

    held = _kept.take(fits)
    if held is None:
        # Two sets at a time would be more than `memory_limit`.
        _kept.release()
        held = Stations(device_id, shape)
    with _kept.lend(held):
        yield held


def release() -> None:
    """Free what is kept for the next loads; a load makes it anew."""
    _kept.release()
