"""The one fault of an LZ4 block that liblz4 does not refuse: a match with offset 0.

The block format calls such a match invalid; liblz4 takes it and writes zeros. Where a checksum
covers the content, that decides. Where none does, this module looks for such a match: for every
byte of a segment it computes at once where the sequence that would start there ends, then it
follows the sequences from the first byte.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.codecs.base import Bytes

    Indices = npt.NDArray[np.integer]

__all__ = ["has_zero_offset"]

#: Shortest match (LZ4 block format), so that many zeros come of offset 0 at least.
_MIN_MATCH = 4
#: Bytes of a block that are looked at together: about a hundred bytes of memory for each.
_SEGMENT = 64 << 10
#: Held for large blocks, whose copies and indices are several times as large as they are.
_one_at_a_time = threading.Lock()


def has_zero_offset(stored: Bytes, decoded: Bytes) -> bool:
    """Return whether a block holds a match with offset 0.

    Parameters
    ----------
    stored : ndarray of uint8
        A block that decoded without an error.
    decoded : ndarray of uint8
        What it decoded to.
    """
    with _one_at_a_time if stored.size > _SEGMENT else nullcontext():
        return _has_zero_offset(stored, decoded)


def _has_zero_offset(stored: Bytes, decoded: Bytes) -> bool:
    if b"\0\0" not in stored.tobytes() or bytes(_MIN_MATCH) not in decoded.tobytes():
        return False
    ends = _ends_of_lengths(stored)
    position = 0
    while position < stored.size:
        offset_at, following = _sequences(stored, ends, position)
        starts, position = _follow(following, position)
        at = offset_at[starts]
        at = at[at + 1 < stored.size]
        if not (stored[at] | stored[at + 1]).all():
            return True
    return False


def _ends_of_lengths(stored: Bytes) -> Indices:
    """Return, for a length that goes on at each byte, where its last byte is.

    A length goes on with any number of 255 and ends with a byte that is less.
    """
    last = np.arange(stored.size + 1, dtype=np.int32)
    last[:-1][stored == 255] = stored.size
    return np.minimum.accumulate(last[::-1])[::-1]


def _sequences(stored: Bytes, ends: Indices, first: int) -> tuple[Indices, Indices]:
    """Return where sequences that start in a segment have their offset, and where they end."""
    size = stored.size
    start = np.arange(first, min(first + _SEGMENT, size))
    token = stored[start]
    literals, match = token.astype(np.int64) >> 4, token & 15
    more = np.minimum(start + 1, size)
    last = ends[more]
    long = literals == 15
    value = stored[np.minimum(last, size - 1)]
    offset_at = start + 1 + literals
    offset_at += np.where(long, 256 * (last - more) + 1 + value, 0)
    behind = np.minimum(offset_at + 2, size)
    following = np.where(match == 15, ends[behind] + 1, behind)
    return np.minimum(offset_at, size), following


def _follow(following: Indices, first: int) -> tuple[list[int], int]:
    """Return the sequences that start in a segment, counted from `first`, and where the next is."""
    steps = following.tolist()
    position, starts = 0, []
    while position < len(steps):
        starts.append(position)
        position = steps[position] - first
    return starts, position + first
