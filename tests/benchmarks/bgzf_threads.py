"""How fast the host decodes BGZF on 1, 2, 4 and more threads.

    python -m tests.benchmarks.bgzf_threads --json out.json

Compresses installed Python sources to BGZF once, in memory or in ``--dir``, and decodes them:

one by one
    A call of a library for each block, whatever the number of threads.
together
    What gpuload does: many blocks a call, from `gpuload.engines.host.MANY_THREADS` threads on.
windows
    The same with windows of other sizes (``--windows``): what a thread takes at a time.
to null
    With the bytes written to ``/dev/null``; those of the others are thrown away unseen.

The last line is a whole process, ``gpuload decompress``, with the
number of threads that it chooses. Nothing depends on a time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import gpuload
from gpuload import pipeline
from gpuload.engines import host
from gpuload.options import available_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NEVER = 1 << 30
_DECOMPRESS = (sys.executable, "-m", "gpuload", "decompress", "-q", "--force", "-o", os.devnull)


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        file = Path(folder, "sources.bgz")
        written = gpuload.compress(sources(options.size << 20), file, codec="gzip")
        print(f"{written.raw_size:,} bytes, {written.chunks:,} blocks, ratio {written.ratio:.2f}")
        rows = [
            measure(file, threads, options.windows, options.runs) for threads in options.threads
        ]
        process = whole_process(file, options.runs)
    print(table(rows))
    print(f"gpuload decompress, whole process: {process:.3f} s")
    results = {
        "machine": platform.machine(),
        "cpus": available_cpus(),
        "python": platform.python_version(),
        "raw_size": written.raw_size,
        "ratio": written.ratio,
        "gigabytes_per_second": rows,
        "process_seconds": process,
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=256, metavar="MIB", help="decoded MiB")
    parser.add_argument("--runs", type=int, default=3, help="runs of each case; the fastest counts")
    parser.add_argument("--threads", type=numbers, default=default_threads(), metavar="N,...")
    parser.add_argument(
        "--windows", type=numbers, default=[3072, 6144], metavar="KIB,...", help="1536,3072,..."
    )
    parser.add_argument("--dir", type=Path, default=default_folder(), help="for the file")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results here, too")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def default_threads() -> list[int]:
    """Return 1, 2, 4 ... up to twice the CPUs: more than there are should do no harm."""
    return [1 << power for power in range((2 * available_cpus()).bit_length())]


def default_folder() -> Path | None:
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else None


def sources(size: int) -> bytes:
    """Return installed Python sources, from the beginning again when they end."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib")}
    files = sorted({file for folder in folders for file in Path(folder).rglob("*.py")})
    data = bytearray()
    for file in cycle(files):
        data += file.read_bytes()
        if len(data) >= size:
            return bytes(data[:size])
    raise FileNotFoundError("no Python sources are installed")


def measure(file: Path, threads: int, windows: list[int], runs: int) -> dict[str, Any]:
    """Return rates in GB/s of decoded bytes."""
    row: dict[str, Any] = {"threads": threads}
    with mock.patch.object(host, "MANY_THREADS", _NEVER):
        row["one by one"] = rate(file, threads, runs, verify)
    row["together"] = rate(file, threads, runs, verify)
    for kib in windows:
        with window_of(kib << 10):
            row[f"{kib} KiB windows"] = rate(file, threads, runs, verify)
            row[f"{kib} KiB windows, to null"] = rate(file, threads, runs, write)
    row["together, to null"] = rate(file, threads, runs, write)
    return row


@contextmanager
def window_of(size: int) -> Iterator[None]:
    with mock.patch.object(pipeline, "WINDOW", size):
        yield


def rate(
    file: Path, threads: int, runs: int, decode: Callable[[gpuload.loader.Container], int]
) -> float:
    seconds, size = [], 0
    for _ in range(runs):
        with gpuload.open(file, device="cpu", threads=threads) as container:
            start = time.perf_counter()
            size = decode(container)
            seconds.append(time.perf_counter() - start)
    return round(size / min(seconds) / 1e9, 3)


def verify(container: gpuload.loader.Container) -> int:
    return container.verify().raw_size


def write(container: gpuload.loader.Container) -> int:
    with open(os.devnull, "wb") as null:
        return container.write_to(null.fileno(), positional=False).raw_size


def whole_process(file: Path, runs: int) -> float:
    seconds = []
    for _ in range(runs + 1):  # the first one leaves its bytecode behind
        start = time.perf_counter()
        subprocess.run([*_DECOMPRESS, file], check=True)
        seconds.append(time.perf_counter() - start)
    return round(statistics.median(seconds[1:]), 4)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [" | ".join(rows[0]), " | ".join("---:" for _ in rows[0])]
    lines += [" | ".join(str(value) for value in row.values()) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    main()
