"""What is done with one part of an array at its station, from its stored bytes to the result.

Rows that no engine on the device takes are decoded by the host, and their bytes copied. Chunks that
are contiguous in the result are decoded, or unshuffled, straight to their place.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.array_codecs import (
    BitUnshuffle,
    Delta,
    FixedScaleOffset,
    PackBits,
    Skip,
    Transpose,
    Unshuffle,
)
from gpuload.array_load import Batch, failure_of, load_chunk
from gpuload.codecs.base import CorruptChunkError
from gpuload.engines.base import DeviceBatch, HostBatch, Outcome, Status
from gpuload.engines.sums import check
from gpuload.errors import GpuloadError, decompress_error
from gpuload.filters.device import supported
from gpuload.report import WindowStats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor

    import numpy.typing as npt
    from cuda.core import Event

    from gpuload.array_codecs import Filter
    from gpuload.array_engines import Engines
    from gpuload.array_plan import ArrayPlan, Part
    from gpuload.chunks import ChunkTable
    from gpuload.containers.expand import Expanded
    from gpuload.engines.base import Engine, Submission
    from gpuload.engines.host import HostEngine
    from gpuload.engines.sums import SumSubmission
    from gpuload.errors import ChunkFailure
    from gpuload.filters.device import FilterSubmission
    from gpuload.options import Options
    from gpuload.stages import Stages
    from gpuload.stations import Station, Stations

    Integers = npt.NDArray[np.int64]

__all__ = ["Context", "PartWork", "held_back"]

#: Bytes of a part that one thread reads.
_READ = 4 << 20


@dataclass
class Context:
    """What the parts of a load share; `lock` guards what they add to."""

    held: Stations
    engines: Engines
    host: HostEngine
    options: Options
    stages: Stages
    targets: dict[int, int]
    readers: ThreadPoolExecutor
    start: Event | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    verified: Counter[int] = field(default_factory=Counter)
    unverified: Counter[int] = field(default_factory=Counter)
    verified_on: Counter[str] = field(default_factory=Counter)
    failures: list[ChunkFailure] = field(default_factory=list)
    windows: list[WindowStats] = field(default_factory=list)

    def note_window(self, window: WindowStats) -> None:
        """Take note of a part that is done."""
        with self.lock:
            self.windows.append(window)

    def close(self) -> None:
        """End the threads."""
        self.readers.shutdown()
        self.host.close()


@dataclass
class _Decoding:
    """Rows that the device decodes."""

    engine: str
    rows: ChunkTable
    batch: Submission
    sums: SumSubmission | None


def held_back(station: Station) -> None:
    """Wait for the work of a station, whatever came of it."""
    with suppress(GpuloadError):
        station.sync()


class PartWork:
    """One part.

    Parameters
    ----------
    context : Context
        The load.
    station : Station
        Where it is worked on; nothing else uses it.
    part : Part
        The chunks.
    """

    def __init__(self, context: Context, station: Station, part: Part) -> None:
        self._context, self._station, self._plan = context, station, part.plan
        self._target = context.targets[id(part.plan)]
        chunks = np.arange(part.first, part.last)
        missing = part.plan.missing[part.first : part.last]
        self._missing, self._chunks = chunks[missing], chunks[~missing]
        # At places that kernels read and write the most at once from.
        work = part.plan.aligned_sizes[self._chunks]
        self._slots = np.cumsum(work) - work
        self._decodings: list[_Decoding] = []
        self._filterings: list[FilterSubmission] = []
        self._bad: set[int] = set()
        self._began = context.stages.now()
        self._submitted = self._began

    # --- Submitting -------------------------------------------------------------------------------

    def submit(self) -> None:
        """Read the stored bytes, and submit all work on them."""
        if self._missing.size:
            self._fill(self._missing, self._plan.fill.tobytes())
        if self._chunks.size and _unsupported(self._plan):
            for number in range(self._chunks.size):
                self._repair(number)
        elif self._chunks.size:
            batch = self._read()
            expanded = self._expanded(batch)
            if expanded is not None:
                self._decode(batch, expanded)
                places = self._filter(expanded)
                self._place(places)
        self._submitted = self._context.stages.now()

    def _read(self) -> Batch:
        plan, station = self._plan, self._station
        starts, size = plan.layout(self._chunks)
        stored = station.stored[:size]
        pieces = _pieces(plan.places.sizes[self._chunks])
        with self._context.stages.measure("read", size):
            tasks = [
                self._context.readers.submit(plan.read, self._chunks[a:b], starts[a:b], stored)
                for a, b in pieces
            ]
            for task in tasks:
                task.result()
        return Batch(plan, self._chunks, stored, starts, station.decoded, self._slots)

    def _expanded(self, batch: Batch) -> Expanded | None:
        """Return the rows of the part; None if a chunk is damaged, and all go chunk by chunk."""
        try:
            with self._context.stages.measure("index", batch.stored.size):
                return batch.expanded(self._context.options, streams=True)
        except CorruptChunkError:
            # Which others are good is found one by one, on the host.
            for number in range(self._chunks.size):
                self._repair(number)
            return None

    def _decode(self, batch: Batch, expanded: Expanded) -> None:
        rows, station = expanded.rows, self._station
        aside = expanded.stored is not batch.stored
        dst = self._decoded_places(expanded)[rows["asset"]] + (
            rows["dst_offset"].astype(np.int64) - self._slots[rows["asset"]]
        )
        copied = False
        for engine, which in self._context.engines.split(rows, host=aside):
            if engine is None:
                self._decode_on_host(rows[which], dst[which], expanded)
                continue
            if not copied:
                self._copy(station.landing, station.stored_address, batch.stored.size)
                copied = True
            src = rows["offset"].astype(np.int64) + station.landing
            self._decode_on_device(engine, rows[which], src[which], dst[which])

    def _decoded_places(self, expanded: Expanded) -> Integers:
        """Return the address that each chunk is decoded to."""
        plan, places = self._plan, self._slots + self._station.first
        direct = plan.direct[self._chunks] & ~_is_shuffled(expanded, self._chunks.size)
        return np.where(direct, self._target + plan.targets[self._chunks], places)

    def _copy(self, to: int, of: int, size: int) -> None:
        driver.memcpy_async(to, of, size, int(self._station.stream.handle))

    def _decode_on_device(
        self, engine: Engine[DeviceBatch], rows: ChunkTable, src: Integers, dst: Integers
    ) -> None:
        station, held = self._station, self._context.held
        actual = station.actual(rows.size, len(self._decodings))
        batch = engine.submit(DeviceBatch(rows, src, dst, actual, station.stream))
        sums = None
        if self._context.options.verify:
            written = actual if engine.name == "sm" else None
            sums = held.sums.submit(rows, src, dst, written, station.stream)
        self._decodings.append(_Decoding(engine.name, rows, batch, sums))

    def _decode_on_host(self, rows: ChunkTable, dst: Integers, expanded: Expanded) -> None:
        context, station = self._context, self._station
        places = rows["offset"].astype(np.int64), rows["dst_offset"].astype(np.int64)
        with context.stages.measure("decode", int(rows["raw_size"].sum())):
            batch = HostBatch(rows, *places, expanded.stored, station.decoded)
            outcome = context.host.submit(batch).wait()
        self._note(rows, outcome, outcome.status == Status.OK, "host")
        sizes = rows["raw_size"].astype(np.int64)
        for first, last in _runs(places[1], dst, sizes):
            size = int(places[1][last - 1] + sizes[last - 1] - places[1][first])
            of = station.decoded_address + int(places[1][first])
            self._copy(int(dst[first]), of, size)

    # --- Filters ----------------------------------------------------------------------------------

    def _filter(self, expanded: Expanded) -> Integers:
        """Submit the filters; return the address of each chunk's elements."""
        plan, station = self._plan, self._station
        shuffled = _is_shuffled(expanded, self._chunks.size)
        places = np.where(shuffled, station.second, station.first) + self._slots
        direct = plan.direct[self._chunks]
        places = np.where(direct, self._target + plan.targets[self._chunks], places)
        return self._undo_all(expanded, places)

    def _undo_all(self, expanded: Expanded, places: Integers) -> Integers:
        plan = self._plan
        self._unshuffle(expanded, places)
        sizes = plan.encoded_sizes[self._chunks]
        for step in plan.asset.pipeline.filters:
            if isinstance(step, Skip):
                places, sizes = places + step.size, sizes - step.size
            elif not isinstance(step, Transpose):
                places, sizes = self._undo(step, places, sizes), _decoded_sizes(step, sizes)
        return places

    def _unshuffle(self, expanded: Expanded, places: Integers) -> None:
        """Undo the shuffles of Blosc's blocks."""
        blocks = expanded.shuffled
        kinds = blocks.element_size * 2 + blocks.bit
        for kind in np.unique(kinds).tolist():
            which = kinds == kind
            step: Filter = (BitUnshuffle if kind % 2 else Unshuffle)(kind // 2)
            owner, start = blocks.chunk[which], blocks.start[which]
            src = start + self._station.first
            dst = places[owner] + start - self._slots[owner]
            self._context.held.filters.undo(
                step, src, dst, blocks.size[which], self._station.stream
            )

    def _undo(self, step: Filter, places: Integers, sizes: Integers) -> Integers:
        station, filters = self._station, self._context.held.filters
        inside = (places >= station.first) & (places < station.first + self._context.held.size)
        others: Integers = np.where(inside, station.second, station.first) + self._slots
        decoded = self._plan.raw_sizes[self._chunks] if isinstance(step, PackBits) else None
        submitted = filters.undo(step, places, others, sizes, station.stream, decoded=decoded)
        self._filterings.append(submitted)
        return others

    # --- Placing ----------------------------------------------------------------------------------

    def _place(self, places: Integers) -> None:
        """Copy the boxes of chunks that are not where they belong."""
        which = np.flatnonzero(~self._plan.direct[self._chunks])
        if which.size:
            strides = _strides(self._plan)
            self._copy_boxes(self._chunks[which], places[which], strides)

    def _copy_boxes(self, chunks: Integers, places: Integers, strides: Integers) -> None:
        plan, boxes = self._plan, self._plan.boxes
        counts = plan.last[chunks] - plan.first[chunks]
        owner = np.repeat(np.arange(chunks.size), counts)
        first = np.repeat(plan.first[chunks], counts)
        which = first + np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
        self._context.held.filters.copy_boxes(
            places[owner] + boxes.start[which] @ strides,
            self._target + boxes.target[which] * plan.itemsize,
            boxes.extent[which],
            strides * boxes.step,
            boxes.stride * plan.itemsize,
            plan.itemsize,
            self._station.stream,
        )

    def _fill(self, chunks: Integers, element: bytes) -> None:
        """Fill the boxes of chunks with one element."""
        address = self._station.element(element)
        none = np.zeros(self._plan.chunks.shape[1], np.int64)
        self._copy_boxes(chunks, np.full(chunks.size, address), none)

    # --- Settling ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait for the device, and look at what came of the part.

        Raises
        ------
        DecompressError
            If chunks did not decode, unless `on_error` says otherwise.
        """
        self._station.sync()
        for each in self._decodings:
            outcome = each.batch.wait()
            done = np.zeros(each.rows.size, np.bool_)
            if each.sums is not None:
                computed, done = each.sums.wait()
                check(each.rows, computed, done, outcome)
            self._note(each.rows, outcome, done & (outcome.status == Status.OK), "device")
        for filtering in self._filterings:
            # On the host a filter says what is wrong.
            self._bad |= set(np.flatnonzero(filtering.wait()).tolist())
        self._context.note_window(self._window())
        self._mend()

    def _window(self) -> WindowStats:
        plan, names = self._plan, sorted({each.engine for each in self._decodings}) or ["host"]
        return WindowStats(
            engine=", ".join(names),
            way="read",
            chunks=self._chunks.size,
            stored_size=int(plan.places.sizes[self._chunks].sum()),
            raw_size=int(plan.raw_sizes[self._chunks].sum()),
            start=self._began,
            submitted=self._submitted,
            stop=self._context.stages.now(),
        )

    def _note(
        self, rows: ChunkTable, outcome: Outcome, checked: npt.NDArray[np.bool_], where: str
    ) -> None:
        context, kinds = self._context, rows["checksum_kind"]
        if not context.options.verify:
            checked = np.zeros(rows.size, np.bool_)
        with context.lock:
            context.verified.update(kinds[checked].tolist())
            context.unverified.update(kinds[~checked & (outcome.status == Status.OK)].tolist())
            context.verified_on[where] += int((kinds[checked] != 0).sum())
        failures = {}
        for row, reason in sorted(outcome.reasons.items()):
            number, status = int(rows["asset"][row]), int(outcome.status[row])
            actual = int(outcome.actual[row]) if status == Status.SIZE else None
            error = CorruptChunkError(reason, actual=actual, checksum=status == Status.CHECKSUM)
            failures[number] = failure_of(self._plan, int(self._chunks[number]), error)
        self._failed(failures, retry=where == "device")

    def _failed(self, failures: dict[int, ChunkFailure], *, retry: bool) -> None:
        on_error = self._context.options.on_error
        if not failures:
            return
        if on_error == "raise" or (on_error == "retry-host" and not retry):
            raise decompress_error(list(failures.values()))
        if on_error == "skip":
            with self._context.lock:
                self._context.failures += failures.values()
        self._bad |= set(failures)

    def _mend(self) -> None:
        """Decode chunks that failed again on the host, or fill them with zeros."""
        if not self._bad:
            return
        for number in sorted(self._bad):
            if self._context.options.on_error == "skip":
                self._fill(self._chunks[number : number + 1], bytes(self._plan.itemsize))
            else:
                self._repair(number)
        self._station.sync()

    def _repair(self, number: int) -> None:
        """Decode one chunk on the host, and put it in place."""
        context, station, chunk = self._context, self._station, int(self._chunks[number])
        decoded, failures = load_chunk(self._plan, chunk, context.options)
        with context.lock:
            context.failures += failures
        station.sync()
        flat = decoded.reshape(-1).view(np.uint8)
        station.decoded[: flat.size] = flat
        self._copy(station.first, station.decoded_address, flat.size)
        strides = _c_strides(decoded.shape, self._plan.itemsize)
        self._copy_boxes(np.array([chunk]), np.array([station.first]), strides)


def _pieces(sizes: Integers) -> list[tuple[int, int]]:
    """Return chunks that one thread reads: about as many bytes each, and at least one chunk."""
    number = (np.cumsum(sizes) - sizes) // _READ
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), sizes.size]
    return list(pairwise(edges))


def _runs(of: Integers, to: Integers, sizes: Integers) -> Iterator[tuple[int, int]]:
    """Yield rows that one copy takes: both sides go on where the row before ends."""
    apart = (of[1:] != of[:-1] + sizes[:-1]) | (to[1:] != to[:-1] + sizes[:-1])
    yield from pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), sizes.size])


def _is_shuffled(expanded: Expanded, count: int) -> npt.NDArray[np.bool_]:
    """Return which of the chunks have blocks that are shuffled."""
    found = np.zeros(count, np.bool_)
    found[expanded.shuffled.chunk] = True
    return found


def _unsupported(plan: ArrayPlan) -> str:
    """Return why the host has to undo the filters of an array; empty if it need not."""
    filters = plan.asset.pipeline.filters
    if any(isinstance(step, Transpose) for step in filters[:-1]):
        return "filters behind a transposition"
    steps = [step for step in filters if not isinstance(step, Skip | Transpose)]
    return next((reason for step in steps if (reason := supported(step))), "")


def _decoded_sizes(step: Filter, sizes: Integers) -> Integers:
    """Return how many bytes come out of a filter that so many go into."""
    if isinstance(step, Delta | FixedScaleOffset):
        return sizes // step.astype.itemsize * step.dtype.itemsize
    return (sizes - 1) * 8 if isinstance(step, PackBits) else sizes


def _strides(plan: ArrayPlan) -> Integers:
    """Return the bytes between elements of a decoded chunk along each axis."""
    shape, filters = plan.asset.chunk_shape, plan.asset.pipeline.filters
    if not filters or not isinstance(filters[-1], Transpose):
        return _c_strides(shape, plan.itemsize)
    order = list(filters[-1].order)
    strides = np.zeros(len(shape), np.int64)
    strides[order] = _c_strides(tuple(shape[axis] for axis in order), plan.itemsize)
    return strides


def _c_strides(shape: tuple[int, ...], itemsize: int) -> Integers:
    behind = np.array([*shape[1:], 1][: len(shape)], np.int64)
    strides: Integers = itemsize * np.cumprod(behind[::-1])[::-1]
    return strides
