"""Decoding for the host by a device that nobody asked for: without it, where it fails."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import gpuload
from gpuload import container, driver, lease
from gpuload.engines import rates
from gpuload.errors import DriverError, MemoryLimitError
from tests.helpers.device_loads import clean_loads, compressed
from tests.helpers.fakecuda import Code
from tests.helpers.overlapped_loads import mixed

RAW = mixed(3 << 20)
DATA = compressed(RAW, "lz4")


@pytest.fixture(autouse=True)
def _device_is_faster(cuda, monkeypatch):
    known = replace(driver.capabilities(0), decompress_mask=0, decompress_max_length=0)
    monkeypatch.setattr(driver, "capabilities", lambda _: known)
    cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
    monkeypatch.setattr(container, "fetching_is_slower", lambda *_: {})
    monkeypatch.setattr(rates, "host_seconds", lambda *_: 100.0)
    with clean_loads():
        yield
        lease.release()


def written(tmp_path, **options):
    """Return what is written to a file, and the report."""
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with gpuload.open(DATA, **options) as opened:
            report = opened.write_to(descriptor, positional=True)
    finally:
        os.close(descriptor)
    return path.read_bytes(), report


def test_it_is_used(tmp_path):
    content, report = written(tmp_path)
    assert content == RAW
    assert report.engine == "sm"


def test_memory_that_it_has_not(cuda, tmp_path):
    cuda.settings.total_memory = 2 << 20
    content, report = written(tmp_path)
    assert content == RAW
    assert report.engine == "host"
    assert report.passed_over["sm"].startswith("it failed: ")


@pytest.mark.parametrize("call", ["cuStreamCreateWithPriority", "cuMemCreate", "cuMemAllocHost_v2"])
def test_calls_that_fail(cuda, tmp_path, call):
    cuda.fail_next(call, Code.OUT_OF_MEMORY, times=1000)
    assert written(tmp_path)[0] == RAW


def test_who_asks_for_a_device_is_told(cuda, tmp_path):
    cuda.settings.total_memory = 2 << 20
    with pytest.raises((DriverError, MemoryLimitError)):
        written(tmp_path, device=0)


def test_a_pipe_that_has_got_some_of_it(cuda, monkeypatch):
    """What was written cannot be taken back."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    original = container.CountingSink.write

    def write(self, offset, data):
        original(self, offset, data)
        raise DriverError("the device is gone")

    monkeypatch.setattr(container.CountingSink, "write", write)
    try:
        with gpuload.open(DATA) as opened, pytest.raises(DriverError, match="is gone"):
            opened.write_to(descriptor)
    finally:
        os.close(descriptor)
