"""The tests on the double of the driver, which go on beside the others, as long as those."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

__all__ = ["SUITE", "start"]

ROOT = Path(__file__).parents[2]


class DoubleSuite:
    """The tests on the double, on their way."""

    def __init__(self) -> None:
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the end)
        command = [sys.executable, "-m", "pytest", "tests/double", "-p", "no:cacheprovider"]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "GPULOAD_FAKE_CUDA": "1"},
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def wait(self) -> tuple[int, str]:
        """Return the status and what was printed."""
        status = self.process.wait()
        self.output.seek(0)
        return status, self.output.read().decode(errors="replace")

    def close(self) -> None:
        """End it, if it goes on."""
        self.process.kill()
        self.process.wait()
        self.output.close()


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


#: Where a session has them.
SUITE = pytest.StashKey[DoubleSuite]()


def start(session: pytest.Session) -> None:
    """Start them if they are wanted, once all tests are known; who waits for them comes last."""
    path = ROOT / "tests" / "test_double.py"
    session.items.sort(key=lambda item: item.path == path)
    wanted = bool(session.items) and session.items[-1].path == path
    if wanted and _compiler() and not session.config.option.collectonly:
        suite = session.config.stash[SUITE] = DoubleSuite()
        session.config.add_cleanup(suite.close)
