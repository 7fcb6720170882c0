"""A run with a device: windows for its engines, the others for the host.

Each worker thread has a workspace of its own: a stream, staging memory, and a window on the device.
How far an engine is trusted decides where it writes:

* The sm engine is bounded, so it writes to the destination wherever rows have their place, and a
  row that fails is the only one that does.
* The hardware engine and nvCOMP decode into a guarded window, unless the input is trusted. The
  window is copied to its destination when its decoded sizes agree. If one does not, the engine may
  have written anywhere in the window, and all of it is decoded again on the host.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver, fencing
from gpuload.device_sink import DeviceSink
from gpuload.engines.base import DeviceBatch, HostBatch, Outcome
from gpuload.engines.choice import HARDWARE, HOST, NVCOMP, SM, choose, scratch_limit
from gpuload.engines.hardware import NOT_SUPPORTED
from gpuload.engines.making import make_engine
from gpuload.engines.sums import DeviceSums, check
from gpuload.errors import EngineUnavailableError, GpuloadError
from gpuload.kernels import compiler
from gpuload.memory import copy, run_all
from gpuload.options import ENGINES
from gpuload.pipeline import WINDOW, Run
from gpuload.report import checksum_counts
from gpuload.windows import Window, moves, offsets
from gpuload.workspace import READS_OVER_THE_LINK, Sizes, Workspace

if TYPE_CHECKING:
    import numpy.typing as npt
    from cuda.core import Stream

    from gpuload.containers.base import Index
    from gpuload.engines.base import Engine
    from gpuload.engines.choice import Choice
    from gpuload.options import Options
    from gpuload.pipeline import Progress
    from gpuload.report import Report
    from gpuload.sinks import Sink

__all__ = ["DeviceRun", "run"]

#: Bytes that a row of a batch takes on the host: parameters, sizes, status, and what they are made
#: from, at most.
_ROW = 256
#: Threads that read stored bytes for a device, which is more than enough windows at once for it.
_READERS = 8
#: Instead of the host's copy of a window, which few windows need.
_NO_BYTES = np.empty(0, np.uint8)


def run(
    index: Index,
    sink: Sink,
    options: Options,
    *,
    device_id: int,
    collect: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Decode every chunk of a file into a sink; see `gpuload.pipeline.run`.

    Parameters
    ----------
    device_id : int
        The device that may decode.

    Raises
    ------
    DriverError
        If an engine was asked for by name that cannot decode this here, or a device fails.
    """
    fetched = not isinstance(sink, DeviceSink)
    choice = choose(index.chunks, options, device_id, fetched=fetched)
    if (choice.engines != HOST).any():
        started = DeviceRun(
            index, sink, options, choice=choice, device_id=device_id, collect=collect
        )
        return started.go(progress)
    report = Run(index, sink, options, collect=collect).go(progress)
    report.passed_over = choice.passed_over
    return report


class DeviceRun(Run):
    """A run whose choice of engines has rows for some on a device.

    Parameters
    ----------
    index, sink, options, collect
        See `gpuload.pipeline.run`; a `DeviceSink` must be on the same device.
    choice : Choice
        Who decodes which rows.
    device_id : int
        The device.
    """

    def __init__(
        self,
        index: Index,
        sink: Sink,
        options: Options,
        *,
        choice: Choice,
        device_id: int,
        collect: bool = False,
    ) -> None:
        self.device_id = device_id
        self.choice = choice
        self.refused = ""
        self.lock = threading.Lock()
        self.local = threading.local()
        self.workspaces: list[Workspace] = []
        self.decoders: dict[int, Engine[DeviceBatch]] = {}
        self.sums: DeviceSums | None = None
        self.target = sink if isinstance(sink, DeviceSink) else None
        #: Whether the host needs the bytes that the device decodes.
        self.fetched = self.target is None or options.verify is True
        self.unverified: Counter[int] = Counter()
        self.used: set[int] = set()  # who has decoded a window
        self.direct: dict[int, bool] = {}
        super().__init__(
            index,
            sink,
            options,
            collect=collect,
            engines=choice.engines,
            check_spans=self.fetched,
        )

    # --- Planning ---------------------------------------------------------------------------------

    def _writes_directly(self, engine: int) -> bool:
        """Return whether an engine may write where the bytes belong, without a window."""
        if self.target is None or not self.placed:
            return False
        if engine == SM:
            return True
        able = engine == NVCOMP or driver.is_hw_decompress_capable(self.target.address)
        return bool(self.options.trusted) and able

    def _targets(self) -> npt.NDArray[np.int64]:
        share = max(WINDOW, self.options.memory_limit // 12)
        targets = np.where(self.choice.engines == HOST, WINDOW, share)
        if self.direct[SM]:
            # Only stored bytes are kept, and the more there is to decode at once, the better.
            targets[self.choice.engines == SM] = 2 * share
        return targets

    def _plan(self) -> list[Window]:
        self.direct = {engine: self._writes_directly(engine) for engine in range(HOST)}
        windows = super()._plan()
        batches = [window for window in windows if not window.streamed]
        on_device = [window for window in batches if window.engine != HOST]
        #: What a workspace has memory for.
        self.sizes = Sizes.largest(map(self._sizes, on_device))
        scratch = scratch_limit(self.options) if self._has(NVCOMP) else 0
        tables = _ROW * max([0, *(window.last - window.first for window in on_device)])
        # A thread has all of it, and what the host decodes.
        need = self.sizes.total + scratch + tables + max([0, *map(self._on_host, batches)])
        fitting = self.options.memory_limit * 3 // 4 // max(1, need)
        self.report.threads = max(1, min(self.report.threads, fitting))
        return windows

    def _has(self, engine: int) -> bool:
        return bool((self.choice.engines == engine).any())

    def _useful_threads(self) -> int:
        if self._has(HOST) or self._has(HARDWARE):
            return super()._useful_threads()
        return min(self.options.thread_count, _READERS)

    def _sizes(self, window: Window) -> Sizes:
        """Return what a window on the device needs."""
        stored, engine = window.end - window.start, window.engine
        direct = self.direct[engine]
        return Sizes(
            stored=stored,
            actual=4 * (window.last - window.first),
            landed=0 if engine in READS_OVER_THE_LINK else stored,
            window=0 if direct else window.raw_size,
            guard=engine != SM and not direct,
        )

    def _on_host(self, window: Window) -> int:
        """Return the bytes that the host needs for a window that it decodes, or may have to."""
        if window.engine == HOST:
            return self._need(window, in_place=False)
        return 0 if window.engine == SM and not self.fetched else window.raw_size

    def _need(self, window: Window, *, in_place: bool) -> int:
        # What is for a device is counted in `_plan`.
        return super()._need(window, in_place=in_place) if window.engine == HOST else 0

    # --- From start to end ------------------------------------------------------------------------

    def go(self, progress: Progress | None = None) -> Report:
        """See `Run.go`."""
        try:
            report = super().go(progress)
        except BaseException:
            # The first error says more than what a broken context says afterwards.
            with suppress(GpuloadError):
                self._close()
            raise
        self._close()
        report.engine = ", ".join(ENGINES[number] for number in sorted(self.used or {HOST}))
        report.passed_over = self.choice.passed_over
        return report

    def _close(self) -> None:
        with driver.on_device(self.device_id):
            # An engine waits for what it has submitted, which is in the workspaces' memory.
            closing = [engine.close for engine in self.decoders.values()]
            if self.sums is not None:
                closing.append(self.sums.close)
            run_all([*closing, *(workspace.close for workspace in self.workspaces)])

    def _finished(self, seconds: float) -> Report:
        report = super()._finished(seconds)
        if not self.fetched and self.options.verify:
            self.unverified.update(self.index.spans["checksum_kind"].tolist())
            report.unverified = checksum_counts(self.unverified)
        return report

    def _workspace(self) -> Workspace:
        """Return the workspace of the calling thread."""
        if not hasattr(self.local, "workspace"):
            stream = self.target.stream() if self.target else self._new_stream()
            self.local.workspace = Workspace(self.device_id, stream, self.sizes)
            self.workspaces.append(self.local.workspace)
        workspace: Workspace = self.local.workspace
        return workspace

    def _new_stream(self) -> Stream:
        device = driver.device(self.device_id)
        with driver.calling("cuStreamCreateWithPriority", "a window"):
            device.set_current()
            return device.create_stream()

    def _engine(self, number: int) -> Engine[DeviceBatch]:
        with self.lock:
            if number not in self.decoders:
                limit = scratch_limit(self.options)
                made = make_engine(ENGINES[number], self.device_id, scratch_limit=limit)
                self.decoders[number] = made
            return self.decoders[number]

    # --- Windows ----------------------------------------------------------------------------------

    def _stream(self, number: int, window: Window) -> None:
        super()._stream(number, window)
        self.used.add(HOST)

    def _batch(self, number: int, window: Window) -> None:
        engine = self._engine_of(window)
        if engine == HOST:
            super()._batch(number, window)
            self.used.add(HOST)
        else:
            self._on_device(number, window, engine)

    def _engine_of(self, window: Window) -> int:
        """Return who decodes a window: as planned, unless the driver has refused to."""
        if window.engine != HARDWARE or not self.refused:
            return window.engine
        chosen = np.unique(self.choice.engines[window.first : window.last])
        return int(chosen[0]) if chosen.size == 1 else HOST

    def _on_device(self, number: int, window: Window, engine: int) -> None:
        work, rows = self._workspace(), self.index.chunks[window.first : window.last]
        stored = work.stored[: window.end - window.start]
        self.index.source.read_exact(window.start, memoryview(stored))
        src, dst = offsets(rows, window)
        base = work.window
        if self.direct[engine] and self.target:
            base = self.target.address + int(rows["dst_offset"][0])
        source = work.source(stored.size, engine)
        submitted = DeviceBatch(rows, src + source, dst + base, work.actual, work.stream)
        outcome = self._engine(engine).submit(submitted).wait()
        done = np.zeros(rows.size, np.bool_)
        if not outcome.code:
            self.used.add(engine)
            done = self._check_sums(submitted, outcome, engine)
        batch = HostBatch(rows, src, dst, stored, _NO_BYTES)
        if engine == SM:
            self._settle_bounded(number, window, batch, outcome, base, done)
        elif outcome.code == NOT_SUPPORTED:
            self._pass_on(number, window, next(iter(outcome.reasons.values())))
        else:
            self._settle_fenced(number, window, batch, outcome, base, done)

    def _check_sums(
        self, batch: DeviceBatch, outcome: Outcome, engine: int
    ) -> npt.NDArray[np.bool_]:
        """Have the device compare the checksums of chunks; return of which rows it could."""
        if self.fetched or not self.options.verify or compiler.refusal(self.device_id):
            return np.zeros(batch.rows.size, np.bool_)
        with self.lock:
            if self.sums is None:
                self.sums = DeviceSums(self.device_id)
        written = batch.actual if engine == SM else None
        computing = self.sums.submit(batch.rows, batch.src, batch.dst, written, batch.stream)
        computed, done = computing.wait()
        check(batch.rows, computed, done, outcome)
        return done

    def _settle_bounded(
        self,
        number: int,
        window: Window,
        batch: HostBatch,
        outcome: Outcome,
        base: int,
        done: npt.NDArray[np.bool_],
    ) -> None:
        """Deliver a window of which every row that did not fail is right."""
        if self.fetched:
            batch = replace(batch, out=self._workspace().fetched(window.raw_size))
            self._fetch(batch, outcome, base)
            self._retry(batch, outcome)
            self._commit(number, window, batch, outcome, in_place=False)
        elif outcome.reasons:
            self._mend(number, window, batch, outcome, base)
        else:
            self._commit_on_device(number, window, batch, outcome, base, done)

    def _mend(
        self, number: int, window: Window, batch: HostBatch, outcome: Outcome, base: int
    ) -> None:
        """Deliver a window in which rows failed, by way of the host."""
        # In its turn, so that one thread at a time has memory for it.
        with self.turns.turn(number):
            batch = replace(batch, out=np.empty(window.raw_size, np.uint8))
            self._fetch(batch, outcome, base)
            self._retry(batch, outcome)
            data = self._settle(window, outcome, batch.out, batch.dst)
            offset = self._advance(data.size)
            self.stored_position = window.end
            self.sink.write(offset, data)

    def _fetch(self, batch: HostBatch, outcome: Outcome, base: int) -> None:
        """Copy a window to the host, and check what the host can check."""
        stream = self._workspace().stream
        copy(batch.out.ctypes.data, base, batch.out.size, stream)
        with driver.calling("cuStreamSynchronize", "a window on its way to the host"):
            stream.sync()
        if self.options.verify:
            self.host.check(batch, outcome)

    def _retry(self, batch: HostBatch, outcome: Outcome) -> None:
        if outcome.reasons and self.options.on_error == "retry-host":
            fencing.retry(self.host, batch, outcome)

    def _settle_fenced(
        self,
        number: int,
        window: Window,
        batch: HostBatch,
        outcome: Outcome,
        base: int,
        done: npt.NDArray[np.bool_],
    ) -> None:
        """Deliver a window that holds nothing but damage if one row of it failed."""
        batch = replace(batch, out=self._workspace().fetched(window.raw_size))
        fencing.doubt_short_rows(self.host, batch, outcome)
        retried = self.options.on_error == "retry-host"
        if outcome.reasons:
            again = self.host.decode(batch)
            outcome = again if retried else fencing.confirm(outcome, again)
        elif self.fetched:
            self._fetch(batch, outcome, base)
            if outcome.reasons and retried:
                outcome = self.host.decode(batch)
        else:
            self._commit_on_device(number, window, batch, outcome, base, done)
            return
        self._commit(number, window, batch, outcome, in_place=False)

    def _pass_on(self, number: int, window: Window, reason: str) -> None:
        """Give a window that the driver has refused, and those to come, to who is next."""
        self.refused = reason
        broken = {"hardware": reason}
        if self.options.engine == "auto":
            options, chunks = self.options, self.index.chunks
            self.choice = choose(chunks, options, self.device_id, broken=broken)
        elif self.options.on_error == "retry-host":
            host = np.full_like(self.choice.engines, HOST)
            self.choice = replace(self.choice, engines=host, passed_over=broken)
        else:
            raise EngineUnavailableError(f"the hardware engine does not run: {reason}")
        self._batch(number, window)

    def _commit_on_device(
        self,
        number: int,
        window: Window,
        batch: HostBatch,
        outcome: Outcome,
        base: int,
        done: npt.NDArray[np.bool_],
    ) -> None:
        """Deliver a window whose bytes are on the device and stay there."""
        assert self.target is not None
        size = int(outcome.actual.sum())
        with self.turns.turn(number):
            # Of bytes on the device only the number is known here.
            unseen = np.broadcast_to(np.zeros(1, np.uint8), size)
            self.spans.feed_rows(window.first, outcome.actual, unseen)
            kinds = batch.rows["checksum_kind"]
            self.verified.update(kinds[done].tolist())
            self.unverified.update(kinds[~done].tolist())
            offset = self._advance(size)
            self.stored_position = window.end
        if base != self._workspace().window:
            return
        self.target.check_room(offset, size)
        for start, to, length in moves(batch.dst, outcome.actual):
            copy(self.target.address + offset + to, base + start, length, self.target.stream())
