"""The SM engine: kernels of our own, which run on any GPU of compute capability 7.5 or newer.

They read the driver's parameters of a batch from pinned memory of the host. Whatever the stored
bytes are, every read stays inside the payload and every write inside the slot, so that damaged
chunks harm nobody: destinations need no guard, and a row that fails is the only one that does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuload import batch as batches
from gpuload import driver
from gpuload.engines import operations
from gpuload.engines.base import DeviceBatch, Outcome, Status, Submission
from gpuload.engines.pinned import PinnedEngine
from gpuload.engines.refusals import KERNELS, sm_refusals
from gpuload.engines.sizes import compare_sizes
from gpuload.kernels.variants import choose
from gpuload.memory import host_view

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.engines.pinned import PinnedBlock
    from gpuload.kernels.variants import Variant

__all__ = ["SmEngine"]

#: The columns that say which kernels a batch needs.
_SHAPE = ("codec", "stored_size", "raw_size")

#: What a kernel's status says unless it is 0 (`Status` in gpuload/kernels/batch.cuh).
_REASONS = {
    1: "the {stored} stored bytes end inside an element",
    2: "a match starts before the first decoded byte",
    3: "it decodes to more than the {raw} bytes that the file allows",
    4: "the {stored} stored bytes do not end as LZ4 asks of a block's last sequences, which the "
    "host may overlook (on_error='retry-host', --on-error)",
    5: "{stored} stored bytes, or {raw} decoded ones, are more than the kernel counts",
    operations.NOT_WRITTEN: "the kernel did not say what became of it",
}


class SmEngine(PinnedEngine):
    """Launches kernels, one for each codec of a batch.

    Parameters
    ----------
    device_id : int
        The device; it is current in the threads that submit.
    """

    name = "sm"

    def __init__(self, device_id: int) -> None:
        super().__init__(device_id)
        self._multiprocessors = driver.capabilities(device_id).multiprocessors

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
        size = operations.size_of(batch.rows.size)
        return self._submit(size, batch.stream, partial(self._run, batch))

    def _run(self, batch: DeviceBatch, block: PinnedBlock) -> Callable[[], Outcome]:
        order = _fill(block, batch)
        for variant in _variants(batch.rows, self._multiprocessors):
            self._launch(variant, block, batch)
        return partial(_outcome, batch, block, order)

    def _launch(self, variant: Variant, block: PinnedBlock, batch: DeviceBatch) -> None:
        count = batch.rows.size
        operations.start(self.device_id, variant, block, batch.stream, count=count)


def _fill(block: PinnedBlock, batch: DeviceBatch) -> npt.NDArray[np.intp] | None:
    """Write a batch's parameters; return the row of each operation, None if it has one row."""
    rows, actual = batch.rows, int(batch.actual.handle)
    if rows.size == 1:
        row = rows[0]
        operations.write_one(
            block,
            stored=row["stored_size"],
            room=row["raw_size"],
            actual=actual,
            src=int(batch.src[0]),
            dst=int(batch.dst[0]),
            algo=batches.ALGORITHMS[row["codec"]],
        )
        return None
    words = actual + 4 * np.arange(rows.size)
    params, order = batches.build(rows, src=batch.src, dst=batch.dst, actual=words)
    operations.write(block, params)
    return order


def _variants(rows: ChunkTable, multiprocessors: int) -> list[Variant]:
    """Return the kernels that a batch needs."""
    if rows.size == 1:
        row = rows[0]
        work = [(int(row["codec"]), 1, row["stored_size"], row["raw_size"])]
    else:
        codecs, *sizes = (np.ascontiguousarray(rows[name]) for name in _SHAPE)
        kinds = [(codec, codecs == codec) for codec in np.flatnonzero(np.bincount(codecs)).tolist()]
        work = [(codec, int(of.sum()), *(each[of].mean() for each in sizes)) for codec, of in kinds]
    return [
        choose(KERNELS[codec], count, stored, raw, multiprocessors=multiprocessors)
        for codec, count, stored, raw in work
    ]


def _outcome(batch: DeviceBatch, block: PinnedBlock, order: npt.NDArray[np.intp] | None) -> Outcome:
    """Return what became of a batch, once all is done."""
    rows, count = batch.rows, batch.rows.size
    outcome = Outcome.empty(count)
    statuses = operations.statuses(block, count)
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
