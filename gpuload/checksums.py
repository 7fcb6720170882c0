"""The checksums that formats carry, on the host.

Libraries are imported on the first use of each kind: a file needs one or two of them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpuload.chunks import Checksum

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Words = npt.NDArray[np.uint32]

__all__ = [
    "combine_crc32",
    "combine_crcs",
    "compute",
    "crc32",
    "describe",
    "masked",
    "running",
]

_NAMES = {
    Checksum.XXH32_STORED: "xxHash-32 of the stored block",
    Checksum.XXH32: "xxHash-32 of the content",
    Checksum.XXH64_LOW: "xxHash-64 (low half) of the content",
    Checksum.CRC32: "CRC-32 of the content",
    Checksum.CRC32C_MASKED: "masked CRC-32C of the content",
    Checksum.ADLER32: "Adler-32 of the content",
}

#: The polynomials, reflected: bit 31 is the coefficient of 1, bit 0 that of x^31.
_POLYNOMIALS = {Checksum.CRC32: 0xEDB88320, Checksum.CRC32C_MASKED: 0x82F63B78}

#: What masking a CRC-32C adds.
_MASK = 0xA282EAD8


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
    if kind is Checksum.ADLER32:
        from deflate import adler32

        return lambda data: int(adler32(data))
    import xxhash

    if kind is Checksum.XXH64_LOW:
        return lambda data: int(xxhash.xxh64_intdigest(data)) & 0xFFFFFFFF
    function: Callable[[Bytes], int] = xxhash.xxh32_intdigest
    return function


def _masked_crc32c(data: Bytes) -> int:
    """Snappy framing format, section 3: rotate right by 15 bits and add a constant."""
    import google_crc32c

    crc = google_crc32c.value(data) if data.size else 0
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def masked(crcs: Words) -> Words:
    """Return CRC-32Cs in the form that files store (Snappy framing format, section 3)."""
    result: Words = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    result += np.uint32(_MASK)
    return result


def combine_crc32(crcs: npt.ArrayLike, sizes: npt.ArrayLike) -> int:
    """Return the CRC-32 of a concatenation.

    Parameters
    ----------
    crcs : array-like of int, shape (n,)
        The CRC-32 of each part.
    sizes : array-like of int, shape (n,)
        Their sizes in bytes; less than 2^63 in all.
    """
    crcs = np.asarray(crcs, np.uint32)
    return int(combine_crcs(Checksum.CRC32, crcs, sizes, np.zeros(1, np.intp))[0])


def combine_crcs(
    kind: int, crcs: npt.ArrayLike, sizes: npt.ArrayLike, firsts: npt.ArrayLike
) -> Words:
    """Return the CRC of each of many concatenations.

    Parameters
    ----------
    kind : int
        CRC32, or CRC32C_MASKED for CRC-32Cs that are not masked.
    crcs, sizes : array-like of int, shape (n,)
        The CRC and the size in bytes of each part of all of them; less than 2^63 bytes in all.
    firsts : array-like of int, shape (m,)
        The first part of each concatenation, not descending, from 0 on: all parts belong to one.

    Returns
    -------
    ndarray of uint32, shape (m,)
        That of a concatenation of no part is 0, which is the CRC of no byte.
    """
    crcs, firsts = np.asarray(crcs, np.uint32), np.asarray(firsts, np.intp)
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))))
    lasts = np.append(firsts, crcs.size)[1:]
    behind = np.repeat(ends[lasts], lasts - firsts) - ends[1:]
    terms = _times_bytes(kind, crcs, behind)
    result, filled = np.zeros(firsts.size, np.uint32), lasts > firsts
    if filled.any():
        result[filled] = np.bitwise_xor.reduceat(terms, firsts[filled])
    return result


def _times_bytes(kind: int, crcs: Words, sizes: npt.NDArray[np.int64]) -> Words:
    """Return remainders times x to the power of so many bytes' bits: what zeros make of them."""
    moved = crcs.copy()
    for bit in range(int(sizes.max(initial=0)).bit_length()):
        which = np.flatnonzero(sizes >> bit & 1)
        if which.size:
            moved[which] = _product(_tables(kind, bit), moved[which])
    return moved


def _product(tables: Words, values: Words) -> Words:
    parts = np.ascontiguousarray(values, "<u4").view(np.uint8).reshape(-1, 4)
    product: Words = tables[0][parts[:, 0]]
    for place in range(1, 4):
        product ^= tables[place][parts[:, place]]
    return product


@cache
def _tables(kind: int, bit: int) -> Words:
    """Return, for each byte of a remainder, what it is times x to the power of 8 * 2^bit."""
    factor = np.full(1, 0x00800000, np.uint32)  # x^8
    if bit:
        # The square of the power before: the product of x^0, in the highest bit, is that power.
        before = _tables(kind, bit - 1)
        factor = _product(before, before[3][0x80:0x81])
    return _table_of(kind, int(factor[0]))


def _table_of(kind: int, factor: int) -> Words:
    table = np.zeros(1, np.uint32)
    tables, polynomial = [], _POLYNOMIALS[Checksum(kind)]
    # From the coefficient of 1, in the highest bit, down to that of x^31.
    for bit in range(31, -1, -1):
        if bit % 8 == 7:
            table = np.zeros(256, np.uint32)
            tables.append(table)
        with_bit = np.flatnonzero(np.arange(256) >> bit % 8 & 1)
        table[with_bit] ^= np.uint32(factor)
        factor = factor >> 1 ^ (polynomial if factor & 1 else 0)
    return np.stack(tables[::-1])
