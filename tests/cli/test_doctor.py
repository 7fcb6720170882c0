"""``gpuload doctor``: a report on any machine."""

from __future__ import annotations

import importlib.metadata
import json
import platform

import pytest
from gpuload_cli import doctor

import gpuload
from gpuload import driver
from gpuload.driver import Capabilities
from gpuload.errors import DriverError, MemoryLimitError


def test_text(run) -> None:
    result = run("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"gpuload {gpuload.__version__}\n")
    for word in (platform.python_version(), "CUDA driver", "NVRTC", "nvCOMP", "zstandard"):
        assert word in result.stdout


def test_json(run) -> None:
    record = json.loads(run("doctor", "--json").stdout)
    assert record["gpuload"] == gpuload.__version__
    assert record["threads"] >= 1
    libraries = {row["library"]: row["version"] for row in record["codecs"]}
    assert libraries["zstandard"] == importlib.metadata.version("zstandard")
    for part in record["gpu"] + record["extras"]:
        assert (part["version"] is None) != (part["install"] is None)


def test_nothing_installed(run, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_library", lambda _: None)
    monkeypatch.setattr(doctor, "_version", lambda *_: None)
    result = run("doctor")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if "not found" in line}
    assert "pip install 'gpuload[cuda]'" in lines["NVRTC"]
    assert "pip install 'gpuload[nvcomp]'" in lines["nvCOMP"]
    assert "pip install 'gpuload[remote]'" in lines["fsspec"]


class Driver:
    """Stands for libcuda; `status` is what its calls return."""

    def __init__(self, version: int, status: int = 0) -> None:
        def answer(pointer) -> int:
            pointer._obj.value = version
            return status

        self.cuDriverGetVersion = answer


@pytest.mark.parametrize(
    ("driver", "version"),
    [
        (Driver(13000), "CUDA 13.0"),
        (Driver(12080), "CUDA 12.8"),
        (Driver(0, status=999), "of unknown version"),
        (object(), "of unknown version"),
    ],
)
def test_driver(monkeypatch, driver: object, version: str) -> None:
    monkeypatch.setattr(doctor, "_library", lambda _: driver)
    assert doctor._driver_version() == version


def test_no_driver(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_library", lambda _: None)
    assert doctor._driver_version() is None


class TestWithoutCuda:
    REASON = "there is no CUDA driver (libcuda.so.1 was not found): install NVIDIA's"

    @pytest.fixture(autouse=True)
    def no_cuda(self, monkeypatch) -> None:
        monkeypatch.setattr(driver, "unavailable", lambda: self.REASON)

    def test_text(self, run) -> None:
        result = run("doctor")
        assert result.exit_code == 0
        heading, reason = result.stdout.splitlines()[-2:]
        assert heading == "devices"
        assert reason.split() == ["none", *self.REASON.split()]

    def test_json(self, run) -> None:
        record = json.loads(run("doctor", "--json").stdout)
        assert record["devices"] == []
        assert record["no_devices"] == self.REASON


class TestDevices:
    """Two devices: a Hopper GPU, which has no decompression engine, and a Blackwell GPU."""

    HOPPER = Capabilities(
        name="NVIDIA H200",
        compute_capability=(9, 0),
        driver_version=(13, 0),
        decompress_mask=0,
        decompress_max_length=0,
        sparse_arrays=True,
        memory_pools=True,
        virtual_memory=True,
        host_numa_memory=True,
        host_numa_id=1,
        total_memory=141 << 30,
    )
    BLACKWELL = Capabilities(
        name="NVIDIA B200",
        compute_capability=(10, 0),
        driver_version=(13, 0),
        decompress_mask=7,
        decompress_max_length=4 << 20,
        sparse_arrays=False,
        memory_pools=True,
        virtual_memory=True,
        host_numa_memory=True,
        host_numa_id=-1,
        total_memory=180 << 30,
    )

    @pytest.fixture(autouse=True)
    def found(self, monkeypatch) -> dict[int, object]:
        """What the driver answers for each device; an exception is raised."""
        answers = {0: self.HOPPER, 1: self.BLACKWELL}

        def capabilities(number: int) -> object:
            if isinstance(answers[number], Exception):
                raise answers[number]
            return answers[number]

        monkeypatch.setattr(driver, "unavailable", lambda: "")
        monkeypatch.setattr(driver, "decompress_unavailable", lambda: "")
        monkeypatch.setattr(driver, "capabilities", capabilities)
        monkeypatch.setattr(driver, "memory_info", lambda number: (140 << 30, 141 << 30))
        monkeypatch.setattr("gpuload.driver.library.device_count", lambda: len(answers))
        return answers

    def facts(self, output: str, number: int) -> dict[str, str]:
        """Return the labelled lines below a device's heading."""
        lines = output.split(f"\ndevice {number}\n")[1].splitlines()
        block = lines[: next((at for at, line in enumerate(lines) if line[0] != " "), len(lines))]
        return {line[2:20].strip(): line[20:].strip() for line in block}

    def test_text(self, run) -> None:
        output = run("doctor").stdout
        assert self.facts(output, 0) == {
            "name": "NVIDIA H200",
            "compute capability": "9.0",
            "driver": "CUDA 13.0",
            "decompression": "no: NVIDIA H200 has no decompression engine "
            "(its algorithm mask is 0)",
            "sparse arrays": "yes",
            "memory pools": "yes",
            "virtual memory": "yes",
            "host-NUMA memory": "yes, node 1",
            "memory": "140.0 GiB of 141.0 GiB free",
        }
        second = self.facts(output, 1)
        assert second["decompression"] == "deflate, snappy, lz4; at most 4.0 MiB a chunk"
        assert (second["sparse arrays"], second["host-NUMA memory"]) == ("no", "yes")
        assert "\ndevices\n" not in output

    def test_json(self, run) -> None:
        record = json.loads(run("doctor", "--json").stdout)
        assert record["no_devices"] is None
        hopper, blackwell = record["devices"]
        assert hopper["decompression"]["algorithms"] == []
        assert "no decompression engine" in hopper["decompression"]["unavailable"]
        assert hopper["free_memory"] == 140 << 30
        assert blackwell == {
            "device": 1,
            "name": "NVIDIA B200",
            "compute_capability": "10.0",
            "driver": "CUDA 13.0",
            "decompression": {
                "algorithms": ["deflate", "snappy", "lz4"],
                "algorithm_mask": 7,
                "maximum_length": 4 << 20,
                "unavailable": None,
            },
            "sparse_arrays": False,
            "memory_pools": True,
            "virtual_memory": True,
            "host_numa_memory": True,
            "host_numa_node": -1,
            "free_memory": 140 << 30,
            "total_memory": 180 << 30,
            "memory_error": None,
        }

    def test_driver_too_old_to_ask(self, run, monkeypatch) -> None:
        monkeypatch.setattr(driver, "decompress_unavailable", lambda: "the driver is too old")
        output = run("doctor").stdout
        assert self.facts(output, 1)["decompression"] == "no: the driver is too old"

    def test_full_device(self, run, monkeypatch) -> None:
        def full(number: int) -> None:
            raise MemoryLimitError("no memory for device 0")

        monkeypatch.setattr(driver, "memory_info", full)
        result = run("doctor")
        assert result.exit_code == 0
        assert self.facts(result.stdout, 0)["memory"] == (
            "141.0 GiB; how much is free is not known: no memory for device 0"
        )

    def test_device_that_does_not_answer(self, run, found) -> None:
        found[0] = DriverError("cuDeviceGetAttribute failed")
        result = run("doctor")
        assert result.exit_code == 0
        assert self.facts(result.stdout, 0) == {"error": "cuDeviceGetAttribute failed"}
        assert self.facts(result.stdout, 1)["name"] == "NVIDIA B200"
        record = json.loads(run("doctor", "--json").stdout)
        assert record["devices"][0] == {"device": 0, "error": "cuDeviceGetAttribute failed"}
