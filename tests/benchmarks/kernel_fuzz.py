"""Millions of damaged streams through the kernels on the CPU, under AddressSanitizer and UBSan.

Run from the checkout's folder: ``python -m tests.benchmarks.kernel_fuzz [--count 10000000]``. The
sources are compiled for one lane, at native speed, and buffers have exactly the size that they
should have. A plain decoder in the same process judges every outcome; the host engine's decoders
judge a sample, and those that only the kernel refuses.

An access outside of a buffer, undefined behaviour, other bytes, or a case that does not end stops
the run with the case's bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpuload.chunks import Codec
from tests.benchmarks.report import machine, table
from tests.helpers.lanes import build, judge
from tests.helpers.lanes.cases import Case, pack, unpack, unpack_cases
from tests.helpers.lanes.streams import small_streams

CODECS = {codec.name.lower(): codec for codec in (Codec.LZ4, Codec.SNAPPY)}
STATUSES = ("ok", "truncated", "offset", "full", "ending", "large")
#: Valid streams that are damaged.
SEEDS = 2_000
#: About so many cases of each codec go to the host's decoders.
SAMPLES = 50_000
ORACLE = "../fakecuda/decoders.cpp"


def fuzz(codec: Codec, count: int, processes: int, seed: int) -> dict[str, Any]:
    """Return counts of one codec's outcomes."""
    build.program(build.ALONE, main=("fuzz.cpp", ORACLE))
    start = time.perf_counter()
    shares = [count // processes + (number < count % processes) for number in range(processes)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        jobs = [
            (codec, share, processes * seed + number, max(1, count // SAMPLES), Path(folder))
            for number, share in enumerate(shares)
        ]
        parts = list(pool.map(lambda job: _one_process(*job), jobs))
    return _sum(parts) | {"codec": codec.name.lower(), "seconds": time.perf_counter() - start}


def _one_process(codec: Codec, count: int, seed: int, every: int, folder: Path) -> dict[str, Any]:
    seeds, cases, results = (folder / f"{name} {seed}" for name in ("seeds", "cases", "results"))
    streams = small_streams(codec, random.Random(seed), SEEDS)
    seeds.write_bytes(pack(Case(codec, stream.stored, len(stream.raw)) for stream in streams))
    program = build.program(build.ALONE, main=("fuzz.cpp", ORACLE))
    command = [program, f"{codec.name.lower()}_1", seeds, count, seed, every, cases, results]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    sampled = unpack_cases(cases.read_bytes())
    _, differing = judge.compare(sampled, unpack(results.read_bytes()))
    return json.loads(done.stdout) | {"judged": len(sampled), "differing": differing, "seed": seed}


def _sum(parts: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("cases", "bytes", "stricter", "judged", "differing")
    total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in names}
    status = map(sum, zip(*(part["status"] for part in parts), strict=True))
    return total | {
        "status": dict(zip(STATUSES, status, strict=True)),
        "seeds": [part["seed"] for part in parts],
    }


def show(results: list[dict[str, Any]]) -> str:
    """Return the counts as a Markdown table."""
    header = (
        "codec",
        "cases",
        *STATUSES,
        "only the kernel refuses",
        "judged by the host",
        "seconds",
    )
    rows = [
        (
            one["codec"],
            f"{one['cases']:,}",
            *(f"{count:,}" for count in one["status"].values()),
            f"{one['stricter']:,}",
            f"{one['judged']:,}",
            f"{one['seconds']:.0f}",
        )
        for one in results
    ]
    return table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=10_000_000, help="cases of each codec")
    parser.add_argument("--codec", choices=CODECS, action="append", help="all, if left out")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    if reason := build.missing(build.ALONE):
        sys.exit(reason)
    results = []
    for name in options.codec or CODECS:
        results.append(fuzz(CODECS[name], options.count, options.processes, options.seed))
        print(show(results[-1:]), flush=True)
    if options.json:
        document = {"machine": machine(), "results": results}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
