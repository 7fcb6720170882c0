"""Large members of NPZ files, decoded piece by piece on their way to the double of a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuload import driver, stations
from gpuload.device_array import close_pools
from tests import test_array_stream
from tests.helpers.device_loads import clean_loads
from tests.test_array_stream import *  # noqa: F403 (the same tests)


@pytest.fixture(autouse=True)
def _on_a_device(cuda, monkeypatch):
    known = replace(driver.capabilities(0), decompress_mask=0, decompress_max_length=0)
    monkeypatch.setattr(driver, "capabilities", lambda _: known)
    cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
    monkeypatch.setitem(test_array_stream.HOST, "device", 0)
    with clean_loads():
        yield
        stations.release()
        close_pools()
