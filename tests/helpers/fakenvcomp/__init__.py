"""A double of nvCOMP's shared library, which runs on the double of the driver.

Its functions have the C ABI of nvCOMP's headers (stub.cpp). What they are given is checked when
they are called and again when the work runs in its stream: a violation of the headers' conditions
is one of the driver's double, and fails the test. Decoding is done by reference decoders, and only
then, so that arrays which are not on the device in time are seen to be missing::

    nvcomp = FakeNvcomp(cuda)        # `cuda` is the double of the driver
    library = Library(str(nvcomp.path))
    nvcomp.calls                     # (method, chunks, bytes of temporary memory) of every batch
    nvcomp.temp_sizes["LZ4"] = lambda count, largest, total: 64 * count
    nvcomp.fail_next("decompress", 1000)
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.helpers.fakecuda.abi import U64, put
from tests.helpers.fakecuda.codes import CudaError
from tests.helpers.fakenvcomp import build
from tests.helpers.fakenvcomp.work import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.fakecuda import FakeDriver

__all__ = ["METHODS", "FakeNvcomp"]

METHODS = ("Deflate", "Snappy", "LZ4", "Zstd", "Gdeflate")
_FUNCTIONS = ("alignments", "temp_size", "decompress")
_SUCCESS, _INVALID_VALUE, _CUDA_ERROR, _INTERNAL = 0, 10, 1000, 10000
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
)
_WORDS = {"alignments": 1, "temp_size": 5, "decompress": 10}


class FakeNvcomp:
    """The library, bound to a double of the driver.

    Parameters
    ----------
    cuda : FakeDriver
        On whose streams and memory it works.
    version : int
        ``1000 * major + 100 * minor``.

    Attributes
    ----------
    path : Path
        The library.
    alignments : dict
        For each method what sources, slots and temporary memory must be aligned to, as in 6.0.
    temp_sizes : dict
        For each method ``function(count, largest, total)``, the bytes of temporary memory.
    calls : list of (str, int, int)
        Method, chunks and bytes of temporary memory of each batch.
    """

    def __init__(self, cuda: FakeDriver, version: int = 6000) -> None:
        self.cuda = cuda
        folder = Path(tempfile.gettempdir()) / f"gpuload-fakenvcomp-{os.getuid()}"
        self.path = build.library(folder, version)
        self.alignments: dict[str, tuple[int, int, int]] = dict.fromkeys(METHODS, (1, 1, 1))
        self.alignments |= {"Deflate": (4, 1, 1), "Gdeflate": (4, 1, 1), "Zstd": (1, 1, 8)}
        self.temp_sizes: dict[str, Callable[[int, int, int], int]]
        self.temp_sizes = dict.fromkeys(METHODS, lambda count, largest, total: 0)
        self.temp_sizes["Zstd"] = lambda count, largest, total: 6936 * count + 3 * total
        self.calls: list[tuple[str, int, int]] = []
        self._failures: dict[str, tuple[int, int]] = {}
        # The library calls this for as long as it is loaded.
        self._callback = _CALLBACK(self._answer)
        ctypes.CDLL(str(self.path)).fakenvcomp_bind(self._callback)

    def fail_next(self, function: str, status: int, *, after: int = 0) -> None:
        """Answer a later call with a status, once `after` calls of it have passed."""
        self._failures[function] = (status, after)

    def _answer(self, number: int, method: int, options: int, arguments: int) -> int:
        function = _FUNCTIONS[number]
        with self.cuda._lock:
            try:
                status = self._injected(function)
                words = list((ctypes.c_uint64 * _WORDS[function]).from_address(arguments))
                self._check_options(ctypes.string_at(options, 64))
                return status or getattr(self, f"_{function}")(METHODS[method], *words)
            except CudaError as refusal:
                self.cuda.recorder.violation(f"nvCOMP's {METHODS[method]} {function}: {refusal}")
                return _CUDA_ERROR
            except BaseException as error:  # noqa: BLE001 - C code is the caller
                self.cuda.recorder.exception(f"nvCOMP's {function}", error)
                return _INTERNAL

    def _injected(self, function: str) -> int:
        status, after = self._failures.pop(function, (0, 0))
        if after:
            self._failures[function] = (status, after - 1)
            return 0
        return status

    def _check_options(self, options: bytes) -> None:
        backend = int.from_bytes(options[:4], "little")
        if backend not in (0, 1, 2) or any(options[4:]):
            self.cuda.recorder.violation(f"nvCOMP was given the options {options.hex()}")

    def _alignments(self, method: str, out: int) -> int:
        for index, value in enumerate(self.alignments[method]):
            put(U64, out, value, index)
        return _SUCCESS

    def _temp_size(
        self, method: str, count: int, largest: int, out: int, total: int, stream: int
    ) -> int:
        if not count or largest > total or total > count * largest:
            return _INVALID_VALUE
        if stream:
            self.cuda.scheduler.stream(stream, self.cuda.current)
        put(U64, out, self.temp_sizes[method](count, largest, total))
        return _SUCCESS

    def _decompress(self, method: str, *words: Any) -> int:
        *arrays, stream_handle = words
        stream = self.cuda.scheduler.stream(stream_handle, self.cuda.current)
        batch = Batch(self, stream, method, *arrays)
        batch.check_call()
        self.calls.append((method, batch.count, batch.temp_size))
        self.cuda.scheduler.submit(stream, f"nvCOMP {method}", batch.run)
        return _SUCCESS
