"""Headers of chunks, found by kernels in stored bytes that lie in memory of a device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.batch import PARAMS_DTYPE
from gpuload.engines import operations
from gpuload.engines.pinned import PinnedWork
from gpuload.engines.scan_plan import SCANS, SEGMENT, ScanPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from cuda.core import Stream

    from gpuload.engines.pinned import PinnedBlock, PinnedResult
    from gpuload.engines.scan_plan import Scan

__all__ = ["DeviceScans"]


class DeviceScans(PinnedWork):
    """Finds the headers of chunks.

    Parameters
    ----------
    device_id : int
        The device; it is current in the threads that submit.
    segment : int
        Bytes that a warp looks through.
    """

    name = "scan"

    def __init__(self, device_id: int, segment: int = SEGMENT) -> None:
        super().__init__(device_id)
        self._segment = segment

    def submit(
        self,
        name: str,
        address: int,
        size: int,
        stream: Stream,
        *,
        entry: int | None = None,
        longest: int,
        summed: bool = False,
    ) -> PinnedResult[Scan]:
        """Start to look through a range of a file; nothing here waits for the device.

        The first one of a format compiles its kernel, or reads it from the disk.

        Parameters
        ----------
        name : str
            The format, one of `SCANS`.
        address, size : int
            Of the range, for the device, and its bytes, at most `LARGEST_RANGE`.
        stream : Stream
            What the scan waits for, and what waits for it.
        entry : int, optional
            Where in the range a header stands, if that is known.
        longest : int
            Stored bytes of a chunk, at most.
        summed : bool
            Whether a checksum of 4 bytes follows each.

        Raises
        ------
        DriverError
            If the driver refuses, or a kernel can't be compiled or loaded.
        MemoryLimitError
            If there is not as much pinned memory.
        """
        driver.claim()
        kind = SCANS[name]
        plan = ScanPlan(kind, size, self._segment)

        def run(block: PinnedBlock) -> Callable[[], Scan]:
            params = plan.params(address, block.address, entry, longest, summed=summed)
            operations.write(block, params.view(PARAMS_DTYPE))
            operations.start(self.device_id, kind.variant, block, stream, count=plan.count)
            return partial(_found, plan, block)

        return self._start(plan.size, stream, run)


def _found(plan: ScanPlan, block: PinnedBlock) -> Scan:
    return plan.found(operations.statuses(block, plan.count), block.bytes)
