"""The declarations of nvCOMP's low-level C API: statuses, structures, names and limits.

They follow the headers that NVIDIA ships with the library (nvcomp/shared_types.h, deflate.h,
gdeflate.h, lz4.h, snappy.h, zstd.h). From 5.1 to 6.0 they differ in one call: the one that asks for
the size of the temporary memory was renamed in 6.0, and takes the stream since.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from gpuload.chunks import Codec

__all__ = [
    "END",
    "FIRST",
    "METHODS",
    "SUCCESS",
    "Alignments",
    "Arrays",
    "Method",
    "Options",
    "Properties",
    "signatures",
    "status_name",
]

#: Versions whose headers were read: from the first, up to and without the second.
FIRST, END = (5, 1), (7, 0)
#: The version that renamed the call for the size of the temporary memory.
_RENAMED = (6, 0)

SUCCESS = 0
#: ``nvcompStatus_t``.
_STATUSES = {
    SUCCESS: "nvcompSuccess",
    10: "nvcompErrorInvalidValue",
    11: "nvcompErrorNotSupported",
    12: "nvcompErrorCannotDecompress",
    13: "nvcompErrorBadChecksum",
    14: "nvcompErrorCannotVerifyChecksums",
    15: "nvcompErrorOutputBufferTooSmall",
    16: "nvcompErrorWrongHeaderLength",
    17: "nvcompErrorAlignment",
    18: "nvcompErrorChunkSizeTooLarge",
    19: "nvcompErrorCannotCompress",
    20: "nvcompErrorWrongInputLength",
    21: "nvcompErrorBatchSizeTooLarge",
    22: "nvcompErrorSubChunkCountTooLarge",
    23: "nvcompErrorSubChunkCountTooSmall",
    24: "nvcompErrorOutputBufferAlignmentTooSmall",
    1000: "nvcompErrorCudaError",
    10000: "nvcompErrorInternal",
}


class Method(NamedTuple):
    """How nvCOMP calls a codec in the names of its functions, and what it takes at most.

    Attributes
    ----------
    name : str
        ``nvcompBatched<name>DecompressAsync`` decodes it.
    limit : int
        ``nvcomp<name>DecompressionMaxAllowedChunkSize``: bytes of a chunk, compressed or not.
    """

    name: str
    limit: int


#: What nvCOMP decodes; a codec that it has besides is one more line.
METHODS = {
    Codec.DEFLATE: Method("Deflate", 2**32 - 1),
    Codec.SNAPPY: Method("Snappy", 2**31 - 1),
    Codec.LZ4: Method("LZ4", 2**32 - 1),
    Codec.ZSTD: Method("Zstd", 2**31 - 1),
    Codec.GDEFLATE: Method("Gdeflate", 2**32 + 288),
}


class Options(ctypes.Structure):
    """``nvcompBatched<method>DecompressOpts_t``: the back end first, and zeros in all others."""

    _fields_ = (("backend", ctypes.c_int), ("zeros", ctypes.c_char * 60))


class Alignments(ctypes.Structure):
    """``nvcompAlignmentRequirements_t``."""

    _fields_ = (("input", ctypes.c_size_t), ("output", ctypes.c_size_t), ("temp", ctypes.c_size_t))


class Properties(ctypes.Structure):
    """``nvcompProperties_t``."""

    _fields_ = (("version", ctypes.c_uint32), ("cudart_version", ctypes.c_uint32))


class Arrays(NamedTuple):
    """Addresses of a batch's arrays, in memory that the device reads and writes.

    Attributes
    ----------
    sources, source_sizes, capacities, sizes, targets : int
        Of 64-bit words: where each chunk is and how long, what its slot takes, what was decoded
        into it, and where the slot is.
    statuses : int
        Of 32-bit words.
    """

    sources: int
    source_sizes: int
    capacities: int
    sizes: int
    targets: int
    statuses: int

    def behind(self, count: int) -> Arrays:
        """Return the arrays without their first `count` elements."""
        sizes = (*[8] * 5, 4)
        return Arrays._make(at + count * size for at, size in zip(self, sizes, strict=True))


def signatures(method: str, version: tuple[int, int]) -> dict[str, tuple[str, list[Any]]]:
    """Return the calls of a method in a version: for each purpose, the name and the parameters."""
    address, size = ctypes.c_void_p, ctypes.c_size_t
    temp = [size, size, Options, address, size]
    decompress = [*[address] * 4, size, address, size, address, Options, address, address]
    renamed = version >= _RENAMED
    calls: dict[str, tuple[str, list[Any]]] = {
        "alignments": ("GetRequiredAlignments", [Options, address]),
        "temp_size": ("GetTempSize", [*temp, address]) if renamed else ("GetTempSizeAsync", temp),
        "decompress": ("Async", decompress),
    }
    prefix = f"nvcompBatched{method}Decompress"
    return {key: (prefix + suffix, parameters) for key, (suffix, parameters) in calls.items()}


def status_name(code: int) -> str:
    """Return nvCOMP's name of a status."""
    return _STATUSES.get(code, f"nvcompStatus_t {code}")
