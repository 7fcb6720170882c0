"""What is done with one part of an array at its station, from its stored bytes to the result.

Rows that no engine on the device takes are decoded by the host, and their bytes copied. Chunks that
are contiguous in the result are decoded, or unshuffled, straight to their place.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.array_codecs import BitUnshuffle, Skip, Transpose, Unshuffle
from gpuload.array_engines import COPY
from gpuload.array_load import Batch, failure_of, load_chunk
from gpuload.array_places import (
    c_strides,
    groups_of,
    is_shuffled,
    runs_of,
    starts_of,
    strides_of,
    unsupported,
)
from gpuload.codecs.base import CorruptChunkError
from gpuload.engines.base import DeviceBatch, HostBatch, Outcome, Status
from gpuload.engines.sums import check
from gpuload.errors import GpuloadError, decompress_error
from gpuload.report import WindowStats

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import numpy.typing as npt
    from cuda.core import Event

    from gpuload.array_codecs import Filter
    from gpuload.array_engines import Engines
    from gpuload.array_plan import Part
    from gpuload.chunks import ChunkTable
    from gpuload.containers.expand import Expanded
    from gpuload.engines.base import Engine, Submission
    from gpuload.engines.host import HostEngine
    from gpuload.engines.sums import SumSubmission
    from gpuload.errors import ChunkFailure
    from gpuload.filters.device import FilterSubmission
    from gpuload.options import Options
    from gpuload.stages import Stages
    from gpuload.stations import Station
    from gpuload.watch import Watch

    Integers = npt.NDArray[np.int64]

__all__ = ["Context", "PartWork", "held_back"]

#: Boxes whose places are listed at once.
_BOXES = 1 << 18
#: Copies of bytes that go to their places as they are, at most; more are a kernel's.
_MOST_COPIES = 256


@dataclass
class Context:
    """What the parts of a load share.

    `lock` guards what they add to; whoever submits work for a device holds `turn`.
    """

    engines: Engines
    host: HostEngine
    options: Options
    stages: Stages
    targets: dict[int, int]
    readers: ThreadPoolExecutor
    watch: Watch
    start: Event | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    turn: threading.Lock = field(default_factory=threading.Lock)
    verified: Counter[int] = field(default_factory=Counter)
    unverified: Counter[int] = field(default_factory=Counter)
    verified_on: Counter[str] = field(default_factory=Counter)
    stored_sums: int = 0
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
    """Rows that the device decodes, or that are there as they are stored."""

    engine: str
    rows: ChunkTable
    batch: Submission | None
    sums: SumSubmission | None

    def outcome(self) -> tuple[Outcome, npt.NDArray[np.bool_]]:
        """Return what came of them, once all is done, and whose checksums were computed."""
        outcome = Outcome.empty(self.rows.size) if self.batch is None else self.batch.wait()
        done = np.zeros(self.rows.size, np.bool_)
        if self.sums is not None:
            computed, done = self.sums.wait()
            check(self.rows, computed, done, outcome)
        return outcome, done & (outcome.status == Status.OK)


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
    part : Part
        The chunks.
    station : Station
        Where it is worked on; nothing else uses it.
    """

    def __init__(self, context: Context, part: Part, station: Station) -> None:
        self._context, self._station, self._plan = context, station, part.plan
        self._target = context.targets[id(part.plan)]
        chunks = np.arange(part.first, part.last)
        missing = part.plan.missing[part.first : part.last]
        self._missing, self._chunks = chunks[missing], chunks[~missing]
        # At places that kernels read and write the most at once from.
        _, first, second = part.plan.memory
        self._slots = starts_of(first[self._chunks])
        self._second_slots = starts_of(second[self._chunks])
        #: Which are brought straight to their place; those that nothing compresses may be, later.
        self._placed = part.plan.direct[self._chunks] & (not part.plan.bare)
        self._decodings: list[_Decoding] = []
        self._filterings: list[FilterSubmission] = []
        #: Blocks and boxes, which nothing can be wrong with.
        self._others: list[FilterSubmission] = []
        self._bad: set[int] = set()
        #: Those that a filter found something wrong with; the host says what.
        self._unfiltered: set[int] = set()
        self._began = context.stages.now()
        self._submitted = self._began

    # --- Submitting -------------------------------------------------------------------------------

    def submit(self) -> None:
        """Read the stored bytes, and submit all work on them."""
        if self._missing.size:
            self._fill(self._missing, self._plan.fill.tobytes())
        reason = unsupported(self._plan)
        if self._chunks.size and reason:
            self._context.engines.leave_to_host(reason)
            for number in range(self._chunks.size):
                self._repair(number)
        elif self._chunks.size:
            batch = self._read()
            # Threads that compute at the same time take each other's turn at Python all the time.
            with nullcontext() if self._context.engines.on_host else self._context.turn:
                expanded = self._expanded(batch)
                if expanded is not None:
                    self._place(self._bring(batch, expanded))
        self._submitted = self._context.stages.now()

    def _read(self) -> Batch:
        plan, station = self._plan, self._station
        starts, size = plan.layout(self._chunks)
        stored = station.stored[:size]
        with self._context.stages.measure("read", size):
            tasks = [
                self._context.readers.submit(plan.bring, reads, stored)
                for reads in plan.reads(self._chunks, starts)
            ]
            for task in tasks:
                task.result()
        return Batch(plan, self._chunks, stored, starts, stored, self._slots)

    def _expanded(self, batch: Batch) -> Expanded | None:
        """Return the rows of the part; None if a chunk is damaged, and all go chunk by chunk."""
        try:
            with self._context.stages.measure("index", batch.stored.size):
                expanded = batch.expanded(self._context.options, streams=True)
        except CorruptChunkError:
            # Which others are good is found one by one, on the host.
            for number in range(self._chunks.size):
                self._repair(number)
            return None
        if self._context.options.verify and self._plan.has_stored_sums:
            with self._context.lock:
                self._context.stored_sums += self._chunks.size
        return expanded

    def _bring(self, batch: Batch, expanded: Expanded) -> Integers:
        """Submit the decoding, and the filters; return the address of each chunk's elements."""
        if self._plan.bare:
            return self._undo_all(expanded, self._land(batch, expanded))
        self._decode(batch, expanded)
        shuffled = is_shuffled(expanded, self._chunks.size)
        first = self._station.first + self._slots
        second = self._station.second + self._second_slots
        places = np.where(shuffled, second, first)
        places = np.where(self._placed, self._target + self._plan.targets[self._chunks], places)
        return self._undo_all(expanded, places)

    # --- Chunks that nothing compresses -----------------------------------------------------------

    def _land(self, batch: Batch, expanded: Expanded) -> Integers:
        """Submit the copies of stored bytes; return the address of each chunk's on the device."""
        rows, station = expanded.rows, self._station
        src, sizes = rows["offset"].astype(np.int64), rows["raw_size"].astype(np.int64)
        summed = self._context.options.verify and rows["checksum_kind"].any()
        places = self._to_places(src, sizes, skipped_too=bool(summed))
        if places is None:
            self._copy(station.landing, station.stored_address, batch.stored.size)
            places = station.landing + src
        sums = None
        if summed:
            sums = self._station.shared.sums.submit(rows, places, places, None, station.stream)
        self._context.engines.used.add(COPY)
        self._decodings.append(_Decoding(COPY, rows, None, sums))
        return places

    def _to_places(self, src: Integers, sizes: Integers, *, skipped_too: bool) -> Integers | None:
        """Copy chunks straight to where they belong, if they go there as they are stored."""
        plan, steps = self._plan, self._plan.asset.pipeline.filters
        skip = sum(step.size for step in steps if isinstance(step, Skip))
        if plan.undone or not plan.contiguous[self._chunks].all() or (skip and skipped_too):
            return None
        dst: Integers = self._target + plan.targets[self._chunks]
        runs = runs_of(src + skip, dst, sizes - skip)
        if len(runs) > _MOST_COPIES:
            return None
        for of, to, size in runs:
            self._copy(to, self._station.stored_address + of, size)
        self._placed = np.ones(self._chunks.size, np.bool_)
        return dst - skip

    # --- Decoding ---------------------------------------------------------------------------------

    def _decode(self, batch: Batch, expanded: Expanded) -> None:
        rows, station = expanded.rows, self._station
        aside = expanded.stored is not batch.stored
        number = rows["asset"].astype(np.int64)
        within = rows["dst_offset"].astype(np.int64) - self._slots[number]
        dst = self._decoded_places(expanded)[number] + within
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
        direct = self._placed & ~is_shuffled(expanded, self._chunks.size)
        return np.where(direct, self._target + plan.targets[self._chunks], places)

    def _copy(self, to: int, of: int, size: int) -> None:
        driver.memcpy_async(to, of, size, int(self._station.stream.handle))

    def _decode_on_device(
        self, engine: Engine[DeviceBatch], rows: ChunkTable, src: Integers, dst: Integers
    ) -> None:
        station, held = self._station, self._station.shared
        actual = station.actual(rows.size, len(self._decodings))
        batch = engine.submit(DeviceBatch(rows, src, dst, actual, station.stream))
        sums = None
        if self._context.options.verify:
            written = actual if engine.name == "sm" else None
            sums = held.sums.submit(rows, src, dst, written, station.stream)
        self._decodings.append(_Decoding(engine.name, rows, batch, sums))

    def _decode_on_host(self, rows: ChunkTable, dst: Integers, expanded: Expanded) -> None:
        sizes = rows["raw_size"].astype(np.int64)
        for first, last in groups_of(sizes, self._station.shape.decoded):
            if first:
                # What is copied from there is overwritten next.
                self._station.sync()
            some = slice(first, last)
            self._decode_some_on_host(rows[some], dst[some], expanded)

    def _decode_some_on_host(self, rows: ChunkTable, dst: Integers, expanded: Expanded) -> None:
        context, station = self._context, self._station
        sizes = rows["raw_size"].astype(np.int64)
        places = starts_of(sizes)
        with context.stages.measure("decode", int(sizes.sum())):
            src = rows["offset"].astype(np.int64)
            batch = HostBatch(rows, src, places, expanded.stored, station.decoded)
            outcome = context.host.submit(batch).wait()
        self._note(rows, outcome, outcome.status == Status.OK, "host")
        for of, to, size in runs_of(places, dst, sizes):
            self._copy(to, station.decoded_address + of, size)

    # --- Filters ----------------------------------------------------------------------------------

    def _undo_all(self, expanded: Expanded, places: Integers) -> Integers:
        plan = self._plan
        self._unshuffle(expanded, places)
        sizes = plan.step_sizes[:, self._chunks]
        for number, step in enumerate(plan.asset.pipeline.filters):
            if isinstance(step, Skip):
                places = places + step.size
            elif not isinstance(step, Transpose):
                places = self._undo(step, places, sizes[number], sizes[number + 1])
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
            submitted = self._station.shared.filters.undo(
                step, src, dst, blocks.size[which], self._station.stream
            )
            self._others.append(submitted)

    def _undo(self, step: Filter, places: Integers, sizes: Integers, decoded: Integers) -> Integers:
        station, filters = self._station, self._station.shared.filters
        inside = (places >= station.first) & (places < station.first + station.shape.first)
        first, second = station.first + self._slots, station.second + self._second_slots
        others: Integers = np.where(inside, second, first)
        submitted = filters.undo(step, places, others, sizes, station.stream, decoded=decoded)
        self._filterings.append(submitted)
        return others

    # --- Placing ----------------------------------------------------------------------------------

    def _place(self, places: Integers) -> None:
        """Copy the boxes of chunks that are not where they belong."""
        which = np.flatnonzero(~self._placed)
        if which.size:
            strides = strides_of(self._plan)
            self._copy_boxes(self._chunks[which], places[which], strides)

    def _copy_boxes(self, chunks: Integers, places: Integers, strides: Integers) -> None:
        plan = self._plan
        counts = plan.last[chunks] - plan.first[chunks]
        owner = np.repeat(np.arange(chunks.size), counts)
        which = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
        which += np.repeat(plan.first[chunks], counts)
        for first in range(0, which.size, _BOXES):
            some = slice(first, first + _BOXES)
            self._copy_some(which[some], places[owner[some]], strides)

    def _copy_some(self, which: Integers, places: Integers, strides: Integers) -> None:
        plan, boxes = self._plan, self._plan.boxes
        submitted = self._station.shared.filters.copy_boxes(
            places + boxes.start[which] @ strides,
            self._target + boxes.target[which] * plan.itemsize,
            boxes.extent[which],
            strides * boxes.step,
            boxes.stride * plan.itemsize,
            plan.itemsize,
            self._station.stream,
        )
        self._others.append(submitted)

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
            outcome, checked = each.outcome()
            self._note(each.rows, outcome, checked, "device")
        for other in self._others:
            other.wait()
        for filtering in self._filterings:
            self._unfiltered |= set(np.flatnonzero(filtering.wait()).tolist())
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
        skips = self._context.options.on_error == "skip"
        for number in sorted(self._bad | self._unfiltered):
            if skips and number in self._bad:
                self._fill(self._chunks[number : number + 1], bytes(self._plan.itemsize))
            else:
                self._repair(number)
        if self._bad or self._unfiltered:
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
        strides = c_strides(decoded.shape, self._plan.itemsize)
        self._copy_boxes(np.array([chunk]), np.array([station.decoded_address]), strides)
