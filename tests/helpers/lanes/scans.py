"""Cases for a kernel that finds headers: a range, a segment of it, and what is known."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuload.engines.scan_plan import SCANS
from tests.helpers.lanes.build import WARPS, Build, program
from tests.helpers.lanes.cases import LanesError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: As `scans.cpp` reads it.
_CASE = struct.Struct("<9I")
UNKNOWN = 0xFFFFFFFF
#: Why a scan stopped.
LEFT, CUT, END, BROKEN, FILLED, NOTHING = range(6)


@dataclass(frozen=True)
class Case:
    """One operation.

    Attributes
    ----------
    name : str
        The format.
    data : bytes
        The range.
    start, end : int
        The segment; the whole range if left out.
    entry : int, optional
        A header.
    longest : int
        Stored bytes of a chunk.
    summed : bool
        Whether each has a checksum.
    room : int
        Bytes for the output.
    at : int
        Remainder by 32 of the address.
    """

    name: str
    data: bytes
    start: int = 0
    end: int | None = None
    entry: int | None = None
    longest: int = 1 << 16
    summed: bool = False
    room: int = 4096
    at: int = 0

    def packed(self) -> bytes:
        """Return what the program reads."""
        end = len(self.data) if self.end is None else self.end
        entry = UNKNOWN if self.entry is None else self.entry
        of_segment = self.start, end, entry, self.longest, self.summed
        head = (SCANS[self.name].algorithm, len(self.data), *of_segment, self.room, self.at)
        return _CASE.pack(*head) + self.data


@dataclass(frozen=True)
class Found:
    """What was found: why the scan stopped, and the records as the kernels write them."""

    stop: int
    first: int
    following: int
    records: list[list[int]]


def run(
    name: str,
    cases: Sequence[Case],
    *,
    lanes: int = 32,
    build: Build = WARPS,
    batch: int = 32,
    order: str = "mixed",
) -> list[Found]:
    """Run the kernel of a format; see `tests.helpers.lanes.cases.run`."""
    executable = program(build, main=("scans.cpp",))
    kernel = f"scan_{name}_{lanes}"
    with tempfile.TemporaryDirectory() as folder:
        given, results = Path(folder, "cases"), Path(folder, "results")
        given.write_bytes(b"".join(case.packed() for case in cases))
        command = [executable, kernel, given, results, str(batch), order]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            raise LanesError(done.returncode, f"{kernel}: {done.stderr or done.returncode}")
        return _unpacked(cases, results.read_bytes())


def run_parallel(name: str, cases: Sequence[Case], **options) -> list[Found]:
    """Run the kernel on cases in as many processes as there are processors."""
    workers = os.cpu_count() or 1
    each = -(-len(cases) // workers)
    parts = [cases[at : at + each] for at in range(0, len(cases), each)]
    with ThreadPoolExecutor(workers) as pool:
        ran = pool.map(lambda part: run(name, part, **options), parts)
        return [found for part in ran for found in part]


def _unpacked(cases: Sequence[Case], results: bytes) -> list[Found]:
    found, at = [], 0
    for case in cases:
        (stop,) = struct.unpack_from("<I", results, at)
        words = np.frombuffer(results, "<u4", case.room // 4, at + 4)
        at += 4 + case.room
        if words.size < 3:
            found.append(Found(stop, UNKNOWN, UNKNOWN, []))
            continue
        size = 1 + SCANS[case.name].words
        count, first, following = words[:3].tolist()
        records = words[3 : 3 + count * size].reshape(-1, size).tolist()
        found.append(Found(stop, first, following, records))
        assert len(records) == count
        behind = results[at - case.room + 4 * (3 + count * size) : at]
        # What chains that broke have left there is of no meaning.
        assert case.entry is None or behind == b"\xcd" * len(behind)
    return found
