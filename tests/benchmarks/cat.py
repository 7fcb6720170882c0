"""Whole processes that decompress BGZF to nowhere: gpuload, by each engine, and nvlzcat.

    python tests/benchmarks/cat.py --commit "$(git rev-parse HEAD)" --json results.json
    python tests/benchmarks/cat.py --sizes 1G --runs 1

Medians of runs in turn, standard output to /dev/null. nvlzcat comes with nvCOMP
(``pip install nvidia-libnvcomp-cu13``) and is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from measure import Runs, run
from repeated import make, text
from report import machine, table

from gpuload import driver

if TYPE_CHECKING:
    from measure import Command

_UNITS = {"M": 20, "G": 30}
_GPULOAD = (sys.executable, "-m", "gpuload", "decompress", "-q", "-c")
#: gpuload as it is, and with what a user may add.
_VARIANTS: dict[str, Command] = {
    "gpuload": (),
    "gpuload --trusted": ("--trusted",),
    "gpuload --engine host": ("--engine", "host"),
    "gpuload --engine nvcomp --trusted": ("--engine", "nvcomp", "--trusted"),
}
_LIMIT = ("--max-output", "unlimited")


def parse_size(word: str) -> int:
    return int(word[:-1]) << _UNITS[word[-1].upper()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="1G,8G", help="decoded bytes")
    parser.add_argument("--part", type=parse_size, default=256 << 20, help="what is repeated")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where files go; default a temporary folder")
    parser.add_argument("--no-check", action="store_true", help="do not compare the outputs")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser.parse_args()


def find_nvlzcat(folder: Path) -> Command | None:
    """Return the command before its file, or None where it is not installed."""
    try:
        spec = importlib.util.find_spec("nvidia.libnvcomp")
    except ModuleNotFoundError:
        return None
    for place in (spec and spec.submodule_search_locations) or ():
        binary = Path(place, "bin", "nvlzcat")
        if binary.exists():
            if not os.access(binary, os.X_OK):
                # Some ways of installing lose the permission to execute.
                binary = Path(shutil.copy(binary, folder / "nvlzcat"))
                binary.chmod(0o755)
            paths = [str(Path(place, "lib64")), os.environ.get("LD_LIBRARY_PATH", "")]
            library = ":".join(filter(None, paths))
            return ("env", f"LD_LIBRARY_PATH={library}", str(binary), "-d", "-f")
    return None


def commands(file: Path, nvlzcat: Command | None) -> dict[str, Command]:
    found = {name: (*_GPULOAD, *_LIMIT, *more, str(file)) for name, more in _VARIANTS.items()}
    return found | ({"nvlzcat": (*nvlzcat, str(file))} if nvlzcat else {})


def digest(command: Command) -> str:
    """Return a checksum of what a command prints, or what it says instead of printing."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        hasher, size = xxhash.xxh3_128(), 0
        assert process.stdout is not None
        while piece := process.stdout.read(1 << 20):
            hasher.update(piece)
            size += len(piece)
        message = process.stderr.read().decode(errors="replace") if process.stderr else ""
    return f"failed: {message.strip()}" if process.returncode else f"{size} {hasher.hexdigest()}"


def expected(part: bytes, count: int) -> str:
    hasher = xxhash.xxh3_128()
    for _ in range(count):
        hasher.update(part)
    return f"{len(part) * count} {hasher.hexdigest()}"


def measure(size: int, part: bytes, given: argparse.Namespace) -> dict[str, Any]:
    """Return the record of a size."""
    file, count = given.dir / f"{size >> 20}.bgz", size // len(part)
    make("bgzf", part, count, file)
    wanted, usable, bad = expected(part, count), {}, {}
    for name, command in commands(file, find_nvlzcat(given.dir)).items():
        got = wanted if given.no_check else digest(command)
        print(f"    {name}: {'right' if got == wanted else got}", flush=True)
        if got == wanted:
            usable[name] = command
        else:
            bad[name] = got
    runs = {name: Runs() for name in usable}
    for _ in range(given.runs):
        for name, command in usable.items():
            run(command, None, runs[name])
    stored = file.stat().st_size
    file.unlink()
    return {
        "size": size,
        "stored_size": stored,
        "runs": {
            name: {"seconds": taken.seconds, "median": taken.median} for name, taken in runs.items()
        },
        "bad": bad,
    }


def rows(record: dict[str, Any]) -> list[list[str]]:
    tool = record["runs"].get("nvlzcat")
    gibibytes = f"{record['size'] / (1 << 30):g} GiB"
    return [
        [
            gibibytes,
            name,
            f"{found['median']:.2f}",
            f"{record['size'] / found['median'] / 1e9:.2f}",
            f"{found['median'] / tool['median']:.2f}" if tool else "-",
        ]
        for name, found in record["runs"].items()
    ] + [[gibibytes, name, reason[:80], "", ""] for name, reason in record["bad"].items()]


def main() -> None:
    """Print a table, and write it as JSON."""
    given = arguments()
    unavailable = driver.unavailable()
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": given.commit,
        "device": unavailable or driver.capabilities(0).name,
        "machine": machine(),
    }
    with tempfile.TemporaryDirectory(prefix="gpuload-benchmark-") as temporary:
        given.dir = given.dir or Path(temporary)
        given.dir.mkdir(parents=True, exist_ok=True)
        sizes = [parse_size(word) for word in given.sizes.split(",")]
        part = text(min(given.part, *sizes))
        results["sizes"] = []
        for size in sizes:
            print(f"... {size >> 20} MiB", flush=True)
            results["sizes"].append(measure(size, part, given))
    print(f"{results['device']}, commit {given.commit}")
    header = ("decoded", "command", "seconds", "GB/s", "/ nvlzcat")
    print(table(header, [line for record in results["sizes"] for line in rows(record)]))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
