"""Build the library once per version of its source, beside the double of the driver."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from tests.helpers.fakecuda.build import CompilerMissingError, compiler

SOURCE = Path(__file__).parent / "stub.cpp"
OPTIONS = ("-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")


def library(folder: Path, version: int) -> Path:
    """Return the path of the library for a version of nvCOMP, built in a folder if it is not there.

    Parameters
    ----------
    folder : Path
        Where.
    version : int
        ``1000 * major + 100 * minor``.
    """
    digest = hashlib.sha256(SOURCE.read_bytes() + repr((OPTIONS, version)).encode()).hexdigest()
    target = folder / f"libnvcomp-{version}-{digest[:16]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile(version, target)
    return target


def _compile(version: int, target: Path) -> None:
    cxx = compiler()
    if cxx is None:
        raise CompilerMissingError("g++ builds the double of nvCOMP: install it or set CXX")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        unfinished = Path(scratch) / target.name
        define = f"-DFAKENVCOMP_VERSION={version}"
        command = [cxx, *OPTIONS, define, str(SOURCE), "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"building the double failed: {' '.join(command)}\n{done.stderr}")
        unfinished.replace(target)
