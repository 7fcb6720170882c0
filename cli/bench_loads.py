"""Loads of one file that ``gpuload bench FILE...`` times: by every engine, on every way."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gpuload
from gpuload import driver
from gpuload.errors import EngineUnavailableError, FormatWarning
from gpuload.loader import Job
from gpuload.options import ENGINES, WAYS, Options
from gpuload.watch import Watch

from .bench_clock import Runs, digest
from .engines import engine_unavailable
from .inputs import open_input, require_stream
from .messages import FAILURES, describe

if TYPE_CHECKING:
    from gpuload.arrays import Array
    from gpuload.container import Container
    from gpuload.report import Report

Record = dict[str, Any]

__all__ = ["Load", "Plan", "complete", "measure", "open_file", "plan_loads", "unavailable"]


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes
    ----------
    engines, ways : tuple of str
        By name; none stands for all there are.
    repeats : int
        Runs of each measurement, after one that does not count.
    raw_limit : int
        Most bytes of the decompressed copy that the references read.
    options : dict
        Fields of `gpuload.options.Options` for all loads.
    device_id : int or None
        The device to load to; None on a machine without one.
    """

    engines: tuple[str, ...]
    ways: tuple[str, ...]
    repeats: int
    raw_limit: int
    options: Record
    device_id: int | None


@dataclass(frozen=True)
class Load:
    """An engine, a way for it, and the device to load to; None is host memory."""

    engine: str
    way: str | None
    device_id: int | None

    @property
    def facts(self) -> Record:
        """What a record of it begins with."""
        return {
            "kind": "load",
            "name": self.engine,
            "way": self.way,
            "to": "cpu" if self.device_id is None else f"cuda:{self.device_id}",
        }

    @property
    def options(self) -> Record:
        """Fields of `gpuload.options.Options`."""
        return {
            "engine": self.engine,
            "device": "cpu" if self.device_id is None else self.device_id,
            **({"way": self.way} if self.way else {}),
            # Without it, nvCOMP would work behind guards, and not as fast as it can.
            **({"trusted": True} if self.engine == "nvcomp" else {}),
        }


def unavailable(plan: Plan) -> dict[str, str]:
    """Return why engines can't run here, for those that can't and are wanted.

    Raises
    ------
    EngineUnavailableError
        If one of them was asked for by name.
    """
    wanted = plan.engines or ENGINES
    on_device = (name for name in ENGINES if name in wanted and name != "host")
    reasons = {name: _unavailable(name, plan.device_id) for name in on_device}
    reasons = {name: reason for name, reason in reasons.items() if reason}
    if plan.engines and reasons:
        name, reason = next(iter(reasons.items()))
        raise EngineUnavailableError(f"the {name} engine cannot run here: {reason}")
    return reasons


def _unavailable(engine: str, device_id: int | None) -> str:
    if device_id is None:
        return driver.unavailable()
    return engine_unavailable(engine, device_id, trusted=True)


def plan_loads(plan: Plan, file: str) -> list[Load]:
    """Return the loads to measure, whether or not the engines take the file."""
    left_out = unavailable(plan)
    engines = [name for name in ENGINES if name in (plan.engines or ENGINES)]
    ways = WAYS if "://" not in file else ("read",)
    chosen = [way for way in ways if not plan.ways or way in plan.ways]
    loads = [
        Load(engine, way, plan.device_id)
        for engine in engines
        if engine != "host" and engine not in left_out
        for way in chosen
    ]
    if "host" in engines:
        targets = dict.fromkeys((plan.device_id, None))
        loads += [Load("host", None, target) for target in targets]
    return loads


def open_file(file: str, plan: Plan, load: Load) -> Container:
    """Open a file as a load does."""
    return require_stream(gpuload.open(open_input(file), **plan.options, **load.options))


def measure(load: Load, file: str, plan: Plan, expected: str) -> Record:
    """Return what a load took, or why the engine does not take the file.

    Parameters
    ----------
    load : Load
        The load.
    file : str
        As it stands on the command line.
    plan : Plan
        How often, and with which options.
    expected : str
        The digest of the right bytes.
    """
    record = {**load.facts, "left_out": _refusal(load, file, plan), "error": ""}
    if record["left_out"]:
        return record
    runs = Runs()
    try:
        array, _ = _once(load, file, plan, Runs())
        if digest(array) != expected:
            return record | {"error": "the decoded bytes are not those that the host decodes"}
        del array  # two at a time may be more than there is memory for
        reports = [_once(load, file, plan, runs)[1] for _ in range(plan.repeats)]
    except FAILURES as error:
        return record | {"error": "\n".join(describe(error))}
    report = reports[runs.middle]
    return record | runs.record(report.raw_size) | _facts(report)


def _refusal(load: Load, file: str, plan: Plan) -> str:
    if load.engine == "host":
        return ""
    try:
        with open_file(file, plan, load) as container:
            container.explain()
    except EngineUnavailableError as error:
        return str(error)
    return ""


def _once(load: Load, file: str, plan: Plan, runs: Runs) -> tuple[Array, Report]:
    with warnings.catch_warnings():
        # What is odd about the file was said when it was decoded for comparison.
        warnings.simplefilter("ignore", FormatWarning)
        with runs.measure():
            # What `gpuload.load` does, which may list a file while it loads it.
            options = Options(**plan.options, **load.options)
            job = Job(open_input(file), None, None, None, None, options)
            array = job.run(Watch())
            complete(load.device_id)
    assert job.report is not None
    return array, job.report


def complete(device_id: int | None) -> None:
    """Wait until a load to a device is complete there."""
    if device_id is not None:
        with driver.on_device(device_id), driver.calling("cuStreamSynchronize", "a load"):
            driver.device(device_id).default_stream.sync()


def _facts(report: Report) -> Record:
    return {
        "raw_size": report.raw_size,
        "engine": report.engine,
        "passed_over": report.passed_over,
        "threads": report.threads,
        "ways": report.ways,
        "peak_host": report.peak_host,
        "peak_device": report.peak_device,
        "verified": report.verified,
        "unverified": report.unverified,
        "verified_on": report.verified_on,
        "windows": [dataclasses.asdict(window) for window in report.windows],
        "stages": {
            name: {**dataclasses.asdict(stage), "busy": stage.busy, "rate": stage.rate}
            for name, stage in report.stages.items()
        },
    }
