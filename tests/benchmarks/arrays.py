"""Arrays from files to memory: gpuload beside zarr-python, zarrs, NumPy and safetensors.

    python tests/benchmarks/arrays.py --commit "$(git rev-parse HEAD)" --json results.json
    python tests/benchmarks/arrays.py --size 256M --cases blosc,npz

Medians of loads in turn in one process, the files in the page cache. With a GPU (``--device 0``)
everything ends in an array there: what the others give is copied to it. A library that is not
installed is left out.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import shutil
import statistics
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from report import machine, table

import gpuload
from gpuload.options import DEFAULT_MEMORY_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

_UNITS = {"M": 20, "G": 30}
_SIDE = 1024


def parse_size(word: str) -> int:
    return int(word[:-1]) << _UNITS[word[-1].upper()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=parse_size, default=2 << 30, help="bytes of float32")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cpu, or the number of a GPU")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--alone", action="store_true", help="measure gpuload only")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--trusted", action="store_true", default=None)
    parser.add_argument("--memory-limit", type=parse_size, default=DEFAULT_MEMORY_LIMIT)
    parser.add_argument("--dir", type=Path, help="where files go; default a temporary folder")
    parser.add_argument("--keep", action="store_true", help="use files that are there, leave them")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser.parse_args()


def field(size: int) -> Array:
    """Return a smooth field with noise in the last digits that measurements have."""
    planes = size // (4 * _SIDE * _SIDE)
    rng = np.random.default_rng(1)
    axis = np.linspace(0, 20, _SIDE, dtype=np.float32)
    waves = np.sin(axis)[:, None] * np.cos(1.7 * axis)[None, :]
    noise = rng.standard_normal((_SIDE, _SIDE)).astype(np.float32)
    made = np.empty((planes, _SIDE, _SIDE), np.float32)
    for number in range(planes):
        made[number] = np.round(280 + 30 * waves * np.cos(number / 40) + noise, 2)
        noise = np.roll(noise, 17, axis=number % 2)
    return made


# --- Files ----------------------------------------------------------------------------------------


def _zarr(path: Path, data: Array, compressor: Any, **chunks: Any) -> None:
    import zarr

    array = zarr.create_array(
        store=str(path), shape=data.shape, dtype=data.dtype, compressors=compressor, **chunks
    )
    array[:] = data


def make_zstd(path: Path, data: Array) -> None:
    from zarr.codecs import ZstdCodec

    _zarr(path, data, ZstdCodec(level=3), chunks=(1, 512, 512))


def make_blosc(path: Path, data: Array) -> None:
    from zarr.codecs import BloscCodec

    codec = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)
    _zarr(path, data, codec, chunks=(1, 512, 512))


def make_blosc_planes(path: Path, data: Array) -> None:
    """Write chunks that lie in the array as they are."""
    from zarr.codecs import BloscCodec

    codec = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)
    _zarr(path, data, codec, chunks=(1, *data.shape[1:]))


def make_lz4(path: Path, data: Array) -> None:
    """Write inner chunks of 64 KiB in shards of 64 MiB."""
    from zarr.codecs.numcodecs import LZ4

    shards = (min(16, data.shape[0]), *data.shape[1:])
    _zarr(path, data, LZ4(acceleration=1), chunks=(1, 16, 1024), shards=shards)


def make_sharded(path: Path, data: Array) -> None:
    from zarr.codecs import ZstdCodec

    shards = (min(8, data.shape[0]), 512, 512)
    _zarr(path, data, ZstdCodec(level=3), chunks=(1, 128, 128), shards=shards)


def make_npz(path: Path, data: Array) -> None:
    parts = np.array_split(data, min(16, data.shape[0]))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number, part in enumerate(parts):
            with archive.open(f"part{number:02}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, part)


def make_safetensors(path: Path, data: Array) -> None:
    from safetensors.numpy import save_file

    parts = np.array_split(data, min(16, data.shape[0]))
    save_file({f"part{number:02}": part for number, part in enumerate(parts)}, path)


# --- Loaders --------------------------------------------------------------------------------------


def by_gpuload(path: Path, options: argparse.Namespace) -> list[Any]:
    device = options.device if options.device == "cpu" else int(options.device)
    chosen: dict[str, Any] = {
        "engine": options.engine,
        "trusted": options.trusted,
        "memory_limit": options.memory_limit,
    }
    with gpuload.open(path, threads=options.threads, **chosen) as opened:
        return list(opened.load_many(dict.fromkeys(opened.keys(), ...), device=device).values())


def by_zarr(path: Path, options: argparse.Namespace) -> list[Any]:
    import zarr

    return [to_device(zarr.open_array(str(path), mode="r")[...], options)]


def by_zarrs(path: Path, options: argparse.Namespace) -> list[Any]:
    import zarr

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return [to_device(zarr.open_array(str(path), mode="r")[...], options)]


def by_numpy(path: Path, options: argparse.Namespace) -> list[Any]:
    with np.load(path) as opened:
        return [to_device(opened[name], options) for name in opened.files]


def by_safetensors(path: Path, options: argparse.Namespace) -> list[Any]:
    if options.device == "cpu":
        from safetensors.numpy import load_file

        return list(load_file(path).values())
    from safetensors.torch import load_file as load_to

    return list(load_to(path, device=f"cuda:{options.device}").values())


def by_kvikio(path: Path, options: argparse.Namespace) -> list[Any]:
    """Read all bytes behind the header, without a look at what they are."""
    import cupy
    import kvikio
    import kvikio.defaults

    kvikio.defaults.set({"num_threads": 16})
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    with cupy.cuda.Device(int(options.device)), kvikio.CuFile(path, "r") as file:
        found = cupy.empty((path.stat().st_size - start) // 4, cupy.float32)
        file.read(found, file_offset=start)
    return [found.reshape(-1, _SIDE, _SIDE)]


def to_device(array: Array, options: argparse.Namespace) -> Any:
    if options.device == "cpu":
        return array
    import cupy

    with cupy.cuda.Device(int(options.device)):
        return cupy.asarray(array)


def host_of(array: Any) -> Array:
    for name in ("to_host", "get", "numpy"):
        if hasattr(array, name) and not isinstance(array, np.ndarray):
            found: Array = getattr(array.cpu() if name == "numpy" else array, name)()
            return found
    return np.asarray(array)


def synchronise(options: argparse.Namespace) -> None:
    if options.device != "cpu":
        import cupy

        cupy.cuda.Device(int(options.device)).synchronize()


ZARR = {"zarr-python": by_zarr, "zarrs": by_zarrs}
#: For each case: the file's suffix, who writes it, and who reads it beside gpuload.
CASES: dict[str, tuple[str, Callable[[Path, Array], None], dict[str, Any]]] = {
    "zstd": (".zarr", make_zstd, ZARR),
    "blosc": (".zarr", make_blosc, ZARR),
    "blosc planes": (".zarr", make_blosc_planes, ZARR),
    "sharded": (".zarr", make_sharded, ZARR),
    "lz4": (".zarr", make_lz4, {"zarr-python": by_zarr}),
    "npz": (".npz", make_npz, {"numpy.load": by_numpy}),
    "safetensors": (
        ".safetensors",
        make_safetensors,
        {"safetensors": by_safetensors, "KvikIO": by_kvikio},
    ),
}


def measured(
    path: Path, data: Array, readers: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the seconds of every reader, in turn, and whether what it gave was right."""
    found: dict[str, Any] = {name: {"seconds": []} for name in readers}
    for run in range(options.runs + 1):
        for name, reader in readers.items():
            began = time.perf_counter()
            arrays = reader(path, options)
            synchronise(options)
            seconds = time.perf_counter() - began
            if run:
                found[name]["seconds"].append(seconds)
            else:
                found[name]["right"] = right(arrays, data)
            del arrays
    for name in readers:
        found[name]["median"] = median = statistics.median(found[name]["seconds"])
        found[name]["gb_per_s"] = data.nbytes / median / 1e9
    return found


def right(arrays: list[Any], data: Array) -> bool:
    hosts = [host_of(array) for array in arrays]
    edges = np.cumsum([0, *(len(host) for host in hosts)]).tolist()
    return edges[-1] == len(data) and all(
        np.array_equal(host, data[first:last])
        for host, first, last in zip(hosts, edges, edges[1:], strict=False)
    )


def installed(readers: dict[str, Any]) -> dict[str, Any]:
    names = {
        "zarr-python": "zarr",
        "zarrs": "zarrs",
        "safetensors": "safetensors",
        "KvikIO": "kvikio",
    }
    return {
        name: reader
        for name, reader in readers.items()
        if importlib.util.find_spec(names.get(name, "numpy"))
    }


def stored_size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def cases(folder: Path, data: Array, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.cases.split(","):
        suffix, make, others = CASES[name]
        path = folder / f"{name}-{data.nbytes}{suffix}"
        if not (options.keep and path.exists()):
            shutil.rmtree(path, ignore_errors=True)
            make(path, data)
        stored_size(path)
        beside = {} if options.alone else installed(others)
        runs = measured(path, data, {"gpuload": by_gpuload, **beside}, options)
        yield {"case": name, "size": data.nbytes, "stored_size": stored_size(path), "runs": runs}
        if not options.keep:
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)


def rows(found: list[dict[str, Any]]) -> Iterator[list[str]]:
    for case in found:
        ours = case["runs"]["gpuload"]["median"]
        for name, run in case["runs"].items():
            times = f"{run['median'] / ours:.2f}" if name != "gpuload" else ""
            ratio = f"{case['size'] / case['stored_size']:.2f}"
            rate, good = f"{run['gb_per_s']:.2f}", "" if run["right"] else "WRONG"
            yield [case["case"], ratio, name, f"{run['median']:.2f}", rate, times, good]


def versions() -> dict[str, str]:
    names = ("numpy", "zarr", "numcodecs", "zarrs", "safetensors", "torch", "kvikio_cu13")
    installed = {each.metadata["Name"].lower() for each in importlib.metadata.distributions()}
    found = [name for name in names if {name, name.replace("_", "-")} & installed]
    return {name: importlib.metadata.version(name) for name in found}


def device_name(options: argparse.Namespace) -> str:
    if options.device == "cpu":
        return "cpu"
    from gpuload import driver

    return driver.capabilities(int(options.device)).name


def main() -> None:
    options = arguments()
    data = field(options.size)
    folder = options.dir or Path(tempfile.mkdtemp(prefix="gpuload-arrays-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = list(cases(folder, data, options))
    finally:
        if not options.dir:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(["case", "ratio", "by", "s", "GB/s", "times gpuload", ""], rows(found)))
    if options.json:
        facts = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": options.commit,
            "machine": machine(),
            "device": device_name(options),
            "libraries": versions(),
            "trusted": options.trusted,
            "memory_limit": options.memory_limit,
            "runs": options.runs,
            "cases": found,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
