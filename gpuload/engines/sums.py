"""Checksums of chunks, computed by kernels on the device, while it does other work.

One operation is one chunk, of whose bytes a warp or a part of one makes a sum. Large chunks with a
CRC are cut into parts, whose CRCs combine to that of the whole; xxHashes are serial by nature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuload import checksums, driver
from gpuload.batch import SUMS
from gpuload.chunks import Checksum
from gpuload.codecs.base import mismatch
from gpuload.engines import operations
from gpuload.engines.base import Status
from gpuload.engines.pinned import PinnedWork
from gpuload.engines.sum_plan import computable, is_large, kernel_of, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from cuda.core import Buffer, Stream

    from gpuload.chunks import ChunkTable
    from gpuload.engines.base import Outcome
    from gpuload.engines.pinned import PinnedBlock, PinnedResult
    from gpuload.engines.sum_plan import SumPlan
    from gpuload.kernels.variants import Variant

    Sums = npt.NDArray[np.uint64]
    Mask = npt.NDArray[np.bool_]

__all__ = ["DeviceSums", "SumSubmission", "check", "computable"]


class DeviceSums(PinnedWork):
    """Computes checksums of chunks that lie in memory of a device.

    Parameters
    ----------
    device_id : int
        The device; it is current in the threads that submit.
    """

    name = "checksum"

    def submit(
        self,
        rows: ChunkTable,
        stored: npt.NDArray[np.int64],
        decoded: npt.NDArray[np.int64],
        actual: Buffer | None,
        stream: Stream,
    ) -> SumSubmission:
        """Start to compute checksums; nothing here waits for the device.

        The first batch of a kind compiles its kernel, or reads it from the disk.

        Parameters
        ----------
        rows : ChunkTable
            n rows; those that are not `computable` are left out.
        stored, decoded : ndarray of int64, shape (n,)
            Addresses, for the device, of the payloads and of the decoded bytes.
        actual : Buffer or None
            n 32-bit words with the decoded sizes, for rows whose size the file does not state:
            written by the device before, and left alone until `SumSubmission.wait` returns.
        stream : Stream
            What the batch waits for, and what waits for the batch.

        Raises
        ------
        DriverError
            If the driver refuses, or a kernel can't be compiled or loaded.
        MemoryLimitError
            If there is not as much pinned memory.
        """
        driver.claim()
        done = computable(rows, bounded=actual is not None)
        which = np.flatnonzero(done)
        if not which.size:
            return SumSubmission(done, None)
        if rows.size == 1 and not _is_large(rows[0]):
            word = 0 if actual is None else int(actual.handle)
            one = partial(self._run_one, rows[0], int(stored[0]), int(decoded[0]), word, stream)
            return SumSubmission(done, self._start(operations.size_of(1), stream, one))
        plan = make_plan(rows, which, stored, decoded, actual)
        size = operations.size_of(plan.params.size)
        return SumSubmission(done, self._start(size, stream, partial(self._run, plan, stream)))

    def _run(self, plan: SumPlan, stream: Stream, block: PinnedBlock) -> Callable[[], Sums]:
        count = plan.params.size
        operations.write(block, plan.params)
        for variant, first, last in plan.launches():
            self._launch(variant, block, stream, count, first, last)
        return lambda: plan.sums(operations.statuses(block, count))

    def _run_one(
        self,
        row: np.void,
        stored: int,
        decoded: int,
        actual: int,
        stream: Stream,
        block: PinnedBlock,
    ) -> Callable[[], Sums]:
        """Submit a single row: arrays of one element take several times as long."""
        kind = Checksum(row["checksum_kind"])
        of_stored = kind == Checksum.XXH32_STORED
        operations.write_one(
            block,
            stored=row["stored_size"] if of_stored else row["raw_size"],
            room=0,
            actual=0 if of_stored or row["exact"] else actual,
            src=stored if of_stored else decoded,
            dst=0,
            algo=SUMS[kind],
        )
        self._launch(kernel_of(SUMS[kind]), block, stream, 1, 0, 1)
        return lambda: _in_stored_form(kind, operations.statuses(block, 1))

    def _launch(
        self,
        variant: Variant,
        block: PinnedBlock,
        stream: Stream,
        count: int,
        first: int,
        last: int,
    ) -> None:
        within = {"count": count, "first": first, "last": last}
        operations.start(self.device_id, variant, block, stream, **within)


class SumSubmission:
    """Checksums on their way.

    Parameters
    ----------
    done : ndarray of bool, shape (n,)
        Which rows have one.
    result : PinnedResult, optional
        Tells those of the rows that have one; None if none has.
    """

    def __init__(self, done: Mask, result: PinnedResult[Sums] | None) -> None:
        self._done = done
        self._result = result

    def wait(self) -> tuple[Sums, Mask]:
        """Block until they are computed.

        Returns
        -------
        computed : ndarray of uint64, shape (n,)
            The checksums in the form that files store; 0 where none was computed.
        done : ndarray of bool, shape (n,)
            Where one was.
        """
        computed = np.zeros(self._done.size, np.uint64)
        if self._result is not None:
            computed[self._done] = self._result.wait()
        return computed, self._done


def check(rows: ChunkTable, computed: Sums, done: Mask, outcome: Outcome) -> None:
    """Note which rows fail for their checksum; those that have failed before stay as they are.

    Parameters
    ----------
    rows : ChunkTable
        n rows.
    computed, done : ndarray, shape (n,)
        As `SumSubmission.wait` returns them.
    outcome : Outcome
        Of decoding the rows.
    """
    wrong = done & (computed != rows["checksum"]) & (outcome.status == Status.OK)
    for row in np.flatnonzero(wrong).tolist():
        kind, expected = int(rows["checksum_kind"][row]), int(rows["checksum"][row])
        outcome.fail(row, Status.CHECKSUM, mismatch(kind, expected, int(computed[row])))


def _is_large(row: np.void) -> bool:
    return is_large(int(row["checksum_kind"]), int(row["raw_size"]))


def _in_stored_form(kind: int, sums: npt.NDArray[np.uint32]) -> Sums:
    if kind == Checksum.CRC32C_MASKED:
        sums = checksums.masked(sums)
    return sums.astype(np.uint64)
