"""The machine that ``gpuload bench FILE...`` runs on, and what it can't measure there."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import gpuload
from gpuload import devices, driver
from gpuload.errors import DriverError, EngineUnavailableError
from gpuload.options import available_cpus

from .bench_loads import unavailable
from .bench_plan import device_facts, versions

if TYPE_CHECKING:
    from .bench_loads import Plan

Record = dict[str, Any]

__all__ = ["describe_machine", "find_device"]

#: What there may be besides gpuload's own dependencies.
_PACKAGES = ("kvikio-cu13", "kvikio-cu12", "matplotlib")


def find_device(number: int | None) -> int | None:
    """Return the device to load to; None if there is none and none was asked for.

    Raises
    ------
    EngineUnavailableError
        If the one that is asked for is not here.
    """
    try:
        return devices.find_device(number)
    except DriverError as error:
        raise EngineUnavailableError(str(error)) from None


def describe_machine(plan: Plan) -> Record:
    """Return a report without measurements.

    Raises
    ------
    EngineUnavailableError
        If an engine that is asked for by name can't run here.
    """
    reasons = unavailable(plan)
    number = plan.device_id
    return {
        "gpuload": gpuload.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": available_cpus(),
        "device": None if number is None else {"number": number, **device_facts(number)},
        "no_device": driver.unavailable() if number is None else "",
        "versions": versions(*_PACKAGES),
        "plan": asdict(plan),
        "unavailable": {} if number is None else reasons,
        "files": [],
    }
