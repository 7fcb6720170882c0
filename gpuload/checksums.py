"""The checksums that formats carry, on the host.

Libraries are imported on the first use of each kind: a file needs one or two of them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from gpuload.chunks import Checksum

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = ["compute", "crc32", "describe", "running"]

_NAMES = {
    Checksum.XXH32_STORED: "xxHash-32 of the stored block",
    Checksum.XXH32: "xxHash-32 of the content",
    Checksum.XXH64_LOW: "xxHash-64 (low half) of the content",
    Checksum.CRC32: "CRC-32 of the content",
    Checksum.CRC32C_MASKED: "masked CRC-32C of the content",
}


class Running(Protocol):
    """A checksum that is fed piece by piece."""

    def update(self, data: Any, /) -> None:
        """Take the next bytes in."""

    def intdigest(self) -> int:
        """Return the whole checksum of the bytes so far, also where files store half of it."""


def describe(kind: int) -> str:
    """Return the name of a kind of checksum, as error messages use it."""
    return _NAMES[Checksum(kind)]


def compute(kind: int, data: Bytes) -> int:
    """Return the checksum of `data` (one-dimensional, uint8) in the form that files store."""
    return _function(Checksum(kind))(data)


def running(kind: int) -> Running:
    """Return an empty checksum of a kind that is computed piece by piece (the xxHashes)."""
    import xxhash

    makers: dict[int, Callable[[], Running]] = {
        Checksum.XXH32: xxhash.xxh32,
        Checksum.XXH64_LOW: xxhash.xxh64,
    }
    if kind not in makers:
        raise ValueError(f"{describe(kind)} is not computed piece by piece")
    return makers[kind]()


@cache
def crc32() -> Callable[..., int]:
    """Return the fastest ``crc32(data, start=0)`` there is; both release the GIL."""
    try:
        from isal.isal_zlib import crc32 as function
    except ImportError:
        from zlib import crc32 as function
    result: Callable[..., int] = function
    return result


@cache
def _function(kind: Checksum) -> Callable[[Bytes], int]:
    if kind is Checksum.CRC32:
        return crc32()
    if kind is Checksum.CRC32C_MASKED:
        return _masked_crc32c
    import xxhash

    if kind is Checksum.XXH64_LOW:
        return lambda data: int(xxhash.xxh64_intdigest(data)) & 0xFFFFFFFF
    function: Callable[[Bytes], int] = xxhash.xxh32_intdigest
    return function


def _masked_crc32c(data: Bytes) -> int:
    """Snappy framing format, section 3: rotate right by 15 bits and add a constant."""
    import google_crc32c

    crc = google_crc32c.value(data) if data.size else 0
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
