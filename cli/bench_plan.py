"""What ``gpuload bench kernels`` is asked to measure, and the machine that it does it on."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gpuload
from gpuload import devices, driver
from gpuload.errors import DriverError, EngineUnavailableError

from .bench import ENGINES
from .engines import engine_unavailable
from .messages import human_size

Record = dict[str, Any]

__all__ = ["Plan", "describe", "device_facts", "find_device", "versions"]

#: A content of fewer caches than this would stay in them.
_CACHES = 4
_PACKAGES = (
    "cuda-bindings",
    "cuda-core",
    "nvidia-cuda-nvrtc",
    "nvidia-libnvcomp-cu13",
    "nvidia-libnvcomp-cu12",
    "numpy",
    "cramjam",
    "deflate",
    "lz4",
    "zstandard",
)


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes
    ----------
    codecs, data : tuple of str
        Names of codecs and of data sets.
    chunk_sizes : tuple of int
        In bytes.
    chunks : tuple of int or None
        How many chunks a batch; None for all.
    engines : tuple of str
        By name; none stands for all there are.
    size : int
        Bytes of each data set.
    repeats, threads : int
        Runs of each measurement, and threads of the host.
    mapped : bool
        Whether stored chunks stay in host memory.
    """

    codecs: tuple[str, ...]
    data: tuple[str, ...]
    chunk_sizes: tuple[int, ...]
    chunks: tuple[int | None, ...]
    engines: tuple[str, ...]
    size: int
    repeats: int
    threads: int
    mapped: bool

    def counts(self, total: int) -> list[int]:
        """Return the batches of `total` chunks to measure, each once."""
        counts = (total if count is None else min(count, total) for count in self.chunks)
        return list(dict.fromkeys(counts))


def find_device(number: int | None) -> int:
    """Return the device to measure.

    Raises
    ------
    EngineUnavailableError
        If there is no GPU here, or not the one that is asked for.
    """
    try:
        found = devices.find_device(number)
    except DriverError as error:
        raise EngineUnavailableError(f"there is no GPU to measure: {error}") from None
    if found is None:
        raise EngineUnavailableError(f"there is no GPU to measure: {driver.unavailable()}")
    return found


def describe(plan: Plan, device_id: int) -> Record:
    """Return a report without measurements: the machine, the columns, what is missing.

    Raises
    ------
    EngineUnavailableError
        If an engine that is asked for by name can't run here.
    """
    wanted = plan.engines or ENGINES
    reasons = {name: reason for name, reason in _unavailable(device_id).items() if name in wanted}
    if plan.engines and reasons:
        name, reason = next(iter(reasons.items()))
        raise EngineUnavailableError(f"the {name} engine cannot run here: {reason}")
    cache = driver.device(device_id).properties.l2_cache_size
    return {
        "gpuload": gpuload.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": {"number": device_id, "l2_cache": cache, **device_facts(device_id)},
        "versions": versions(),
        "plan": asdict(plan),
        "columns": [*(name for name in ENGINES if name in {*wanted} - {*reasons}), "copy"],
        "unavailable": reasons,
        "notes": _notes(plan.size, cache),
    }


def _unavailable(device_id: int) -> dict[str, str]:
    """Return why engines can't be measured on a device, for those of `ENGINES` that can't."""
    on_device = (name for name in ENGINES if name != "host")
    reasons = {name: engine_unavailable(name, device_id, trusted=True) for name in on_device}
    return {name: reason for name, reason in reasons.items() if reason}


def _notes(size: int, cache: int) -> list[str]:
    if size >= _CACHES * cache:
        return []
    sizes = human_size(size), human_size(cache)
    return ["{} may stay in the device's cache of {}: give a larger --size".format(*sizes)]


def device_facts(device_id: int) -> Record:
    """Return what a device and its driver are."""
    known = driver.capabilities(device_id)
    return {
        "name": known.name,
        "compute_capability": "{}.{}".format(*known.compute_capability),
        "cuda": "{}.{}".format(*known.driver_version),
        "driver": _driver_version(),
        "memory": known.total_memory,
    }


def _driver_version() -> str | None:
    """Return the version of Linux's kernel module; the driver's library only tells CUDA's."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def versions(*more: str) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in (*_PACKAGES, *more):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
