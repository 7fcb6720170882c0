"""Load selections of arrays on the host: read, decode, undo filters, put in place, side by side.

Every thread takes the next few chunks and does all of this while their bytes are in its cache.
Chunks that are contiguous in the result, and have no filters, are decoded straight to their place.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from gpuload import array_stream
from gpuload.array_codecs import Skip, Transpose
from gpuload.array_stream import ChunkStream, streamed
from gpuload.codecs.base import CorruptChunkError
from gpuload.containers.expand import expand
from gpuload.engines.base import HostBatch, Status
from gpuload.engines.host import HostEngine
from gpuload.errors import ChunkFailure, MemoryLimitError, decompress_error
from gpuload.filters.host import undo_all
from gpuload.report import Report, checksum_counts
from gpuload.turns import join
from gpuload.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from typing import Any

    import numpy.typing as npt

    from gpuload.array_plan import ArrayPlan, Part
    from gpuload.chunks import ChunkTable
    from gpuload.codecs.base import Bytes
    from gpuload.containers.expand import Expanded
    from gpuload.engines.base import Outcome
    from gpuload.options import Options

    Integers = npt.NDArray[np.int64]

__all__ = [
    "Batch",
    "all_counts",
    "failure_of",
    "load",
    "load_chunk",
    "useful_threads",
    "verify",
]

#: Stored and decoded bytes of a part: few stay in the caches while they are worked on, and of many
#: what is done once a part counts less.
_PART = 8 << 20
#: Bytes of small chunks, at most, and threads that are of use for these: they wait for one another
#: at Python. To a device, 64 KiB of Zstandard came at 2.35 GB/s with 8 and at 2.0 with 16.
_SMALL_CHUNK, _FEW_THREADS = 256 << 10, 8
#: Threads from which on one call decodes many chunks: 64 KiB of Zstandard came at 0.65 GB/s one by
#: one and at 0.8 together on 2.
_TOGETHER = 2
#: Missing chunks of a result that is filled as a whole, and elements that are filled at once.
_MANY_MISSING, _FILLED = 1000, 1 << 24
_INTERVAL = 0.1


def load(
    plans: Sequence[tuple[ArrayPlan, npt.NDArray[Any]]], options: Options, watch: Watch
) -> Report:
    """Load selections into memory of the host.

    Parameters
    ----------
    plans : sequence of tuple of (ArrayPlan, ndarray)
        Selections, and where each goes: a flat array of its type and size.
    options : Options
        `threads`, `memory_limit`, `verify` and `on_error` matter here.
    watch : Watch
        Can end the load.

    Returns
    -------
    Report
        What was done.

    Raises
    ------
    DecompressError
        If chunks do not decode, unless `on_error` is "skip": then they are zeros.
    FormatError, OSError, GpuloadError
        As reading does.
    MemoryLimitError
        If a chunk takes more memory than `memory_limit`.
    """
    return _Run(plans, options, watch).go()


def verify(plan: ArrayPlan, options: Options) -> Report:
    """Decode and check all chunks of a plan, and keep nothing; the report lists the broken ones."""
    nowhere = np.empty(0, plan.asset.dtype)
    skipping = replace(options, on_error="skip")
    return _Run([(plan, nowhere)], skipping, Watch(), keeps=False).go()


def load_chunk(
    plan: ArrayPlan, chunk: int, options: Options
) -> tuple[npt.NDArray[Any], list[ChunkFailure]]:
    """Return one chunk of a plan, decoded on the host, and its failure if it was skipped."""
    decoded = np.zeros(plan.chunk_shape(chunk), plan.asset.dtype)
    run = _Run([], options, Watch())
    run.load_whole(plan, chunk, decoded)
    return decoded, run.report.failures


def failure_of(
    plan: ArrayPlan, chunk: int, error: CorruptChunkError, offset: int | None = None
) -> ChunkFailure:
    """Return the failure of a chunk.

    Parameters
    ----------
    plan : ArrayPlan
        Whose.
    chunk : int
        Which.
    error : CorruptChunkError
        What is wrong with it.
    offset : int, optional
        Where, in the object that it is in; by default where it starts.
    """
    start = int(plan.places.offsets[chunk])
    return ChunkFailure(
        source=plan.location(chunk),
        asset=plan.asset.name,
        chunk=plan.number(chunk),
        offset=start if offset is None else offset,
        stored_size=int(plan.places.sizes[chunk]),
        expected_size=int(plan.encoded_sizes[chunk]),
        actual_size=error.actual,
        reason=error.reason,
        checksum=error.checksum,
    )


def are_small(plans: Sequence[ArrayPlan]) -> bool:
    """Return whether the chunks of plans are small on average."""
    raw = sum(int(plan.raw_sizes.sum()) for plan in plans)
    return raw < _SMALL_CHUNK * sum(plan.raw_sizes.size for plan in plans)


def useful_threads(plans: Sequence[ArrayPlan], options: Options) -> int:
    """Return how many threads should decode, if there is enough to do."""
    if options.threads is None and are_small(plans):
        return min(options.thread_count, _FEW_THREADS)
    return options.thread_count


def all_counts(verified: Counter[int], stored: int) -> dict[str, int]:
    """Return the checksums that agreed by their names, those of stored chunks with them."""
    counts = checksum_counts(verified)
    return counts | {"crc32c_stored": stored} if stored else counts


def _copies(plan: ArrayPlan) -> bool:
    """Return whether the filters of a plan make copies of chunks."""
    return any(not isinstance(step, Skip) for step in plan.asset.pipeline.filters)


@dataclass
class Batch:
    """Chunks whose stored bytes are in a buffer.

    Attributes
    ----------
    plan : ArrayPlan
        Whose.
    chunks : ndarray of int64, shape (n,)
        Which.
    stored : ndarray of uint8
        The stored bytes.
    starts, slots : ndarray of int64, shape (n,)
        Where each starts there, and where its decoded bytes go in `out`.
    out : ndarray of uint8
        Where to.
    """

    plan: ArrayPlan
    chunks: Integers
    stored: Bytes
    starts: Integers
    out: Bytes
    slots: Integers

    def one(self, number: int) -> Batch:
        """Return one of them."""
        which = slice(number, number + 1)
        chunks, starts, slots = self.chunks[which], self.starts[which], self.slots[which]
        return Batch(self.plan, chunks, self.stored, starts, self.out, slots)

    def slot(self, number: int) -> Bytes:
        """Return the place of the decoded bytes of one."""
        start = int(self.slots[number])
        return self.out[start : start + int(self.plan.encoded_sizes[self.chunks[number]])]

    def expanded(self, options: Options, *, streams: bool = False) -> Expanded:
        """Return the rows of the chunk table that they consist of; see `expand`."""
        plan, sums = self.plan, self.plan.places.checksums
        return expand(
            plan.asset.pipeline.compression,
            self.stored,
            self.starts,
            plan.places.sizes[self.chunks],
            self.slots,
            plan.encoded_sizes[self.chunks],
            options,
            streams=streams,
            checksums=None if sums is None else sums[self.chunks],
        )


class _Run:
    def __init__(
        self,
        plans: Sequence[tuple[ArrayPlan, npt.NDArray[Any]]],
        options: Options,
        watch: Watch,
        *,
        keeps: bool = True,
    ) -> None:
        self._options, self._watch = options, watch
        #: Whether what is decoded goes anywhere.
        self._keeps = keeps
        self._outs = {id(plan): out for plan, out in plans}
        self._plans = [plan for plan, _ in plans]
        self._host = HostEngine(options, together=_TOGETHER)
        self._scratch = threading.local()
        self._lock = threading.Lock()
        self._stopped = False
        self._whole: npt.NDArray[Any] | None = None
        self._verified: Counter[int] = Counter()
        self._stored_sums = 0
        self._unverified: Counter[int] = Counter()
        self._filled: set[int] = set()
        self._streamed = {id(plan): streamed(plan) for plan in self._plans}
        self._parts = [part for plan in self._plans for part in plan.parts(_PART)]
        self.report = Report(
            stored_size=sum(plan.stored_size for plan in self._plans),
            raw_size=sum(plan.result_size for plan in self._plans),
            chunks=sum(int((~plan.missing).sum()) for plan in self._plans),
            threads=self._threads(),
        )

    def _threads(self) -> int:
        """Return how many threads there are work and memory for."""
        most = max((self._need(part) for part in self._parts), default=0)
        limit = self._options.memory_limit
        if most > limit:
            raise MemoryLimitError(
                f"{self._plans[0].name}: a chunk needs {most} bytes to decode, memory_limit is "
                f"{limit}; raise it (--memory-limit)"
            )
        useful = useful_threads(self._plans, self._options)
        return max(1, min(useful, len(self._parts), limit * 3 // 4 // max(1, most)))

    def _need(self, part: Part) -> int:
        """Return the bytes of scratch memory that a part takes, twice where there are filters."""
        plan = part.plan
        which = slice(part.first, part.last)
        if self._streamed[id(plan)][part.first]:
            # On its way twice, decoded and as what it is decoded from.
            copies = 0 if self._goes_straight(plan, part.first) else 1 + plan.undone_order
            return 3 * array_stream.PIECE + copies * int(plan.raw_sizes[part.first])
        stored = int(np.where(plan.missing[which], 0, plan.places.sizes[which]).sum())
        there = ~plan.missing[which]
        if self._keeps and plan.direct[which][there].all():
            return stored
        raw = int(plan.encoded_sizes[which][there].sum())
        return stored + raw + (2 * int(plan.raw_sizes[which].max()) if _copies(plan) else 0)

    def go(self) -> Report:
        began, numbers = time.perf_counter(), count()
        self._fill_first()
        workers: list[Future[None]] = []
        pool = ThreadPoolExecutor(self.report.threads, "gpuload-array")
        try:
            for _ in range(self.report.threads):
                workers.append(pool.submit(self._work, numbers))  # noqa: PERF401 (interrupted)
            while wait(workers, timeout=_INTERVAL).not_done:
                self._watch.check()
        except BaseException:
            self._stopped = True
            raise
        finally:
            join(pool, workers, self._give_up)
        try:
            for worker in workers:
                worker.result()
        finally:
            # An error's traceback holds this frame, and a future its error: a cycle.
            del workers[:], worker
        self.report.verified = all_counts(self._verified, self._stored_sums)
        self.report.unverified = checksum_counts(self._unverified)
        self.report.failures.sort(key=lambda failure: (failure.asset, failure.chunk))
        self.report.seconds = time.perf_counter() - began
        return self.report

    def _give_up(self) -> None:
        """Let reads end that wait for a network; only called after something went wrong."""
        for plan in self._plans:
            plan.store.cancel()

    def _work(self, numbers: Iterator[int]) -> None:
        try:
            while not self._stopped and (number := next(numbers)) < len(self._parts):
                self._watch.check()
                self._do(self._parts[number])
        except BaseException:
            self._stopped = True
            raise

    def _do(self, part: Part) -> None:
        plan = part.plan
        if self._streamed[id(plan)][part.first]:
            # It is larger than parts are, and so alone.
            self._stream(plan, part.first)
            return
        chunks = np.arange(part.first, part.last)
        missing = plan.missing[part.first : part.last]
        for chunk in () if id(plan) in self._filled else chunks[missing].tolist():
            self._fill(plan, chunk)
        present = chunks[~missing]
        for direct in (True, False):
            which = present[(plan.direct[present] & self._keeps) == direct]
            if which.size:
                self._load(plan, which, direct=direct)

    def _fill_first(self) -> None:
        """Fill results that lack many chunks as a whole: one chunk after the other takes longer."""
        for plan in self._plans if self._keeps else ():
            if np.count_nonzero(plan.missing) < _MANY_MISSING:
                continue
            out = self._outs[id(plan)]
            for first in range(0, out.size, _FILLED):
                self._watch.check()
                out[first : first + _FILLED] = plan.fill
            self._filled.add(id(plan))

    def _fill(self, plan: ArrayPlan, chunk: int) -> None:
        filled = np.broadcast_to(plan.fill, plan.chunk_shape(chunk))
        self._put(plan, chunk, filled)

    def _goes_straight(self, plan: ArrayPlan, chunk: int) -> bool:
        """Return whether the pieces of a chunk need no memory of their own."""
        return not self._keeps or bool(plan.contiguous[chunk])

    def _stream(self, plan: ArrayPlan, chunk: int) -> None:
        """Decode a chunk piece by piece, and put it in place."""
        size, out = int(plan.raw_sizes[chunk]), self._outs[id(plan)].view(np.uint8)
        straight = self._goes_straight(plan, chunk)
        start = int(plan.targets[chunk])
        slot = out[start : start + size] if straight else self._buffer("raw", size)
        try:
            self._stream_into(ChunkStream(plan, chunk, self._options), slot)
        except CorruptChunkError as error:
            self._failed([failure_of(plan, chunk, error)])
            slot[:] = 0
        if not straight:
            shape, steps = plan.chunk_shape(chunk), plan.asset.pipeline.filters
            data = undo_all([step for step in steps if isinstance(step, Transpose)], slot, shape)
            self._put(plan, chunk, data.view(plan.asset.dtype).reshape(shape))

    def _stream_into(self, stream: ChunkStream, slot: Bytes) -> None:
        done = 0
        for piece in stream.pieces():
            self._watch.check()
            if self._stopped:
                return
            if self._keeps:
                slot[done : done + piece.size] = piece
            done += piece.size
        with self._lock:
            counter = self._verified if self._options.verify else self._unverified
            counter[stream.checksum] += 1

    def load_whole(self, plan: ArrayPlan, chunk: int, out: npt.NDArray[Any]) -> None:
        """Decode all of a chunk, whatever is selected of it."""
        self._whole = out
        self._load(plan, np.array([chunk]), direct=False)

    def _put(self, plan: ArrayPlan, chunk: int, decoded: npt.NDArray[Any]) -> None:
        if self._whole is not None:
            self._whole[...] = decoded
            return
        if not self._keeps:
            return
        first, last = int(plan.first[chunk]), int(plan.last[chunk])
        plan.boxes.copy(first, last, decoded, self._outs[id(plan)])

    def _load(self, plan: ArrayPlan, chunks: Integers, *, direct: bool) -> None:
        starts, size = plan.layout(chunks)
        stored = self._buffer("stored", size)
        plan.read(chunks, starts, stored)
        encoded = plan.encoded_sizes[chunks]
        if direct:
            out, slots = self._outs[id(plan)].view(np.uint8), plan.targets[chunks]
        else:
            out, slots = self._buffer("raw", int(encoded.sum())), np.cumsum(encoded) - encoded
        batch = Batch(plan, chunks, stored, starts, out, slots)
        bad = self._decode(batch)
        if not direct:
            self._finish(batch, bad)

    def _decode(self, batch: Batch) -> set[int]:
        """Decode chunks; return those that failed, whose slots are zeros."""
        try:
            expanded = batch.expanded(self._options)
        except CorruptChunkError as error:
            if batch.chunks.size > 1:
                # The others are as good as ever.
                return {n for n in range(batch.chunks.size) if self._decode(batch.one(n))}
            self._failed([failure_of(batch.plan, int(batch.chunks[0]), error)])
            batch.slot(0)[:] = 0
            return {0}
        rows = expanded.rows
        places = rows["offset"].astype(np.int64), rows["dst_offset"].astype(np.int64)
        outcome = self._host.decode(HostBatch(rows, *places, expanded.stored, batch.out))
        return self._settle(batch, rows, outcome)

    def _settle(self, batch: Batch, rows: ChunkTable, outcome: Outcome) -> set[int]:
        kinds, good = rows["checksum_kind"], outcome.status == Status.OK
        with self._lock:
            if self._options.verify and batch.plan.has_stored_sums:
                self._stored_sums += batch.chunks.size
            counter = self._verified if self._options.verify else self._unverified
            counter.update(kinds[good].tolist())
        bad: dict[int, ChunkFailure] = {}
        for row, reason in sorted(outcome.reasons.items()):
            status, number = int(outcome.status[row]), int(rows["asset"][row])
            actual = int(outcome.actual[row]) if status == Status.SIZE else None
            error = CorruptChunkError(reason, actual=actual, checksum=status == Status.CHECKSUM)
            bad.setdefault(number, failure_of(batch.plan, int(batch.chunks[number]), error))
            batch.slot(number)[:] = 0
        if bad:
            self._failed(list(bad.values()))
        return set(bad)

    def _failed(self, failures: list[ChunkFailure]) -> None:
        if self._options.on_error != "skip":
            raise decompress_error(failures)
        with self._lock:
            self.report.failures += failures

    def _finish(self, batch: Batch, bad: set[int]) -> None:
        """Undo the filters of decoded chunks, and put them in place."""
        plan, dtype = batch.plan, batch.plan.asset.dtype
        for number, chunk in enumerate(batch.chunks.tolist()):
            data, shape = batch.slot(number), plan.chunk_shape(chunk)
            if number in bad:
                self._put(plan, chunk, np.broadcast_to(np.zeros((), dtype), shape))
                continue
            if plan.asset.pipeline.filters:
                data = self._filtered(plan, chunk, data, shape)
            self._put(plan, chunk, data.view(dtype).reshape(shape))

    def _filtered(self, plan: ArrayPlan, chunk: int, data: Bytes, shape: tuple[int, ...]) -> Bytes:
        try:
            return undo_all(plan.asset.pipeline.filters, data, shape)
        except CorruptChunkError as error:
            self._failed([failure_of(plan, chunk, error)])
            return np.zeros(int(plan.raw_sizes[chunk]), np.uint8)

    def _buffer(self, name: str, size: int) -> Bytes:
        """Return scratch memory of this thread; what it held before is lost."""
        buffer: Bytes | None = getattr(self._scratch, name, None)
        if buffer is None or buffer.size < size:
            buffer = np.empty(max(size, _PART), np.uint8)
            setattr(self._scratch, name, buffer)
        return buffer[:size]
