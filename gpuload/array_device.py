"""Load selections of arrays to a device: every part passes one of a few stations.

A thread for each station reads the stored bytes of a part, finds the rows of the chunk table in
them, and submits all the rest to the station's stream (see `gpuload.array_part`). It waits for the
device only before it uses its station again.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.array_copies import CopyPart, CopyWork, are_copied, copy_parts, copy_shape
from gpuload.array_engines import Engines
from gpuload.array_part import Context, PartWork, held_back
from gpuload.array_plan import Part
from gpuload.array_shape import Limits, parts_of, shape_of
from gpuload.device_array import DeviceArray, allocate
from gpuload.engines.host import HostEngine
from gpuload.errors import MemoryLimitError
from gpuload.options import DEFAULT_MEMORY_LIMIT
from gpuload.report import Report, checksum_counts
from gpuload.stages import Stages
from gpuload.staging import reading_threads
from gpuload.stations import stations
from gpuload.turns import interruptible, join

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from cuda.core import Buffer, Stream

    from gpuload.array_plan import ArrayPlan
    from gpuload.destination import Destination
    from gpuload.options import Options
    from gpuload.stations import Station, Stations
    from gpuload.watch import Watch

__all__ = ["load"]

#: Of the memory of a device, what a load may take for itself if nobody says how much: parts have to
#: be large for many chunks to be decoded at the same time.
_SHARE = 64
_INTERVAL = 0.1


def load(
    plans: Sequence[ArrayPlan], options: Options, to: Destination, watch: Watch
) -> tuple[list[DeviceArray], Report]:
    """Load selections to a device, which is current.

    Parameters
    ----------
    plans : sequence of ArrayPlan
        Selections.
    options : Options
        All of them matter.
    to : Destination
        Where to; an array that is given there is for the only plan.
    watch : Watch
        Can end the load.

    Returns
    -------
    arrays : list of DeviceArray
        One for each plan.
    report : Report
        What was done.

    Raises
    ------
    GpuloadError, OSError
        As `gpuload.array_load.load` does.
    DriverError
        If the device fails.
    """
    ordered = to.ordered()
    with ExitStack() as undo:
        targets, owners = _targets(plans, to, ordered, undo)
        start = to.start(ordered)
        engines = Engines(options, to.device_id, plans)
        limits = _limits(options, to.device_id, engines)
        copied = are_copied(plans, options)
        shape = copy_shape(options) if copied else shape_of(plans, limits)
        with stations(to.device_id, shape, (limits.host, limits.device)) as held:
            run = _Run(plans, targets, held, engines, options, watch, copied=copied)
            run.context.start = start
            report = _whole(run, watch)
            with driver.calling("cuStreamWaitEvent", "the end of a load"):
                for station in held.all:
                    ordered.wait(station.record())
        undo.pop_all()
    return [
        DeviceArray(
            target,
            plan.selection.shape,
            plan.asset.dtype,
            device_id=to.device_id,
            stream=ordered,
            owner=owner,
        )
        for plan, target, owner in zip(plans, targets, owners, strict=True)
    ], report


def _whole(run: _Run, watch: Watch) -> Report:
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C may come between any two steps there, with a lock held or memory not noted.
        return interruptible(run.go, watch.cancel)
    return run.go()


def _targets(
    plans: Sequence[ArrayPlan], to: Destination, ordered: Stream, undo: ExitStack
) -> tuple[list[int], list[object]]:
    """Return the addresses of the results, and what keeps their memory."""
    if to.out is not None:
        (plan,) = plans
        shape = tuple(to.out.__cuda_array_interface__["shape"])
        if shape != plan.selection.shape:
            raise ValueError(
                f"out has the shape {shape}, what is selected of {plan.name} {plan.selection.shape}"
            )
        return [to.memory(plan.asset)[0]], [to.out]
    buffers: list[Buffer] = []
    for plan in plans:
        buffers.append(_allocate(plan, to.device_id, ordered))
        undo.callback(buffers[-1].close)
    return [int(buffer.handle) for buffer in buffers], list(buffers)


def _allocate(plan: ArrayPlan, device_id: int, ordered: Stream) -> Buffer:
    try:
        return allocate(max(1, plan.result_size), device_id, ordered)
    except MemoryLimitError as error:
        raise MemoryLimitError(
            f"{plan.name}: {plan.result_size} bytes are selected: {error}; select less of it at a "
            "time, or load to host memory (device='cpu')"
        ) from error


def _limits(options: Options, device_id: int, engines: Engines) -> Limits:
    """Return what a load may take; a default is no bound that somebody has set for a device."""
    host = device = options.memory_limit
    if host == DEFAULT_MEMORY_LIMIT:
        device = max(device, driver.capabilities(device_id).total_memory // _SHARE)
    return Limits(host, device, engines.on_host, engines.scratch)


class _Run:
    def __init__(
        self,
        plans: Sequence[ArrayPlan],
        targets: Sequence[int],
        held: Stations,
        engines: Engines,
        options: Options,
        watch: Watch,
        *,
        copied: bool,
    ) -> None:
        self._held, self._options, self._watch = held, options, watch
        self._stopped = False
        self._parts: list[Part | CopyPart] = []
        for plan, target in zip(plans, targets, strict=True):
            if copied:
                self._parts += copy_parts(plan, target, held.shape.stored)
            else:
                self._parts += parts_of(plan, held.shape)
        engines.start(held)
        self.report = Report(
            stored_size=sum(plan.stored_size for plan in plans),
            raw_size=sum(plan.result_size for plan in plans),
            chunks=sum(int((~plan.missing).sum()) for plan in plans),
            threads=reading_threads(options),
        )
        self._stages = Stages()
        self.context = Context(
            held=held,
            engines=engines,
            host=HostEngine(options),
            options=options,
            stages=self._stages,
            targets={id(plan): target for plan, target in zip(plans, targets, strict=True)},
            readers=ThreadPoolExecutor(self.report.threads, "gpuload-read"),
        )

    def go(self) -> Report:
        """Load everything."""
        numbers = count()
        workers: list[Future[None]] = []
        pool = ThreadPoolExecutor(len(self._held.all), "gpuload-station")
        try:
            for station in self._held.all:
                workers.append(pool.submit(self._work, station, numbers))  # noqa: PERF401
            while wait(workers, timeout=_INTERVAL).not_done:
                self._watch.check()
        except BaseException:
            self._stopped = True
            raise
        finally:
            join(pool, workers, self._give_up)
            self.context.close()
        try:
            for worker in workers:
                worker.result()
        finally:
            # An error's traceback holds this frame, and a future its error: a cycle.
            del workers[:]
        return self._finished()

    def _give_up(self) -> None:
        """Let reads end that wait for a network; only called after something went wrong."""
        for part in self._parts[:1]:
            part.plan.store.cancel()

    def _work(self, station: Station, numbers: Iterator[int]) -> None:
        """Take parts until there are none left."""
        before: PartWork | CopyWork | None = None
        try:
            with driver.on_device(self._held.device_id):
                if self.context.start is not None:
                    station.wait_for(self.context.start)
                while not self._stopped and (number := next(numbers)) < len(self._parts):
                    self._watch.check()
                    if before is not None:
                        before.settle()
                    before = self._work_of(station, self._parts[number])
                    before.submit()
                if before is not None and not self._stopped:
                    before.settle()
        except BaseException:
            self._stopped = True
            with driver.on_device(self._held.device_id):
                # Nothing may be left that uses memory which is freed next.
                held_back(station)
            raise

    def _work_of(self, station: Station, part: Part | CopyPart) -> PartWork | CopyWork:
        if isinstance(part, Part):
            return PartWork(self.context, station, part)
        return CopyWork(self.context, station, part)

    def _finished(self) -> Report:
        context, report = self.context, self.report
        context.engines.finish()
        report.verified = checksum_counts(context.verified)
        report.unverified = checksum_counts(context.unverified)
        report.verified_on = {where: n for where, n in context.verified_on.items() if n}
        report.failures = sorted(context.failures, key=lambda each: (each.asset, each.chunk))
        report.engine = ", ".join(sorted(context.engines.used)) or "host"
        report.peak_host = self._held.on_host
        report.peak_device = self._held.on_device(context.engines.used)
        report.passed_over = context.engines.passed_over
        report.windows = sorted(context.windows, key=lambda each: each.start)
        report.ways = {"read": report.stored_size} if report.stored_size else {}
        report.stages, report.seconds = self._stages.used(), self._stages.now()
        return report
