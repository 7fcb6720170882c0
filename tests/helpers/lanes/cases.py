"""Cases for a kernel: stored bytes, a capacity and alignments; and what became of them."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuload.batch import ALGORITHMS
from tests.helpers.lanes.build import KERNELS, WARPS, Build, program

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuload.chunks import Codec

#: As `main.cpp` reads and writes them.
CASE = struct.Struct("<IIIBBxx")
OUTCOME = struct.Struct("<II")

#: What a kernel leaves where an operation is not its own.
UNTOUCHED = 0xCDCDCDCD
OK = 0

#: Exit statuses of the programs, as in stops.h.
USAGE, WRONG, SANITIZER, REFUSED, SLOW = range(64, 69)


@dataclass(frozen=True)
class Case:
    """One operation.

    Attributes
    ----------
    codec : Codec
        How `stored` is compressed.
    stored : bytes
        What the kernel reads.
    capacity : int
        Bytes of its slot.
    src_at, dst_at : int
        Remainders by 16 of the addresses of both.
    """

    codec: Codec
    stored: bytes
    capacity: int
    src_at: int = 0
    dst_at: int = 0


class Outcome(NamedTuple):
    """What a kernel made of a case; `decoded` is empty unless `status` is OK."""

    status: int
    actual: int
    decoded: bytes


class LanesError(Exception):
    """A kernel did what it must not do.

    Attributes
    ----------
    exit_status : int
        Of the program: which of the constants above.
    """

    def __init__(self, exit_status: int, report: str) -> None:
        super().__init__(report)
        self.exit_status = exit_status


def pack(cases: Iterable[Case]) -> bytes:
    """Return cases as programs read them."""
    parts = []
    for case in cases:
        header = (ALGORITHMS[case.codec], len(case.stored), case.capacity)
        parts += [CASE.pack(*header, case.src_at, case.dst_at), case.stored]
    return b"".join(parts)


def unpack_cases(packed: bytes) -> list[Case]:
    """Return the cases of which `pack` made bytes."""
    codecs = {code: codec for codec, code in ALGORITHMS.items()}
    cases, at = [], 0
    while at < len(packed):
        code, size, capacity, src_at, dst_at = CASE.unpack_from(packed, at)
        at += CASE.size
        stored = packed[at : at + size]
        cases.append(Case(codecs[code], stored, capacity, src_at, dst_at))
        at += size
    return cases


def unpack(results: bytes) -> list[Outcome]:
    """Return the outcomes that a program wrote."""
    outcomes, at = [], 0
    while at < len(results):
        status, actual = OUTCOME.unpack_from(results, at)
        at += OUTCOME.size
        size = actual if status == OK else 0
        outcomes.append(Outcome(status, actual, results[at : at + size]))
        at += size
    return outcomes


def run(
    kernel: str,
    cases: Sequence[Case],
    *,
    build: Build = WARPS,
    batch: int = 32,
    order: str = "mixed",
    kernels: Path = KERNELS,
) -> list[Outcome]:
    """Run a kernel on cases; LanesError if it does what it must not do.

    Parameters
    ----------
    kernel : str
        Name of an entry point.
    cases : sequence of Case
        What to run it on.
    build : Build
        How the kernels are built.
    batch : int
        Operations of one launch.
    order : str
        Which lane of a warp runs next: "ascending", "descending", "random", or these in turn
        ("mixed").
    kernels : Path
        Folder of the kernels.
    """
    executable = program(build, kernels=kernels)
    with tempfile.TemporaryDirectory() as folder:
        given, results = Path(folder, "cases"), Path(folder, "results")
        given.write_bytes(pack(cases))
        command = [executable, kernel, given, results, str(batch), order]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            raise LanesError(done.returncode, f"{kernel}: {done.stderr or done.returncode}")
        return unpack(results.read_bytes())


def run_parallel(kernel: str, cases: Sequence[Case], **options) -> list[Outcome]:
    """Run a kernel on cases as `run` does, in as many processes as there are processors."""
    workers = os.cpu_count() or 1
    each = -(-len(cases) // workers)
    parts = [cases[at : at + each] for at in range(0, len(cases), each)]
    with ThreadPoolExecutor(workers) as pool:
        ran = pool.map(lambda part: run(kernel, part, **options), parts)
        return [outcome for part in ran for outcome in part]
