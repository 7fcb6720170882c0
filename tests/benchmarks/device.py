"""What a device answers, and how fast files are loaded to it.

Prints the pointer attribute of every kind of allocation, what the driver says to a correct batch,
and the rates of loads to the device and to host memory, side by side in one process::

    python tests/benchmarks/device.py --size 1024 --json results.json
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpuload
from gpuload import driver
from gpuload.memory import DecompressMemory, DecompressPool, HostNumaMemory


def text(size: int) -> bytes:
    """Return `size` bytes of Python sources."""
    sources = b"".join(path.read_bytes() for path in sorted(Path(np.__file__).parent.rglob("*.py")))
    return (sources * (size // len(sources) + 1))[:size]


def attributes(device: Any) -> dict[str, bool]:
    """Return IS_HW_DECOMPRESS_CAPABLE for each kind of allocation."""
    from cuda.core import DeviceMemoryResource, LegacyPinnedMemoryResource, VirtualMemoryResource

    stream = device.create_stream()
    kinds = {
        "pinned (cuMemHostAlloc)": LegacyPinnedMemoryResource(),
        "default pool": DeviceMemoryResource(0),
        "cuMemCreate, plain": VirtualMemoryResource(0),
        "DecompressMemory": DecompressMemory(0),
        "HostNumaMemory": HostNumaMemory(0),
        "DecompressPool": DecompressPool(0),
    }
    found = {}
    for name, memory in kinds.items():
        buffer = memory.allocate(4 << 20, stream=stream)
        stream.sync()
        found[name] = driver.is_hw_decompress_capable(int(buffer.handle) + 12345)
        buffer.close(stream)
    return found


def median_rate(load: Any, size: int, runs: int) -> float:
    """Return the median rate in GB/s of decoded bytes, after one warm-up."""
    seconds = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        load()
        seconds.append(time.perf_counter() - began)
    return size / statistics.median(seconds[1:]) / 1e9


def rates(size: int, runs: int) -> list[dict[str, Any]]:
    """Return the rates of each format."""
    raw = text(size)
    rows = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for codec in ("lz4", "snappy", "gzip", "zstd"):
            path = Path(folder, codec)
            report = gpuload.compress(raw, path, codec=codec)
            array = gpuload.load(path, device=0)
            assert bytes(array) == raw
            del array
            row: dict[str, Any] = {"codec": codec, "ratio": round(report.ratio, 2)}
            for name, options in {
                "to device": {"device": 0},
                "to host": {"device": "cpu"},
                "to host, unverified": {"device": "cpu", "verify": False},
            }.items():
                load = functools.partial(gpuload.load, path, **options)
                row[name] = round(median_rate(load, size, runs), 2)
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    """Print everything, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = driver.device(0)
    device.set_current()
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": options.commit,
        "device": str(driver.capabilities(0)),
        "hw_decompress_capable": attributes(device),
    }
    for name, value in facts.items():
        print(f"{name}: {value}", flush=True)
    facts["rates, GB/s of decoded bytes"] = rates(options.size << 20, options.runs)
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
