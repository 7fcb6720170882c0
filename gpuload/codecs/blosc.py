"""Whole Blosc 1 chunks on the host: the C library that numcodecs brings."""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.codecs.base import Bytes, CorruptChunkError
from gpuload.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HEADER_SIZE", "decode", "unshuffle"]

#: Of the header (c-blosc, README_CHUNK_FORMAT, "The header section").
HEADER_SIZE = 16
#: Version 2 is Blosc 1's.
_VERSION = 2
#: version, versionlz, flags, typesize, nbytes, blocksize, cbytes.
_HEADER = struct.Struct("<BBBBIII")
_LARGEST = (1 << 31) - 1 - HEADER_SIZE


def decode(stored: Bytes, slot: Bytes) -> int:
    """Decode a chunk of which no byte is missing, and none too many.

    The library takes the sizes in the header for true: what reaches beyond the memory that it is
    given is refused here.

    Raises
    ------
    CorruptChunkError
        If the header disagrees with the sizes of `stored` and `slot`, or the library refuses it.
    MissingDependencyError
        If numcodecs is not installed.
    """
    if stored.size < HEADER_SIZE:
        raise CorruptChunkError(f"{stored.size} bytes, a Blosc header has {HEADER_SIZE}")
    version, _, _, element_size, raw_size, block_size, size = _HEADER.unpack_from(stored)
    _check(version, element_size, raw_size, block_size)
    if size != stored.size:
        raise CorruptChunkError(f"the Blosc header tells of {size} bytes, there are {stored.size}")
    if raw_size > slot.size:
        raise CorruptChunkError(
            f"the Blosc header tells of {raw_size} decoded bytes, there is room for {slot.size}"
        )
    if raw_size:
        _decompress(stored, slot[:raw_size])
    return int(raw_size)


def _check(version: int, element_size: int, raw_size: int, block_size: int) -> None:
    if version != _VERSION:
        raise CorruptChunkError(f"Blosc format version {version}; known is {_VERSION}, of Blosc 1")
    if not element_size or not 0 < block_size <= max(1, raw_size) <= _LARGEST:
        raise CorruptChunkError(
            f"a Blosc header of {raw_size} bytes in blocks of {block_size} with elements of "
            f"{element_size}"
        )


def _decompress(stored: Bytes, out: Bytes) -> None:
    try:
        _library()(stored, out)
    except (RuntimeError, ValueError):
        raise CorruptChunkError(
            f"the Blosc chunk ({stored.size} stored bytes) is damaged, or does not decode to "
            f"{out.size} bytes"
        ) from None


@cache
def _library() -> Callable[[Bytes, Bytes], Any]:
    try:
        from numcodecs.blosc import decompress  # type: ignore[import-untyped]
    except ImportError:
        raise MissingDependencyError("numcodecs", "zarr", "decoding Blosc chunks") from None
    function: Callable[[Bytes, Bytes], Any] = decompress
    return function


def unshuffle(shuffled: Bytes, element_size: int, *, bit: bool) -> Bytes:
    """Return the bytes of a block before Blosc shuffled it.

    Parameters
    ----------
    shuffled : ndarray of uint8
        A block.
    element_size : int
        Bytes of an element; what is no whole element stays at the end.
    bit : bool
        Whether bits were shuffled (of elements whose number is a multiple of 8), else bytes.
    """
    count = shuffled.size // element_size
    whole, rest = np.split(shuffled, [count * element_size])
    if not bit:
        elements = whole.reshape(element_size, count).T
    else:
        # One plane for each bit of an element, and the lowest bit of a byte is the first element's.
        bits = np.unpackbits(whole.reshape(-1, count // 8), axis=1, bitorder="little")
        elements = np.packbits(bits.T, axis=1, bitorder="little")
    return np.concatenate([elements.reshape(-1), rest])
