"""Cases for a kernel of filters or boxes: parameters, and the bytes around them."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.lanes.build import WARPS, Build, program
from tests.helpers.lanes.cases import LanesError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

#: As `filters.cpp` reads it, behind the parameters.
_CASE = struct.Struct("<6I")
#: What stands in a destination and in a status until a kernel writes there.
UNTOUCHED = 0xCD


@dataclass(frozen=True)
class Case:
    """One operation.

    Attributes
    ----------
    params : ndarray, shape (1,)
        In one of the layouts of gpuload.filters; addresses count from the start of a buffer.
    src : bytes
        What the kernel may read.
    room : int
        Bytes that it may write.
    src_at, dst_at : int
        Remainders by 16 of the addresses of the two.
    table : bytes
        What lies beside the parameters.
    of_table : int
        Which words of the parameters (bits 0 and 2) are addresses of the table.
    """

    params: npt.NDArray[np.void]
    src: bytes
    room: int
    src_at: int = 0
    dst_at: int = 0
    table: bytes = b""
    of_table: int = 0

    def packed(self) -> bytes:
        """Return what the program reads."""
        sizes = len(self.src), self.room, len(self.table)
        head = _CASE.pack(*sizes, self.src_at, self.dst_at, self.of_table)
        return self.params.tobytes() + head + self.src + self.table


@dataclass(frozen=True)
class Made:
    """What became of a case."""

    status: int
    dst: bytes
    table: bytes


def run(
    kernel: str,
    cases: Sequence[Case],
    *,
    build: Build = WARPS,
    batch: int = 8,
    order: str = "mixed",
) -> list[Made]:
    """Run a kernel; see `tests.helpers.lanes.cases.run`."""
    executable = program(build, main=("filters.cpp",))
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


def run_parallel(kernel: str, cases: Sequence[Case], **options) -> list[Made]:
    """Run a kernel on cases as `run` does, in as many processes as there are processors."""
    workers = os.cpu_count() or 1
    each = -(-len(cases) // workers)
    parts = [cases[at : at + each] for at in range(0, len(cases), each)]
    with ThreadPoolExecutor(workers) as pool:
        ran = pool.map(lambda part: run(kernel, part, **options), parts)
        return [made for part in ran for made in part]


def _unpacked(cases: Sequence[Case], results: bytes) -> list[Made]:
    found, at = [], 0
    for case in cases:
        (status,) = struct.unpack_from("<I", results, at)
        dst = at + 4
        table = dst + case.room
        at = table + len(case.table)
        found.append(Made(status, results[dst:table], results[table:at]))
    return found
