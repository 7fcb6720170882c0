"""A library that, preloaded into a process, makes reads of one file fail (failing_reads.cpp)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["build", "environment"]

_SOURCE = Path(__file__).with_suffix(".cpp")
_OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")


def build(folder: Path) -> Path:
    """Build the library in a folder; skips the test where that cannot be done."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if not sys.platform.startswith("linux"):
        pytest.skip("needs LD_PRELOAD and /proc")
    if compiler is None:
        pytest.skip("g++ builds the failing disk and is not installed; install it or set CXX")
    library = folder / "failing_reads.so"
    command = [compiler, *_OPTIONS, str(_SOURCE), "-o", str(library), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def environment(library: Path, file: Path, offset: int, how: str) -> dict[str, str]:
    """Return the environment of a process in which a file fails from an offset on.

    Parameters
    ----------
    library : Path
        What `build` returned.
    file : Path
        The file.
    offset : int
        Where it begins to fail.
    how : str
        "EIO" or "truncate".
    """
    return os.environ | {
        "LD_PRELOAD": str(library),
        "FAILING_FILE": os.path.realpath(file),
        "FAILING_FROM": str(offset),
        "FAILING_HOW": how,
    }
