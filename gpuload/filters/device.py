"""Filters undone by kernels, and boxes of elements that they copy, in memory of a device."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.array_codecs import PackBits, Swap, Unshuffle
from gpuload.engines import operations
from gpuload.engines.pinned import PinnedWork
from gpuload.filters.box_plan import Boxes, BoxPlan, normal
from gpuload.filters.plan import Units, decoded_sizes, make_plan, supported

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from cuda.core import Event, Stream

    from gpuload.array_codecs import Filter
    from gpuload.engines.pinned import PinnedBlock, PinnedResult
    from gpuload.filters.plan import FilterPlan

    Integers = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

__all__ = ["DeviceFilters", "FilterSubmission", "supported"]

#: Units or boxes of a batch, at most, and bytes of pinned memory that batches hold together before
#: a thread that submits another one waits for the first.
_BATCH, _HELD = 32_768, 64 << 20


class DeviceFilters(PinnedWork):
    """Undoes filters, and copies boxes, in memory of a device.

    Nothing waits for the device, unless it is far behind: the parameters of what it has not done
    lie in pinned memory, of which there is a limit. Threads may share it.

    Parameters
    ----------
    device_id : int
        The device; it is current in the threads that submit.
    """

    name = "filter"

    def __init__(self, device_id: int) -> None:
        super().__init__(device_id)
        self._running: deque[_Batch] = deque()
        self._held = 0
        self._lock = threading.Lock()

    def undo(
        self,
        step: Filter,
        src: Integers,
        dst: Integers,
        sizes: Integers,
        stream: Stream,
        *,
        decoded: Integers | None = None,
    ) -> FilterSubmission:
        """Start to undo a filter in n units, which are chunks or blocks of them.

        Parameters
        ----------
        step : Filter
            What is undone; `supported` says whether it can be.
        src, dst : ndarray of int64, shape (n,)
            Addresses of what goes in, and of where to; they must not overlap. Multiples of 16 bytes
            are faster.
        sizes : ndarray of int64, shape (n,)
            Bytes that go in.
        stream : Stream
            What it waits for, and what waits for it.
        decoded : ndarray of int64, shape (n,), optional
            Bytes that come out. Only of `PackBits` they do not follow from `sizes`.

        Raises
        ------
        ValueError
            If the device cannot do it, or sizes disagree.
        DriverError
            If the driver refuses, or a kernel can't be compiled or loaded.
        MemoryLimitError
            If there is not as much pinned memory.
        """
        units = Units(src, dst, sizes, _checked(step, sizes, decoded))
        submission = FilterSubmission(sizes.size)
        if isinstance(step, Swap | Unshuffle) and step.element_size <= 1:
            one = np.ones(1, np.int64)
            return self.copy_boxes(src, dst, sizes[:, np.newaxis], one, one, 1, stream)
        for first in range(0, sizes.size, _BATCH):
            some = units[slice(first, first + _BATCH)]
            which = np.flatnonzero(some.decoded > 0)
            if which.size:
                plan = make_plan(step, some[some.decoded > 0])
                batch = self._submit(plan, stream, partial(_damaged, plan, which + first))
                submission.batches.append(batch)
        return submission

    def copy_boxes(
        self,
        src: Integers,
        dst: Integers,
        extents: Integers,
        src_strides: Integers,
        dst_strides: Integers,
        itemsize: int,
        stream: Stream,
    ) -> FilterSubmission:
        """Start to copy boxes of elements; no two may write the same ones.

        Parameters
        ----------
        src, dst : ndarray of int64, shape (n,)
            Addresses of the first element of each box, and of where it goes. The kernel copies most
            at once where all addresses and strides are multiples of 16 bytes.
        extents : ndarray of int64, shape (n, axes)
            Elements along each axis.
        src_strides, dst_strides : ndarray of int64, shape (axes,)
            Bytes between neighbours along each axis, of all boxes. They may be negative; a stride
            of 0 in the source has the same elements taken again.
        itemsize : int
            Bytes of an element.
        stream : Stream
            What it waits for, and what waits for it.

        Raises
        ------
        DriverError, MemoryLimitError
            As `undo` does.
        """
        boxes = normal(Boxes(src, dst, extents, src_strides, dst_strides, itemsize))
        submission = FilterSubmission(boxes.count)
        for first in range(0, boxes.count, _BATCH):
            plan = BoxPlan(boxes.some(slice(first, first + _BATCH)))
            batch = self._submit(plan, stream, lambda _: np.zeros(0, np.intp), plan.extra())
            submission.batches.append(batch)
        return submission

    def _submit(
        self,
        plan: FilterPlan | BoxPlan,
        stream: Stream,
        find: Callable[[npt.NDArray[np.uint32]], npt.NDArray[np.intp]],
        extra: npt.NDArray[np.uint8] | None = None,
    ) -> _Batch:
        driver.claim()
        self._make_room(plan.size)
        events: list[Event] = []

        def run(block: PinnedBlock) -> Callable[[], npt.NDArray[np.intp]]:
            events.append(block.event)
            operations.write(block, plan.params(block.address))
            if extra is not None:
                block.bytes[plan.extra_start : plan.extra_start + extra.size] = extra
            for variant, first, last in plan.launches:
                within = {"count": plan.count, "first": first, "last": last}
                operations.start(self.device_id, variant, block, stream, **within)
            return lambda: find(operations.statuses(block, plan.count))

        batch = _Batch(self._start(plan.size, stream, run), events[0], plan.size)
        with self._lock:
            self._running.append(batch)
            self._held += batch.size
        return batch

    def _make_room(self, size: int) -> None:
        """Take back the memory of what is done, and wait where too much is not."""
        while True:
            with self._lock:
                if not self._running:
                    return
                first = self._running[0]
                if not first.is_done() and self._held + size <= _HELD:
                    return
                self._running.popleft()
                self._held -= first.size
            first.wait()

    def close(self) -> None:
        """See `PinnedWork.close`."""
        with self._lock:
            self._running.clear()
            self._held = 0
        super().close()


class FilterSubmission:
    """Filters on their way to be undone.

    Parameters
    ----------
    count : int
        Units.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.batches: list[_Batch] = []

    def wait(self) -> Mask:
        """Block until it is done; return which units are damaged, shape (n,).

        Only `PackBits` can tell: its first byte disagrees with the size that is expected.
        """
        damaged = np.zeros(self._count, np.bool_)
        for batch in self.batches:
            damaged[batch.wait()] = True
        return damaged


class _Batch:
    """A batch on its way, for which several threads may wait."""

    def __init__(self, result: PinnedResult[npt.NDArray[np.intp]], event: Event, size: int) -> None:
        self._result, self._event, self.size = result, event, size
        self._lock = threading.Lock()
        self._found: list[npt.NDArray[np.intp]] = []

    def is_done(self) -> bool:
        with driver.calling("cuEventQuery", "a batch of filters"):
            return bool(self._found or self._event.is_done)

    def wait(self) -> npt.NDArray[np.intp]:
        with self._lock:
            if not self._found:
                self._found.append(self._result.wait())
            return self._found[0]


def _damaged(
    plan: FilterPlan, which: npt.NDArray[np.intp], statuses: npt.NDArray[np.uint32]
) -> npt.NDArray[np.intp]:
    return which[plan.damaged(statuses, which.size)]


def _checked(step: Filter, sizes: Integers, decoded: Integers | None) -> Integers:
    """Return how many bytes come out."""
    found = decoded_sizes(step, sizes)
    if not isinstance(step, PackBits):
        if decoded is not None and (decoded != found).any():
            raise ValueError(f"{type(step).__name__} of other sizes than go in")
        return found
    if decoded is None:
        raise ValueError("how many bytes come out of PackBits only its caller knows: decoded=")
    if ((found - decoded) >> 3).any():
        raise ValueError("PackBits of sizes that are not those of its bits")
    return decoded
