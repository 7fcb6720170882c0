"""``gpuload bench kernels`` on the double, from the command line to the last byte."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import lz4.block
import pytest
from click.testing import CliRunner
from gpuload_cli import bench_chunks, cli

from gpuload.engines import nvcomp_library
from tests.helpers.device_loads import hang_ends_the_process
from tests.helpers.fakecuda import Code
from tests.helpers.fakenvcomp import FakeNvcomp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

#: Little work: what the double does, it does slowly.
TINY = ("--size", "10K", "--chunk-size", "4K", "--repeats", "2", "--threads", "2")
FEW = ("--codec", "lz4", "--data", "text")


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    with hang_ends_the_process(300):
        yield


@pytest.fixture
def nvcomp(cuda, monkeypatch) -> Iterator[FakeNvcomp]:
    made = FakeNvcomp(cuda)
    monkeypatch.setattr(nvcomp_library, "_candidates", lambda: [str(made.path)])
    nvcomp_library._find.cache_clear()
    yield made
    nvcomp_library._find.cache_clear()


@pytest.fixture
def no_nvcomp(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(nvcomp_library, "_candidates", list)
    nvcomp_library._find.cache_clear()
    yield
    nvcomp_library._find.cache_clear()


def run(*words: str) -> Result:
    # In a thread of its own: cuda.core keeps what it was told of a device as long as the thread.
    arguments = ["bench", "kernels", *TINY, *words]
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(CliRunner().invoke, cli, arguments, catch_exceptions=False).result()


def measured(*words: str) -> dict:
    """Return the report of a run without errors."""
    done = run("--json", *words)
    assert (done.exit_code, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["ok"] is True
    for row in report["rows"]:
        for result in row["results"].values():
            assert result["error"] == ""
            assert bool(result["seconds"]) == (not result["refused"])
    return report


def test_every_engine(nvcomp) -> None:
    report = measured()
    assert report["columns"] == ["sm", "nvcomp", "hardware", "host", "copy"]
    assert report["unavailable"] == {}
    batches = [row for row in report["rows"] if row["kind"] == "batch"]
    names = [(row["codec"], row["data"]) for row in batches]
    data = ("text", "binary", "weights", "field")
    assert names == [(codec, name) for name in data for codec in ("lz4", "snappy")]
    for row in batches:
        # 10 KiB in chunks of 4 KiB.
        assert (row["chunk_size"], row["chunks"], row["raw_size"]) == (4096, 3, 10240)
        assert row["ratio"] == row["raw_size"] / row["stored_size"]
        assert row["sm_to_nvcomp"] > 0
        for result in row["results"].values():
            assert len(result["seconds"]) == 2
            assert result["gb_per_s"] * result["median"] == pytest.approx(10240 / 1e9)
            assert result["stored_gb_per_s"] * row["ratio"] == pytest.approx(result["gb_per_s"])


def test_time_of_the_host(nvcomp) -> None:
    report = measured(*FEW, "--data", "field", "--chunk-size", "2K", "--codec", "snappy")
    submits = [row for row in report["rows"] if row["kind"] == "submit"]
    # Once for each codec.
    assert [(row["codec"], row["data"], row["chunks"]) for row in submits] == [
        ("lz4", "text", 1),
        ("snappy", "text", 1),
    ]
    for row in submits:
        assert list(row["results"]) == ["sm", "nvcomp", "hardware"]
        assert {len(result["seconds"]) for result in row["results"].values()} == {100}


def test_codecs_without_kernels(nvcomp) -> None:
    report = measured("--codec", "deflate", "--codec", "zstd", "--data", "text")
    refused = {
        (row["codec"], name): result["refused"]
        for row in report["rows"]
        for name, result in row["results"].items()
        if result["refused"]
    }
    # The decompression engine takes DEFLATE, and nvCOMP and the host take both.
    assert set(refused) == {("deflate", "sm"), ("zstd", "sm"), ("zstd", "hardware")}


def test_batches_of_some_chunks(no_nvcomp, cuda) -> None:
    words = ("--chunks", "2", "--chunks", "all", "--chunks", "9", "--engine", "hardware")
    rows = measured(*FEW, *words)["rows"]
    assert [row["chunks"] for row in rows if row["kind"] == "batch"] == [2, 3]
    assert [row["raw_size"] for row in rows if row["kind"] == "batch"] == [8192, 10240]
    assert {1, 2, 3} == set(cuda.batches)


@pytest.mark.parametrize("host_numa", [1, 0])
def test_chunks_in_host_memory(nvcomp, cuda, host_numa: int) -> None:
    cuda.settings.attributes[141] = host_numa  # HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    report = measured(*FEW, "--data", "weights", "--mapped")
    # Where there is no such memory, it is pinned memory that the hardware engine can't reach.
    assert ("hardware" in report["columns"]) == bool(host_numa)
    assert {"sm", "nvcomp", "host", "copy"} <= {*report["columns"]}
    assert report["plan"]["mapped"] is True


def test_eager_device(nvcomp, cuda) -> None:
    """The device is done before the host has submitted all, so that the host's time counts."""
    cuda.schedule = "eager"
    (row, _) = measured(*FEW, "--engine", "hardware")["rows"]
    assert row["results"]["hardware"]["waited"] is True


def test_device_that_is_busy_long_enough(no_nvcomp) -> None:
    (row, _) = measured(*FEW, "--engine", "sm", "--engine", "hardware")["rows"]
    assert {name: result["waited"] for name, result in row["results"].items()} == {
        "sm": False,
        "hardware": False,
        "copy": False,
    }


class TestTable:
    def test_without_nvcomp(self, no_nvcomp) -> None:
        done = run(*FEW)
        assert (done.exit_code, done.stderr) == (0, "")
        assert (
            "no column for nvcomp: nvCOMP is not installed: pip install 'gpuload[nvcomp]'\n"
        ) in done.stdout
        head, *rows = done.stdout.split("\n\n")[1].splitlines()
        columns = "codec data ratio chunk chunks sm hardware host copy"
        assert head.split() == columns.split()
        assert [row.split()[:2] for row in rows] == [["lz4", "text"], ["lz4", "host"]]
        assert [len(row) <= len(head) for row in rows] == [True, True]

    def test_without_an_engine_in_hardware(self, nvcomp, cuda) -> None:
        cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
        done = run(*FEW)
        assert (done.exit_code, done.stderr) == (0, "")
        assert "no column for hardware: Double of a GPU 0 has no decompression engine" in (
            done.stdout
        )
        head = done.stdout.split("\n\n")[1].splitlines()[0]
        assert head.split()[5:] == ["sm", "nvcomp", "host", "copy", "sm/nvcomp"]


class TestErrors:
    def test_engine_that_is_not_here(self, no_nvcomp) -> None:
        done = run("--engine", "nvcomp", "--engine", "sm")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == (
            "gpuload: error: the nvcomp engine cannot run here: nvCOMP is not installed: "
            "pip install 'gpuload[nvcomp]'\n"
        )

    def test_device_that_is_not_here(self) -> None:
        done = run("--device", "5")
        assert done.exit_code == 2
        assert done.stderr == (
            "gpuload: error: there is no GPU to measure: there is no device 5: this process sees "
            "1, numbered from 0\n"
        )

    def test_wrong_bytes(self, nvcomp, monkeypatch) -> None:
        """What is compressed is not what is compared."""

        def other(chunk: memoryview) -> bytes:
            end = bytes([chunk[-1] ^ 1])
            return lz4.block.compress(bytes(chunk[:-1]) + end, store_size=False)

        monkeypatch.setitem(bench_chunks._COMPRESSORS, "lz4", lambda: other)
        done = run(*FEW, "--data", "weights", "--json")
        assert done.exit_code == 1
        report = json.loads(done.stdout)
        assert report["ok"] is False
        wrong = [
            (name, result["error"].split(" decodes to ")[0])
            for row in report["rows"]
            for name, result in row["results"].items()
            if result["error"]
        ]
        engines = ["sm", "nvcomp", "hardware", "host"]
        assert wrong == [(name, "byte 4095 of the content") for name in engines * 2]
        lines = done.stderr.splitlines()
        assert len(lines) == 8
        assert lines[0].startswith(
            "gpuload: error: sm, lz4, text, chunks of 4K: byte 4095 of the content decodes to 0x"
        )

    def test_chunks_that_do_not_decode(self, nvcomp, monkeypatch) -> None:
        # A match from before the first byte.
        monkeypatch.setitem(
            bench_chunks._COMPRESSORS, "lz4", lambda: lambda chunk: b"\x00\x01\x00\x10a"
        )
        done = run(*FEW)
        assert done.exit_code == 1
        assert "sm, lz4, text, chunks of 4K: 3 chunks do not decode, the first is chunk 0: " in (
            done.stderr
        )
        row = done.stdout.splitlines()[-2]
        assert row.split()[-6:-2] == ["failed"] * 4

    def test_memory_that_is_not_there(self, no_nvcomp, cuda) -> None:
        cuda.fail_next("cuMemCreate", Code.OUT_OF_MEMORY, after=1)
        done = run(*FEW)
        assert done.exit_code == 1
        assert "no memory for" in done.stderr
