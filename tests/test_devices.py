"""What users may name a device or a stream by, without CUDA and with devices that are pretended."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest

import gpuload
from gpuload import driver
from gpuload.devices import find_device, find_stream
from gpuload.driver import devices
from gpuload.errors import DriverError

REASON = "there is no CUDA driver (libcuda.so.1 was not found); install NVIDIA's driver"


@pytest.fixture
def no_cuda(monkeypatch):
    """A machine without CUDA, whatever this one has."""
    for module in (driver, devices):
        monkeypatch.setattr(module, "unavailable", lambda: REASON)


@pytest.fixture
def two_devices(monkeypatch):
    """A machine with devices 0 and 1, of which 1 is current."""

    def device(number):
        if number not in (0, 1):
            raise DriverError(f"there is no device {number}: this process sees 2")

    monkeypatch.setattr(driver, "unavailable", lambda: "")
    monkeypatch.setattr(driver, "device", device)
    monkeypatch.setattr(driver, "current_device", lambda: 1)


class TorchDevice:
    """As torch.device: its text is what a user would write."""

    def __init__(self, text):
        self._text = text
        self.type, _, index = text.partition(":")
        self.index = int(index) if index else None

    def __str__(self):
        return self._text


class CoreDevice:
    """As cuda.core.Device."""

    def __init__(self, number):
        self.device_id = number


class CupyDevice:
    """As cupy.cuda.Device."""

    def __init__(self, number):
        self.id = number


# --- Without CUDA ---------------------------------------------------------------------------------


def test_nothing_named_is_host_memory(no_cuda):
    assert find_device(None) is None


@pytest.mark.parametrize("device", ["cpu", TorchDevice("cpu")])
def test_host_memory_by_name(no_cuda, device):
    assert find_device(device) is None


@pytest.mark.parametrize(
    "device",
    [0, 1, "cuda", "cuda:0", "gpu", "gpu:3", TorchDevice("cuda:1"), CoreDevice(0), CupyDevice(2)],
)
def test_a_device_that_is_named_needs_cuda(no_cuda, device):
    with pytest.raises(DriverError, match="can't be used: there is no CUDA driver"):
        find_device(device)


NAMES = ["", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:1.0", "cuda 0", " cuda", "tpu", "cuda:0:1"]
NAMES += ["cuda:0\n", "mps", "meta"]


@pytest.mark.parametrize("device", [*NAMES, TorchDevice("meta"), TorchDevice("mps:0")])
def test_names_of_nothing(no_cuda, device):
    with pytest.raises(ValueError, match="device must be 'cpu', 'cuda' or 'cuda:N', not '"):
        find_device(device)


@pytest.mark.parametrize(
    "device", [1.5, b"cuda", True, False, [0], (), {}, object(), CupyDevice("0")]
)
def test_what_is_no_device(no_cuda, device):
    with pytest.raises(ValueError, match="device must be None, 'cpu', 'cuda:N' or a number, not "):
        find_device(device)


@pytest.mark.parametrize("call", [gpuload.load, gpuload.open])
def test_loads_to_host_memory_need_no_cuda(no_cuda, call):
    data = gzip.compress(b"some bytes")
    if call is gpuload.load:
        assert bytes(gpuload.load(data)) == b"some bytes"
    with gpuload.open(data) as container:
        assert bytes(container.load()) == b"some bytes"
        assert container.load().device == "cpu"


@pytest.mark.parametrize("device", [0, "cuda"])
def test_a_load_to_a_device_says_why_not(no_cuda, device):
    with pytest.raises(DriverError, match="there is no CUDA driver"):
        gpuload.load(gzip.compress(b""), device=device)
    with gpuload.open(gzip.compress(b""), device=device) as container:
        for way in (container.load, container.explain, container.verify):
            with pytest.raises(DriverError, match="there is no CUDA driver"):
                way()


def test_finding_host_memory_imports_no_cuda(no_cuda):
    before = set(sys.modules)
    find_device("cpu")
    find_device(None)
    assert not {name for name in set(sys.modules) - before if name.startswith("cuda")}


# --- With devices ---------------------------------------------------------------------------------


def test_nothing_named_is_the_current_device(two_devices):
    assert find_device(None) == 1


@pytest.mark.parametrize("device", ["cpu", TorchDevice("cpu")])
def test_host_memory_is_asked_for_by_name(two_devices, device):
    assert find_device(device) is None


@pytest.mark.parametrize(
    ("device", "number"),
    [
        (0, 0),
        (1, 1),
        ("cuda", 1),
        ("gpu", 1),
        ("cuda:0", 0),
        ("gpu:0", 0),
        ("cuda:1", 1),
        ("cuda:01", 1),
        (TorchDevice("cuda"), 1),
        (TorchDevice("cuda:0"), 0),
        (CoreDevice(0), 0),
        (CupyDevice(1), 1),
    ],
)
def test_devices(two_devices, device, number):
    assert find_device(device) == number


def test_numbers_of_numpy(two_devices):
    """They index everything else too."""
    assert find_device(np.int64(1)) == 1


@pytest.mark.parametrize("device", [2, -1, "cuda:2", CupyDevice(7), TorchDevice("cuda:9")])
def test_no_such_device(two_devices, device):
    with pytest.raises(DriverError, match="there is no device"):
        find_device(device)


# --- Streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["stream", 1.5, object(), b"1", [1]])
def test_what_is_no_stream(stream):
    pytest.importorskip("cuda.core")
    with pytest.raises(TypeError, match="stream must be a CUDA stream or its handle, not "):
        find_stream(stream, 0)
