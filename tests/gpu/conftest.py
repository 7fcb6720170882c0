"""Fixtures of the tests that need a real GPU."""

from __future__ import annotations

import pytest

from gpuload import driver
from gpuload.driver import library

DEVICE = 0


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    """Skip where there is no GPU; the double of the driver, loaded by other tests, is none."""
    if hasattr(library.load(), "fakecuda_shutdown"):
        pytest.skip("this process runs on the double of the driver; run tests/gpu on their own")
    reason = driver.unavailable()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def device():
    """cuda.core's device, current in this thread."""
    found = driver.device(DEVICE)
    found.set_current()
    return found


@pytest.fixture
def stream(device):
    """A stream of its own for each test."""
    made = device.create_stream()
    yield made
    made.sync()
    made.close()
