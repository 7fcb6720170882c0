"""The one fault of an LZ4 block that liblz4 does not refuse: a match with offset 0.

The block format calls such a match invalid; liblz4 takes it and writes zeros. Where a checksum
covers the content, that decides. Where none does, this module looks for such a match: for every
byte of the block it computes at once where the sequence that would start there ends, then it
follows the sequences from the first byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.codecs.base import Bytes

    Indices = npt.NDArray[np.int64]

__all__ = ["has_zero_offset"]

#: Shortest match (LZ4 block format), so that many zeros come of offset 0 at least.
_MIN_MATCH = 4


def has_zero_offset(stored: Bytes, decoded: Bytes) -> bool:
    """Return whether a block holds a match with offset 0.

    Parameters
    ----------
    stored : ndarray of uint8
        A block that decoded without an error.
    decoded : ndarray of uint8
        What it decoded to.
    """
    if b"\0\0" not in stored.tobytes() or bytes(_MIN_MATCH) not in decoded.tobytes():
        return False
    offset_at, following = _sequences(stored)
    padded = np.concatenate((stored, np.full(2, 255, np.uint8)))
    zero = (padded[offset_at] == 0) & (padded[offset_at + 1] == 0)
    return bool(zero.any()) and bool(zero[_starts(following)].any())


def _sequences(stored: Bytes) -> tuple[Indices, Indices]:
    """Return where the sequence starting at each byte has its offset, and where the next starts."""
    end = stored.size
    start = np.arange(end)
    literals, match = stored.astype(np.int64) >> 4, stored & 15
    # A length of 15 goes on in the bytes that follow: any number of 255, then one that is less.
    last = np.where(stored == 255, end, start)
    last = np.append(np.minimum.accumulate(last[::-1])[::-1], end)
    value = np.append(stored, 0).astype(np.int64)
    first = np.minimum(start + 1, end)
    more = literals == 15
    extra = np.where(more, last[first] - first + 1, 0)
    literals += np.where(more, 255 * (last[first] - first) + value[last[first]], 0)
    offset_at = np.minimum(start + 1 + extra + literals, end)
    behind = np.minimum(offset_at + 2, end)
    following = np.where(match == 15, last[behind] + 1, behind)
    return offset_at, np.minimum(following, end)


def _starts(following: Indices) -> list[int]:
    """Return where the sequences of the block start."""
    steps = following.tolist()
    position, starts = 0, []
    while position < len(steps):
        starts.append(position)
        position = steps[position]
    return starts
