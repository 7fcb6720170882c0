"""Scans for headers without a device: the kernels' sources on the CPU, on memory of the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpuload.containers import read_index
from gpuload.engines import operations
from gpuload.engines.scan_plan import SCANS, SEGMENT, ScanPlan
from gpuload.feeds import Placing
from gpuload.irregular import IrregularError
from gpuload.options import Options
from gpuload.scanned import ScannedFeed
from gpuload.sources import BytesSource
from gpuload.stages import Stages
from tests.helpers.lanes import build

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.containers.base import Index
    from gpuload.engines.scan_plan import Scan

__all__ = ["HostScans", "feed_of", "irregular", "listed", "placed", "verify"]


@dataclass
class _Done:
    scan: Scan

    def wait(self) -> Scan:
        return self.scan


class HostScans:
    """As `gpuload.engines.scans.DeviceScans`.

    Parameters
    ----------
    segment : int
        Bytes of a segment.
    lanes : int
        Threads for each.
    """

    def __init__(self, segment: int = SEGMENT, lanes: int = 1) -> None:
        self.segment, self.lanes = segment, lanes
        self.entries: list[int | None] = []

    def submit(
        self,
        name: str,
        address: int,
        size: int,
        stream: object,
        *,
        entry: int | None,
        longest: int,
        summed: bool,
    ) -> _Done:
        """Look through a range."""
        self.entries.append(entry)
        plan = ScanPlan(SCANS[name], size, self.segment)
        # What memory that is used again holds.
        memory = np.full(plan.size, 0xEE, np.uint8)
        params = plan.params(address, memory.ctypes.data, entry, longest, summed=summed)
        statuses = np.full(plan.count, operations.NOT_WRITTEN, np.uint32)
        arrays = params.ctypes.data, plan.count, statuses.ctypes.data
        library = build.shared_library(build=build.NATIVE if self.lanes == 1 else build.PLAIN)
        kernel = f"{SCANS[name].variant.codec}_{self.lanes}".encode()
        shape = (
            (plan.count, 1) if self.lanes == 1 else (SCANS[name].variant.blocks(plan.count), 128)
        )
        assert library.lanes_launch_grid(kernel, *shape, *arrays) == 0, library.lanes_error()
        assert (statuses <= 5).all()
        return _Done(self.changed(plan.found(statuses, memory)))

    def changed(self, scan: Scan) -> Scan:
        """Return what is told to have been found."""
        return scan


def feed_of(data: bytes, size: int, scans: HostScans, options: Options) -> ScannedFeed:
    """Return the feed of a file."""
    return ScannedFeed(BytesSource(data), options, size, scans, Stages())


def listed(
    feed: ScannedFeed, data: bytes, ahead: int = 1
) -> tuple[list[tuple[ChunkTable, bool]], Index]:
    """Let all ranges arrive, so many before their rows are asked for; return rows and index."""
    # Without a copy, so that nothing behind it may be read.
    memory = np.frombuffer(data, np.uint8)
    ranges = list(feed.ranges())
    found = []
    for number in range(len(ranges) + ahead - 1):
        if number < len(ranges):
            feed.arrived(number, memory.ctypes.data + ranges[number][0], None)
        if number >= ahead - 1:
            found.append(feed.rows(number - ahead + 1))
    return found, feed.index()


def placed(index: Index) -> npt.NDArray[np.void]:
    """Return the rows of a file with the places that they get before their sizes are known."""
    rows = index.chunks.copy()
    Placing().place(rows, index.spans)
    return rows


def verify(
    data: bytes,
    size: int,
    scans: HostScans | None = None,
    *,
    options: Options | None = None,
    ahead: int = 1,
) -> list[tuple[ChunkTable, bool]]:
    """List a file as a load does; the rows must be those of its reader."""
    scans, options = scans or HostScans(1024), options or Options()
    expected = read_index(BytesSource(data), options)
    found, index = listed(feed_of(data, size, scans, options), data, ahead)
    rows = np.concatenate([each for each, _ in found])
    assert rows.tolist() == placed(expected).tolist()
    assert [last for _, last in found] == [False] * (len(found) - 1) + [True]
    check_ranges(found, len(data), size)
    # What follows the last frame of Zstandard may fill ranges of its own.
    assert found[-1][0].size or expected.details.get("skippable_frames")
    assert index.chunks.tolist() == expected.chunks.tolist()
    assert index.spans.tolist() == expected.spans.tolist()
    for name in ("format", "details", "warnings", "serial", "strict", "assets"):
        assert getattr(index, name) == getattr(expected, name)
    return found


def check_ranges(found: list[tuple[ChunkTable, bool]], whole: int, size: int) -> None:
    """Rows end in their range."""
    for number, (rows, _) in enumerate(found):
        end = min((number + 1) * size, whole)
        assert (rows["offset"] + rows["stored_size"] <= end).all()


def irregular(data: bytes, *sizes: int, options: Options | None = None) -> None:
    """Check that a device does not list a file."""
    for size in sizes or (4096, 1 << 20):
        with pytest.raises(IrregularError):
            listed(feed_of(data, size, HostScans(1024), options or Options()), data)
