"""From file to device: the rates of whole loads, beside KvikIO reading the same bytes raw.

Makes its files (sources of the standard library, 4 GiB decoded), loads each by gpuload and reads
the raw ones by KvikIO in turn in this process, and compares every byte on the device::

    python tests/benchmarks/pipeline.py --commit "$(git rev-parse HEAD)" --json results.json
    python tests/benchmarks/pipeline.py --cases lz4 --way mapped --size 1G --repeats 3

Needs a GPU; CuPy makes the comparison fast, KvikIO is left out where it is not installed. Takes
about 7 GiB in ``--dir``, of which every case gives back its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import importlib
import importlib.util
import json
import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from repeated import make, small_files, text, write_raw
from report import machine, table

import gpuload
from gpuload import driver
from gpuload.device_array import close_pools
from gpuload.lease import release
from gpuload.loader import Job
from gpuload.options import Options
from gpuload.watch import Watch

_UNITS = {"K": 10, "M": 20, "G": 30}
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    """What is loaded, and what it has to reach.

    Attributes
    ----------
    kind : str
        Of `repeated.make`; "many" for small files.
    options : dict
        Of the load.
    chunk_size : int or None
        Decoded bytes of a chunk.
    rate : float
        GB/s of decoded bytes that are wanted.
    ratio, cores : float or None
        Likewise, how many times as fast as KvikIO, and how many cores may be busy.
    """

    kind: str
    options: dict[str, Any]
    chunk_size: int | None = None
    rate: float = 0
    ratio: float | None = None
    cores: float | None = None


_NVCOMP = {"engine": "nvcomp", "trusted": True}
CASES = {
    "lz4": Case("lz4", {}, 64 << 10, 90, 2.0, 4),
    "snappy": Case("snappy", {}, 64 << 10, 90, 2.0),
    "zstd": Case("zstd", _NVCOMP, 64 << 10, 60),
    "bgzf": Case("bgzf", _NVCOMP, None, 35),
    "many": Case("many", {}, None, 5),
    # Not without being asked for.
    "zstd-256K": Case("zstd", _NVCOMP, 256 << 10, 60),
    "zstd-1M": Case("zstd", _NVCOMP, 1 << 20, 60),
    "lz4-nvcomp": Case("lz4", _NVCOMP, 64 << 10, 90),
    "snappy-nvcomp": Case("snappy", _NVCOMP, 64 << 10, 90),
}
_DEFAULT = ("lz4", "snappy", "zstd", "bgzf", "many")
#: Most bytes beyond the result, on the device and on the host.
_MEMORY = 512 << 20


def parse_size(word: str) -> int:
    return (
        int(float(word[:-1]) * (1 << _UNITS[word[-1].upper()])) if word[-1].isalpha() else int(word)
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default=",".join(_DEFAULT), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--size", type=parse_size, default=4 << 30, help="decoded bytes, as 4G")
    parser.add_argument("--part", type=parse_size, default=256 << 20, help="what is repeated")
    parser.add_argument("--files", type=int, default=10_000, help="of the case many")
    parser.add_argument("--file-size", type=parse_size, default=100 << 10, help="of each of them")
    parser.add_argument("--way", default="", help="mapped or read; else the library chooses")
    parser.add_argument("--engine", default="", help="instead of the case's own")
    parser.add_argument("--verify", default="auto", choices=("auto", "yes", "no"))
    parser.add_argument("--threads", type=int, help="of gpuload")
    parser.add_argument("--memory-limit", type=parse_size)
    parser.add_argument("--kvikio-threads", type=int, default=16)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-kvikio", action="store_true")
    parser.add_argument(
        "--keep", action="store_true", help="keep the files, and take them if there"
    )
    parser.add_argument("--dir", type=Path, help="where files go; default a new temporary folder")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--json", type=Path, metavar="OUT")
    given = parser.parse_args()
    given.part = min(given.part, given.size)
    given.size -= given.size % given.part
    return given


# --- Measuring ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Runs:
    """Wall time and CPU time of runs."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)

    def time(self, work: Any) -> Any:
        began, cpu_began = time.perf_counter(), time.process_time()
        result = work()
        self.cpu.append(time.process_time() - cpu_began)
        self.seconds.append(time.perf_counter() - began)
        return result

    def drop(self, count: int) -> None:
        del self.seconds[:count], self.cpu[:count]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def cores(self) -> float:
        middle = self.seconds.index(statistics.median_low(self.seconds))
        return self.cpu[middle] / self.seconds[middle]


class Peaks:
    """The most memory that is taken while something runs, seen every half millisecond.

    On the device what the driver counts as taken; on the host memory of this process that is no
    file's. Taking pinned memory from the driver may show in neither: the library's own count of
    staging memory is reported beside these.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.device = self.host = 0

    def __enter__(self) -> Peaks:
        self._first = self._sample()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.0005):
            device, host = self._sample()
            self.device = max(self.device, device - self._first[0])
            self.host = max(self.host, host - self._first[1])

    @staticmethod
    def _sample() -> tuple[int, int]:
        free, total = driver.memory_info(0)
        status = Path("/proc/self/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        anonymous = lines.get("RssAnon") or lines["VmRSS"]
        return total - free, int(anonymous.split()[0]) << 10


def synchronise() -> None:
    with driver.on_device(0):
        driver.device(0).default_stream.sync()


class Kvikio:
    """KvikIO reading the raw file to the device."""

    def __init__(self, path: Path, size: int, threads: int) -> None:
        self._kvikio = importlib.import_module("kvikio")
        importlib.import_module("kvikio.defaults").set("num_threads", threads)
        self._path, self._size = str(path), size
        self._array = importlib.import_module("cupy").empty(size, np.uint8)

    def read(self) -> None:
        with self._kvikio.CuFile(self._path) as file:
            got = file.pread(self._array).get()
        if got != self._size:
            raise RuntimeError(f"KvikIO read {got} of {self._size} bytes")


def missing_for_kvikio(given: argparse.Namespace) -> str:
    if given.no_kvikio:
        return "--no-kvikio"
    missing = [name for name in ("kvikio", "cupy") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""


# --- Comparing ------------------------------------------------------------------------------------


class Content:
    """What loads have to give: a part, again and again."""

    def __init__(self, part: bytes) -> None:
        self.part = np.frombuffer(part, np.uint8)
        self._cupy = importlib.import_module("cupy") if importlib.util.find_spec("cupy") else None
        self._on_device = self._cupy.asarray(self.part) if self._cupy else None

    def check(self, array: Any, start: int = 0, size: int | None = None) -> bool:
        """Compare an array with the part repeated, or with a piece of the part."""
        synchronise()
        got = self._cupy.asarray(array) if self._cupy else array.to_host()
        wanted = self._on_device if self._cupy else self.part
        if size is not None:
            return got.size == size and bool((got == wanted[start : start + size]).all())
        steps = range(0, got.size, wanted.size)
        return got.size > 0 and all(
            bool((got[at : at + wanted.size] == wanted[: got.size - at]).all()) for at in steps
        )


# --- Cases ----------------------------------------------------------------------------------------


def load_options(case: Case, given: argparse.Namespace) -> dict[str, Any]:
    options = dict(case.options)
    if given.engine:
        options = {"engine": given.engine} | ({"trusted": True} if given.engine == "nvcomp" else {})
    options["verify"] = {"auto": "auto", "yes": True, "no": False}[given.verify]
    chosen = {"way": given.way, "threads": given.threads, "memory_limit": given.memory_limit}
    return options | {name: value for name, value in chosen.items() if value}


def one_file(case: Case, given: argparse.Namespace, content: Content, path: Path) -> dict[str, Any]:
    """Return how to load a file, to check it, and what it is."""
    if not path.exists():
        count = given.size // given.part
        make(case.kind, content.part.tobytes(), count, path, case.chunk_size)
    options = load_options(case, given)
    reports: list[Any] = []

    def load() -> Any:
        # What `gpuload.load` does, with its report.
        job = Job(path, None, None, 0, None, Options(**options))
        array = job.run(Watch())
        reports.append(job.report)
        synchronise()
        return array

    stored = path.stat().st_size
    check = content.check
    return {"load": load, "check": check, "reports": reports, "size": given.size, "stored": stored}


def many_files(
    case: Case, given: argparse.Namespace, content: Content, path: Path
) -> dict[str, Any]:
    """The same for many small files."""
    load_many = getattr(gpuload, "load_many", None)
    if load_many is None:
        raise RuntimeError("gpuload has no load_many")
    with ThreadPoolExecutor() as pool:
        part = content.part.tobytes()
        files = small_files(part, given.files, given.file_size, path, pool)
    options = load_options(case, given)
    paths = [file for file, _ in files]

    def load() -> Any:
        arrays = load_many(paths, device=0, **options)
        synchronise()
        return arrays

    def check(arrays: Any) -> bool:
        starts = [start for _, start in files]
        return len(arrays) == len(starts) and all(
            content.check(array, start, given.file_size)
            for array, start in zip(arrays, starts, strict=True)
        )

    stored = sum(file.stat().st_size for file in paths)
    size = given.files * given.file_size
    return {"load": load, "check": check, "reports": [], "size": size, "stored": stored}


def measure(name: str, given: argparse.Namespace, content: Content, kvikio: Any) -> dict[str, Any]:
    """Return the record of a case."""
    case, path = CASES[name], given.dir / name
    work = (many_files if case.kind == "many" else one_file)(case, given, content, path)
    own, other = Runs(), Runs()
    right = True
    for turn in range(given.warm_up + given.repeats):
        result = own.time(work["load"])
        if turn in (0, given.warm_up + given.repeats - 1):
            right = right and work["check"](result)
        del result
        if kvikio and case.ratio:
            other.time(kvikio.read)
    own.drop(given.warm_up)
    other.drop(given.warm_up)
    record = {
        "case": name,
        "right": right,
        "size": work["size"],
        "stored_size": work["stored"],
        "gb_per_s": work["size"] / own.median / 1e9,
        "cores": own.cores,
        **dataclasses.asdict(own),
        "kvikio": dataclasses.asdict(other) | {"cores": other.cores} if other.seconds else None,
        "options": load_options(case, given),
        **peaks(work),
        **facts(work["reports"], own),
    }
    record["kvikio_gb_per_s"] = given.size / other.median / 1e9 if other.seconds else None
    record["ratio"] = record["gb_per_s"] / record["kvikio_gb_per_s"] if other.seconds else None
    remove(path, given)
    return record


def peaks(work: dict[str, Any]) -> dict[str, Any]:
    """Load once more, with nothing kept from before; return the most memory beyond the result."""
    gc.collect()
    release()
    close_pools()
    with Peaks() as seen:
        result = work["load"]()
    del result
    return {"seen_device": seen.device - work["size"], "seen_host": seen.host}


def facts(reports: list[Any], own: Runs) -> dict[str, Any]:
    """Return the statistics of the median run."""
    if not reports:
        return {}
    # The last one is that of `peaks`, and those before the timed ones are warm-ups.
    timed = reports[-len(own.seconds) - 1 : -1]
    report = timed[own.seconds.index(statistics.median_low(own.seconds))]
    names = ("engine", "ways", "threads", "peak_host", "peak_device", "verified", "unverified")
    found = {name: getattr(report, name, None) for name in (*names, "verified_on")}
    found["windows"] = [dataclasses.asdict(window) for window in getattr(report, "windows", [])]
    found["stages"] = {
        name: {**dataclasses.asdict(stage), "busy": stage.busy, "rate": stage.rate}
        for name, stage in getattr(report, "stages", {}).items()
    }
    return found


def remove(path: Path, given: argparse.Namespace) -> None:
    if given.keep:
        return
    for file in path.glob("*") if path.is_dir() else ():
        file.unlink()
    path.rmdir() if path.is_dir() else path.unlink()


# --- Results --------------------------------------------------------------------------------------


def judged(value: float | None, text_: str, *, good: bool) -> str:
    return "-" if value is None else text_ + ("" if good else " (!)")


def row(record: dict[str, Any]) -> list[str]:
    """Return a row of the table; (!) marks what is not reached."""
    if "failed" in record:
        return [record["case"], "failed", record["failed"], *[""] * 7]
    case = CASES[record["case"]]
    rate, ratio, cores = record["gb_per_s"], record["ratio"], record["cores"]
    device, host = (record.get(name) or 0 for name in ("peak_device", "peak_host"))
    stages = {name: s["busy"] * 1e3 for name, s in record.get("stages", {}).items()}
    return [
        record["case"],
        "yes" if record["right"] else "NO",
        judged(rate, f"{rate:.1f}", good=rate >= case.rate),
        f"{case.rate:g}",
        judged(ratio, f"{ratio or 0:.2f}", good=(ratio or 0) >= (case.ratio or 0)),
        "-" if ratio is None else f"{record['kvikio_gb_per_s']:.1f}",
        judged(cores, f"{cores:.1f}", good=cores <= (case.cores or 1e9)),
        judged(device, f"{device / _MIB:.0f}", good=device <= _MEMORY)
        + f" / {record['seen_device'] / _MIB:.0f}",
        judged(host, f"{host / _MIB:.0f}", good=host <= _MEMORY)
        + f" / {record['seen_host'] / _MIB:.0f}",
        f"{record.get('engine')} {record.get('ways')} "
        + " ".join(f"{name} {busy:.1f}" for name, busy in stages.items()),
    ]


_HEADER = (
    *("case", "right", "GB/s", "wanted", "/ KvikIO", "KvikIO GB/s", "cores"),
    *("GPU MiB: counted / seen", "host MiB: counted / seen", "engine, ways, busy ms of stages"),
)


def describe(given: argparse.Namespace) -> dict[str, Any]:
    capabilities = driver.capabilities(0)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": given.commit,
        "device": capabilities.name,
        "cuda": ".".join(map(str, capabilities.driver_version)),
        "machine": machine(),
        "options": {name: str(value) for name, value in vars(given).items()},
    }


def main() -> None:
    """Print a line a case as it is done, then the table."""
    given = arguments()
    names = given.cases.split(",")
    unknown = set(names) - set(CASES)
    if unknown:
        raise SystemExit(f"no such cases: {', '.join(unknown)}; there are {', '.join(CASES)}")
    results: dict[str, Any] = describe(given)
    with tempfile.TemporaryDirectory(prefix="gpuload-benchmark-") as temporary:
        given.dir = given.dir or Path(temporary)
        given.dir.mkdir(parents=True, exist_ok=True)
        part = text(given.part)
        content, kvikio = Content(part), None
        results["kvikio"] = missing_for_kvikio(given)
        if not results["kvikio"] and any(CASES[name].ratio for name in names):
            raw = given.dir / "raw"
            write_raw(part, given.size // given.part, raw)
            kvikio = Kvikio(raw, given.size, given.kvikio_threads)
        results["cases"] = [attempt(name, given, content, kvikio) for name in names]
        if kvikio and not given.keep:
            raw.unlink()
    print(f"{results['device']}, commit {given.commit}; KvikIO: {results['kvikio'] or 'yes'}")
    print(table(_HEADER, map(row, results["cases"])))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1, default=str) + "\n")
    if any("failed" in record or not record["right"] for record in results["cases"]):
        raise SystemExit(1)


def attempt(name: str, given: argparse.Namespace, content: Content, kvikio: Any) -> dict[str, Any]:
    """Measure a case; one that fails does not keep the others from their turn."""
    began = time.perf_counter()
    print(f"... {name}", flush=True)
    try:
        record = measure(name, given, content, kvikio)
    except (gpuload.errors.GpuloadError, RuntimeError, OSError, TypeError, ValueError) as error:
        remove_quietly(given.dir / name, given)
        record = {"case": name, "failed": f"{type(error).__name__}: {error}"}
    print("   ", *row(record), f"({time.perf_counter() - began:.0f} s)", flush=True)
    return record


def remove_quietly(path: Path, given: argparse.Namespace) -> None:
    if os.path.lexists(path):
        remove(path, given)


if __name__ == "__main__":
    main()
