"""Read, decode, check and deliver, overlapped and bounded.

On the host every worker thread takes the next window, reads its stored bytes, decodes them while
they are in its cache, and delivers them. What must happen in the order of the decoded bytes
(finding offsets where sizes are only known now, checksums over several chunks, writes to a pipe)
happens while a window has its *turn*; everything else happens side by side.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import UNKNOWN, Codec
from gpuload.codecs import CorruptChunkError, stream_decoder
from gpuload.engines.base import HostBatch, Outcome, Status
from gpuload.engines.host import HostEngine
from gpuload.errors import ChunkFailure, MemoryLimitError, decompress_error
from gpuload.handover import Handover
from gpuload.report import Report, checksum_counts
from gpuload.spans import SpanChecker, vouched
from gpuload.turns import StoppedError, Turns, join
from gpuload.windows import Window, close_up, offsets, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    import numpy.typing as npt

    from gpuload.codecs.base import Bytes, StreamDecoder
    from gpuload.containers.base import Index
    from gpuload.options import Options
    from gpuload.sinks import Sink
    from gpuload.sources import Source

    #: ``progress(decoded bytes, stored bytes)``
    Progress = Callable[[int, int], None]

__all__ = ["Run", "check_limit", "run"]

#: Stored and decoded bytes of a window: they stay in a core's cache while they are worked on.
WINDOW = 1536 << 10
#: The same, where one call decodes many chunks: what threads do between calls counts.
MANY = 6 << 20
_PROGRESS_INTERVAL = 0.1
_SMALL_CHUNK, _FEW_THREADS = 256 << 10, 4


def run(
    index: Index,
    sink: Sink,
    options: Options,
    *,
    collect: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Decode every chunk of a file into a sink, on the host.

    Parameters
    ----------
    index : Index
        The file.
    sink : Sink
        Where the decoded bytes go.
    options : Options
        All of them matter.
    collect : bool
        Go on after a chunk that fails and list the failures in the report.
    progress : callable, optional
        Called from the calling thread about ten times a second.

    Returns
    -------
    Report
        What was done.

    Raises
    ------
    DecompressError
        At the first window with failures, listing those of the window, unless `collect` is set
        or `on_error` is "skip" and the sizes of the chunks are known.
    FormatError
        If the source ends early, or a header inside a serial stream is broken.
    MemoryLimitError
        If the output would exceed `max_output`.
    """
    return Run(index, sink, options, collect=collect).go(progress)


def check_limit(source: Source, options: Options, size: int) -> None:
    """Raise MemoryLimitError if a file may not decode to `size` bytes."""
    limit = options.output_limit(source.size)
    if size > limit:
        raise MemoryLimitError(
            f"{source.name}: the file decodes to {size} bytes or more, over the limit of "
            f"{limit}; raise max_output (--max-output) if you trust it"
        )


class Run:
    """The state of one run; what windows add to belongs to whoever has the turn.

    Parameters
    ----------
    index, sink, options, collect
        See `run`.
    engines : ndarray of uint8, optional
        For each row, the place of its engine in `gpuload.options.ENGINES`; the host's for all rows
        if left out.
    check_spans : bool
        Whether the host sees all bytes, so that it can check checksums over several chunks.
    """

    def __init__(
        self,
        index: Index,
        sink: Sink,
        options: Options,
        *,
        collect: bool,
        engines: npt.NDArray[np.uint8] | None = None,
        check_spans: bool = True,
    ) -> None:
        self.index = index
        self.handover = Handover(sink) if sink.ordered else None
        self.sink = self.handover or sink
        self.options = options
        self.collect = collect
        self.position = 0
        self.stored_position = 0
        self.placed = index.exact and not collect  # whether dst_offset is where bytes end up
        self.report = Report(stored_size=index.source.size, chunks=index.chunks.size)
        self.verified: Counter[int] = Counter()
        check_spans = check_spans and bool(options.verify)
        self.spans = SpanChecker(index.spans, verify=check_spans, report=self._span_failed)
        self.vouched = not options.verify or vouched(index, spans=check_spans)
        self.host = HostEngine(options, vouched=self.vouched)
        self.together = self.host.takes_together(index.chunks)
        self.engines = engines
        self.turns = Turns()
        self.scratch = threading.local()
        self.windows = self._plan()

    def _plan(self) -> list[Window]:
        limit = self.options.memory_limit // 8
        in_place = self.placed and self.sink.slot(0, 0) is not None
        windows = plan(
            self.index.chunks,
            target=self._targets(),
            raw_limit=UNKNOWN if in_place else limit,
            stored_limit=limit,
            engines=self.engines,
        )
        sizes = [self._need(window, in_place=in_place) for window in windows if not window.streamed]
        # A quarter is left for what is not counted, such as the index.
        fitting = self.options.memory_limit * 3 // 4 // max([1, *sizes])
        threads = self.options.threads or self._useful_threads()
        self.report.threads = max(1, min(threads, fitting, len(windows)))
        return windows

    def _need(self, window: Window, *, in_place: bool) -> int:
        """Return the bytes that a thread needs for a window."""
        stored, raw = window.end - window.start, window.raw_size
        # Zstandard keeps a window of its own, and some of the other libraries return a copy of a
        # chunk: neither is larger than the content.
        zstd = self.index.chunks["codec"][window.first] == Codec.ZSTD
        copied = raw if zstd or window.last == window.first + 1 else 0
        if self.together:
            copied = 5 * stored // 2
        return stored + copied + (0 if in_place else raw)

    def _useful_threads(self) -> int:
        """Return how many threads decode fastest.

        Threads take turns at Python between chunks. On 16 cores, chunks of 64 KiB loaded fastest on
        3 to 6 threads (LZ4 0.8 GB/s on 1, 1.6 on 3 and on 4, 0.9 on 16), frames of 1 MiB on all of
        them (Zstandard 0.9, 1.6 and 2.8), and so do small chunks that one call decodes many of:
        tests/benchmarks/results.
        """
        if self.together:
            return self.options.thread_count
        mean = self.index.raw_bound // max(1, self.index.chunks.size)
        return min(self.options.thread_count, _FEW_THREADS if mean < _SMALL_CHUNK else 1 << 16)

    def _targets(self) -> int | npt.NDArray[np.int64]:
        """Return how many bytes a window should have, for all rows or for each."""
        return MANY if self.together else WINDOW

    def go(self, progress: Progress | None) -> Report:
        """Run all windows and return the report; a run can be used once."""
        try:
            return self._go(progress)
        finally:
            # Its callback is bound to this run: a cycle that would keep a sink's resources until
            # the next garbage collection.
            del self.spans

    def _go(self, progress: Progress | None) -> Report:
        began = time.perf_counter()
        self._check_known_sizes()
        numbers = count()
        workers: list[Future[None]] = []
        pool = ThreadPoolExecutor(self.report.threads, "gpuload")
        try:
            self._start(pool, workers, numbers)
            self._attend(workers, progress)
        except BaseException:
            self._stop()
            raise
        finally:
            join(pool, workers, self.index.source.cancel)
        try:
            for worker in workers:
                worker.result()
        finally:
            # An error's traceback holds this frame, and a future its error: another such cycle.
            del workers[:], worker
        self.spans.passed(self.index.chunks.size)
        return self._finished(time.perf_counter() - began)

    def _start(
        self, pool: ThreadPoolExecutor, workers: list[Future[None]], numbers: Iterator[int]
    ) -> None:
        try:
            for _ in range(self.report.threads):
                workers.append(pool.submit(self._work, numbers))  # noqa: PERF401 (interrupted)
        except RuntimeError as error:
            # A limit on threads or on memory; those that did start do all of the work.
            self.report.threads = len(pool._threads)
            if not self.report.threads:
                raise MemoryLimitError(
                    f"{self.index.source.name}: the system starts no thread ({error}); raise its "
                    "limits on memory and processes"
                ) from None

    def _attend(self, workers: list[Future[None]], progress: Progress | None) -> None:
        """Wait for the workers; meanwhile report progress, and write what they hand over."""
        if self.handover:
            for worker in workers:
                worker.add_done_callback(self.handover.wake)
        shown = float("-inf")
        while not all(worker.done() for worker in workers):
            if progress and time.perf_counter() - shown >= _PROGRESS_INTERVAL:
                progress(self.position, self.stored_position)
                shown = time.perf_counter()
            if self.handover:
                self.handover.serve(_PROGRESS_INTERVAL)
            else:
                wait(workers, timeout=_PROGRESS_INTERVAL)

    def _stop(self) -> None:
        self.turns.stop()
        if self.handover:
            self.handover.stop()

    def _check_known_sizes(self) -> None:
        if self.index.exact:
            check_limit(self.index.source, self.options, self.index.raw_bound)
        whole = ~np.isin(self.index.chunks["codec"], (Codec.ZSTD, Codec.GZIP))
        chunks = self.index.chunks[whole]
        need = int((chunks["raw_size"] + chunks["stored_size"]).max(initial=0))
        if need > self.options.memory_limit:
            raise MemoryLimitError(
                f"{self.index.source.name}: a chunk needs {need} bytes to decode, memory_limit is "
                f"{self.options.memory_limit}; raise it (--memory-limit)"
            )

    def _work(self, numbers: Iterator[int]) -> None:
        """Take windows until there are none left."""
        try:
            while not self.turns.stopped and (number := next(numbers)) < len(self.windows):
                window = self.windows[number]
                (self._stream if window.streamed else self._batch)(number, window)
        except StoppedError:
            pass
        except BaseException:
            self._stop()
            raise

    def _batch(self, number: int, window: Window) -> None:
        rows = self.index.chunks[window.first : window.last]
        stored = self._buffer("stored", window.end - window.start)
        self.index.source.read_exact(window.start, memoryview(stored))
        place = int(rows["dst_offset"][0])
        slot = self.sink.slot(place, window.raw_size) if self.placed else None
        out = self._buffer("raw", window.raw_size) if slot is None else slot
        batch = HostBatch(rows, *offsets(rows, window), stored, out)
        self._commit(number, window, batch, self.host.decode(batch), in_place=slot is not None)

    def _commit(
        self, number: int, window: Window, batch: HostBatch, outcome: Outcome, *, in_place: bool
    ) -> None:
        """Settle a window when it is its turn, and deliver its bytes."""
        with self.turns.turn(number):
            data = self._settle(window, outcome, batch.out, batch.dst)
            offset = self._advance(data.size)
            self.stored_position = window.end
            if self.sink.ordered:
                self.sink.write(offset, data)
        if not in_place and not self.sink.ordered:
            self.sink.write(offset, data)

    def _buffer(self, name: str, size: int) -> Bytes:
        """Return scratch memory of this thread; what it held before is lost."""
        buffer: Bytes | None = getattr(self.scratch, name, None)
        if buffer is None or buffer.size < size:
            buffer = np.empty(max(size, WINDOW), np.uint8)
            setattr(self.scratch, name, buffer)
        return buffer[:size]

    def _settle(
        self, window: Window, outcome: Outcome, out: Bytes, dst: npt.NDArray[np.int64]
    ) -> Bytes:
        """Report failures, close gaps between rows, check spans; return the decoded bytes."""
        rows = self.index.chunks[window.first : window.last]
        if outcome.reasons:
            self._handle(window, outcome, out, dst)
        good = outcome.status == Status.OK
        self._count(rows["checksum_kind"][good])
        size = int(outcome.actual.sum())
        if size != window.raw_size:
            close_up(out, dst, outcome.actual)
        self.spans.feed_rows(window.first, outcome.actual, out[:size])
        return out[:size]

    def _handle(
        self, window: Window, outcome: Outcome, out: Bytes, dst: npt.NDArray[np.int64]
    ) -> None:
        """Raise the failures of a window, or leave their chunks out, or fill them with zeros."""
        failures = self._failures(window, outcome)
        rows = self.index.chunks[window.first : window.last]
        bad = np.array(sorted(outcome.reasons))
        outcome.actual[bad] = 0
        skip = self.options.on_error == "skip" and not self.collect
        if skip and not rows["exact"][bad].all():
            reason = "; the file does not state its size, so that it cannot be skipped"
            failures = [
                replace(f, reason=f.reason + reason) if f.expected_size is None else f
                for f in failures
            ]
            skip = False
        if skip:
            for row in bad.tolist():
                size = outcome.actual[row] = int(rows["raw_size"][row])
                out[dst[row] : dst[row] + size] = 0
            self._record(failures)
        else:
            self._failed(failures)

    def _failures(self, window: Window, outcome: Outcome) -> list[ChunkFailure]:
        failures = []
        for row, reason in sorted(outcome.reasons.items()):
            status = int(outcome.status[row])
            actual = int(outcome.actual[row]) if status == Status.SIZE else None
            failure = self._failure(window.first + row, reason, actual, status)
            blame = outcome.blame.get(row, "")
            failures.append(replace(failure, driver_code=outcome.code or None, blame=blame))
        return failures

    def _count(self, kinds: npt.NDArray[np.uint8]) -> None:
        if self.options.verify:
            for kind, times in enumerate(np.bincount(kinds).tolist()):
                self.verified[kind] += times

    def _advance(self, size: int) -> int:
        """Return the offset of the next `size` decoded bytes."""
        offset = self.position
        check_limit(self.index.source, self.options, offset + size)
        self.position += size
        return offset

    def _stream(self, number: int, window: Window) -> None:
        rows = self.index.chunks[window.first : window.last]
        decoder = stream_decoder(self.index.source, rows, self.options, vouched=self.vouched)
        with self.turns.turn(number):
            try:
                self._deliver(decoder, window)
            except CorruptChunkError as error:
                row = window.first + error.row
                status = Status.CHECKSUM if error.checksum else Status.CORRUPT
                self._failed([self._failure(row, error.reason, error.actual, status, error.offset)])
            self.spans.passed(window.last)
            self.verified.update(decoder.verified)
            for message, offset in decoder.warnings:
                self.index.warn(message, offset)
            self.stored_position = window.end

    def _deliver(self, decoder: StreamDecoder, window: Window) -> None:
        """Hand the pieces of a stream on, each while the next one is decoded."""
        size = 0
        with ThreadPoolExecutor(1, "gpuload-deliver") as second:
            delivery = second.submit(lambda: None)
            try:
                for piece in decoder.pieces():
                    self.turns.check()
                    self.stored_position = decoder.position
                    size += piece.size
                    if size > window.raw_size:
                        break
                    if not piece.size:
                        continue
                    delivery.result()
                    delivery = second.submit(self._hand_on, window.first, piece)
            finally:
                # What went wrong with a piece matters more than the damage behind it.
                delivery.result()
        stated = window.last == window.first + 1 and self.index.chunks["exact"][window.first]
        if size > window.raw_size or (stated and size != window.raw_size):
            reason = f"it decodes to {size} bytes, the file says {window.raw_size}"
            raise CorruptChunkError(reason, actual=size)

    def _hand_on(self, row: int, piece: Bytes) -> None:
        offset = self._advance(piece.size)
        self.spans.feed(row, piece)
        self.sink.write(offset, piece)

    def _failed(self, failures: list[ChunkFailure]) -> None:
        if not self.collect:
            raise decompress_error(failures)
        self._record(failures)

    def _record(self, failures: list[ChunkFailure]) -> None:
        self.report.failures += failures
        for failure in failures:
            self.spans.spoil(failure.chunk)

    def _failure(
        self, row: int, reason: str, actual: int | None, status: int, offset: int | None = None
    ) -> ChunkFailure:
        chunk = self.index.chunks[row]
        return ChunkFailure(
            source=self.index.source.name,
            asset=self.index.assets[chunk["asset"]].name,
            chunk=row,
            offset=int(chunk["offset"]) if offset is None else offset,
            stored_size=int(chunk["stored_size"]),
            expected_size=int(chunk["raw_size"]) if chunk["exact"] else None,
            actual_size=actual,
            reason=reason,
            checksum=status == Status.CHECKSUM,
        )

    def _span_failed(self, span: np.void, error: CorruptChunkError) -> None:
        first, rows = int(span["first"]), int(span["count"])
        stored = self.index.chunks["stored_size"][first : first + rows]
        failure = ChunkFailure(
            source=self.index.source.name,
            asset="",
            chunk=first,
            offset=int(span["offset"]),
            stored_size=int(stored.sum()),
            expected_size=None if span["raw_size"] == UNKNOWN else int(span["raw_size"]),
            actual_size=error.actual,
            reason=f"frame of {rows} chunks: {error.reason}",
            checksum=error.checksum,
        )
        self._failed([failure])

    def _finished(self, seconds: float) -> Report:
        self.verified.update(self.spans.verified)
        self.report.raw_size = self.position
        self.report.seconds = seconds
        self.report.verified = checksum_counts(self.verified)
        if not self.options.verify:
            self.report.unverified = checksum_counts(Counter(self.index.checksum_kinds.tolist()))
        self.report.failures.sort(key=lambda failure: failure.chunk)
        return self.report
