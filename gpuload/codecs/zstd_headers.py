"""Headers of many Zstandard frames, looked at together (RFC 8878, section 3.1.1).

What looks damaged or unusual here is left to those that look at frames one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.codecs.refuse import bytes_at

if TYPE_CHECKING:
    from gpuload.codecs.base import Bytes

__all__ = ["CHECKSUM_SIZE", "SMALLEST", "Headers", "blocks_end", "read_headers"]

#: The smallest frame: header, and a block header.
SMALLEST = 9
CHECKSUM_SIZE = 4

_Integers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]

_MAGIC = np.frombuffer(b"\x28\xb5\x2f\xfd", "<u4")[0]
_RESERVED_BIT, _ID_FLAG, _SINGLE_SEGMENT, _CHECKSUM = 8, 3, 32, 4
_BLOCK_HEADER_SIZE, _RLE, _RESERVED_BLOCK = 3, 1, 3

#: For each descriptor of a header without a dictionary ID (section 3.1.1.1.1): where the content
#: size stands, its bytes, and its value beyond what these bytes say (section 3.1.1.1.4).
_EVERY = np.arange(256)
_CONTENT_START = 5 + (_EVERY & _SINGLE_SEGMENT == 0)
_CONTENT_BYTES = np.array([0, 2, 4, 8])[_EVERY >> 6]
_CONTENT_BYTES[(_EVERY >> 6 == 0) & (_EVERY & _SINGLE_SEGMENT != 0)] = 1
_CONTENT_MASK = np.array([256**size - 1 for size in _CONTENT_BYTES.tolist()], np.uint64)
_CONTENT_MORE = np.where(_CONTENT_BYTES == 2, np.uint64(256), np.uint64(0))
_PLAIN = _EVERY & (_RESERVED_BIT | _ID_FLAG) == 0


class Headers(NamedTuple):
    """What the headers of n frames say.

    Attributes
    ----------
    plain : ndarray of bool, shape (n,)
        Whether the magic number is right, the reserved bit clear and there is no dictionary ID; the
        rest only holds for these.
    sizes : ndarray of int64, shape (n,)
        Bytes from the magic number to the first block.
    content_sizes : ndarray of uint64, shape (n,)
        Decoded bytes; 0 if not stated.
    stated : ndarray of bool, shape (n,)
        Whether they are.
    single_segment, checksum : ndarray of bool, shape (n,)
        Whether the content serves as the window, and whether a checksum follows the last block.
    window_descriptors : ndarray of uint8, shape (n,)
        Of those that are no single segment (section 3.1.1.1.2).
    """

    plain: _Mask
    sizes: _Integers
    content_sizes: npt.NDArray[np.uint64]
    stated: _Mask
    single_segment: _Mask
    checksum: _Mask
    window_descriptors: Bytes


def read_headers(stored: Bytes, starts: _Integers) -> Headers:
    """Read the headers of frames of at least `SMALLEST` bytes each, with any bytes in them."""
    head = bytes_at(stored, starts, 6)
    descriptor = head[:, 4].astype(np.intp)
    place, size = _CONTENT_START[descriptor], _CONTENT_BYTES[descriptor]
    content = bytes_at(stored, starts + place, 8).view("<u8")[:, 0] & _CONTENT_MASK[descriptor]
    return Headers(
        (np.ascontiguousarray(head[:, :4]).view("<u4")[:, 0] == _MAGIC) & _PLAIN[descriptor],
        place + size,
        content + _CONTENT_MORE[descriptor],
        size != 0,
        descriptor & _SINGLE_SEGMENT != 0,
        descriptor & _CHECKSUM != 0,
        head[:, 5],
    )


def blocks_end(
    stored: Bytes, places: _Integers, ends: _Integers, *, fewest: int = 1, most: int = 1 << 32
) -> _Mask:
    """Return which frames have their last block end where they have to (section 3.1.1.2).

    Parameters
    ----------
    stored : ndarray of uint8
        Holds all of them.
    places, ends : ndarray of int64, shape (n,)
        Where the first block of each starts, and where the last one has to end.
    fewest, most : int
        Give up when the frames that are left are fewer, or have more blocks: they count as wrong.
    """
    right, places = np.zeros(places.size, np.bool_), places.copy()
    active = np.flatnonzero(places + _BLOCK_HEADER_SIZE <= ends)
    while most and active.size >= fewest:
        head = bytes_at(stored, places[active], _BLOCK_HEADER_SIZE).astype(np.int64)
        word = head[:, 0] | head[:, 1] << 8 | head[:, 2] << 16
        kind = word >> 1 & 3
        places[active] += _BLOCK_HEADER_SIZE + np.where(kind == _RLE, 1, word >> 3)
        good, last = kind != _RESERVED_BLOCK, word & 1 != 0
        right[active] = good & last & (places[active] == ends[active])
        more = good & ~last & (places[active] + _BLOCK_HEADER_SIZE <= ends[active])
        active = active[more]
        most -= 1
    return right
