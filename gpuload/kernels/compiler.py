"""From the source of a kernel to a kernel that can be launched.

A source is compiled by NVRTC, through cuda.core, to the machine code of one architecture: once a
machine, since the result is kept on disk, and at most once a process.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuload import driver
from gpuload.errors import DriverError, UnsupportedCodecError
from gpuload.kernels import nvrtc
from gpuload.kernels.cache import KernelCache, cache_folder
from gpuload.kernels.variants import Variant

if TYPE_CHECKING:
    from cuda.core import Kernel, ObjectCode, ProgramOptions

__all__ = [
    "CODECS",
    "FILTERS",
    "SCANS",
    "SOURCES",
    "SUMS",
    "Compiled",
    "architecture",
    "compile_codec",
    "kernel",
    "refusal",
    "unavailable",
    "warm_up",
]

#: The codecs that have a kernel.
CODECS = ("raw", "lz4", "snappy")
#: The checksums that have one.
SUMS = ("crc32", "crc32c", "xxh32", "xxh64")
#: Kernels that find the chunks of a format.
SCANS = ("scan_lz4", "scan_snappy", "scan_bgzf", "scan_zstd")
#: Kernels that undo filters, and that copy boxes of elements.
FILTERS = ("unshuffle", "bit_unshuffle", "delta", "scale", "packbits", "swap", "boxes")
#: The sources there are: `<name>.cu` beside this file.
SOURCES = (*CODECS, *SUMS, *SCANS, *FILTERS)
#: The oldest compute capability that the kernels are written for, and NVRTC 13 compiles for.
_OLDEST = (7, 5)
_SOURCES = Path(__file__).parent
#: Characters of NVRTC's errors that a message holds.
_LOG_SHOWN = 1500

_lock = threading.Lock()
_compiled: dict[tuple[str, str, Path], Compiled] = {}
_kernels: dict[tuple[int, str, int], Kernel] = {}


@dataclass(frozen=True)
class Compiled:
    """A kernel's source, compiled.

    Attributes
    ----------
    codec, architecture : str
        Which source, and what for.
    code : ObjectCode
        The machine code, as cuda.core loads it.
    seconds : float
        How long it took to compile it or to read it.
    cached : bool
        Whether it came from the disk.
    problem : str
        Why the next process has to compile it again; empty if it need not.
    """

    codec: str
    architecture: str
    code: ObjectCode
    seconds: float
    cached: bool
    problem: str


def unavailable() -> str:
    """Return why no kernel can be compiled here; empty if kernels can.

    The first call loads NVRTC; later ones cost nothing.
    """
    error = nvrtc.missing()
    return str(error) if error else ""


def refusal(device_id: int) -> str:
    """Return why kernels cannot run on a device; empty if they can.

    Raises
    ------
    DriverError
        If there is no such device.
    """
    reason = unavailable()
    compiler = nvrtc.find()
    if reason or compiler is None:
        return reason
    device = driver.capabilities(device_id)
    if device.compute_capability < _OLDEST:
        return (
            f"{device.name} has compute capability {_dotted(device.compute_capability)}; the "
            f"kernels need {_dotted(_OLDEST)} or newer"
        )
    # Machine code of a major version of CUDA runs on the drivers of that version and newer ones.
    if device.driver_version[0] < compiler.version[0]:
        return (
            f"{compiler} compiles for drivers of CUDA {compiler.version[0]}.0 and newer, and this "
            f"driver is of CUDA {_dotted(device.driver_version)}: update the driver"
        )
    return _unknown(_architecture(device.compute_capability))


def architecture(device_id: int) -> str:
    """Return the architecture of a device, such as ``sm_90`` for compute capability 9.0.

    Raises
    ------
    DriverError
        If kernels cannot run on it; `refusal` says why.
    MissingDependencyError
        If NVRTC is not installed; names the extra that brings it.
    """
    error = nvrtc.missing()
    if error:
        raise error
    reason = refusal(device_id)
    if reason:
        raise DriverError(f"device {device_id} can't run kernels: {reason}")
    return _architecture(driver.capabilities(device_id).compute_capability)


def compile_codec(codec: str, arch: str, *, folder: Path = _SOURCES) -> Compiled:
    """Return a source's kernels for an architecture, from memory, from disk or compiled now.

    Parameters
    ----------
    codec : str
        One of `SOURCES`.
    arch : str
        Such as ``sm_90``.
    folder : Path
        Where the sources are.

    Raises
    ------
    MissingDependencyError
        If NVRTC is not installed; names the extra that brings it.
    UnsupportedCodecError
        If there is no such source.
    DriverError
        If NVRTC refuses the architecture or the source; holds the start of its log.
    """
    with _lock:
        found = _compiled.get((codec, arch, folder))
        if found is None:
            found = _compiled[codec, arch, folder] = _obtain(codec, arch, folder)
        return found


def kernel(device_id: int, codec: str, lanes: int) -> Kernel:
    """Return the kernel that has a number of lanes for each chunk, loaded once a process.

    Raises
    ------
    DriverError
        If the device cannot run it, there is no such variant, or this process is a forked one.
    MissingDependencyError, UnsupportedCodecError
        See `compile_codec`.
    """
    driver.claim()
    found = _kernels.get((device_id, codec, lanes))
    return _load(device_id, codec, lanes) if found is None else found


def warm_up(arch: str) -> list[Compiled]:
    """Compile all kernels for an architecture, so that no load has to; no GPU is needed.

    Raises
    ------
    MissingDependencyError, DriverError
        See `compile_codec`.
    """
    return [compile_codec(codec, arch) for codec in SOURCES]


def _load(device_id: int, codec: str, lanes: int) -> Kernel:
    code = compile_codec(codec, architecture(device_id)).code
    name = Variant(codec, lanes).name
    what = f"the kernel {name}"
    # One at a time: the code is loaded by the first who asks it for a kernel.
    with _lock, driver.on_device(device_id), driver.calling("cuLibraryGetKernel", what):
        # Forked children have no CUDA to unload these with.
        driver.shield(code)
        return _kernels.setdefault((device_id, codec, lanes), driver.shield(code.get_kernel(name)))


def _obtain(codec: str, arch: str, folder: Path) -> Compiled:
    source = _checked_source(codec, arch, folder)
    from cuda.core import ObjectCode

    start, cache = time.perf_counter(), KernelCache(cache_folder())
    key = _cache_key(source, codec, arch, folder)
    machine_code = cache.get(key)
    cached = machine_code is not None
    if machine_code is None:
        machine_code = _compile(source, _options(codec, arch, folder))
        cache.put(key, machine_code)
    code = ObjectCode.from_cubin(machine_code, name=codec)
    problem = "" if cached else cache.problem
    return Compiled(codec, arch, code, time.perf_counter() - start, cached, problem)


def _cache_key(source: str, codec: str, arch: str, folder: Path) -> bytes:
    from cuda.core.utils import make_program_cache_key

    # Without the folder of the includes, whose content counts and not its place.
    key: bytes = make_program_cache_key(
        code=source,
        code_type="c++",
        options=_options(codec, arch),
        target_type="cubin",
        extra_digest=_headers(folder),
    )
    return key


def _checked_source(codec: str, arch: str, folder: Path) -> str:
    error = nvrtc.missing()
    if error:
        raise error
    reason = _unknown(arch)
    if reason:
        raise DriverError(reason)
    names = sorted(path.stem for path in folder.glob("*.cu"))
    if codec not in names:
        raise UnsupportedCodecError(f"there is no kernel {codec!r}: there are {', '.join(names)}")
    return (folder / f"{codec}.cu").read_text("utf-8")


def _unknown(arch: str) -> str:
    """Return why NVRTC does not compile for an architecture; empty if it does."""
    compiler = nvrtc.find()
    known = [f"sm_{number}" for number in compiler.architectures] if compiler else []
    if compiler is None or arch in known:
        return ""
    return (
        f"{compiler} does not compile for {arch!r}, but for {', '.join(known)}; a newer one may: "
        "pip install --upgrade nvidia-cuda-nvrtc"
    )


def _headers(folder: Path) -> bytes:
    """Return a digest of what the sources include: any change compiles all of them again."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.cuh")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.digest()


def _options(codec: str, arch: str, folder: Path | None = None) -> ProgramOptions:
    from cuda.core import ProgramOptions

    # No line info: it doubles the time and triples the size.
    where = str(folder) if folder else None
    return ProgramOptions(name=f"{codec}.cu", arch=arch, std="c++17", include_path=where)


def _compile(source: str, options: ProgramOptions) -> bytes:
    from cuda.core import Program

    try:
        return bytes(Program(source, "c++", options).compile("cubin").code)
    except MemoryError:
        raise
    # cuda.core's errors have no public base.
    except Exception as error:
        raise DriverError(
            f"{nvrtc.find()} failed to compile {options.name} for {options.arch}: "
            f"{_shortened(str(error))}"
        ) from error


def _shortened(log: str) -> str:
    """Return the errors of a log in one line, or all of it where none is marked as one."""
    lines = [" ".join(line.split()) for line in log.replace("\0", "").splitlines()]
    text = "; ".join([line for line in lines if "error:" in line] or filter(None, lines))
    return text if len(text) <= _LOG_SHOWN else f"{text[:_LOG_SHOWN]} [...]"


def _architecture(capability: tuple[int, int]) -> str:
    return "sm_{}{}".format(*capability)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _renew_lock() -> None:
    """Give a forked child a lock that no thread of its parent holds."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
