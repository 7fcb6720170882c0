"""How long the stages of a load take, and when: what statistics and profilers show.

Stages overlap, so that their seconds add up to more than a load takes. Every stage is also an NVTX
range, where the package ``nvtx`` is installed and a profiler looks (``nvtx`` does nothing else).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["STAGES", "Stage", "Stages"]

#: In the order in which bytes go through them: listing chunks, bringing stored bytes to memory that
#: the device reads, copying them to the device, decoding, undoing filters, computing checksums,
#: fetching decoded bytes from the device, and handing them on to a file or a pipe.
STAGES = ("index", "read", "copy", "decode", "filter", "verify", "fetch", "write")
#: What profilers of CUDA set in the processes that they look into.
_PROFILED = ("NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH", "CUDA_INJECTION64_PATH")


@dataclass
class Stage:
    """What a stage of a load did.

    Attributes
    ----------
    bytes : int
        Stored bytes that were indexed, read or copied; decoded bytes for the other stages.
    seconds : float
        Sum over the threads, or streams of the device, that worked on it.
    intervals : list of (float, float)
        When it was busy, in seconds since the load began; the intervals of different threads and
        streams overlap.
    """

    bytes: int = 0
    seconds: float = 0.0
    intervals: list[tuple[float, float]] = field(default_factory=list)

    @property
    def busy(self) -> float:
        """Seconds in which any thread or stream worked on it."""
        total, end = 0.0, float("-inf")
        for start, stop in sorted(self.intervals):
            total += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return total

    @property
    def rate(self) -> float:
        """Bytes a second while any thread or stream worked on it; 0 if none did."""
        busy = self.busy
        return self.bytes / busy if busy else 0.0


class Stages:
    """The clock of one load; any thread may add to it."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.stages = {name: Stage() for name in STAGES}
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the seconds since the load began."""
        return time.perf_counter() - self.began

    def add(self, name: str, size: int, start: float, stop: float) -> None:
        """Add an interval, in seconds since the load began."""
        stage = self.stages[name]
        with self._lock:
            stage.bytes += size
            stage.seconds += stop - start
            stage.intervals.append((start, stop))

    @contextmanager
    def measure(self, name: str, size: int) -> Iterator[None]:
        """Add the time that a block takes for so many bytes."""
        start = self.now()
        try:
            with self.range(name):
                yield
        finally:
            self.add(name, size, start, self.now())

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Show a block to profilers."""
        ranges = _nvtx()
        if ranges is None:
            yield
            return
        ranges.push_range(name, domain="gpuload")
        try:
            yield
        finally:
            ranges.pop_range(domain="gpuload")

    def used(self) -> dict[str, Stage]:
        """Return the stages that anything went through."""
        return {name: stage for name, stage in self.stages.items() if stage.intervals}


@cache
def _nvtx() -> Any:
    """Return the package nvtx where it is installed and a profiler has told where to send to."""
    if not any(name in os.environ for name in _PROFILED) or not importlib.util.find_spec("nvtx"):
        return None
    return importlib.import_module("nvtx")
