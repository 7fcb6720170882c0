"""The ways in which stored bytes come to a device.

*Read*: into a slot of a ring of pinned memory, by several threads, and copied from there. *Mapped*:
pages of a local file are mapped and pinned, copied from where they are, and let go. The CPU never
touches mapped pages: one that has lost its file would end the process with a signal, while pinning
or reading it gives an error.

On an H200 with 16 cores, from the page cache, eight threads read 42 GB/s and four of them 25;
pinning and letting go of pages go on one after the other in the driver, however many threads ask
for it, and bring 20 to 25 GB/s on one core. Both at once were slower than reading alone: who pins
keeps those who read from submitting copies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.errors import GpuloadError
from gpuload.irregular import IrregularError
from gpuload.memory import run_all

if TYPE_CHECKING:
    from cuda.core import Event, Stream

    from gpuload.memory import Slot, StagingRing
    from gpuload.options import Options
    from gpuload.sources import Source
    from gpuload.stages import Stages

__all__ = [
    "MappedStager",
    "Piece",
    "ReadingStager",
    "ShowingStager",
    "Stager",
    "choose_way",
    "reading_threads",
]

#: Threads that read, and how many cores it takes for that to be faster than mapping.
_READERS, _MANY_CORES = 8, 6
#: Bytes of a file that are mapped at a time: pinning less is slower.
_MAPPED_PIECE = 32 << 20
#: Slots of the ring that are filled for a piece.
_SLOTS_A_PIECE = 4
_MAP_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True)
class Piece:
    """Stored bytes that are brought at once.

    Attributes
    ----------
    offset, size : int
        Bytes of the source.
    address : int
        Where on the device they go.
    stream : Stream
        What they are copied on.
    """

    offset: int
    size: int
    address: int
    stream: Stream


def choose_way(source: Source, options: Options) -> str:
    """Return how the bytes of a source come to a device: "mapped", "read" or "remote"."""
    if source.descriptor is None:
        return "remote" if source.remote else "read"
    if options.way != "auto":
        return options.way
    return "read" if options.thread_count >= _MANY_CORES else "mapped"


def reading_threads(options: Options) -> int:
    """Return how many threads read into the ring."""
    return min(options.thread_count, _READERS)


class Stager(ABC):
    """Brings pieces of one source.

    Attributes
    ----------
    threads : int
        How many may call `bring` at the same time.
    piece_size : int
        Bytes of a piece, at most.
    brought : dict of str to int
        Bytes by the way that they came.
    """

    threads: int
    piece_size: int

    def __init__(self, way: str) -> None:
        self._way, self._lock = way, threading.Lock()
        self.brought: dict[str, int] = {}

    def count(self, size: int) -> None:
        """Take note that bytes were brought."""
        with self._lock:
            self.brought[self._way] = self.brought.get(self._way, 0) + size

    @abstractmethod
    def bring(self, piece: Piece) -> Slot | None:
        """Submit the copy of a piece.

        Returns
        -------
        Slot or None
            A slot that holds the bytes and that the caller must release, behind the copy; None if
            the host has no use of them.

        Raises
        ------
        FormatError
            If the source ends before.
        OSError
            As reading does.
        DriverError
            If the driver refuses.
        """

    def finish(self) -> None:  # noqa: B027 (a ring has nothing to let go)
        """Wait for the copies, and let go of what they read."""


class ReadingStager(Stager):
    """Reads into slots of a ring; each thread has some of its own, which it fills in turn.

    Parameters
    ----------
    source : Source
        Where from.
    ring : StagingRing
        Where to.
    options : Options
        `threads` matters here.
    stages : Stages
        The clock.
    """

    def __init__(
        self,
        source: Source,
        ring: StagingRing,
        options: Options,
        stages: Stages,
    ) -> None:
        super().__init__("remote" if source.remote else "read")
        self._source, self._ring, self._stages = source, ring, stages
        self.threads = reading_threads(options)
        self._own_slots = max(1, ring.slots // self.threads)
        self.piece_size = _SLOTS_A_PIECE * ring.slot_size
        self._own = threading.local()
        self._held: list[Slot] = []

    def bring(self, piece: Piece) -> None:
        """See `Stager.bring`."""
        what = f"{piece.size} bytes on their way to a device"
        with self._stages.measure("read", piece.size), driver.calling("cuMemcpyAsync", what):
            self._fill_and_copy(piece)
        self.count(piece.size)

    def _fill_and_copy(self, piece: Piece) -> None:
        # Every call that waits lets other threads have Python, and waits to get it back.
        step, read, handle = self._ring.slot_size, self._source.read_exact, int(piece.stream.handle)
        for start in range(0, piece.size, step):
            slot, size = self._slot(), min(step, piece.size - start)
            slot.wait()
            read(piece.offset + start, memoryview(slot.view)[:size])
            driver.submit_copy(piece.address + start, slot.address, size, handle)
            slot.use(piece.stream)

    def _slot(self) -> Slot:
        """Return the next of the calling thread's slots, of which it has an equal share."""
        if not hasattr(self._own, "slots"):
            self._own.slots = deque()
        own: deque[Slot] = self._own.slots
        if len(own) < self._own_slots:
            # One at a time: a thread that fails to has taken no more than its share.
            own.append(self._acquire())
        else:
            own.rotate(-1)
        return own[-1]

    def _acquire(self) -> Slot:
        slot = self._ring.acquire()
        self._held.append(slot)
        return slot

    def finish(self) -> None:
        """See `Stager.finish`."""
        held = list(self._held)
        self._held.clear()
        run_all([slot.release for slot in held])


class ShowingStager(Stager):
    """Reads into slots of a ring, and leaves them to who looks at their bytes.

    Parameters
    ----------
    source, ring, options, stages
        See `ReadingStager`.
    """

    def __init__(self, source: Source, ring: StagingRing, options: Options, stages: Stages) -> None:
        super().__init__("remote" if source.remote else "read")
        self._source, self._ring, self._stages = source, ring, stages
        self.threads = reading_threads(options)
        self.piece_size = ring.slot_size

    def bring(self, piece: Piece) -> Slot | None:
        """See `Stager.bring`."""
        slot = self._ring.acquire()
        try:
            with self._stages.measure("read", piece.size):
                self._source.read_exact(piece.offset, memoryview(slot.view)[: piece.size])
            handle = int(piece.stream.handle)
            driver.memcpy_async(piece.address, slot.address, piece.size, handle)
        except BaseException:
            slot.release()
            raise
        self.count(piece.size)
        return slot


class MappedStager(Stager):
    """Pins pages of a local file.

    Parameters
    ----------
    source : Source
        A local file.
    limit : int
        Bytes that may be pinned at a time.
    stages : Stages
        The clock.
    """

    threads = 2

    def __init__(self, source: Source, limit: int, stages: Stages) -> None:
        super().__init__("mapped")
        self._source, self._stages = source, stages
        self.piece_size = max(1 << 20, min(_MAPPED_PIECE, limit // 4))
        self._pinned: deque[_Pinned] = deque()
        #: Bytes of it.
        self.most = 0

    def bring(self, piece: Piece) -> None:
        """See `Stager.bring`."""
        with self._stages.measure("read", piece.size):
            while len(self._pinned) >= self.threads:
                self._let_go()
            pinned = self._pin(piece)
            try:
                pinned.copy(piece)
            except BaseException:
                pinned.close()
                raise
            self._pinned.append(pinned)
            self.most = max(self.most, sum(each.size for each in list(self._pinned)))
        self.count(piece.size)

    def _pin(self, piece: Piece) -> _Pinned:
        try:
            return _Pinned(self._source, piece)
        except (GpuloadError, OSError) as error:
            self._explain(piece)
            # It can be read, but not pinned: not every file system and driver can.
            raise IrregularError(str(error)) from error

    def _let_go(self) -> None:
        try:
            oldest = self._pinned.popleft()
        except IndexError:
            return  # another thread was faster
        oldest.close()

    def _explain(self, piece: Piece) -> None:
        """Read what could not be pinned: that says what is wrong with it, if something is."""
        step = memoryview(bytearray(1 << 20))
        for start in range(0, piece.size, len(step)):
            part = step[: min(len(step), piece.size - start)]
            self._source.read_exact(piece.offset + start, part)

    def finish(self) -> None:
        """See `Stager.finish`."""
        pinned = list(self._pinned)
        self._pinned.clear()
        run_all([each.close for each in pinned])


class _Pinned:
    """Pages of a file, mapped, pinned, and then copied."""

    def __init__(self, source: Source, piece: Piece) -> None:
        assert source.descriptor is not None
        self._source, self._descriptor = source, source.descriptor
        self._end = piece.offset + piece.size
        self._lead = piece.offset % mmap.PAGESIZE
        self.size = -(-(piece.size + self._lead) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._address = _map(source.descriptor, piece.offset - self._lead, self.size)
        self._registered = False
        self._done: Event | None = None
        try:
            driver.mem_host_register(self._address, self.size)
            self._registered = True
        except BaseException:
            self.close()
            raise

    def copy(self, piece: Piece) -> None:
        """Submit the copy of the piece."""
        address, handle = self._address + self._lead, int(piece.stream.handle)
        driver.memcpy_async(piece.address, address, piece.size, handle)
        with driver.calling("cuEventRecord", "the last use of pages"):
            self._done = driver.shield(piece.stream.record())

    def close(self) -> None:
        """Wait for the copy, and let go of the pages."""
        run_all([self._wait, self._unmap])

    def _unmap(self) -> None:
        # Addresses whose pages stay pinned stay taken: what is mapped there next cannot be pinned.
        if self._registered:
            driver.mem_host_unregister(self._address)
        _libc().munmap(self._address, self.size)

    def _wait(self) -> None:
        if self._done is None:
            return
        with driver.calling("cuEventSynchronize", "the last use of pages"):
            self._done.sync()
        # A page that a file ends in stays, with zeros where the file was cut off.
        size = os.fstat(self._descriptor).st_size
        if size < self._end:
            raise self._source.truncated(size, self._end - size)


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library: Python's own mmap holds the interpreter's lock while it maps."""
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = pointer
    library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_int64]
    library.munmap.argtypes = [pointer, size]
    return library


def _map(descriptor: int, offset: int, size: int) -> int:
    address = _libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(address)
