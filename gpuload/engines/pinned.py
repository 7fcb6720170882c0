"""Engines whose batches take along a block of pinned memory, and those blocks.

What the device reads and writes for a batch lies there until the device is done with it, so that
submitting waits for nothing.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.engines.base import DeviceBatch, Engine, Outcome, Submission
from gpuload.memory import host_view, run_all
from gpuload.memory.undo import Undo

if TYPE_CHECKING:
    from collections.abc import Callable

    from cuda.core import Buffer, Event, Stream

__all__ = ["PinnedBlock", "PinnedEngine"]

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
        from cuda.core import LegacyPinnedMemoryResource

        device = driver.device(self._device_id)
        with driver.calling("cuEventCreate", "the end of a batch"):
            event = driver.shield(device.create_event())
        with Undo() as undo:
            undo.add(event.close)
            with driver.calling("cuMemAllocHost", f"{size} bytes of pinned memory"):
                buffer = driver.shield(LegacyPinnedMemoryResource().allocate(size))
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
            run_all(block.close for block in blocks)


class PinnedEngine(Engine[DeviceBatch]):
    """An engine whose batches each keep a block until the device is done.

    Parameters
    ----------
    device_id : int
        The device; it is current in the threads that submit.
    """

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._blocks = _PinnedBlocks(device_id)
        self._waiting: set[_PinnedSubmission] = set()

    def _submit(
        self, size: int, stream: Stream, work: Callable[[PinnedBlock], Callable[[], Outcome]]
    ) -> Submission:
        """Submit a batch.

        Parameters
        ----------
        size : int
            Bytes of pinned memory that it needs.
        stream : Stream
            What it is submitted to.
        work : callable
            Submits it with a block, and returns what tells its outcome once all is done.

        Raises
        ------
        MemoryLimitError
            If there is not as much memory.
        """
        block = self._blocks.take(size)
        try:
            outcome = work(block)
            with driver.calling("cuEventRecord", "the end of a batch"):
                stream.record(block.event)
        except BaseException:
            self._abandon(block, stream)
            raise
        submission = _PinnedSubmission(self, block, outcome)
        # A submission that is forgotten must keep its block until the device is done with it.
        self._waiting.add(submission)
        return submission

    def _abandon(self, block: PinnedBlock, stream: Stream) -> None:
        """Take back the block of work that failed to be submitted in full."""
        with contextlib.suppress(Exception):
            # Nobody could wait for it later, so it is now. After a fault the block is lost.
            stream.sync()
            self._blocks.give_back(block)

    def _release(self, submission: _PinnedSubmission, block: PinnedBlock) -> None:
        self._waiting.discard(submission)
        self._blocks.give_back(block)

    def close(self) -> None:
        """Wait for what was submitted, and release everything.

        Raises
        ------
        DriverError
            If work failed that nobody has waited for.
        """
        ends = [submission.end for submission in list(self._waiting)]
        run_all([*ends, self._blocks.close])


class _PinnedSubmission(Submission):
    def __init__(
        self, engine: PinnedEngine, block: PinnedBlock, outcome: Callable[[], Outcome]
    ) -> None:
        self._engine = engine
        self._block = block
        self._find = outcome
        self._outcome: Outcome | None = None

    def wait(self) -> Outcome:
        """See `Submission.wait`."""
        if self._outcome is None:
            self._sync()
            try:
                self._outcome = self._find()
            finally:
                self._engine._release(self, self._block)
        return self._outcome

    def end(self) -> None:
        """Wait for the batch, and keep its outcome for whoever may still ask."""
        self._sync()
        # What nobody has asked for is no error, also where its memory is gone.
        with contextlib.suppress(Exception):
            self._outcome = self._find()
        self._engine._release(self, self._block)

    def _sync(self) -> None:
        with driver.calling("cuEventSynchronize", f"a batch of the {self._engine.name} engine"):
            self._block.event.sync()
