"""Run the tests that need the double of the driver, in a process that has it from the start."""

from __future__ import annotations

import os
import re

import pytest

from tests.helpers.double_suite import SUITE


def _must_run() -> bool:
    return os.environ.get("CI", "").lower() == "true"


def test_everything_on_the_double_of_the_driver(request):
    if SUITE not in request.config.stash:
        reason = "g++ builds the double of the driver and is not installed"
        assert not _must_run(), f"{reason}: with CI=true these tests must run"
        pytest.skip(reason)
    status, printed = request.config.stash[SUITE].wait()
    report = printed[-25_000:]
    assert status == 0, report
    summary = printed.rstrip().splitlines()[-1]
    assert re.search(r"\d+ passed", summary), report
    assert not re.search(r"skipped|xfailed|xpassed|deselected", summary), report
