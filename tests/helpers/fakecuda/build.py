"""Build the shared library that takes libcuda's place, once per version of its source.

The result lies in the user's cache (or in ``GPULOAD_FAKE_CUDA_CACHE``), named after a digest of
the sources and the compiler's options, so that a change of either builds anew and processes that
build at the same time do not disturb each other.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = (HERE / "stub.cpp", HERE / "decoders.cpp")
SONAME = "libcuda.so.1"
OPTIONS = (
    "-std=c++17",
    "-O2",
    "-g",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-Wl,-soname,{SONAME}",
)


class CompilerMissingError(RuntimeError):
    """There is no g++ to build the double with."""


def compiler() -> str | None:
    """Return the C++ compiler's path, or None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def library(*, with_decompress: bool) -> Path:
    """Return the built library's path, building it if it is not there yet.

    Parameters
    ----------
    with_decompress : bool
        Whether ``cuMemBatchDecompressAsync`` is exported; drivers before 12.8 do not have it.
    """
    options = OPTIONS if with_decompress else (*OPTIONS, "-DFAKECUDA_WITHOUT_DECOMPRESS")
    folder = _cache() / _digest(options)
    target = folder / SONAME
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile(options, target)
    return target


def _compile(options: tuple[str, ...], target: Path) -> None:
    cxx = compiler()
    if cxx is None:
        raise CompilerMissingError(
            "g++ builds the double of the driver and is not installed; install it or set CXX"
        )
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        unfinished = Path(scratch) / SONAME
        command = [cxx, *options, *map(str, SOURCES), "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"building the double failed: {' '.join(command)}\n{done.stderr}")
        unfinished.replace(target)


def _digest(options: tuple[str, ...]) -> str:
    digest = hashlib.sha256(repr((compiler(), options)).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _cache() -> Path:
    given = os.environ.get("GPULOAD_FAKE_CUDA_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "gpuload-fakecuda"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"gpuload-fakecuda-{os.getuid()}"
    return folder
