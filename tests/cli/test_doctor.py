"""``gpuload doctor``: a report on any machine."""

from __future__ import annotations

import importlib.metadata
import json
import platform

import pytest
from gpuload_cli import doctor

import gpuload


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
