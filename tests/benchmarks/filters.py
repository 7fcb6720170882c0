"""How fast a GPU undoes filters and copies boxes, beside a copy of the same bytes in its memory.

Run from the checkout's folder::

    python -m tests.benchmarks.filters --json results.json

Times are those of the device alone, between two events: it is still busy with something else when
the host has submitted everything. Rates are of bytes that are read and bytes that are written. What
is made of a few units is compared with what the host makes of them first.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuload import driver
from gpuload.array_codecs import (
    BitUnshuffle,
    Delta,
    Filter,
    FixedScaleOffset,
    PackBits,
    Swap,
    Unshuffle,
)
from gpuload.filters.device import DeviceFilters
from gpuload.filters.host import undo
from gpuload.memory import DecompressPool, copy
from tests.benchmarks.report import table

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = 0
#: Bytes that come out of a filter, or that boxes have.
TOTAL = 1 << 30
HEADER = ("what", "units", "us", "GB/s", "copy, GB/s")


class Case(NamedTuple):
    """A filter of units of one size, which start at multiples of 16 bytes, or `skew` behind."""

    step: Filter
    size: int
    skew: int = 0

    @property
    def name(self) -> str:
        values = [str(value) for value in vars(self.step).values()]
        return " ".join([type(self.step).__name__, *values, f"+{self.skew}" if self.skew else ""])

    @property
    def units(self) -> str:
        return f"{TOTAL // self.size:,} of {self.size / 1024:g} KiB"


def _types(one: str, other: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    return np.dtype(one), np.dtype(other)


CASES = [
    *(Case(Unshuffle(size), 256 << 10) for size in (2, 4, 8, 16, 3, 12, 24, 64)),
    *(Case(Unshuffle(4), size) for size in (8 << 10, 64 << 10, 1 << 20, 64 << 20, TOTAL)),
    Case(Unshuffle(4), (256 << 10) - 12, 4),
    Case(Unshuffle(4), (256 << 10) - 12, 1),
    Case(Unshuffle(8), (256 << 10) - 8, 5),
    *(Case(BitUnshuffle(size), 256 << 10) for size in (1, 2, 4, 8, 16, 12)),
    Case(BitUnshuffle(4), (256 << 10) - 32, 1),
    *(Case(Delta(*_types(name, name)), 1 << 20) for name in ("u1", "i2", "i4", "i8")),
    Case(Delta(*_types("i4", "i4")), 32 << 10),
    Case(Delta(*_types("i4", "i2")), 1 << 20),
    *(
        Case(FixedScaleOffset(2.5, 10.0, *_types(one, other)), 1 << 20)
        for one, other in (("f4", "i2"), ("f4", "u1"), ("f8", "i4"), ("f4", "f4"), ("f8", "f8"))
    ),
    Case(PackBits(), 1 << 20),
    *(Case(Swap(size), 1 << 20) for size in (2, 4, 8, 16, 3)),
    Case(Swap(4), (1 << 20) - 4, 1),
]


class Copies(NamedTuple):
    """Chunks of a grid that go into an array of elements of so many bytes."""

    name: str
    element: int
    array: tuple[int, ...]
    chunk: tuple[int, ...]
    order: tuple[int, ...] = ()
    fill: bool = False


COPIES = [
    Copies("rows", 4, (16_384, 16_384), (512, 512)),
    Copies("rows, cropped", 4, (16_381, 16_379), (500, 500)),
    Copies("rows", 1, (32_768, 32_768), (1024, 1024)),
    Copies("rows, cropped", 1, (32_761, 32_765), (1000, 1000)),
    Copies("short rows", 4, (1024, 1024, 256), (64, 64, 16)),
    Copies("short rows, cropped", 2, (1021, 1023, 509), (64, 64, 15)),
    Copies("whole chunks", 4, (1 << 28,), (1 << 18,)),
    Copies("small chunks", 4, (16_384, 16_384), (16, 16)),
    *(
        Copies("transposed", size, (32_768, 32_768 // size), (512, 512), (1, 0))
        for size in (1, 2, 4, 8, 16)
    ),
    Copies("axes in reverse", 4, (512, 1024, 512), (64, 64, 64), (2, 1, 0)),
    Copies("colours first", 1, (16_384, 16_384, 3), (1024, 1024, 3), (2, 0, 1)),
    Copies("one element", 4, (16_384, 16_384), (512, 512), fill=True),
    Copies("one element", 1, (32_768, 32_768), (1024, 1024), fill=True),
]


class Bench:
    """A stream, and memory with random bytes."""

    def __init__(self) -> None:
        self.device = driver.device(DEVICE)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.pool = DecompressPool(DEVICE)
        self.engine = DeviceFilters(DEVICE)
        size = 2 * TOTAL
        self.data = np.frombuffer(np.random.default_rng(1).bytes(size), np.uint8)
        self.window = self.pool.allocate(size, stream=self.stream)
        self.target = self.pool.allocate(size, stream=self.stream)
        copy(int(self.window.handle), self.data.ctypes.data, size, self.stream)
        self.stream.sync()
        self._fills = 10

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
        work()
        self.stream.record(ended)
        waited = began.is_done
        ended.sync()
        return float(ended - began) / 1e3, waited

    def filters(self, case: Case, runs: int) -> dict[str, Any]:
        """Return the rates of a filter."""
        count, goes_in = TOTAL // case.size, case.step.encoded_size(case.size)
        place = np.arange(count) * (-(-max(case.size, goes_in) // 16) * 16)
        src, dst = (int(each.handle) + case.skew + place for each in (self.window, self.target))
        sizes, decoded = np.full(count, goes_in), np.full(count, case.size)

        def work() -> Any:
            return self.engine.undo(case.step, src, dst, sizes, self.stream, decoded=decoded)

        work().wait()
        for number in {0, count // 2, count - 1}:
            self._check(case, int(place[number]) + case.skew, goes_in)
        both = count * (case.size + goes_in)
        return self._row(case.name, case.units, both, self.seconds(work, runs), runs)

    def _check(self, case: Case, at: int, goes_in: int) -> None:
        found = np.empty(case.size, np.uint8)
        copy(found.ctypes.data, int(self.target.handle) + at, found.size, self.stream)
        self.stream.sync()
        data = self.data[at : at + goes_in]
        if isinstance(case.step, PackBits):
            data = data.copy()
            data[0] = 8 * (goes_in - 1) - case.size
        if (found != undo(case.step, data, (case.size,))).any():
            raise RuntimeError(f"{case}: the unit at {at} is wrong")

    def copies(self, case: Copies, runs: int) -> dict[str, Any]:
        """Return the rates of copying all chunks of a grid."""
        counts = [-(-n // c) for n, c in zip(case.array, case.chunk, strict=True)]
        places = np.stack([each.reshape(-1) for each in np.indices(counts)], axis=1)
        starts = places * case.chunk
        extents = np.minimum(np.array(case.chunk), np.array(case.array) - starts)
        order = case.order or tuple(range(len(case.chunk)))
        strides = _strides(case.array, case.element)
        src_strides = np.zeros_like(strides)
        src_strides[list(order)] = _strides([case.chunk[axis] for axis in order], case.element)
        each = int(np.prod(case.chunk)) * case.element
        src = int(self.window.handle) + np.arange(len(places)) * each
        if case.fill:
            src, src_strides = np.full(len(places), src[0]), np.zeros_like(strides)
        dst = int(self.target.handle) + starts @ strides
        boxes = src, dst, extents, src_strides, strides, case.element

        def work() -> None:
            self.engine.copy_boxes(*boxes, self.stream)

        size = int(extents.prod(axis=1).sum()) * case.element
        seconds = self.seconds(work, runs)
        units = f"{len(places):,} of {'x'.join(map(str, case.chunk))}"
        name = f"{case.name}, {case.element} bytes"
        return self._row(name, units, size if case.fill else 2 * size, seconds, runs)

    def _row(self, name: str, units: str, both: int, seconds: float, runs: int) -> dict[str, Any]:
        half = both // 2
        addresses = int(self.target.handle), int(self.window.handle)
        copied = self.seconds(lambda: copy(*addresses, half, self.stream), runs)
        return {
            "what": name,
            "units": units,
            "us": round(seconds * 1e6, 1),
            "gb_per_s": round(both / seconds / 1e9, 1),
            "copy_gb_per_s": round(2 * half / copied / 1e9, 1),
        }


def _strides(shape: Any, element: int) -> np.ndarray:
    return element * np.cumprod([1, *list(shape)[:0:-1]])[::-1]


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = Bench()
    results = [bench.filters(case, options.runs) for case in CASES]
    results += [bench.copies(case, options.runs) for case in COPIES]
    columns = ("what", "units", "us", "gb_per_s", "copy_gb_per_s")
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
