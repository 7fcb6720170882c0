"""The nvCOMP engine: NVIDIA's compression library, if it is installed, through its C API.

Its decoders of DEFLATE and Zstandard "can only operate on valid input data" (nvCOMP release notes,
"Known Issues"): what damaged chunks do there is not defined. So it is for input that is trusted, or
for those who ask for it by name.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.chunks import Codec
from gpuload.engines.base import DeviceBatch, Outcome, Status, Submission
from gpuload.engines.copies import Copies, raw_kernel
from gpuload.engines.nvcomp_abi import SUCCESS, status_name
from gpuload.engines.nvcomp_arrays import NO_SIZE, NO_STATUS, Layout
from gpuload.engines.nvcomp_library import load
from gpuload.engines.nvcomp_plan import make_plan
from gpuload.engines.nvcomp_refusals import refusals
from gpuload.engines.pinned import PinnedEngine
from gpuload.engines.sizes import compare_sizes
from gpuload.memory import DecompressPool, copy, run_all
from gpuload.options import DEFAULT_MEMORY_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt
    from cuda.core import Kernel, Stream

    from gpuload.chunks import ChunkTable
    from gpuload.engines.nvcomp_library import Library
    from gpuload.engines.nvcomp_plan import Plan
    from gpuload.engines.pinned import PinnedBlock

__all__ = ["NvcompEngine"]


class NvcompEngine(PinnedEngine):
    """Submits batches to nvCOMP.

    The decoded sizes come through memory of the engine's own, since nvCOMP writes 64-bit words: the
    `actual` of batches is left alone.

    Parameters
    ----------
    device_id : int
        The device; it is current in the threads that submit.
    memory_limit : int, optional
        Bytes of scratch memory on the device, for each stream. A batch that would need more is
        decoded in several calls. Arrays of 44 to 116 bytes a chunk come on top.

    Raises
    ------
    EngineUnavailableError
        If there is no nvCOMP, or only of a version that is not known.
    """

    name = "nvcomp"

    def __init__(self, device_id: int, *, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> None:
        super().__init__(device_id)
        self.memory_limit = memory_limit
        self._library = load()
        self._lock = threading.Lock()
        self._pool: DecompressPool | None = None

    def refusals(self, rows: ChunkTable) -> dict[str, npt.NDArray[np.bool_]]:
        """See `Engine.refusals`."""
        with driver.on_device(self.device_id):
            return refusals(rows, self._library, self.memory_limit)

    def submit(self, batch: DeviceBatch) -> Submission:
        """See `Engine.submit`; nothing here waits for the device.

        Raises
        ------
        DriverError
            If nvCOMP or the driver refuses; some of the batch may have been submitted.
        MemoryLimitError
            If a row takes more scratch memory than `memory_limit`, or the device has no more.
        """
        driver.claim()
        filled, raw = batch.rows["raw_size"] > 0, batch.rows["codec"] == Codec.RAW
        which, stream = np.flatnonzero(filled & ~raw), batch.stream
        plan = make_plan(batch, which, self._library, self.memory_limit, int(stream.handle))
        with self._memory(plan.scratch_size, stream) as scratch:
            copies = self._copies(batch, np.flatnonzero(filled & raw), plan, scratch)
            layout = Layout(plan.rows.size, copies.launched)
            job = _Job(batch.rows, stream, plan, copies, layout, scratch)
            return self._submit(layout.size, stream, partial(self._run, job))

    def _run(self, job: _Job, block: PinnedBlock) -> Callable[[], Outcome]:
        with self._memory(job.layout.size, job.stream) as arrays:
            job.run(self._library, block, arrays)
        return partial(job.outcome, block)

    @contextlib.contextmanager
    def _memory(self, size: int, stream: Stream) -> Iterator[int]:
        """Yield the address of memory for what is submitted to a stream meanwhile."""
        with self._lock:
            if self._pool is None:
                self._pool = DecompressPool(self.device_id)
            pool = self._pool
        buffer = pool.allocate(size, stream=stream)
        try:
            yield int(buffer.handle)
        finally:
            # It is freed in the stream's order, after what uses it.
            buffer.close()

    def _copies(
        self, batch: DeviceBatch, raw: npt.NDArray[np.intp], plan: Plan, scratch: int
    ) -> Copies:
        """Return the copies of RAW rows, and those of the payloads that each part moves."""
        size = batch.rows["stored_size"][raw].astype(np.int64)
        fits = size <= batch.rows["raw_size"][raw].astype(np.int64)
        groups = [(batch.dst[raw][fits], batch.src[raw][fits], size[fits])]
        for part in plan.parts:
            moved = np.arange(part.first, part.last)
            moved = moved[plan.places[moved] >= 0]
            to = scratch + plan.places[moved]
            groups.append((to, plan.sources[moved], plan.source_sizes[moved]))
        needed = any(size.size for _, _, size in groups)
        return Copies(self._kernel if needed else None, groups)

    @functools.cached_property
    def _kernel(self) -> Kernel | None:
        return raw_kernel(self.device_id)

    def close(self) -> None:
        """See `PinnedEngine.close`."""
        pool, self._pool = self._pool, None
        run_all([super().close, *([pool.close] if pool else [])])


@dataclass(frozen=True)
class _Job:
    """Rows to decode, where their arrays lie, and the address of scratch memory."""

    rows: ChunkTable
    stream: Stream
    plan: Plan
    copies: Copies
    layout: Layout
    scratch: int

    def run(self, library: Library, block: PinnedBlock, arrays: int) -> None:
        """Submit everything; the arrays' place on the device is at the address `arrays`."""
        host, view, layout = block.address, block.bytes, self.layout
        layout.fill(view, self.plan, self.scratch)
        self.copies.fill(layout.params(view), arrays + layout.words)
        copy(arrays, host, layout.sent, self.stream)
        self._copy(0, arrays)
        for group, part in enumerate(self.plan.parts, 1):
            self._copy(group, arrays)
            behind = layout.arrays(arrays).behind(part.first)
            temp, count = (self.scratch, part.temp_size), part.last - part.first
            library.decompress(part.codec, count, behind, temp, int(self.stream.handle))
        start, end = layout.written.start, layout.written.stop
        copy(host + start, arrays + start, end - start, self.stream)

    def _copy(self, group: int, arrays: int) -> None:
        self.copies.run(group, arrays, arrays + self.layout.words, self.stream)

    def outcome(self, block: PinnedBlock) -> Outcome:
        """Return what became of the rows, once all is done."""
        rows, view = self.rows, block.bytes
        outcome = Outcome.empty(rows.size)
        # A copy that would not fit was not made: its size tells.
        sizes = np.where(rows["codec"] == Codec.RAW, rows["stored_size"], NO_SIZE)
        sizes[rows["raw_size"] == 0] = 0
        sizes[self.plan.rows] = self.layout.sizes(view)
        statuses = self.layout.statuses(view)
        for number in np.flatnonzero(statuses != SUCCESS).tolist():
            row, code = int(self.plan.rows[number]), int(statuses[number])
            found = "no status" if code == NO_STATUS else f"{status_name(code)} ({code})"
            outcome.fail(row, Status.CORRUPT, f"nvCOMP reports {found} for the chunk")
            outcome.blame[row] = "index"
        compare_sizes(rows, sizes, outcome)
        return outcome
