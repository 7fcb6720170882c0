"""What loads to a device need again and again, kept from one load to the next.

Pinning memory is slower than filling it, and a load of some megabytes takes less time than making
streams, staging memory and engines for it. So a load leases a set of them, and gives it back.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda.core import EventOptions  # noqa: TID253 (whoever imports this uses a device)

from gpuload import driver
from gpuload.engines.making import make_engine
from gpuload.engines.scan_plan import LARGEST_RANGE
from gpuload.engines.scans import DeviceScans
from gpuload.engines.sums import DeviceSums
from gpuload.errors import MemoryLimitError
from gpuload.irregular import IrregularError
from gpuload.kept import Kept
from gpuload.memory import StagingRing, device_memory, run_all, staging_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cuda.core import Buffer, Event, MemoryResource, Stream

    from gpuload.engines.base import DeviceBatch, Engine

__all__ = ["USES", "Landing", "Lease", "Shape", "lease", "release"]

#: Bytes in front of each landing place for the start of a chunk whose end lands there. Chunks that
#: are longer are no LZ4 blocks, the longest of which (of legacy frames) take a little over 8 MiB.
MARGIN = 10 << 20
_KEPT = 2
#: Ranges that a landing place may have had whose outcome nobody has looked at yet, and one more.
USES = 3
#: What memory from cuMemCreate is taken in.
_UNIT = 2 << 20
#: Bytes of a slot of the ring, at most. Larger ones leave the CPU's cache before they are copied:
#: with 8 MiB, eight threads took a third more time to read.
_SLOT = 4 << 20
#: One is filled, one is decoded, and one has what the next needs.
_LANDINGS = 3


_TIMED = EventOptions(timing_enabled=True, blocking_sync=True)


@dataclass(frozen=True)
class Shape:
    """How much a set has.

    Attributes
    ----------
    landings : int
        Places on the device for stored bytes.
    landing_size : int
        Bytes of each, without the margin in front of it.
    slots, slot_size : int
        Of the staging ring.
    """

    landings: int
    landing_size: int
    slots: int
    slot_size: int

    @classmethod
    def within(cls, memory_limit: int, slots: int) -> Shape | None:
        """Return the shape for a limit, for the host and the device alike; None if it is too low.

        Parameters
        ----------
        memory_limit : int
            In bytes.
        slots : int
            Slots of the ring that are wanted.
        """
        landing = min(memory_limit // _LANDINGS // _UNIT * _UNIT - MARGIN, LARGEST_RANGE)
        slot = min(_SLOT, memory_limit // 2 // slots // 4096 * 4096)
        if slot < 1 << 20 or landing < slot:
            return None
        # Files that are listed while they arrive are looked at in pieces that places have a whole
        # number of.
        return cls(_LANDINGS, landing // slot * slot, slots, slot)

    @property
    def on_device(self) -> int:
        """Bytes on the device."""
        return self.landings * (self.landing_size + MARGIN)

    @property
    def on_host(self) -> int:
        """Bytes of the staging ring."""
        return self.slots * self.slot_size


class Landing:
    """Memory on the device where stored bytes land, and the stream of all work on them.

    Parameters
    ----------
    stream : Stream
        Copies to it and what reads it go here.
    memory : Buffer
        `MARGIN` bytes more than it has room for.
    host : MemoryResource
        For the decoded sizes.

    Attributes
    ----------
    address : int
        Where the first byte lands.
    """

    def __init__(self, stream: Stream, memory: Buffer, host: MemoryResource) -> None:
        self.stream = stream
        self._use = 0
        self._events: list[list[Event]] = [[] for _ in range(USES)]
        self._memory = memory
        self._host = host
        self._actual: list[Buffer | None] = [None] * USES
        self.address = int(memory.handle) + MARGIN

    def begin(self) -> int:
        """Return the number of a use, of which `USES` may go on at the same time."""
        self._use = (self._use + 1) % USES
        return self._use

    def mark(self, use: int, number: int) -> Event:
        """Return an event behind the work of the stream so far; the same for the same numbers."""
        with driver.calling("cuEventRecord", "a stage of a load"):
            events = self._events[use]
            while len(events) <= number:
                events.append(driver.shield(self.stream.device.create_event(_TIMED)))
            return self.stream.record(events[number])

    def actual(self, use: int, count: int) -> Buffer:
        """Return memory for `count` decoded sizes, which the device writes and the host reads."""
        found = self._actual[use]
        if found is None or found.size < 4 * count:
            if found is not None:
                found.close()
            with driver.calling("cuMemAllocHost", f"{count} decoded sizes"):
                size = max(1 << 16, 4 << count.bit_length())
                found = driver.shield(self._host.allocate(size, stream=self.stream))
            self._actual[use] = found
        return found

    @property
    def host_bytes(self) -> int:
        """Bytes of memory of the host."""
        return sum(each.size for each in self._actual if each is not None)

    def close(self) -> None:
        """Wait for the stream and free everything."""
        buffers = [*(each for each in self._actual if each is not None), self._memory]
        events = [event for use in self._events for event in use]
        run_all([self._wait, *(each.close for each in (*buffers, *events, self.stream))])

    def _wait(self) -> None:
        with driver.calling("cuStreamSynchronize", "the last use of staged bytes"):
            self.stream.sync()


class Lease:
    """A set: staging ring, landing places, engines, and what computes sums and finds headers.

    Parameters
    ----------
    device_id : int
        The device, which is current.
    shape : Shape
        How much of each.
    """

    def __init__(self, device_id: int, shape: Shape) -> None:
        self.device_id, self.shape = device_id, shape
        self._engines: dict[tuple[str, int], Engine[DeviceBatch]] = {}
        with ExitStack() as undo:
            host = staging_memory(device_id, undo)
            memory = device_memory(device_id, undo)
            self.ring = StagingRing(host, shape.slots, shape.slot_size, device_id=device_id)
            undo.callback(self.ring.close)
            self.landings: list[Landing] = []
            undo.callback(lambda: run_all(landing.close for landing in self.landings))
            for _ in range(shape.landings):
                self.landings.append(self._landing(memory, host))
            self.sums, self.scans = DeviceSums(device_id), DeviceScans(device_id)
            undo.callback(lambda: run_all([self.sums.close, self.scans.close]))
            undo.callback(lambda: run_all(each.close for each in self._engines.values()))
            self._undo = undo.pop_all()

    def _landing(self, memory: MemoryResource, host: MemoryResource) -> Landing:
        device = driver.device(self.device_id)
        with driver.calling("cuStreamCreateWithPriority", "a load"):
            stream = driver.shield(device.create_stream())
        size = self.shape.landing_size + MARGIN
        with driver.calling("cuMemCreate", f"{size} bytes where stored bytes land"):
            return Landing(stream, driver.shield(memory.allocate(size, stream=stream)), host)

    def engine(self, name: str, scratch_limit: int) -> Engine[DeviceBatch]:
        """Return an engine by its name."""
        key = name, scratch_limit
        if key not in self._engines:
            made = make_engine(name, self.device_id, scratch_limit=scratch_limit)
            self._engines[key] = made
        return self._engines[key]

    def close(self) -> None:
        """Wait for all work, and free everything."""
        with driver.on_device(self.device_id):
            self._undo.close()


_kept: Kept[Lease] = Kept(_KEPT)


@contextmanager
def lease(device_id: int, shape: Shape) -> Iterator[Lease]:
    """Lend a set; one that an error went through is not used again.

    Parameters
    ----------
    device_id : int
        The device, which is current.
    shape : Shape
        How much of everything.
    """
    driver.claim()
    wanted = device_id, shape
    held = _kept.take(lambda each: (each.device_id, each.shape) == wanted)
    with _kept.lend(held or _make(*wanted)) as lent:
        yield lent


def _make(device_id: int, shape: Shape) -> Lease:
    """Return a new set; irregular if there is no memory for it."""
    try:
        return Lease(device_id, shape)
    except MemoryLimitError:
        release()
    try:
        return Lease(device_id, shape)
    except MemoryLimitError as error:
        # Step by step less will do.
        raise IrregularError(str(error)) from error


def release() -> None:
    """Free what is kept for the next loads; a load makes it anew."""
    _kept.release()
