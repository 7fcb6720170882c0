"""Engines and other work whose batches take along a block of pinned memory, and those blocks.

What the device reads and writes for a batch lies there until the device is done with it, so that
submitting waits for nothing.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from gpuload import driver
from gpuload.engines.base import DeviceBatch, Engine, Outcome, Submission
from gpuload.memory import PinnedMemory, host_view, run_all
from gpuload.memory.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable

    from cuda.core import Buffer, Event, Stream

__all__ = ["PinnedBlock", "PinnedEngine", "PinnedResult", "PinnedWork"]

ResultT = TypeVar("ResultT")

#: The smallest block, in bytes.
_SMALLEST = 4096


class PinnedBlock:
    """Pinned memory for one batch.

    Parameters
    ----------
    buffer : Buffer
        The memory.
    event : Event
        To record behind the batch.

    Attributes
    ----------
    address : int
        Of the memory, for the host and the device alike.
    bytes : ndarray of uint8
        The memory.
    """

    def __init__(self, buffer: Buffer, event: Event) -> None:
        self.buffer = buffer
        self.event = event
        self.address = int(buffer.handle)
        self.bytes = host_view(buffer)

    def close(self) -> None:
        """Free it; no work on a device may use it any more."""
        self.event.close()
        self.buffer.close()


class _PinnedBlocks:
    """Blocks that are used again and again, by any thread: pinning memory takes long."""

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._lock = threading.Lock()
        self._memory = PinnedMemory(device_id)
        self._free: dict[int, list[PinnedBlock]] = {}

    def take(self, size: int) -> PinnedBlock:
        """Return a block of at least `size` bytes, whatever it holds."""
        rounded = max(_SMALLEST, 1 << (size - 1).bit_length())
        with self._lock:
            free = self._free.get(rounded)
            if free:
                return free.pop()
        return self._make(rounded)

    def _make(self, size: int) -> PinnedBlock:
        device = driver.device(self._device_id)
        with driver.calling("cuEventCreate", "the end of a batch"):
            event = driver.shield(device.create_event())
        with Undo() as undo:
            undo.add(event.close)
            buffer = self._memory.allocate(size, stream=device.default_stream)
        return PinnedBlock(buffer, event)

    def give_back(self, block: PinnedBlock) -> None:
        """Let a block be taken again; no work on a device may use it any more."""
        with self._lock:
            self._free.setdefault(block.bytes.size, []).append(block)

    def close(self) -> None:
        """Free the blocks that were given back."""
        with self._lock:
            blocks = [block for free in self._free.values() for block in free]
            self._free.clear()
        if not driver.forked():
            run_all([*(block.close for block in blocks), self._memory.close])


class PinnedWork:
    """What submits batches that each keep a block until the device is done.

    Parameters
    ----------
    device_id : int
        The device; it is current in the threads that submit.

    Attributes
    ----------
    name : str
        What messages call it.
    """

    name: ClassVar[str]

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._blocks = _PinnedBlocks(device_id)
        self._waiting: set[PinnedResult[Any]] = set()

    def _start(
        self, size: int, stream: Stream, work: Callable[[PinnedBlock], Callable[[], ResultT]]
    ) -> PinnedResult[ResultT]:
        """Submit a batch.

        Parameters
        ----------
        size : int
            Bytes of pinned memory that it needs.
        stream : Stream
            What it is submitted to.
        work : callable
            Submits it with a block, and returns what tells its result once all is done.

        Raises
        ------
        MemoryLimitError
            If there is not as much memory.
        """
        block = self._blocks.take(size)
        try:
            find = work(block)
            with driver.calling("cuEventRecord", "the end of a batch"):
                stream.record(block.event)
        except BaseException:
            self._abandon(block, stream)
            raise
        result = PinnedResult(self, block, find)
        # What is forgotten must keep its block until the device is done with it.
        self._waiting.add(result)
        return result

    def _abandon(self, block: PinnedBlock, stream: Stream) -> None:
        """Take back the block of work that failed to be submitted in full."""
        with contextlib.suppress(Exception):
            # Nobody could wait for it later, so it is now. After a fault the block is lost.
            stream.sync()
            self._blocks.give_back(block)

    def _release(self, result: PinnedResult[Any], block: PinnedBlock) -> None:
        self._waiting.discard(result)
        self._blocks.give_back(block)

    def close(self) -> None:
        """Wait for what was submitted, and release everything.

        Raises
        ------
        DriverError
            If work failed that nobody has waited for.
        """
        ends = [result.end for result in list(self._waiting)]
        run_all([*ends, self._blocks.close])


class PinnedResult(Generic[ResultT]):
    """What comes of a batch on its way.

    Parameters
    ----------
    work : PinnedWork
        What has submitted it.
    block : PinnedBlock
        What it keeps.
    find : callable
        Tells the result once all is done.
    """

    def __init__(self, work: PinnedWork, block: PinnedBlock, find: Callable[[], ResultT]) -> None:
        self._work = work
        self._block = block
        self._find = find
        self._found: list[ResultT] = []  # none or one

    def wait(self) -> ResultT:
        """Block until the batch is done and return what came of it."""
        if not self._found:
            self._sync()
            try:
                self._found.append(self._find())
            finally:
                self._work._release(self, self._block)
        return self._found[0]

    def end(self) -> None:
        """Wait for the batch, and keep its result for whoever may still ask."""
        self._sync()
        # What nobody has asked for is no error, also where its memory is gone.
        with contextlib.suppress(Exception):
            self._found.append(self._find())
        self._work._release(self, self._block)

    def _sync(self) -> None:
        with driver.calling("cuEventSynchronize", f"a batch of the {self._work.name} engine"):
            self._block.event.sync()


class PinnedEngine(PinnedWork, Engine[DeviceBatch]):
    """An engine whose batches each keep a block until the device is done."""

    def _submit(
        self, size: int, stream: Stream, work: Callable[[PinnedBlock], Callable[[], Outcome]]
    ) -> Submission:
        """Submit a batch; see `_start`."""
        return _PinnedSubmission(self._start(size, stream, work))


class _PinnedSubmission(Submission):
    def __init__(self, result: PinnedResult[Outcome]) -> None:
        self._result = result

    def wait(self) -> Outcome:
        """See `Submission.wait`."""
        return self._result.wait()
