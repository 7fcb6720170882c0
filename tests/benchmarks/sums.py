"""How fast a GPU computes checksums of chunks, beside a copy of the same bytes within its memory.

Run from the checkout's folder::

    python -m tests.benchmarks.sums --json results.json

Times are those of the device alone, between two events: it is still busy with something else when
the host has submitted everything. What is computed is compared with the host's libraries first.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuload import checksums, driver
from gpuload.chunks import Checksum, make_table
from gpuload.engines.sums import DeviceSums
from gpuload.memory import DecompressPool, copy
from tests.benchmarks.report import table

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuload.chunks import ChunkTable

DEVICE = 0
HEADER = ("checksum", "chunks", "us", "GB/s", "copy, GB/s")


class Case(NamedTuple):
    """Chunks of one kind; where sizes vary, they do so by a tenth, and so do alignments."""

    kind: Checksum
    count: int
    size: int
    varied: bool

    @property
    def name(self) -> str:
        about = "about " if self.varied else ""
        return f"{self.count:,} of {about}{self.size / 1024:g} KiB"


CASES = [
    Case(kind, count, size, varied)
    for kind, size, varied in [
        (Checksum.CRC32, 65_536, False),
        (Checksum.CRC32, 65_280, False),
        (Checksum.CRC32, 65_280, True),
        (Checksum.CRC32C_MASKED, 65_536, False),
        (Checksum.XXH32_STORED, 23 << 10, True),
        (Checksum.XXH32_STORED, 65_536, False),
        (Checksum.XXH64_LOW, 65_536, False),
        (Checksum.XXH64_LOW, 65_536, True),
    ]
    for count in (4096, 16_384)
] + [Case(Checksum.CRC32, 1, 1 << 30, varied=False), Case(Checksum.CRC32, 1, 65_536, varied=False)]


class Bench:
    """A stream, and memory with random bytes."""

    def __init__(self, size: int) -> None:
        self.device = driver.device(DEVICE)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.pool = DecompressPool(DEVICE)
        self.engine = DeviceSums(DEVICE)
        self.data = np.frombuffer(np.random.default_rng(1).bytes(size), np.uint8)
        self.window = self.pool.allocate(size, stream=self.stream)
        self.target = self.pool.allocate(size, stream=self.stream)
        copy(int(self.window.handle), self.data.ctypes.data, size, self.stream)
        self.stream.sync()
        self._fills = 10

    def rows(self, case: Case) -> tuple[ChunkTable, np.ndarray]:
        """Return the chunks of a case, which follow one another, and where they start."""
        sizes = np.full(case.count, case.size)
        if case.varied:
            spread = case.size // 10
            sizes = np.random.default_rng(2).integers(case.size - spread, case.size, case.count)
        rows = make_table(
            range(case.count),
            stored_size=sizes,
            raw_size=sizes,
            checksum_kind=case.kind,
            exact=True,
        )
        return rows, np.cumsum(sizes) - sizes

    def check(self, case: Case, rows: ChunkTable, starts: np.ndarray) -> None:
        """Compare what is computed with what the host says."""
        at = starts + int(self.window.handle)
        computed, _ = self.engine.submit(rows, at, at, None, self.stream).wait()
        for start, size, found in zip(starts, rows["raw_size"], computed, strict=True):
            expected = checksums.compute(case.kind, self.data[start : start + int(size)])
            if expected != found:
                raise RuntimeError(f"{case}: {int(found):#x} instead of {expected:#x}")

    def seconds(self, work: Callable[[], Any], runs: int) -> float:
        """Return the median time that the device needs."""
        return statistics.median([self._once(work) for _ in range(runs + 2)][2:])

    def _once(self, work: Callable[[], Any]) -> float:
        while True:
            seconds, waited = self._sample(work)
            if not waited or self._fills > 200:
                return seconds
            self._fills *= 2

    def _sample(self, work: Callable[[], Any]) -> tuple[float, bool]:
        """Return how long the device works, and whether it had to wait for the host."""
        from cuda.core import EventOptions

        options = EventOptions(timing_enabled=True)
        began, ended = (self.device.create_event(options) for _ in range(2))
        # These also take from the cache what was read before.
        for _ in range(self._fills):
            self.target.fill(b"\xff", stream=self.stream)
        self.stream.record(began)
        submitted = work()
        self.stream.record(ended)
        waited = began.is_done
        if submitted is not None:
            submitted.wait()
        ended.sync()
        return float(ended - began) / 1e3, waited

    def measure(self, case: Case, runs: int) -> dict[str, Any]:
        """Return the rates of a case."""
        rows, starts = self.rows(case)
        self.check(case, rows, starts)
        at, total = starts + int(self.window.handle), int(rows["raw_size"].sum())
        submit = self.seconds(lambda: self.engine.submit(rows, at, at, None, self.stream), runs)
        addresses = int(self.target.handle), int(self.window.handle)
        copied = self.seconds(lambda: copy(*addresses, total, self.stream), runs)
        return {
            "kind": case.kind.name,
            "chunks": case.name,
            "bytes": total,
            "us": round(submit * 1e6, 1),
            "gb_per_s": round(total / submit / 1e9, 1),
            "copy_gb_per_s": round(total / copied / 1e9, 1),
        }


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = Bench(max(case.count * case.size for case in CASES))
    results = [bench.measure(case, options.runs) for case in CASES]
    columns = ("kind", "chunks", "us", "gb_per_s", "copy_gb_per_s")
    print(table(HEADER, [[str(row[name]) for name in columns] for row in results]))
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": options.commit,
        "device": str(driver.capabilities(DEVICE)),
        "rows": results,
    }
    print(json.dumps(facts))
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
