"""Everything below runs on the double of the driver, in a process of its own.

The double takes libcuda's place for the whole process, so nothing here is collected unless
``GPULOAD_FAKE_CUDA=1`` says that this process is meant for it; tests/test_double.py starts it.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.fakecuda import FakeDriver

if os.environ.get("GPULOAD_FAKE_CUDA") == "1":
    from tests.helpers import fakecuda

    fakecuda.load()
else:
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session", autouse=True)
def _quick_collections() -> Iterator[None]:
    """What is there before the first test is no leak; looking at it after each takes a minute."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile kernels once for all tests, whatever is kept on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPULOAD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def _give_back() -> None:
    """Have loads give back what they keep for the next ones, if there were any."""
    lease = sys.modules.get("gpuload.lease")
    if lease is not None:
        lease.release()


@pytest.fixture(autouse=True)
def _costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small files go to the host, whatever the last measurement says: tests count on it."""
    from gpuload.engines import rates

    monkeypatch.setattr(rates, "START", 6e-3)
    monkeypatch.setattr(rates, "HOST_START", 0.0)


@pytest.fixture(autouse=True)
def cuda() -> Iterator[FakeDriver]:
    """Give the test a fresh double; fail it for whatever the double complains of at the end."""
    double = fakecuda.load()
    double.reset()
    yield double
    _give_back()
    gc.collect()
    complaints = double.complaints()
    leaks = double.leaks()
    double.reset()
    assert complaints == []
    assert leaks == []
