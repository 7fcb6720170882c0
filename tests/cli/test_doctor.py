"""``gpuload doctor``: a report on any machine."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpuload_cli import doctor

import gpuload
from gpuload import driver
from gpuload.driver import Capabilities
from gpuload.engines import nvcomp_library
from gpuload.errors import DriverError, MemoryLimitError
from gpuload.kernels import compiler, nvrtc

ROOT = Path(__file__).parents[2]

needs_nvrtc = pytest.mark.skipif(bool(compiler.unavailable()), reason=compiler.unavailable())


NO_NVRTC = "compiling GPU kernels needs nvidia-cuda-nvrtc: pip install 'gpuload[cuda]'"


def section(output: str, heading: str) -> dict[str, str]:
    """Return the labelled lines below a heading; of lines with the same label, the last."""
    lines = output.split(f"\n{heading}\n")[1].splitlines()
    block = lines[: next((at for at, line in enumerate(lines) if line[0] != " "), len(lines))]
    return {line[2:20].strip(): line[20:].strip() for line in block}


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
    monkeypatch.setattr(nvrtc, "find", lambda: None)
    monkeypatch.setattr(nvrtc, "lacking", lambda: "nvidia-cuda-nvrtc")
    missing = "nvCOMP is not installed: pip install 'gpuload[nvcomp]'"
    monkeypatch.setattr(nvcomp_library, "unavailable", lambda: missing)
    result = run("doctor")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if "not found" in line}
    assert "pip install 'gpuload[cuda]'" in lines["NVRTC"]
    assert "pip install 'gpuload[nvcomp]'" in lines["nvCOMP"]
    assert lines["nvCOMP"].split(maxsplit=1)[1] == "not found; pip install 'gpuload[nvcomp]'"
    assert "pip install 'gpuload[remote]'" in lines["fsspec"]
    parts = {part["name"]: part for part in json.loads(run("doctor", "--json").stdout)["gpu"]}
    install = "pip install 'gpuload[nvcomp]'"
    assert parts["nvCOMP"] == {"name": "nvCOMP", "version": None, "install": install}
    assert section(result.stdout, "kernels")["compiler"] == f"no: {NO_NVRTC}"


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


def test_nvcomp(run, monkeypatch) -> None:
    monkeypatch.setattr(nvcomp_library, "unavailable", lambda: "")
    monkeypatch.setattr(nvcomp_library, "load", lambda: SimpleNamespace(version=(6, 0)))
    parts = {part["name"]: part for part in json.loads(run("doctor", "--json").stdout)["gpu"]}
    assert parts["nvCOMP"] == {"name": "nvCOMP", "version": "6.0", "install": None}


def test_nvcomp_that_does_not_fit(run, monkeypatch) -> None:
    problem, install = "nvCOMP 4.2 is installed, 5.1 is needed", "pip install 'gpuload[nvcomp]'"
    monkeypatch.setattr(nvcomp_library, "unavailable", lambda: f"{problem}: {install}")
    assert section(run("doctor").stdout, "gpu")["nvCOMP"] == f"{problem}; {install}"
    parts = {part["name"]: part for part in json.loads(run("doctor", "--json").stdout)["gpu"]}
    assert (parts["nvCOMP"]["install"], parts["nvCOMP"]["problem"]) == (install, problem)


def test_extras_are_those_that_something_uses(run) -> None:
    record = json.loads(run("doctor", "--json").stdout)
    names = "fsspec aiohttp rapidgzip zarr numcodecs ml_dtypes matplotlib"
    assert [part["name"] for part in record["extras"]] == names.split()


def test_extras_are_those_of_the_project(run, monkeypatch) -> None:
    """What is missing is installed with the extra that names it, or one that needs it."""
    monkeypatch.setattr(doctor, "_version", lambda *_: None)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for part in json.loads(run("doctor", "--json").stdout)["extras"]:
        assert part["purpose"]
        extra = part["install"].removeprefix("pip install 'gpuload[").removesuffix("]'")
        brought = {re.split("[<>=]", each)[0] for each in extras[extra]}
        # zarr needs numcodecs.
        assert {part["name"], "zarr" if part["name"] == "numcodecs" else ""} & brought


def test_extras_that_are_installed(run) -> None:
    shown = section(run("doctor").stdout, "extras")
    for name in ("zarr", "numcodecs", "ml_dtypes"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not found"
        assert shown[name].startswith(version)


def test_no_driver(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_library", lambda _: None)
    assert doctor._driver_version() is None


class TestWithoutCuda:
    REASON = "there is no CUDA driver (libcuda.so.1 was not found); install NVIDIA's driver"

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
        multiprocessors=132,
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
        multiprocessors=148,
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

    @pytest.fixture
    def other_engines(self, monkeypatch) -> None:
        monkeypatch.setattr(compiler, "refusal", lambda number: "too old" if number else "")
        monkeypatch.setattr(nvcomp_library, "unavailable", lambda: "it is missing")

    def facts(self, output: str, number: int) -> dict[str, str]:
        """Return the labelled lines below a device's heading."""
        return section(output, f"device {number}")

    def test_text(self, run, other_engines) -> None:
        output = run("doctor").stdout
        assert self.facts(output, 0) == {
            "name": "NVIDIA H200",
            "compute capability": "9.0",
            "driver": "CUDA 13.0",
            "decompression": "no: NVIDIA H200 has no decompression engine "
            "(its algorithm mask is 0)",
            "sm engine": "yes",
            "nvcomp engine": "no: it is missing",
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

    def test_json(self, run, other_engines) -> None:
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
            "engines": {"hardware": None, "sm": "too old", "nvcomp": "it is missing"},
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

    @needs_nvrtc
    def test_warm_up(self, run, kernels, found) -> None:
        """Devices of the same architecture share their kernels."""
        found[2] = self.HOPPER
        record = json.loads(run("doctor", "--warmup", "--json").stdout)["kernels"]
        rows = [(row["architecture"], row["codec"], row["cached"]) for row in record["compiled"]]
        assert rows == [
            (arch, codec, False) for arch in ("sm_90", "sm_100") for codec in compiler.SOURCES
        ]
        assert record["errors"] == []

    @needs_nvrtc
    def test_warm_up_of_an_old_device(self, run, kernels, found) -> None:
        found[0] = dataclasses.replace(self.HOPPER, name="an old one", compute_capability=(7, 0))
        result = run("doctor", "--warmup")
        assert result.exit_code == 1
        assert result.stderr == (
            "gpuload: error: device 0 can't run kernels: an old one has compute capability 7.0; "
            "the kernels need 7.5 or newer\n"
        )
        assert "sm_100" in section(result.stdout, "kernels")

    @needs_nvrtc
    def test_warm_up_for_another_device(self, run, kernels) -> None:
        record = json.loads(run("doctor", "--warmup", "--arch", "sm_75", "--json").stdout)
        assert {row["architecture"] for row in record["kernels"]["compiled"]} == {"sm_75"}


@pytest.fixture
def kernels(tmp_path, monkeypatch) -> Path:
    """Return the folder where compiled kernels are kept, which does not exist yet."""
    monkeypatch.setenv("GPULOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "_compiled", {})
    return tmp_path / "cache" / "kernels"


class TestKernels:
    """What is said of kernels, and their compilation ahead; there may be no GPU."""

    NO_GPU = "the CUDA driver sees no device"

    @pytest.fixture(autouse=True)
    def no_cuda(self, monkeypatch) -> None:
        monkeypatch.setattr(driver, "unavailable", lambda: self.NO_GPU)

    @pytest.fixture
    def no_nvrtc(self, monkeypatch) -> None:
        monkeypatch.setattr(nvrtc, "find", lambda: None)
        monkeypatch.setattr(nvrtc, "lacking", lambda: "nvidia-cuda-nvrtc")

    @needs_nvrtc
    def test_text(self, run, kernels) -> None:
        output = run("doctor").stdout
        version = "{}.{}".format(*nvrtc.find().version)
        assert section(output, "gpu")["NVRTC"] == version
        assert section(output, "kernels") == {
            "compiler": f"NVRTC {version}",
            "cache": str(kernels),
        }
        assert not kernels.exists()

    @needs_nvrtc
    def test_json(self, run, kernels) -> None:
        assert json.loads(run("doctor", "--json").stdout)["kernels"] == {
            "compiler": str(nvrtc.find()),
            "unavailable": None,
            "cache": str(kernels),
            "compiled": None,
            "errors": [],
        }

    def test_no_home(self, run, monkeypatch) -> None:
        monkeypatch.setattr("gpuload.kernels.cache.cache_folder", lambda: None)
        output = run("doctor").stdout
        assert section(output, "kernels")["cache"] == "none: this user has no home folder"
        assert json.loads(run("doctor", "--json").stdout)["kernels"]["cache"] is None

    def test_without_nvrtc(self, run, no_nvrtc) -> None:
        result = run("doctor")
        assert (result.exit_code, result.stderr) == (0, "")
        assert section(result.stdout, "kernels")["compiler"] == f"no: {NO_NVRTC}"
        record = json.loads(run("doctor", "--json").stdout)["kernels"]
        assert (record["compiler"], record["unavailable"]) == (None, NO_NVRTC)

    @needs_nvrtc
    def test_warm_up_without_a_gpu(self, run, kernels) -> None:
        result = run("doctor", "--warmup")
        assert result.exit_code == 1
        assert result.stderr == (
            f"gpuload: error: {self.NO_GPU}; --arch says what to compile for without a GPU\n"
        )
        assert result.stdout.startswith("gpuload ")

    @pytest.mark.parametrize("more", [(), ("--arch", "sm_90")])
    def test_warm_up_without_nvrtc(self, run, no_nvrtc, more: tuple[str, ...]) -> None:
        result = run("doctor", "--warmup", *more)
        assert result.exit_code == 1
        assert result.stderr == f"gpuload: error: {NO_NVRTC}\n"

    @needs_nvrtc
    def test_warm_up_for_architectures(self, run, kernels, monkeypatch) -> None:
        words = ("--warmup", "--arch", "sm_90", "--arch", "sm_75", "--arch", "sm_90")
        result = run("doctor", *words)
        assert (result.exit_code, result.stderr) == (0, "")
        lines = [line.split() for line in result.stdout.splitlines() if line.startswith("  sm_")]
        assert [line[:2] for line in lines] == [
            [arch, codec] for arch in ("sm_90", "sm_75") for codec in compiler.SOURCES
        ]
        assert {line[2] for line in lines} == {"compiled"}
        monkeypatch.setattr(compiler, "_compiled", {})
        again = section(run("doctor", *words).stdout, "kernels")
        assert again["sm_90"].endswith("found in the cache")

    @needs_nvrtc
    def test_warm_up_for_an_unknown_architecture(self, run, kernels) -> None:
        result = run("doctor", "--warmup", "--arch", "sm_999", "--arch", "sm_90", "--json")
        assert result.exit_code == 1
        record = json.loads(result.stdout)["kernels"]
        assert "does not compile for 'sm_999', but for sm_75," in record["errors"][0]
        assert "pip install --upgrade" in record["errors"][0]
        assert result.stderr == f"gpuload: error: {record['errors'][0]}\n"
        assert {row["architecture"] for row in record["compiled"]} == {"sm_90"}

    @needs_nvrtc
    def test_warm_up_that_cannot_be_kept(self, run, kernels) -> None:
        kernels.parent.touch()
        result = run("doctor", "--warmup", "--arch", "sm_90")
        assert result.exit_code == 1
        assert "compiled in" in result.stdout
        (line,) = result.stderr.splitlines()
        assert line.startswith("gpuload: error: the compiled kernels cannot be kept")
        assert str(kernels) in line

    @pytest.mark.parametrize(
        "arch",
        ["foo", "90", "9.0", "SM_90", "", "sm_90,sm_100", "sm_", "sm_9", "sm_090", "sm_70"],
    )
    def test_wrong_architecture(self, run, arch: str) -> None:
        result = run("doctor", "--warmup", "--arch", arch)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"'{arch}' is no architecture such as sm_90" in result.stderr
        assert "sm_75 (compute capability 7.5) is the oldest" in result.stderr

    @needs_nvrtc
    def test_architecture_that_does_not_exist(self, run) -> None:
        result = run("doctor", "--warmup", "--arch", "sm_76")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "does not compile for sm_76, but for sm_75, " in result.stderr
        assert "upgrade" not in result.stderr

    def test_architecture_without_warm_up(self, run) -> None:
        result = run("doctor", "--arch", "sm_90")
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "use it with --warmup" in result.stderr
