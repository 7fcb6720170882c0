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
from gpuload.array_engines import Engines
from gpuload.array_part import Context, PartWork, held_back
from gpuload.device_array import DeviceArray, allocate
from gpuload.engines.host import HostEngine
from gpuload.errors import MemoryLimitError
from gpuload.report import Report, checksum_counts
from gpuload.stages import Stages
from gpuload.staging import reading_threads
from gpuload.stations import stations
from gpuload.turns import interruptible, join

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from cuda.core import Buffer, Stream

    from gpuload.array_plan import ArrayPlan, Part
    from gpuload.destination import Destination
    from gpuload.options import Options
    from gpuload.stations import Station, Stations
    from gpuload.watch import Watch

__all__ = ["load"]

#: Stations, and pieces of memory that each has on the device.
_STATIONS, _PIECES = 4, 3
#: What memory from cuMemCreate is taken in.
_UNIT = 2 << 20
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
        count, size = _shape(plans, options)
        with stations(to.device_id, count, size) as held:
            run = _Run(plans, targets, held, options, watch)
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


def _shape(plans: Sequence[ArrayPlan], options: Options) -> tuple[int, int]:
    """Return how many stations there are memory for, and the bytes of each piece of theirs."""
    most = max((plan.largest_chunk for plan in plans), default=0)
    piece = options.memory_limit // (_STATIONS * _PIECES)
    need = -(-max(most, 1) // _UNIT) * _UNIT
    if need <= piece:
        return _STATIONS, max(_UNIT, piece // _UNIT * _UNIT)
    number = options.memory_limit // (_PIECES * need)
    if not number:
        raise MemoryLimitError(
            f"{plans[0].name}: a chunk of {most} bytes needs {_PIECES * need} bytes of memory on "
            f"the device, memory_limit is {options.memory_limit}; raise it (--memory-limit)"
        )
    return number, need


class _Run:
    def __init__(
        self,
        plans: Sequence[ArrayPlan],
        targets: Sequence[int],
        held: Stations,
        options: Options,
        watch: Watch,
    ) -> None:
        self._held, self._options, self._watch = held, options, watch
        self._stopped = False
        self._parts: list[Part] = [part for plan in plans for part in plan.parts(held.size)]
        self.report = Report(
            stored_size=sum(plan.stored_size for plan in plans),
            raw_size=sum(plan.result_size for plan in plans),
            chunks=sum(int((~plan.missing).sum()) for plan in plans),
            threads=reading_threads(options),
            peak_host=held.on_host,
            peak_device=held.on_device,
        )
        self._stages = Stages()
        self.context = Context(
            held=held,
            engines=Engines(held, options, plans),
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
        pool = ThreadPoolExecutor(self._held.count, "gpuload-station")
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
        before: PartWork | None = None
        try:
            with driver.on_device(self._held.device_id):
                if self.context.start is not None:
                    station.wait_for(self.context.start)
                while not self._stopped and (number := next(numbers)) < len(self._parts):
                    self._watch.check()
                    if before is not None:
                        before.settle()
                    before = PartWork(self.context, station, self._parts[number])
                    before.submit()
                if before is not None and not self._stopped:
                    before.settle()
        except BaseException:
            self._stopped = True
            with driver.on_device(self._held.device_id):
                # Nothing may be left that uses memory which is freed next.
                held_back(station)
            raise

    def _finished(self) -> Report:
        context, report = self.context, self.report
        context.engines.finish()
        report.verified = checksum_counts(context.verified)
        report.unverified = checksum_counts(context.unverified)
        report.verified_on = {where: n for where, n in context.verified_on.items() if n}
        report.failures = sorted(context.failures, key=lambda each: (each.asset, each.chunk))
        report.engine = ", ".join(sorted(context.engines.used)) or "host"
        report.passed_over = context.engines.passed_over
        report.windows = sorted(context.windows, key=lambda each: each.start)
        report.ways = {"read": report.stored_size} if report.stored_size else {}
        report.stages, report.seconds = self._stages.used(), self._stages.now()
        return report
