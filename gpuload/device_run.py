"""A run with a device: windows for the decompression engine, the others for the host.

Each worker thread has a workspace of its own: a stream, staging memory that the engine reads over
the link, and a guarded window on the device that it decodes into. The window is copied to its
destination when its decoded sizes agree. If one does not, the engine may have written anywhere in
the window, and all of it is decoded again on the host.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.device_sink import DeviceSink
from gpuload.engines.base import DeviceBatch, HostBatch, Outcome, Status
from gpuload.engines.choice import HARDWARE, HOST, choose
from gpuload.engines.hardware import NOT_SUPPORTED, HardwareEngine
from gpuload.errors import EngineUnavailableError, GpuloadError
from gpuload.memory import DecompressMemory, HostNumaMemory, copy, host_view, run_all
from gpuload.options import ENGINES
from gpuload.pipeline import WINDOW, Run
from gpuload.report import checksum_counts
from gpuload.windows import Window, moves, offsets

if TYPE_CHECKING:
    import numpy.typing as npt
    from cuda.core import Stream

    from gpuload.containers.base import Index
    from gpuload.engines.choice import Choice
    from gpuload.options import Options
    from gpuload.pipeline import Progress
    from gpuload.report import Report
    from gpuload.sinks import Sink

__all__ = ["DeviceRun", "run"]

#: What memory from cuMemCreate is taken in, on every device so far.
_UNIT = 2 << 20
#: Addresses without memory behind each window, to catch writes past its end.
_GUARD = 256 << 20


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
    choice = choose(index.chunks, options, device_id)
    if (choice.engines == HARDWARE).any():
        started: Run = DeviceRun(
            index, sink, options, choice=choice, device_id=device_id, collect=collect
        )
    else:
        started = Run(index, sink, options, collect=collect)
    started.report.passed_over = choice.passed_over
    return started.go(progress)


class Workspace:
    """What one thread needs to have windows decoded by the engine.

    Parameters
    ----------
    device_id : int
        The device, which is current.
    stream : Stream
        What the thread does, it does on this one.
    stored_size, raw_size, actual_size : int
        Bytes of the largest window: stored, decoded, and of the words with the decoded sizes.
    """

    def __init__(
        self, device_id: int, stream: Stream, stored_size: int, raw_size: int, actual_size: int
    ) -> None:
        self.stream = stream
        with ExitStack() as undo:
            host = undo.enter_context(HostNumaMemory(device_id))
            self.staging = host.allocate(max(1, stored_size), stream=stream)
            self.actual = host.allocate(max(4, actual_size), stream=stream)
            guarded = undo.enter_context(DecompressMemory(device_id, guard=_GUARD))
            self.window = guarded.allocate(max(1, raw_size), stream=stream)
            self.stored = host_view(self.staging)
            #: Waits for the stream and frees everything.
            self.close = undo.pop_all().close


class DeviceRun(Run):
    """A run whose choice of engines has rows for the decompression engine.

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
        self.refused = ""
        self.local = threading.local()
        self.workspaces: list[Workspace] = []
        self.engine = HardwareEngine(device_id)
        self.target = sink if isinstance(sink, DeviceSink) else None
        #: Whether the host needs the bytes that the device decodes.
        self.fetched = self.target is None or options.verify is True
        self.unverified: Counter[int] = Counter()
        self.used = False  # whether the device has decoded a window
        super().__init__(
            index,
            sink,
            options,
            collect=collect,
            engines=choice.engines,
            check_spans=self.fetched,
        )
        #: Whether the engine may write where the bytes belong, without a guarded window.
        self.direct = bool(
            self.target
            and options.trusted
            and self.placed
            and driver.is_hw_decompress_capable(self.target.address)
        )

    def _targets(self) -> npt.NDArray[np.int64]:
        target = max(WINDOW, self.options.memory_limit // 12)
        return np.where(self.engines == HARDWARE, target, WINDOW)

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
        report.engine = self._engines_used()
        if self.refused:
            report.passed_over = {"hardware": self.refused}
        return report

    def _close(self) -> None:
        run_all([workspace.close for workspace in self.workspaces])

    def _engines_used(self) -> str:
        engines = {w.engine for w in self.windows if w.streamed or not self.refused}
        used = sorted(engines - {HARDWARE} | ({HARDWARE} if self.used else {HOST}))
        return ", ".join(ENGINES[number] for number in used)

    def _plan(self) -> list[Window]:
        windows = super()._plan()
        largest = [max(size) for size in zip(*map(_sizes, windows), strict=True)]
        # A thread has all three of them, and the host's copy of a window.
        need = sum(-(-size // _UNIT) * _UNIT for size in largest) + largest[1]
        fitting = self.options.memory_limit * 3 // 4 // max(1, need)
        self.report.threads = max(1, min(self.report.threads, fitting))
        return windows

    def _workspace(self) -> Workspace:
        """Return the workspace of the calling thread."""
        if not hasattr(self.local, "workspace"):
            sizes = [_sizes(window) for window in self.windows if window.engine == HARDWARE]
            stored, raw, actual = map(max, zip(*sizes, strict=True))
            stream = self.target.stream() if self.target else self._new_stream()
            self.local.workspace = Workspace(
                self.device_id, stream, stored, 0 if self.direct else raw, actual
            )
            self.workspaces.append(self.local.workspace)
        workspace: Workspace = self.local.workspace
        return workspace

    def _new_stream(self) -> Stream:
        device = driver.device(self.device_id)
        with driver.calling("cuStreamCreateWithPriority", "a window"):
            device.set_current()
            return device.create_stream()

    def _batch(self, number: int, window: Window) -> None:
        if window.engine != HARDWARE or self.refused:
            super()._batch(number, window)
            return
        work = self._workspace()
        rows = self.index.chunks[window.first : window.last]
        stored = work.stored[: window.end - window.start]
        self.index.source.read_exact(window.start, memoryview(stored))
        src, dst = offsets(rows, window)
        base = int(work.window.handle)
        if self.direct and self.target:
            base = self.target.address + int(rows["dst_offset"][0])
        submitted = DeviceBatch(
            rows, src + int(work.staging.handle), dst + base, work.actual, work.stream
        )
        outcome = self.engine.submit(submitted).wait()
        self.used |= not outcome.code
        batch = HostBatch(rows, src, dst, stored, self._buffer("raw", window.raw_size))
        self._doubt_short_rows(batch, outcome)
        if not outcome.reasons and not self.fetched:
            self._commit_on_device(number, window, outcome, dst, base)
            return
        if outcome.reasons:
            outcome = self._decode_again(batch, outcome)
        else:
            self._fetch(batch, outcome, base, work.stream)
            if outcome.reasons and self.options.on_error == "retry-host":
                outcome = self.host.decode(batch)
        self._commit(number, window, batch, outcome, in_place=False)

    def _doubt_short_rows(self, batch: HostBatch, outcome: Outcome) -> None:
        """Find the sizes of rows on the host that the file does not state.

        A row that fills its slot has the size that it should have. Of a shorter one (the last block
        of an LZ4 frame) nobody can tell whether the engine stopped early.
        """
        short = ~batch.rows["exact"] & (outcome.actual < batch.rows["raw_size"].astype(np.int64))
        doubtful = np.flatnonzero(short & (outcome.status == Status.OK))
        if not doubtful.size or outcome.reasons:
            return
        checked = self.host.decode(batch.take(doubtful))
        good = (checked.status == Status.OK) & (checked.actual == outcome.actual[doubtful])
        for number in np.flatnonzero(~good).tolist():
            row = int(doubtful[number])
            found = checked.reasons.get(number, f"the host decodes {checked.actual[number]}")
            reason = f"the engine reports {outcome.actual[row]} bytes; {found}"
            outcome.fail(row, Status.SIZE, reason)
            outcome.blame[row] = "size"

    def _fetch(self, batch: HostBatch, outcome: Outcome, base: int, stream: Stream) -> None:
        """Copy a window to the host, and check what the host can check."""
        copy(batch.out.ctypes.data, base, batch.out.size, stream)
        with driver.calling("cuStreamSynchronize", "a window on its way to the host"):
            stream.sync()
        if self.options.verify:
            self.host.check(batch, outcome)

    def _decode_again(self, batch: HostBatch, first: Outcome) -> Outcome:
        """Decode a window on the host after the engine failed on some of it."""
        retried = self.options.on_error == "retry-host"
        unsupported = first.code == NOT_SUPPORTED
        if unsupported:
            self.refused = next(iter(first.reasons.values()))
            if self.options.engine == "hardware" and not retried:
                raise EngineUnavailableError(f"the hardware engine does not run: {self.refused}")
        second = self.host.decode(batch)
        if retried or unsupported:
            return second
        # Others of the batch were refused with it, or only may be damaged: the host's word counts.
        for row in first.blame:
            reason = first.reasons[row]
            found = second.reasons.get(
                row, "the host engine decodes it: on_error='retry-host' (--on-error) takes that"
            )
            second.fail(row, Status(first.status[row]), f"{reason} ({found})")
            second.actual[row] = first.actual[row]
        return replace(second, code=first.code, blame=first.blame)

    def _commit_on_device(
        self,
        number: int,
        window: Window,
        outcome: Outcome,
        dst: npt.NDArray[np.int64],
        base: int,
    ) -> None:
        assert self.target is not None
        size = int(outcome.actual.sum())
        with self.turns.turn(number):
            # Of bytes on the device only the number is known here.
            unseen = np.broadcast_to(np.zeros(1, np.uint8), size)
            self.spans.feed_rows(window.first, outcome.actual, unseen)
            rows = self.index.chunks[window.first : window.last]
            self.unverified.update(rows["checksum_kind"].tolist())
            offset = self._advance(size)
            self.stored_position = window.end
        if self.direct:
            return
        self.target.check_room(offset, size)
        for start, to, length in moves(dst, outcome.actual):
            copy(self.target.address + offset + to, base + start, length, self.target.stream())

    def _finished(self, seconds: float) -> Report:
        report = super()._finished(seconds)
        if not self.fetched and self.options.verify:
            self.unverified.update(self.index.spans["checksum_kind"].tolist())
            report.unverified = checksum_counts(self.unverified)
        return report


def _sizes(window: Window) -> tuple[int, int, int]:
    """Return the stored and the decoded bytes of a window, and those of its size words."""
    return window.end - window.start, window.raw_size, 4 * (window.last - window.first)
