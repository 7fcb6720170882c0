"""Run the tests that need the double of the driver, in a process that has it from the start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _must_run() -> bool:
    return os.environ.get("CI", "").lower() == "true"


def test_everything_on_the_double_of_the_driver():
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        reason = "g++ builds the double of the driver and is not installed"
        assert not _must_run(), f"{reason}: with CI=true these tests must run"
        pytest.skip(reason)
    command = [sys.executable, "-m", "pytest", "tests/double", "-p", "no:cacheprovider"]
    environment = {**os.environ, "GPULOAD_FAKE_CUDA": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    report = done.stdout[-20_000:] + done.stderr[-5_000:]
    assert done.returncode == 0, report
    summary = done.stdout.rstrip().splitlines()[-1]
    assert re.search(r"\d+ passed", summary), report
    assert not re.search(r"skipped|xfailed|xpassed|deselected", summary), report
