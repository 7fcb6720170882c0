"""Cases for a kernel of checksums: bytes, their alignment, and what tells how many there are."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuload.batch import SUMS
from tests.helpers.lanes.build import WARPS, Build, program
from tests.helpers.lanes.cases import LanesError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuload.chunks import Checksum

#: As `sums.cpp` reads it.
_CASE = struct.Struct("<IIIIBBxx")


@dataclass(frozen=True)
class Case:
    """One operation.

    Attributes
    ----------
    kind : Checksum
        Which checksum.
    data : bytes
        What the kernel may read.
    at : int
        Remainder by 16 of its address.
    actual : int, optional
        The decoded size of the chunk that `data` is a part of; all of it is summed up if None.
    before : int
        Where in the chunk the part starts.
    """

    kind: Checksum
    data: bytes
    at: int = 0
    actual: int | None = None
    before: int = 0

    def packed(self) -> bytes:
        """Return what the program reads."""
        told = self.actual is not None
        words = SUMS[self.kind], len(self.data), self.actual or 0, self.before
        return _CASE.pack(*words, self.at, told) + self.data


def run(
    kernel: str,
    cases: Sequence[Case],
    *,
    build: Build = WARPS,
    batch: int = 32,
    order: str = "mixed",
) -> list[int]:
    """Run a kernel, and return the status words; see `tests.helpers.lanes.cases.run`."""
    executable = program(build, main=("sums.cpp",))
    with tempfile.TemporaryDirectory() as folder:
        given, results = Path(folder, "cases"), Path(folder, "results")
        given.write_bytes(b"".join(case.packed() for case in cases))
        command = [executable, kernel, given, results, str(batch), order]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            raise LanesError(done.returncode, f"{kernel}: {done.stderr or done.returncode}")
        return list(struct.unpack(f"<{len(cases)}I", results.read_bytes()))


def run_parallel(kernel: str, cases: Sequence[Case], **options) -> list[int]:
    """Run a kernel on cases as `run` does, in as many processes as there are processors."""
    workers = os.cpu_count() or 1
    each = -(-len(cases) // workers)
    parts = [cases[at : at + each] for at in range(0, len(cases), each)]
    with ThreadPoolExecutor(workers) as pool:
        ran = pool.map(lambda part: run(kernel, part, **options), parts)
        return [word for part in ran for word in part]
