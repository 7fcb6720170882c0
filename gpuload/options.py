"""Options of a load, as one frozen dataclass that every floor reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

Verify = bool | Literal["auto"]
OnError = Literal["raise", "retry-host", "skip"]
Missing = Literal["fill", "error"]
OnUnsupported = Literal["error", "host"]

#: Engines by name, in the order in which "auto" tries them.
ENGINES = ("hardware", "sm", "nvcomp", "host")

#: How stored bytes may come to a device.
WAYS = ("mapped", "read")

#: Scratch memory of a load beyond its result, in bytes.
DEFAULT_MEMORY_LIMIT = 384 << 20
#: Largest Zstandard window that is decoded without asking (RFC 8878 recommends at least 8 MiB; the
#: zstd tool takes 128 MiB).
DEFAULT_WINDOW_LIMIT = 128 << 20
#: The default of `max_output` is the larger of these: a size, and a multiple of the input's size.
MAX_OUTPUT_FLOOR = 1 << 30
MAX_OUTPUT_RATIO = 100


@dataclass(frozen=True)
class Options:
    """How to load.

    Parameters
    ----------
    engine : str
        Who decodes: "hardware", the decompression engine of Blackwell GPUs; "sm", kernels of
        gpuload's own on GPUs of compute capability 7.5 or newer; "nvcomp", NVIDIA's library on
        GPUs; or "host". "auto" takes, chunk by chunk, the first that can and is the fastest by what
        was measured; nvcomp only where the input is trusted. An engine that is asked for by name
        leaves to the host what it cannot take, and is an EngineUnavailableError where that is
        everything.
    device : None, int, str or object
        Where to load to, and which device may decode. None is the current CUDA device where there
        is one, else host memory; "cpu" is host memory; a number, "cuda" and "cuda:1" are CUDA
        devices, and so are the device objects of cuda.core, torch and CuPy.
    trusted : bool, optional
        Whether the input is known to be valid. The engines hardware and nvcomp have no bounds of
        their own. None lets hardware, and nvcomp if it is asked for by name, decode into guarded
        windows; True lets "auto" take both, and both write to the destination; False keeps both
        away. The engines sm and host are bounded and need no trust.
    on_error : "raise", "retry-host" or "skip"
        What to do about a chunk that does not decode: raise; decode it again on the host if another
        engine failed on it; or fill it with zeros, list it in the report and go on.
    verify : "auto" or bool
        Which checksums to check: "auto" those that can be checked where the bytes are decoded (on
        the host all of them), True all of them.
    threads : int, optional
        Host threads; by default one for each CPU that this process may use, fewer where chunks
        are small.
    memory_limit : int
        Scratch bytes beyond the result: as many on the host, and as many on a device. With the
        default, arrays take 1/64 of a device's memory there if that is more, and at most an eighth
        of what is free: the more chunks are on their way, the faster they are decoded. The list of
        selected points counts beside it.
    max_output : int, optional
        Most bytes that the input may decode to; default 100 times the input's size or 1 GiB,
        whichever is larger.
    window_limit : int
        Largest Zstandard window, in bytes.
    dictionary : bytes, optional
        Dictionary for Zstandard and LZ4 frames that were made with one.
    strict : bool
        Turn warnings about a file's format into errors.
    way : "auto", "mapped" or "read"
        How the stored bytes of a local file come to a device: "mapped" pins pages of the file and
        has them copied from where they are, which takes one CPU core; "read" reads them into a ring
        of pinned memory, on several. "auto" takes what was measured to be the fastest for the cores
        there are. Other sources are read.
    missing : "fill" or "error"
        What to do about chunks of arrays that are not stored: take the fill value, as Zarr asks, or
        refuse them.
    on_unsupported : "error" or "host"
        What to do about a Zarr array with a codec that gpuload does not know: refuse it, or let
        zarr-python decode it on the host.
    """

    engine: str = "auto"
    device: Any = None
    trusted: bool | None = None
    on_error: OnError = "raise"
    verify: Verify = "auto"
    threads: int | None = None
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    max_output: int | None = None
    window_limit: int = DEFAULT_WINDOW_LIMIT
    dictionary: bytes | None = None
    strict: bool = False
    way: str = "auto"
    missing: Missing = "fill"
    on_unsupported: OnUnsupported = "error"

    def __post_init__(self) -> None:
        for name in ("threads", "memory_limit", "max_output", "window_limit"):
            _check_number(name, getattr(self, name), 0 if name == "max_output" else 1)
        if self.dictionary is not None and not isinstance(self.dictionary, bytes):
            raise TypeError(f"dictionary must be bytes, not {type(self.dictionary).__name__}")
        _check_choice("way", self.way, ("auto", *WAYS))
        _check_choice("engine", self.engine, ("auto", *ENGINES))
        _check_choice("on_error", self.on_error, get_args(OnError))
        _check_choice("missing", self.missing, get_args(Missing))
        _check_choice("on_unsupported", self.on_unsupported, get_args(OnUnsupported))
        if self.trusted is not None and not isinstance(self.trusted, bool):
            raise ValueError(f"trusted must be None, True or False, not {self.trusted!r}")
        if not isinstance(self.verify, bool) and self.verify != "auto":
            raise ValueError(f"verify must be True, False or 'auto', not {self.verify!r}")

    @property
    def thread_count(self) -> int:
        """Host threads to use."""
        return self.threads or available_cpus()

    def output_limit(self, input_size: int) -> int:
        """Return the most bytes that `input_size` stored bytes may decode to."""
        if self.max_output is not None:
            return self.max_output
        return max(MAX_OUTPUT_FLOOR, MAX_OUTPUT_RATIO * input_size)


def _check_number(name: str, value: object, least: int) -> None:
    if value is None and name in ("threads", "max_output"):
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be positive, not {value}")


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def available_cpus() -> int:
    """Return the number of CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
