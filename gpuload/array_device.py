"""Load selections of arrays to a device: every part passes one of a few stations.

A thread for each station reads the stored bytes of a part, finds the rows of the chunk table in
them, and submits all the rest to the station's stream (see `gpuload.array_part`). It waits for the
device only before it uses its station again.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpuload import driver
from gpuload.array_copies import (
    CopyWork,
    StreamWork,
    copy_parts,
    copy_shape,
    is_copied,
    stream_shape,
)
from gpuload.array_engines import Engines
from gpuload.array_load import all_counts, useful_threads
from gpuload.array_part import Context, PartWork, held_back
from gpuload.array_plan import Part
from gpuload.array_shape import Limits, parts_of, shape_of
from gpuload.array_stream import streamed
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
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from cuda.core import Buffer, Stream

    from gpuload.array_plan import ArrayPlan
    from gpuload.array_shape import Shape
    from gpuload.destination import Destination
    from gpuload.options import Options
    from gpuload.stations import Station, Stations
    from gpuload.watch import Watch

__all__ = ["load"]

#: Of the memory of a device, and of what is free of it, the share that a load may take for itself
#: if nobody says how much: parts have to be large for many chunks to be decoded at the same time.
_SHARE, _OF_FREE = 64, 8
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
        run = _Run(plans, targets, options, watch, to.device_id)
        run.context.start = to.start(ordered)
        report = _whole(lambda: run.go(ordered), watch)
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


def _whole(go: Callable[[], Report], watch: Watch) -> Report:
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C may come between any two steps there, with a lock held or memory not noted.
        return interruptible(go, watch.cancel)
    return go()


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
        free, total = driver.memory_info(device_id)
        device = max(device, min(total // _SHARE, free // _OF_FREE))
    return Limits(host, device, engines.on_host, engines.scratch)


class _Work(Protocol):
    """What a station does with some bytes; nothing else is done there meanwhile."""

    def submit(self) -> None: ...
    def settle(self) -> None: ...


class _Group(NamedTuple):
    """Plans that are loaded in the same way, and how each is cut into work."""

    plans: list[ArrayPlan]
    shape: Shape
    cut: Callable[[ArrayPlan, Shape], list[Callable[[Station], _Work]]]


class _Run:
    def __init__(
        self,
        plans: Sequence[ArrayPlan],
        targets: Sequence[int],
        options: Options,
        watch: Watch,
        device_id: int,
    ) -> None:
        self._plans, self._options, self._watch = plans, options, watch
        self._device_id, self._stopped = device_id, False
        self.report = Report(
            stored_size=sum(plan.stored_size for plan in plans),
            raw_size=sum(plan.result_size for plan in plans),
            chunks=sum(int((~plan.missing).sum()) for plan in plans),
            threads=reading_threads(options),
        )
        self.context = Context(
            engines=Engines(options, device_id, plans),
            host=HostEngine(replace(options, threads=useful_threads(plans, options))),
            options=options,
            stages=Stages(),
            targets={id(plan): target for plan, target in zip(plans, targets, strict=True)},
            readers=ThreadPoolExecutor(self.report.threads, "gpuload-read"),
            watch=watch,
        )

    def go(self, ordered: Stream) -> Report:
        """Load everything; a stream waits for the end of it."""
        limits = _limits(self._options, self._device_id, self.context.engines)
        most = limits.host, limits.device
        try:
            with driver.on_device(self._device_id):
                for group in self._groups(limits):
                    with stations(self._device_id, group.shape, most) as held:
                        self._load(group, held)
                        self._end(held, ordered)
        finally:
            self.context.close()
        return self._finished()

    def _groups(self, limits: Limits) -> list[_Group]:
        kinds: dict[Callable[..., Any], list[ArrayPlan]] = {}
        for plan in self._plans:
            kinds.setdefault(self._kind(plan), []).append(plan)
        shapes: dict[Callable[..., Any], Callable[[list[ArrayPlan]], Shape]] = {
            self._copies: lambda _: copy_shape(self._options),
            self._streams: lambda plans: stream_shape(plans, self._options, limits),
            self._parts: lambda plans: shape_of(plans, limits),
        }
        return [_Group(plans, shapes[cut](plans), cut) for cut, plans in kinds.items()]

    def _kind(self, plan: ArrayPlan) -> Callable[..., Any]:
        """Return what cuts a plan into work."""
        if is_copied(plan, self._options):
            return self._copies
        on_host = self.context.engines.on_host and plan.missing.size
        return self._streams if on_host and streamed(plan).all() else self._parts

    def _streams(self, plan: ArrayPlan, _: Shape) -> list[Callable[[Station], _Work]]:
        chunks = [Part(plan, number, number + 1) for number in range(plan.missing.size)]
        return [partial(StreamWork, self.context, chunk) for chunk in chunks]

    def _copies(self, plan: ArrayPlan, shape: Shape) -> list[Callable[[Station], _Work]]:
        pieces = copy_parts(plan, self.context.targets[id(plan)], shape.stored)
        return [partial(CopyWork, self.context, piece) for piece in pieces]

    def _parts(self, plan: ArrayPlan, shape: Shape) -> list[Callable[[Station], _Work]]:
        return [partial(PartWork, self.context, part) for part in parts_of(plan, shape)]

    def _load(self, group: _Group, held: Stations) -> None:
        self.context.engines.start(held)
        works = [work for plan in group.plans for work in group.cut(plan, held.shape)]
        numbers = count()
        workers: list[Future[None]] = []
        pool = ThreadPoolExecutor(len(held.all), "gpuload-station")
        try:
            for station in held.all:
                workers.append(pool.submit(self._work, station, works, numbers))  # noqa: PERF401
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
            del workers[:]

    def _end(self, held: Stations, ordered: Stream) -> None:
        report, engines = self.report, self.context.engines
        report.peak_host = max(report.peak_host, held.on_host)
        report.peak_device = max(report.peak_device, held.on_device(engines.used))
        with driver.calling("cuStreamWaitEvent", "the end of a load"):
            for station in held.all:
                ordered.wait(station.record())

    def _give_up(self) -> None:
        """Let reads end that wait for a network; only called after something went wrong."""
        self._plans[0].store.cancel()

    def _work(
        self, station: Station, works: list[Callable[[Station], _Work]], numbers: Iterator[int]
    ) -> None:
        """Take work until there is none left."""
        before: _Work | None = None
        try:
            with driver.on_device(self._device_id):
                if self.context.start is not None:
                    station.wait_for(self.context.start)
                while not self._stopped and (number := next(numbers)) < len(works):
                    self._watch.check()
                    if before is not None:
                        before.settle()
                    before = works[number](station)
                    before.submit()
                if before is not None and not self._stopped:
                    before.settle()
        except BaseException:
            self._stopped = True
            with driver.on_device(self._device_id):
                # Nothing may be left that uses memory which is freed next.
                held_back(station)
            raise

    def _finished(self) -> Report:
        context, report = self.context, self.report
        context.engines.finish()
        report.verified = all_counts(context.verified, context.stored_sums)
        report.unverified = checksum_counts(context.unverified)
        report.verified_on = {where: n for where, n in context.verified_on.items() if n}
        report.failures = sorted(context.failures, key=lambda each: (each.asset, each.chunk))
        report.engine = ", ".join(sorted(context.engines.used)) or "host"
        report.passed_over = context.engines.passed_over
        report.windows = sorted(context.windows, key=lambda each: each.start)
        report.ways = {"read": report.stored_size} if report.stored_size else {}
        report.stages, report.seconds = context.stages.used(), context.stages.now()
        return report
