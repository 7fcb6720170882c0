"""A load to a device whose stages overlap: bringing, listing, copying, decoding, checking.

Readers bring pieces of the file to landing places on the device, each of which has a stream. When
the last piece of a place has been submitted, and the rows in it are known, they are decoded where
they belong and their checksums are computed, all in the order of that stream. One thread, the
conductor, hands out pieces, submits and settles; it waits for the device where the device lists the
file, when too much is unsettled, and at the end.

This is the way of loads in which everything goes well. One in which something is found that asks
for more (a chunk that does not decode, blocks that are not full, memory that cannot be pinned)
raises IrregularError, and begins again in `gpuload.device_run`, which can say and do more.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.engines.base import DeviceBatch
from gpuload.engines.sums import check
from gpuload.errors import GpuloadError, MemoryLimitError
from gpuload.irregular import DamagedError, IrregularError
from gpuload.lease import MARGIN, USES, release
from gpuload.memory import run_all
from gpuload.report import Report, WindowStats, checksum_counts
from gpuload.staging import Piece
from gpuload.turns import StoppedError, interruptible, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cuda.core import Event

    from gpuload.chunks import ChunkTable
    from gpuload.engines.base import Engine, Submission
    from gpuload.engines.sums import SumSubmission
    from gpuload.feeds import Feed
    from gpuload.lease import Landing, Lease
    from gpuload.memory import Slot
    from gpuload.options import Options
    from gpuload.stages import Stages
    from gpuload.staging import Stager
    from gpuload.watch import Watch

__all__ = ["Overlapped", "Target"]

#: Rows of a range, at most: each takes some hundred bytes of pinned memory.
_ROWS = 1 << 18
#: Seconds between looks at whether the load is to end, where nothing else happens.
_INTERVAL = 0.1
#: The number of the event that a load begins with; ranges have fewer.
_CLOCK = 7


class Target:
    """Where decoded bytes go.

    Parameters
    ----------
    address : int
        On the device.
    size : int
        Bytes there.
    grow : callable, optional
        Makes room for at least so many bytes, if that is possible.
    """

    def __init__(self, address: int, size: int, grow: Callable[[int], int] | None = None) -> None:
        self.address, self.size, self._grow = address, size, grow

    def reserve(self, size: int) -> None:
        """Make room for the first `size` bytes; irregular if there is none."""
        if size <= self.size:
            return
        if self._grow is None:
            raise IrregularError
        try:
            self.size = self._grow(size)
        except MemoryLimitError:
            release()
            self.size = self._grown(size)

    def _grown(self, size: int) -> int:
        assert self._grow is not None
        try:
            return self._grow(size)
        except MemoryLimitError as error:
            # What the result needs in all is known step by step.
            raise IrregularError(str(error)) from error


@dataclass
class _Range:
    """A range of the file on its way."""

    number: int
    start: int
    end: int
    landing: Landing
    began: float
    use: int = 0
    carried: int | None = None
    events: list[Event] = field(default_factory=list)
    submitted: float = 0.0
    rows: ChunkTable | None = None
    batch: Submission | None = None
    sums: SumSubmission | None = None

    def __post_init__(self) -> None:
        self.use = self.landing.begin()
        self.mark()

    def is_done(self) -> bool:
        """Return whether all that was submitted is done."""
        with driver.calling("cuEventQuery", "a range of a file"):
            return bool(self.events[-1].is_done)

    def mark(self) -> None:
        """Record when the work so far is done."""
        self.events.append(self.landing.mark(self.use, len(self.events)))


@dataclass
class _Progress:
    """What was settled."""

    size: int = 0
    complete: bool = False
    verified: Counter[int] = field(default_factory=Counter)
    unverified: Counter[int] = field(default_factory=Counter)


class Overlapped:
    """One load.

    Parameters
    ----------
    feed : Feed
        The file.
    stager, way : Stager, str
        How its bytes are brought.
    engine : Engine
        Who decodes all of its rows, to where they belong.
    target : Target
        Where they belong.
    held : Lease
        Landing places and what else it takes.
    options : Options
        `verify` and `max_output` matter here.
    stages : Stages
        The clock.
    watch : Watch
        Is told how far it is.
    """

    def __init__(
        self,
        feed: Feed,
        stager: Stager,
        way: str,
        engine: Engine[DeviceBatch],
        target: Target,
        held: Lease,
        options: Options,
        stages: Stages,
        watch: Watch,
    ) -> None:
        self.feed, self.stager, self.way, self.engine = feed, stager, way, engine
        self.target, self.held, self.options, self.stages = target, held, options, stages
        self.watch = watch
        #: Most bytes that the target may be given.
        self.limit = options.output_limit(feed.source.size)
        #: Whether the caller has the target already, and might look at it before this load turns
        #: out to be irregular, and begins again.
        self.shared = False
        self.report = Report(engine=engine.name, threads=stager.threads)
        self._progress = _Progress()
        self._free = deque(held.landings)
        self._permits = threading.Semaphore(held.ring.slots)
        self._brought: deque[tuple[_Range, bool, Future[None]]] = deque()
        self._decoding: deque[_Range] = deque()
        self._ended = self._handed_out = False
        self._local = threading.local()
        self._awaited: Future[None] = Future()
        self._awaited.set_result(None)
        self._before: _Range | None = None
        self._current: _Range | None = None
        #: Those that are brought, by their numbers.
        self._ranges: dict[int, _Range] = {}
        #: A range whose end the next one needs, and from where on, until that has a place.
        self._uncarried: tuple[_Range, int] | None = None
        self._base: tuple[Event, float] | None = None
        self._start: Event | None = None

    def run(self, before: Event) -> Report:
        """Load everything; the report lacks what only the index says.

        Parameters
        ----------
        before : Event
            What must have happened before the target is written.

        Raises
        ------
        IrregularError
            See the module's docstring.
        CancelledError
            If the watch says so.
        GpuloadError, OSError
            As reading does.
        """
        work = partial(self._run, before)
        if threading.current_thread() is threading.main_thread():
            # Ctrl-C may come between any two steps there, with a lock held or memory not noted.
            return interruptible(work, self.watch.cancel)
        return work()

    def _run(self, before: Event) -> Report:
        with driver.on_device(self.held.device_id):
            return self._run_here(before)

    def _run_here(self, before: Event) -> Report:
        self.watch.reads(self.feed.source)
        self._start_clock(before)
        pool = ThreadPoolExecutor(self.stager.threads, "gpuload-read")
        try:
            self._conduct(pool)
            self._finish_report()
        except BaseException:
            self._stop(pool)
            raise
        pool.shutdown()
        self._drain()
        if self.shared:
            self.watch.submit(self._end())
        self.report.ways = dict(self.stager.brought)
        return self.report

    def _stop(self, pool: ThreadPoolExecutor) -> None:
        """End the threads, and wait for what they submitted: its memory is freed next."""
        self._ended = True
        self.feed.stop()
        brought = [self._awaited, *(each for _, _, each in self._brought)]
        try:
            join(pool, brought, self.feed.source.cancel)
        finally:
            with suppress(GpuloadError):
                self._drain()
            # Errors of what was stopped hold frames that hold this load: a cycle, with its events.
            del brought[:]
            self._brought.clear()
            self._awaited = Future()

    def _drain(self) -> None:
        """Wait for all copies and let go of what they read."""
        waits = [partial(_finish, landing) for landing in self.held.landings]
        run_all([*waits, self.stager.finish])

    def _enter(self) -> None:
        """Make the device current in a reading thread, once."""
        if not hasattr(self._local, "entered"):
            with driver.calling("cuCtxSetCurrent", "a reading thread"):
                driver.device(self.held.device_id).set_current()
            self._local.entered = True

    def _start_clock(self, before: Event) -> None:
        event = self.held.landings[0].mark(0, _CLOCK)
        with driver.calling("cuEventSynchronize", "the start of a load"):
            event.sync()
        self._base = event, self.stages.now()
        self._start = before

    # --- The conductor ----------------------------------------------------------------------------

    def _conduct(self, pool: ThreadPoolExecutor) -> None:
        pieces = self._pieces()
        while True:
            self.watch.check()
            self._hand_out(pool, pieces)
            if self._brought:
                landed, last, self._awaited = self._brought.popleft()
                self._awaited.result()
                if last:
                    self._arrive(landed)
                    self._submit(landed)
            elif self._decoding:
                if self._handed_out:
                    # What it takes is done while the device decodes.
                    self.feed.index()
                self._settle(self._decoding.popleft())
            elif self._handed_out:
                break
            elif self._permits.acquire(timeout=_INTERVAL):
                # Those who look at what has arrived have let go of a slot.
                self._permits.release()
        if not self._progress.complete:
            raise IrregularError("the rows did not end with the file")

    def _pieces(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield, for each piece, its range, where that starts and ends, and where it does."""
        for number, (start, end) in enumerate(self.feed.ranges()):
            for offset, stop in self.feed.pieces(start, end, self.stager.piece_size):
                yield number, start, end, offset, stop

    def _hand_out(
        self, pool: ThreadPoolExecutor, pieces: Iterator[tuple[int, int, int, int, int]]
    ) -> None:
        """Hand out pieces as long as there are slots and landing places for them."""
        while self._has_place() and self._permits.acquire(blocking=False):
            following = next(pieces, None)
            if following is None:
                self._permits.release()
                self._handed_out = True
                return
            number, start, end, offset, stop = following
            if offset == start:
                landing = self._free.popleft()
                self._current = _Range(number, start, end, landing, self.stages.now())
                self._ranges[number] = self._current
                if self._uncarried is not None:
                    before, needed = self._uncarried
                    taken = self._carry(before, needed, self._current)
                    if taken is not None:
                        self._wait(before.landing, taken)
                    self._uncarried = None
            landed = self._current
            assert landed is not None
            address = landed.landing.address + offset - start
            piece = Piece(offset, stop - offset, address, landed.landing.stream)
            self._brought.append((landed, stop == end, self._submit_piece(pool, piece)))
            if stop == end:
                self._current = None

    def _submit_piece(self, pool: ThreadPoolExecutor, piece: Piece) -> Future[None]:
        try:
            return pool.submit(self._bring, piece)
        except RuntimeError as error:  # the system starts no thread
            raise IrregularError(str(error)) from error

    def _has_place(self) -> bool:
        """Return whether the next piece has somewhere to land; settle what is done meanwhile."""
        while self._decoding and self._decoding[0].is_done():
            self._settle(self._decoding.popleft())
        return self._current is not None or bool(self._free)

    def _bring(self, piece: Piece) -> None:
        self.watch.check()
        if self._ended:
            raise StoppedError
        self._enter()
        slot = self.stager.bring(piece)
        if slot is None:
            self._permits.release()
        else:
            view = slot.view[: piece.size]
            self.feed.publish(piece.offset, view, partial(self._let_go, slot, piece))

    def _let_go(self, slot: Slot, piece: Piece) -> None:
        try:
            slot.release(piece.stream)
        finally:
            self._permits.release()

    # --- Decoding ---------------------------------------------------------------------------------

    def _arrive(self, landed: _Range) -> None:
        """Take note that all copies of a range are submitted."""
        landing = landed.landing
        landed.mark()
        self.feed.arrived(landed.number, landing.address, landing.stream)

    def _submit(self, landed: _Range) -> None:
        """Submit the rows of a range whose copies are submitted."""
        rows, last = self.feed.rows(landed.number)
        landed.rows = rows
        del self._ranges[landed.number]
        carry, taken = self.feed.carry(landed.number), None
        following = self._ranges.get(landed.number + 1)
        if carry is not None and following is not None:
            taken = self._carry(landed, carry, following)
        if rows.size:
            with self.stages.range("submit"):
                self._decode(landed, rows)
        if taken is not None:
            # What lands here next comes after the other range has taken its start.
            self._wait(landed.landing, taken)
        if carry is not None:
            self._free.append(landed.landing)
            if following is None and not last:
                self._uncarried = landed, carry
        elif self._before is not None:
            self._free.append(self._before.landing)
        self._before = landed
        landed.submitted = self.stages.now()
        self._decoding.append(landed)
        if len(self._decoding) >= USES - 1 + len(self.held.landings):
            self._settle(self._decoding.popleft())
        self._progress.complete = last
        if last and not self.shared:
            self.watch.submit(self._end())

    def _carry(self, landed: _Range, offset: int, following: _Range) -> Event | None:
        """Copy the end of a range to before the start of the next; return what it is done with."""
        following.carried = offset
        size = landed.end - offset
        if size > MARGIN or offset < landed.start:
            raise IrregularError("a chunk that lies in more than two ranges")
        if size <= 0:
            return None
        to, of = following.landing, landed.landing
        if to is not of:
            self._order(to, of)
        address = of.address + offset - landed.start
        driver.memcpy_async(to.address - size, address, size, int(to.stream.handle))
        if to is of:
            return None
        with driver.calling("cuEventRecord", "a chunk that lies in two ranges"):
            return driver.shield(to.stream.record())

    def _wait(self, landing: Landing, event: Event) -> None:
        with driver.calling("cuStreamWaitEvent", "a chunk that lies in two ranges"):
            landing.stream.wait(event)

    def _end(self) -> Event:
        """Return an event behind all work."""
        first, *others = self.held.landings
        for landing in others:
            self._order(first, landing)
        with driver.calling("cuEventRecord", "the end of a load"):
            return driver.shield(first.stream.record())

    def _decode(self, landed: _Range, rows: ChunkTable) -> None:
        refused = self.engine.refusals(rows).values()
        if rows.size > _ROWS or any(mask.any() for mask in refused):
            raise IrregularError("rows that the engine cannot take, or too many of them")
        end = int(rows["dst_offset"][-1] + rows["raw_size"][-1])
        if end > self.limit or int((rows["offset"] + rows["stored_size"]).max()) > landed.end:
            raise IrregularError("more than is allowed, or than has arrived")
        self.target.reserve(end)
        landing = landed.landing
        self._fetch_start(landed, rows)
        src = rows["offset"].astype(np.int64) + (landing.address - landed.start)
        dst = rows["dst_offset"].astype(np.int64) + self.target.address
        actual = landing.actual(landed.use, rows.size)
        batch = DeviceBatch(rows, src, dst, actual, landing.stream)
        if self._start is not None:
            # Reading need not wait for what the target still waits for.
            self._wait(landing, self._start)
        landed.mark()
        landed.batch = self.engine.submit(batch)
        landed.mark()
        if self.options.verify:
            written = actual if self.engine.name == "sm" else None
            landed.sums = self.held.sums.submit(rows, src, dst, written, landing.stream)
            landed.mark()

    def _fetch_start(self, landed: _Range, rows: ChunkTable) -> None:
        """Copy the start of a row that ends in this range from the one before, to before it."""
        first = int(rows["offset"][0]) - int(rows["prefix_size"][0])
        missing = landed.start - first
        if missing <= 0:
            return
        if landed.carried is not None:
            if first < landed.carried or missing > MARGIN:
                raise IrregularError("a chunk that lies in more than two ranges")
            return
        before = self._before
        if before is None or missing > MARGIN or first < before.start or before.end != landed.start:
            raise IrregularError
        landing, other = landed.landing, before.landing
        if landing is not other:
            self._order(landing, other)
        of = other.address + first - before.start
        driver.memcpy_async(landing.address - missing, of, missing, int(landing.stream.handle))
        if landing is not other:
            # What lands there next must not come before this copy.
            self._order(other, landing)

    def _order(self, later: Landing, earlier: Landing) -> None:
        with driver.calling("cuStreamWaitEvent", "a chunk that lies in two ranges"):
            later.stream.wait(earlier.stream)

    def _settle(self, landed: _Range) -> None:
        """Take note of what became of a range."""
        rows = landed.rows
        with driver.calling("cuEventSynchronize", "a range of a file"):
            landed.events[-1].sync()
        if rows is not None and landed.batch is not None:
            outcome = landed.batch.wait()
            done = np.zeros(rows.size, np.bool_)
            if landed.sums is not None:
                computed, done = landed.sums.wait()
                check(rows, computed, done, outcome)
            if outcome.reasons:
                raise DamagedError(next(iter(outcome.reasons.values())))
            complete = self._progress.complete and landed is self._before
            self.feed.check_sizes(rows, outcome.actual, complete=complete)
            self._progress.size = int(rows["dst_offset"][-1]) + int(outcome.actual[-1])
            kinds = rows["checksum_kind"]
            self._progress.verified.update(dict(enumerate(np.bincount(kinds[done]).tolist())))
            self._progress.unverified.update(dict(enumerate(np.bincount(kinds[~done]).tolist())))
        self._note(landed)

    # --- Statistics -------------------------------------------------------------------------------

    def _note(self, landed: _Range) -> None:
        rows, stored = landed.rows, landed.end - landed.start
        if rows is None or self._base is None:
            return
        base, began = self._base
        with driver.calling("cuEventElapsedTime", "the stages of a load"):
            times = [began + (event - base) / 1e3 for event in landed.events]
        raw = int(rows["raw_size"].sum())
        self.stages.add("copy", stored, *times[:2])
        for name, start, stop in zip(("decode", "verify"), times[2:], times[3:], strict=False):
            self.stages.add(name, raw, start, stop)
        self.report.windows.append(
            WindowStats(
                engine=self.engine.name,
                way=self.way,
                chunks=rows.size,
                stored_size=stored,
                raw_size=raw,
                start=landed.began,
                submitted=landed.submitted,
                stop=self.stages.now(),
            )
        )

    def _finish_report(self) -> None:
        index, progress, report = self.feed.index(), self._progress, self.report
        if self.options.verify:
            progress.unverified.update(index.spans["checksum_kind"].tolist())
        else:
            progress.unverified = Counter(index.checksum_kinds.tolist())
        report.verified = checksum_counts(progress.verified)
        report.unverified = checksum_counts(progress.unverified)
        if self.options.verify is True and report.unverified:
            raise IrregularError
        report.verified_on = {"device": sum(report.verified.values())} if report.verified else {}
        report.raw_size, report.stored_size = progress.size, index.source.size
        report.chunks, report.seconds = index.chunks.size, self.stages.now()
        report.stages = self.stages.used()
        shape = self.held.shape
        report.peak_device = shape.on_device
        report.peak_host = shape.on_host + sum(each.host_bytes for each in self.held.landings)


def _finish(landing: Landing) -> None:
    with driver.calling("cuStreamSynchronize", "the end of a load"):
        landing.stream.sync()
