"""Compile the kernels' sources with g++ for the CPU, once per version of them.

The results lie in a folder for temporary files (or in ``GPULOAD_LANES_CACHE``), each named after a
digest of what it is made of, so that processes that build at the same time do not disturb each
other and a change of a source builds anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gpuload.kernels

HERE = Path(__file__).parent
KERNELS = Path(gpuload.kernels.__path__[0])

_ALWAYS = ("-std=c++17", "-g", "-fPIC", "-fno-omit-frame-pointer")
_OF_KERNELS = ("-O1", "-x", "c++", "-include", "lanes.h", "-Wno-unknown-pragmas", "-Wno-attributes")
_OF_MACHINERY = ("-O2", "-Wall", "-Wextra", "-Werror")
_SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# Every access calls a function of exact.cpp.
_CHECKED = (
    "-fsanitize=kernel-address",
    *("--param", "asan-instrumentation-with-call-threshold=0"),
    *("--param", "asan-stack=0"),
    *("--param", "asan-globals=0"),
)


@dataclass(frozen=True)
class Build:
    """One way to build the kernels.

    Attributes
    ----------
    machine : tuple of str
        The sources that run lanes.
    sanitizers : tuple of str
        Options for the kernels, and for linking.
    defines : tuple of str
        Macros for everything.
    """

    machine: tuple[str, ...]
    sanitizers: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()


#: Warps of 32 lanes under AddressSanitizer and UBSan.
WARPS = Build(("fibers.cpp",), _SANITIZED, ("-DLANES_ASAN",))
#: The same, with the switch between lanes that other machines than x86-64 use.
PORTABLE = Build(("fibers.cpp",), _SANITIZED, ("-DLANES_ASAN", "-DLANES_UCONTEXT"))
#: One lane at native speed under AddressSanitizer and UBSan: only kernels of width 1.
ALONE = Build(("alone.cpp",), _SANITIZED, ("-DLANES_ASAN", "-DLANES_WIDTH1"))
#: Warps under ThreadSanitizer, to which every lane is a thread.
RACES = Build(("fibers.cpp",), ("-fsanitize=thread",), ("-DLANES_TSAN",))
#: Warps, and every access to a buffer checked to the byte.
EXACT = Build(("fibers.cpp", "exact.cpp"), _CHECKED)
#: Warps without sanitizers.
PLAIN = Build(("fibers.cpp",))
#: One lane at native speed without sanitizers: only kernels of width 1.
NATIVE = Build(("alone.cpp",), defines=("-DLANES_WIDTH1",))


class BuildError(RuntimeError):
    """g++ refused a source."""


def compiler() -> str | None:
    """Return the C++ compiler's path, or None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


@cache
def missing(build: Build = PLAIN) -> str:
    """Return why a build is not possible or does not run here; empty if it is and does."""
    if compiler() is None:
        return "g++ compiles the kernels for the CPU and is not installed (or set CXX)"
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "empty.cpp"), Path(folder, "empty")
        source.write_text("int main() {}\n")
        try:
            _call(*build.sanitizers, str(source), "-o", str(program))
        except BuildError:
            return f"g++ has no libraries for {' '.join(build.sanitizers)}"
        done = subprocess.run([program], capture_output=True, text=True, check=False)
        # Sanitizers want parts of the address space that some machines do not give.
        return done.stderr or "it does not run" if done.returncode else ""


def program(
    build: Build, *, main: tuple[str, ...] = ("main.cpp",), kernels: Path = KERNELS
) -> Path:
    """Return the path of a program that holds every kernel, building it if it is not there yet.

    Parameters
    ----------
    build : Build
        How.
    main : tuple of str
        Sources of the program, in this folder or with a path from here.
    kernels : Path
        Folder of the kernels.
    """
    return _linked(build, main, kernels, ("-rdynamic",))


@cache
def shared_library(kernels: Path = KERNELS, *, build: Build = PLAIN) -> ctypes.CDLL:
    """Return a library that launches kernels, for doubles of the driver.

    It has ``int lanes_launch(kernel, params, count, status)``, which launches a kernel by its name
    as the SM engine does; ``int lanes_launch_grid(kernel, grid, block, params, count, status)``,
    which takes the launch's shape too; both return 0, or -1 where ``lanes_error()`` says why.
    """
    path = _linked(build, ("library.cpp",), kernels, ("-shared", "-Wl,-Bsymbolic"))
    library = ctypes.CDLL(str(path))
    arrays = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p)
    library.lanes_launch.argtypes = (ctypes.c_char_p, *arrays)
    library.lanes_launch_grid.argtypes = (ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, *arrays)
    library.lanes_error.restype = ctypes.c_char_p
    return library


def _linked(
    build: Build, main: tuple[str, ...], kernels: Path, link_options: tuple[str, ...]
) -> Path:
    sources = [HERE / name for name in (*build.machine, *main)] + sorted(kernels.glob("*.cu"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: _object(build, source, kernels), sources))
    # Functions of headers are in several objects.
    options = (*build.sanitizers, "-Wl,-z,muldefs", *link_options, "-pthread", "-ldl")
    names = [str(path) for path in objects]
    return _made((*names, *options), ())


def _object(build: Build, source: Path, kernels: Path) -> Path:
    include = tuple(f"-I{folder}" for folder in (HERE, kernels, KERNELS))
    options = (*_ALWAYS, *build.defines, *include)
    options += (*_OF_KERNELS, *build.sanitizers) if source.suffix == ".cu" else _OF_MACHINERY
    headers = [*HERE.glob("*.h"), *kernels.glob("*.cuh"), *KERNELS.glob("*.cuh")]
    return _made((*options, "-c", str(source)), (source, *sorted(headers)))


def _made(arguments: tuple[str, ...], contents: tuple[Path, ...]) -> Path:
    """Return the output of the compiler, named after its arguments and the files' contents."""
    digest = _digest(arguments, contents)
    target = _cache() / digest
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            unfinished = Path(scratch) / "output"
            _call(*arguments, "-o", str(unfinished))
            if _digest(arguments, contents) != digest:  # somebody edits them
                return _made(arguments, contents)
            unfinished.replace(target)
    return target


def _digest(arguments: tuple[str, ...], contents: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(repr((compiler(), arguments)).encode())
    for path in contents:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _call(*arguments: str) -> None:
    command = [compiler() or "g++", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")


@cache
def _cache() -> Path:
    default = Path(tempfile.gettempdir()) / f"gpuload-lanes-{os.getuid()}"
    folder = Path(os.environ.get("GPULOAD_LANES_CACHE", default))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
