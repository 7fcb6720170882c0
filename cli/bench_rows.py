"""What ``gpuload bench FILE...`` measures of a file, in which order."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from gpuload.errors import FormatWarning

from . import bench_references
from .bench_clock import digest
from .bench_loads import Load, open_file, plan_loads
from .bench_loads import measure as measure_load
from .messages import warn

if TYPE_CHECKING:
    from collections.abc import Generator

    from gpuload.arrays import Array

    from .bench_loads import Plan

    Record = dict[str, Any]

__all__ = ["measure"]


def measure(file: str, plan: Plan, facts: Record) -> Generator[Record]:
    """Measure loads of a file and what they are compared with; yield a record for each.

    Parameters
    ----------
    file : str
        As it stands on the command line.
    plan : Plan
        What to measure.
    facts : dict
        Gets what the file is before the first record is yielded.

    Raises
    ------
    GpuloadError, OSError, MemoryError
        If the host can't decode the file.
    """
    content = _decode(file, plan, facts)
    checksum = digest(content)
    with bench_references.raw_file(content, checksum, plan.raw_limit) as raw:
        del content  # the loads need the room
        for load in plan_loads(plan, file):
            yield measure_load(load, file, plan, checksum)
        yield from bench_references.measure(raw, plan)


def _decode(file: str, plan: Plan, facts: Record) -> Array:
    """Return what the host decodes, which everything is compared with."""
    with open_file(file, plan, Load("host", None, None)) as container:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FormatWarning)
            content = container.load()
        warn(container.warnings)
        stored, raw = container.stored_size, content.nbytes
        facts.update(
            format=container.format,
            chunks=container.chunks.size,
            batchable=container.batchable,
            stored_size=stored,
            raw_size=raw,
            ratio=raw / stored if stored else None,
        )
    return content
