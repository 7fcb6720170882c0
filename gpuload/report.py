"""What a run reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuload.chunks import Checksum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuload.errors import ChunkFailure
    from gpuload.stages import Stage

__all__ = ["Report", "WindowStats", "checksum_counts", "joined"]


@dataclass(frozen=True)
class WindowStats:
    """A window that a device decoded.

    Attributes
    ----------
    engine, way : str
        Who decoded it, and how its stored bytes came to the device (see `Report.ways`).
    chunks, stored_size, raw_size : int
        Its rows, and their bytes.
    start, submitted, stop : float
        When it was begun, given to the device, and settled; seconds since the load began.
    """

    engine: str
    way: str
    chunks: int
    stored_size: int
    raw_size: int
    start: float
    submitted: float
    stop: float


@dataclass
class Report:
    """What a run did.

    Attributes
    ----------
    raw_size, stored_size : int
        Decoded bytes, and bytes of the file.
    chunks : int
        Rows of the chunk table.
    failures : list of ChunkFailure
        In the order of the rows: those that were collected or skipped.
    verified, unverified : dict of str to int
        Checksums that agreed, and those that were not looked at, by kind.
    seconds : float
        Wall time.
    engine : str
        Who decoded.
    passed_over : dict of str to str
        For each engine that did not, or not everything, why.
    threads : int
        Worker threads.
    ways : dict of str to int
        How stored bytes came to a device, and how many of them: "mapped" (pages of the file, pinned
        and copied from where they are), "read" (into a staging ring) or "remote" (the same, by
        ranges of an object). Empty if the host decoded.
    stages : dict of str to Stage
        What each stage of the load did, and when (`gpuload.stages.STAGES`).
    windows : list of WindowStats
        The windows that a device decoded.
    peak_host, peak_device : int
        Most bytes of staging and scratch memory at a time, beyond the result.
    unchecked : dict of str to str
        Arrays that `verify` could not look into, and why.
    verified_on : dict of str to int
        How many of the checksums in `verified` were computed by the "device" and by the "host".
    """

    raw_size: int = 0
    stored_size: int = 0
    chunks: int = 0
    failures: list[ChunkFailure] = field(default_factory=list)
    verified: dict[str, int] = field(default_factory=dict)
    unverified: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    engine: str = "host"
    passed_over: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    ways: dict[str, int] = field(default_factory=dict)
    stages: dict[str, Stage] = field(default_factory=dict)
    windows: list[WindowStats] = field(default_factory=list)
    peak_host: int = 0
    peak_device: int = 0
    verified_on: dict[str, int] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)


def checksum_counts(counts: Mapping[int, int]) -> dict[str, int]:
    """Return counts by the name of the kind of checksum, without those that are zero."""
    return {
        Checksum(kind).name.lower(): number
        for kind, number in sorted(counts.items())
        if number and kind != Checksum.NONE
    }


def joined(reports: Sequence[Report]) -> Report:
    """Return what several loads by the host did, one after the other."""
    verified: Counter[str] = Counter()
    unverified: Counter[str] = Counter()
    for report in reports:
        verified.update(report.verified)
        unverified.update(report.unverified)
    return Report(
        raw_size=sum(report.raw_size for report in reports),
        stored_size=sum(report.stored_size for report in reports),
        chunks=sum(report.chunks for report in reports),
        failures=[failure for report in reports for failure in report.failures],
        unchecked={name: why for report in reports for name, why in report.unchecked.items()},
        verified=dict(verified),
        unverified=dict(unverified),
        seconds=sum(report.seconds for report in reports),
        threads=max((report.threads for report in reports), default=1),
    )
