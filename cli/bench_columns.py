"""What ``gpuload bench kernels`` compares: engines on the device, a copy, and host threads."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import driver
from gpuload.engines.base import DeviceBatch, HostBatch
from gpuload.engines.host import HostEngine
from gpuload.engines.making import make_engine
from gpuload.errors import GpuloadError
from gpuload.memory import copy
from gpuload.options import Options

from .bench_device import POISON, WrongBytesError, compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuload.engines.base import Engine, Outcome, Submission

    from .bench_chunks import Chunks
    from .bench_device import DeviceBench

__all__ = ["Cell", "Column", "Work", "make_column"]

#: Batches of one chunk whose submission is timed, and as many before that are not.
_SUBMISSIONS, _WARM_UP = 100, 10


@dataclass
class Cell:
    """What came of one measurement.

    Attributes
    ----------
    seconds : list of float
        Of each run.
    waited : bool
        Whether the device had to wait for the host, whose time counts then, too.
    refused : str
        Why the engine does not take the chunks; empty if it does.
    error : str
        What went wrong; empty if nothing did.
    """

    seconds: list[float] = field(default_factory=list)
    waited: bool = False
    refused: str = ""
    error: str = ""

    @property
    def median(self) -> float | None:
        """The median of the runs; None without any."""
        # A clock may be too coarse for a tiny run.
        return max(statistics.median(self.seconds), 1e-9) if self.seconds else None


@dataclass(frozen=True)
class Work:
    """Chunks in place: `source` is the address of the stored ones for the device."""

    bench: DeviceBench
    chunks: Chunks
    source: int

    def batch(self, count: int) -> DeviceBatch:
        """Return the first chunks, to be decoded to where they belong in the content."""
        rows, bench = self.chunks.rows[:count], self.bench
        src = rows["offset"].astype(np.int64) + self.source
        dst = rows["dst_offset"].astype(np.int64) + int(bench.target.handle)
        return DeviceBatch(rows, src, dst, bench.actual, bench.stream)


class Column(ABC):
    """Something that is measured."""

    name: str
    engine: Engine[Any] | None = None

    def measure(self, work: Work, count: int, repeats: int) -> Cell:
        """Return how long the first `count` chunks take, in several runs after a warm-up."""
        return self._cell(work, count, lambda cell: self._measure(cell, work, count, repeats))

    def overhead(self, work: Work) -> Cell | None:
        """Return how long the host takes to submit one chunk; None for no engine of a device."""
        return None

    def _cell(self, work: Work, count: int, measure: Callable[[Cell], None]) -> Cell:
        cell = Cell(refused=self._refusal(work, count))
        if not cell.refused:
            try:
                measure(cell)
            except GpuloadError as error:
                cell.error, cell.seconds = str(error), []
        return cell

    def _refusal(self, work: Work, count: int) -> str:
        """Return why the engine does not take the chunks; empty if it does."""
        if self.engine is None:
            return ""
        refused = self.engine.refusals(work.chunks.rows[:count])
        return "; ".join(reason for reason, which in refused.items() if which.any())

    @abstractmethod
    def _measure(self, cell: Cell, work: Work, count: int, repeats: int) -> None: ...

    def close(self) -> None:
        """Release what the engine holds."""
        if self.engine is not None:
            self.engine.close()


class _OnDevice(Column):
    def _measure(self, cell: Cell, work: Work, count: int, repeats: int) -> None:
        run = self._run(work, count)
        work.bench.warm_up(run)
        for _ in range(repeats):
            seconds, waited = work.bench.seconds(run)
            cell.seconds.append(seconds)
            cell.waited |= waited
        self._check(work, count)

    @abstractmethod
    def _run(self, work: Work, count: int) -> Callable[[], Callable[[], object]]: ...

    def _check(self, work: Work, count: int) -> None:
        work.bench.check(work.chunks.raw_size(count))


class _EngineColumn(_OnDevice):
    def __init__(self, engine: Engine[DeviceBatch]) -> None:
        self.name = engine.name
        self.engine: Engine[DeviceBatch] = engine

    def _run(self, work: Work, count: int) -> Callable[[], Callable[[], object]]:
        batch = work.batch(count)
        return lambda: partial(_finish, self.engine.submit(batch))

    def overhead(self, work: Work) -> Cell:
        """See `Column.overhead`; waiting for the chunk does not count."""
        return self._cell(work, 1, partial(self._measure_overhead, work))

    def _measure_overhead(self, work: Work, cell: Cell) -> None:
        batch = work.batch(1)
        for _ in range(_WARM_UP + _SUBMISSIONS):
            began = time.perf_counter()
            submission = self.engine.submit(batch)
            cell.seconds.append(time.perf_counter() - began)
            _finish(submission)
        del cell.seconds[:_WARM_UP]


class _CopyColumn(_OnDevice):
    """The content copied on the device; over the link, what is stored copied to the device."""

    name = "copy"

    def _run(self, work: Work, count: int) -> Callable[[], Callable[[], object]]:
        bench, chunks = work.bench, work.chunks
        target, room = int(bench.target.handle), bench.target.size
        source = work.source if bench.mapped else int(bench.original.handle)
        size = chunks.end(count) if bench.mapped else chunks.raw_size(count)

        def run() -> Callable[[], object]:
            # What does not compress is stored in a little more than the content takes.
            for at in range(0, size, room):
                copy(target, source + at, min(room, size - at), bench.stream)
            return lambda: None

        return run

    def _check(self, work: Work, count: int) -> None:
        if not work.bench.mapped:
            super()._check(work, count)


class _HostColumn(Column):
    """Host threads, from host memory to host memory, by the clock."""

    name = "host"

    def __init__(self, threads: int) -> None:
        self.engine: HostEngine = HostEngine(Options(threads=threads))

    def _measure(self, cell: Cell, work: Work, count: int, repeats: int) -> None:
        rows, content = work.chunks.rows[:count], work.bench.content
        out = np.empty(work.chunks.raw_size(count), np.uint8)
        src, dst = rows["offset"].astype(np.int64), rows["dst_offset"].astype(np.int64)
        batch = HostBatch(rows, src, dst, work.chunks.stored, out)
        for _ in range(1 + repeats):
            out.fill(POISON)
            began = time.perf_counter()
            submission = self.engine.submit(batch)
            outcome = submission.wait()
            cell.seconds.append(time.perf_counter() - began)
            _raise_failures(outcome)
        del cell.seconds[0]  # the warm-up
        compare(out, content[: out.size], 0)


def _finish(submission: Submission) -> None:
    _raise_failures(submission.wait())


def _raise_failures(outcome: Outcome) -> None:
    for row, reason in outcome.reasons.items():
        count = len(outcome.reasons)
        raise WrongBytesError(f"{count} chunks do not decode, the first is chunk {row}: {reason}")


def make_column(name: str, device_id: int, threads: int) -> Column:
    """Return a column.

    Parameters
    ----------
    name : str
        An engine that can run here, or "copy".
    device_id : int
        The device, which is current.
    threads : int
        Of the host.
    """
    if name == "copy":
        return _CopyColumn()
    if name == "host":
        return _HostColumn(threads)
    # As much as there is: with little scratch memory an engine would have to work piece by piece.
    free, _ = driver.memory_info(device_id)
    return _EngineColumn(make_engine(name, device_id, scratch_limit=max(1, free // 2)))
