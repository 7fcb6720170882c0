"""The hardware engine: the decompression engine of Blackwell GPUs, through the driver.

The driver's contract has no bound for what an operation writes (CUDA driver API,
``cuMemBatchDecompressAsync``), so callers give it windows with a guard behind them, unless they
trust the input. What an engine does with corrupt data is not documented: after a batch, the decoded
sizes are all there is to compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload import batch as batches
from gpuload import driver
from gpuload.chunks import Codec
from gpuload.engines.base import DeviceBatch, Engine, Outcome, Status, Submission
from gpuload.engines.refusals import hardware_refusals
from gpuload.engines.sizes import compare_sizes
from gpuload.errors import DriverError
from gpuload.memory import copy, host_view

if TYPE_CHECKING:
    import numpy.typing as npt
    from cuda.core import Event

    from gpuload.chunks import ChunkTable

__all__ = ["NOT_SUPPORTED", "HardwareEngine"]

#: What stands in a size word until the device writes it.
_UNWRITTEN = 0xFFFFFFFF
#: ``CUDA_ERROR_NOT_SUPPORTED``
NOT_SUPPORTED = 801


class HardwareEngine(Engine[DeviceBatch]):
    """Submits batches to the decompression engine.

    Parameters
    ----------
    device_id : int
        The device; it is current in the threads that submit.
    """

    name = "hardware"

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self.capabilities = driver.capabilities(device_id)

    def refusals(self, rows: ChunkTable) -> dict[str, npt.NDArray[np.bool_]]:
        """See `Engine.refusals`."""
        return hardware_refusals(rows, self.capabilities)

    def submit(self, batch: DeviceBatch) -> Submission:
        """See `Engine.submit`; nothing here waits for the device.

        Raises
        ------
        DriverError
            If memory of the batch is of a kind that the engine cannot reach.
        """
        _check_reachable(batch)
        sizes = host_view(batch.actual).view(np.uint32)[: batch.rows.size]
        sizes[:] = _UNWRITTEN
        raw, empty = batch.rows["codec"] == Codec.RAW, batch.rows["raw_size"] == 0
        outcome = self._decompress(batch, np.flatnonzero(~raw & ~empty))
        if not outcome.code:
            # Nothing comes of an empty chunk, and its slot may start where the memory ends.
            sizes[empty] = 0
            self._copy(batch, np.flatnonzero(raw & ~empty), sizes)
        with driver.calling("cuEventRecord", "the end of a batch"):
            event = batch.stream.record()
        return _HardwareSubmission(batch, outcome, sizes, event)

    def _decompress(self, batch: DeviceBatch, compressed: npt.NDArray[np.intp]) -> Outcome:
        outcome = Outcome.empty(batch.rows.size)
        if not compressed.size:
            return outcome
        rows = batch.rows[compressed]
        params, order = batches.build(
            rows,
            src=batch.src[compressed],
            dst=batch.dst[compressed],
            actual=int(batch.actual.handle) + 4 * compressed.astype(np.int64),
        )
        code, index = driver.mem_batch_decompress_async(
            params.ctypes.data, params.size, 0, int(batch.stream.handle)
        )
        if code:
            named = index is not None and index < order.size
            _refuse(outcome, code, int(compressed[order[index]]) if named else None)
        return outcome

    def _copy(
        self, batch: DeviceBatch, raw: npt.NDArray[np.intp], sizes: npt.NDArray[np.uint32]
    ) -> None:
        for row in raw.tolist():
            size = int(batch.rows["stored_size"][row])
            copy(int(batch.dst[row]), int(batch.src[row]), size, batch.stream)
            sizes[row] = size


class _HardwareSubmission(Submission):
    def __init__(
        self, batch: DeviceBatch, outcome: Outcome, sizes: npt.NDArray[np.uint32], event: Event
    ) -> None:
        self._batch = batch
        self._outcome = outcome
        self._sizes = sizes
        self._event = event

    def wait(self) -> Outcome:
        """See `Submission.wait`."""
        with driver.calling("cuEventSynchronize", "a batch of decompressions"):
            self._event.sync()
        if not self._outcome.code:
            compare_sizes(self._batch.rows, self._sizes, self._outcome)
        return self._outcome


def _check_reachable(batch: DeviceBatch) -> None:
    """Refuse memory that the engine cannot reach; one look at each allocation is enough.

    The attribute holds for every address of an allocation, and a batch lies in few of them: the
    first and the last address on each side are looked at.
    """
    filled = batch.rows["raw_size"] > 0
    if not filled.any():
        return
    src, dst = batch.src[filled], batch.dst[filled]
    addresses = {
        "stored chunks": (src.min(), src.max()),
        "decoded chunks": (dst.min(), dst.max()),
        "decoded sizes": (int(batch.actual.handle),),
    }
    for what, ends in addresses.items():
        for address in ends:
            if not driver.is_hw_decompress_capable(int(address)):
                raise DriverError(
                    f"the memory of the {what} at {int(address):#x} is not HW-decompress capable "
                    "(pointer attribute 21); allocate it with the HW_DECOMPRESS usage"
                )


def _refuse(outcome: Outcome, code: int, blamed: int | None) -> None:
    """Note that the driver did not take a batch."""
    outcome.code = code
    error = f"the driver refused %s with {driver.error_name(code)} ({code})"
    for row in range(outcome.status.size):
        if row == blamed:
            outcome.fail(row, Status.REFUSED, error % "this chunk")
            outcome.blame[row] = "index"
        elif blamed is not None:
            outcome.fail(row, Status.REFUSED, f"its batch was refused because of chunk {blamed}")
        else:
            outcome.fail(row, Status.REFUSED, error % "the batch, and named no chunk,")
            outcome.blame[row] = "none"
