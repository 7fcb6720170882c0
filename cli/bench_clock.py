"""Runs of one measurement: their wall time, and how many CPU cores they kept busy."""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.arrays import Array

__all__ = ["Runs", "digest"]

#: A clock may be too coarse for a tiny run.
_SHORTEST = 1e-9


@dataclass
class Runs:
    """What runs took.

    Attributes
    ----------
    seconds, cpu_seconds : list of float
        Of each run: wall time, and the time of all CPUs in all threads of this process.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Add a run."""
        began, cpu_began = time.perf_counter(), time.process_time()
        yield
        # The CPU's clock first: reading it is a system call, which is not to count for it.
        cpu_seconds = time.process_time() - cpu_began
        self.seconds.append(max(_SHORTEST, time.perf_counter() - began))
        self.cpu_seconds.append(cpu_seconds)

    @property
    def middle(self) -> int:
        """Which run is the median one, the faster of two."""
        return self.seconds.index(statistics.median_low(self.seconds))

    def record(self, size: int) -> dict[str, Any]:
        """Return the measurements of runs that moved so many bytes each."""
        median, middle = statistics.median(self.seconds), self.middle
        return {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "median": median,
            "gb_per_s": size / median / 1e9,
            "busy_cores": self.cpu_seconds[middle] / self.seconds[middle],
        }


def digest(array: Array) -> str:
    """Return a checksum of an array's bytes, wherever they are (XXH3, 128 bits)."""
    return xxhash.xxh3_128_hexdigest(array.to_host())
