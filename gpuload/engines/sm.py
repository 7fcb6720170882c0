"""The SM engine: kernels of our own, which run on any GPU of compute capability 7.5 or newer.

They read the driver's parameters of a batch from pinned memory of the host. Whatever the stored
bytes are, every read stays inside the payload and every write inside the slot, so that damaged
chunks harm nobody: destinations need no guard, and a row that fails is the only one that does.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from gpuload import batch as batches
from gpuload import driver
from gpuload.engines.base import DeviceBatch, Engine, Outcome, Status, Submission
from gpuload.engines.refusals import KERNELS, sm_refusals
from gpuload.engines.sizes import compare_sizes
from gpuload.engines.sm_slots import NOT_WRITTEN, Slots
from gpuload.kernels import compiler
from gpuload.kernels.variants import BLOCK, choose
from gpuload.memory import host_view, run_all

if TYPE_CHECKING:
    import numpy.typing as npt
    from cuda.core import Kernel

    from gpuload.chunks import ChunkTable
    from gpuload.engines.sm_slots import Slot
    from gpuload.kernels.variants import Variant

__all__ = ["SmEngine"]

#: What a kernel's status says (`Status` in gpuload/kernels/batch.cuh).
_OK = 0
_REASONS = {
    1: "the {stored} stored bytes end inside an element",
    2: "a match starts before the first decoded byte",
    3: "it decodes to more than the {raw} bytes that the file allows",
    4: "the stored bytes do not end as the format asks, with at most {raw} bytes decoded",
    NOT_WRITTEN: "the kernel did not say what became of it",
}


class SmEngine(Engine[DeviceBatch]):
    """Launches kernels, one for each codec of a batch.

    Parameters
    ----------
    device_id : int
        The device; it is current in the threads that submit.
    """

    name = "sm"

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._multiprocessors = driver.capabilities(device_id).multiprocessors
        self._slots = Slots(device_id)
        self._kernels: dict[Variant, Kernel] = {}
        self._waiting: set[_SmSubmission] = set()

    def refusals(self, rows: ChunkTable) -> dict[str, npt.NDArray[np.bool_]]:
        """See `Engine.refusals`."""
        return sm_refusals(rows)

    def submit(self, batch: DeviceBatch) -> Submission:
        """See `Engine.submit`; nothing here waits for the device.

        The first batch of a codec compiles its kernel, or reads it from the disk.

        Raises
        ------
        DriverError
            If the driver refuses, or a kernel can't be compiled or loaded.
        """
        driver.claim()
        slot = self._slots.take(batch.rows.size)
        try:
            order = _fill(slot, batch)
            for variant in _variants(batch.rows, self._multiprocessors):
                self._launch(variant, slot, batch)
            with driver.calling("cuEventRecord", "the end of a batch"):
                batch.stream.record(slot.event)
        except BaseException:
            self._abandon(slot, batch)
            raise
        submission = _SmSubmission(self, batch, slot, order)
        # A submission that is forgotten must keep its slot until the device is done with it.
        self._waiting.add(submission)
        return submission

    def _launch(self, variant: Variant, slot: Slot, batch: DeviceBatch) -> None:
        from cuda.core import LaunchConfig, launch

        kernel = self._kernels.get(variant)
        if kernel is None:
            kernel = compiler.kernel(self.device_id, variant.codec, variant.lanes)
            self._kernels[variant] = kernel
        count = batch.rows.size
        config = LaunchConfig(grid=variant.blocks(count), block=BLOCK)
        with driver.calling("cuLaunchKernelEx", f"{count} chunks"):
            launch(batch.stream, config, kernel, slot.params, np.uint32(count), slot.statuses)

    def _abandon(self, slot: Slot, batch: DeviceBatch) -> None:
        """Take back the slot of work that failed to be submitted in full."""
        with contextlib.suppress(Exception):
            # Nobody could wait for it later, so it is now. After a fault the slot is lost.
            batch.stream.sync()
            self._slots.give_back(slot)

    def _release(self, submission: _SmSubmission, slot: Slot) -> None:
        self._waiting.discard(submission)
        self._slots.give_back(slot)

    def close(self) -> None:
        """Wait for what was submitted, and release everything.

        Raises
        ------
        DriverError
            If work failed that nobody has waited for.
        """
        waits = [submission.wait for submission in list(self._waiting)]
        run_all([*waits, self._slots.close])


class _SmSubmission(Submission):
    def __init__(
        self, engine: SmEngine, batch: DeviceBatch, slot: Slot, order: npt.NDArray[np.intp] | None
    ) -> None:
        self._engine = engine
        self._batch = batch
        self._slot = slot
        self._order = order
        self._outcome: Outcome | None = None

    def wait(self) -> Outcome:
        """See `Submission.wait`."""
        if self._outcome is None:
            with driver.calling("cuEventSynchronize", "a batch of kernels"):
                self._slot.event.sync()
            self._outcome = _outcome(self._batch, self._slot, self._order)
            self._engine._release(self, self._slot)
        return self._outcome


def _fill(slot: Slot, batch: DeviceBatch) -> npt.NDArray[np.intp] | None:
    """Write a batch's parameters; return the row of each operation, None if it has one row."""
    rows, actual = batch.rows, int(batch.actual.handle)
    if rows.size == 1:
        # Arrays of one element take several times as long.
        row, src, dst = rows[0], int(batch.src[0]), int(batch.dst[0])
        codec = batches.ALGORITHMS[row["codec"]]
        slot.write_one(row["stored_size"], row["raw_size"], actual, src, dst, codec)
        return None
    words = actual + 4 * np.arange(rows.size)
    params, order = batches.build(rows, src=batch.src, dst=batch.dst, actual=words)
    slot.write(params)
    return order


def _variants(rows: ChunkTable, multiprocessors: int) -> list[Variant]:
    """Return the kernels that a batch needs."""
    if rows.size == 1:
        row = rows[0]
        work = [(int(row["codec"]), 1, row["stored_size"], row["raw_size"])]
    else:
        columns = [np.bincount(rows["codec"], rows[name]) for name in ("stored_size", "raw_size")]
        counts = np.bincount(rows["codec"]).tolist()
        work = [
            (codec, count, *(float(column[codec]) / count for column in columns))
            for codec, count in enumerate(counts)
            if count
        ]
    return [
        choose(KERNELS[codec], count, stored, raw, multiprocessors=multiprocessors)
        for codec, count, stored, raw in work
    ]


def _outcome(batch: DeviceBatch, slot: Slot, order: npt.NDArray[np.intp] | None) -> Outcome:
    """Return what became of a batch, once all is done."""
    rows, count = batch.rows, batch.rows.size
    outcome = Outcome.empty(count)
    statuses = slot.status_view[:count]
    for number in np.flatnonzero(statuses).tolist():
        row = number if order is None else int(order[number])
        sizes = {"stored": rows["stored_size"][row], "raw": rows["raw_size"][row]}
        status = int(statuses[number])
        reason = _REASONS.get(status, f"the kernel reports {status}, which is no known status")
        outcome.fail(row, Status.CORRUPT, reason.format(**sizes))
        outcome.blame[row] = "index"
    if count:
        compare_sizes(rows, host_view(batch.actual).view(np.uint32)[:count], outcome)
    return outcome
