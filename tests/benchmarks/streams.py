"""gpuload beside the native tools, on the same files, in one run.

``python tests/benchmarks/streams.py`` builds 1 GiB of sources and shared libraries in memory and
compresses it in every format (or takes what is there from a run before), then times the tools and
gpuload in turn as whole processes, and prints a table. It fails on wrong bytes, never on a time.
Run it where gpuload is installed as users have it (``pip install .``), with its bytecode.
Needs about 5 GiB in ``--dir``; ``--big`` about 2 GiB more, and some minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import report
from cases import BIG, CASES, DECOMPRESS, Case, make_big, make_file, make_mix
from measure import Runs, compare, decode
from startup import listing, start_up

_LISTED = ("mix.lz4", "mix.bgz")
_UNITS = {"M": 20, "G": 30}


def main() -> None:
    options = arguments()
    # What is started from here inherits it, whatever the machine has.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cpus])
    options.dir.mkdir(parents=True, exist_ok=True)
    mix = make_mix(options.dir, options.size)
    files = [(case, make_file(case, mix)) for case in CASES if wanted(case, options.only)]
    warm_memory(options.dir / "warm", options.size)
    results: dict[str, Any] = {
        "machine": report.machine(),
        "size": options.size,
        "runs": options.runs,
        "streams": [
            stream(case, file, mix, options.runs) for case, file in files if file is not None
        ],
        "costs": costs(options.dir, options.runs) if not options.only else {},
        "big": big(mix, options.big) if options.big else [],
    }
    text = report.markdown(results)
    print(text, end="")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.readme:
        report.put_into(options.readme, text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm/gpuload-benchmark"))
    parser.add_argument("--size", type=parse_size, default=1 << 30, help="such as 64M or 1G")
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each command")
    parser.add_argument("--cpus", type=int, default=2, help="CPUs that all commands share")
    parser.add_argument("--only", default="", metavar="WORD,...", help="cases with one of these")
    parser.add_argument(
        "--big",
        nargs="?",
        type=parse_size,
        const=8 << 30,
        metavar="SIZE",
        help="also peak memory on streams of SIZE (8G)",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all results here, too")
    parser.add_argument("--readme", type=Path, help="put the table between its speed marks")
    return parser.parse_args()


def parse_size(text: str) -> int:
    return int(text[:-1]) << _UNITS[text[-1].upper()]


def wanted(case: Case, only: str) -> bool:
    return any(word.lower() in f"{case.name} {case.file}".lower() for word in only.split(","))


def warm_memory(path: Path, size: int) -> None:
    """Touch memory for the outputs once: a virtual machine may get it from its host only then."""
    block = bytes(1 << 20)
    with path.open("wb") as file:
        for _ in range(0, 2 * size, len(block)):
            file.write(block)
    path.unlink()


def stream(case: Case, file: Path, mix: Path, count: int) -> dict[str, Any]:
    """Time one file with its tools and with gpuload."""
    print(f"... {case.name}", flush=True)
    decoders = {**case.installed, "gpuload": DECOMPRESS}
    measured = compare(decoders, file, file.with_name("out"), count, mix)
    own = measured.pop("gpuload")
    fastest = min((runs.median for runs in measured.values()), default=None)
    return {
        "name": case.name,
        "ratio": mix.stat().st_size / file.stat().st_size,
        "tools": {name: fields(runs) for name, runs in measured.items()},
        "gpuload": fields(own),
        "compared": own.median / fastest if fastest else None,
        "bound": case.bound,
    }


def fields(runs: Runs) -> dict[str, Any]:
    return {**dataclasses.asdict(runs), "median": runs.median}


def costs(folder: Path, count: int) -> dict[str, tuple[float, int | None]]:
    """Return milliseconds and what is allowed, by what is measured."""
    print("... small costs", flush=True)
    found = {}
    for (name, seconds), bound in zip(start_up(3 * count).items(), (30, None, 100), strict=True):
        found[name] = (1000 * seconds, bound)
    for file in _LISTED:
        if (folder / file).exists():
            chunks, seconds = listing(folder / file, count)
            found[f"listing the {chunks:,} chunks of {file}"] = (1000 * seconds, 50)
    return found


def big(mix: Path, size: int) -> list[dict[str, Any]]:
    """Decode streams that are much larger than the memory allowed."""
    rows = []
    for name, (file_name, compressor) in BIG.items():
        print(f"... {name}", flush=True)
        file = mix.with_name(file_name)
        if make_big(file, compressor, mix, size):
            runs = Runs()
            decode(DECOMPRESS, file, Path(os.devnull), runs)
            rows.append({"name": name, "size": size, "seconds": runs.median, "peak": runs.peak})
    return rows


if __name__ == "__main__":
    main()
