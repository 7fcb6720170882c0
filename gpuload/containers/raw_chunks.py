"""Arrays whose elements lie in a file one behind the other, cut into chunks of a handy size."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from gpuload.containers.array import Grid, Places

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

__all__ = ["PIECE", "RawGrid", "chunk_shape", "shape_error"]

#: Bytes of a chunk.
PIECE = 4 << 20
#: How many times more chunks there may be than the size of a piece asks for, to divide evenly.
_FINER = 16
_LARGEST = 2**63 - 1
#: Axes that NumPy 1 and 2 have.
_AXES = 32 if np.lib.NumpyVersion(np.__version__) < "2.0.0" else 64


def shape_error(shape: Sequence[int], itemsize: int) -> str:
    """Return why no array of NumPy has a shape; empty if it is fine."""
    if len(shape) > _AXES:
        return f"{len(shape)} axes, NumPy has {_AXES} at most"
    if any(length < 0 for length in shape):
        return f"the shape {_shown(shape)} has a negative length"
    # NumPy multiplies all lengths but zeros.
    if prod(length for length in shape if length) * max(1, itemsize) > _LARGEST:
        return f"the shape {_shown(shape)} is of more than 2^63 bytes"
    return ""


def _shown(shape: Sequence[int]) -> str:
    text = str(tuple(n if abs(n) <= _LARGEST else float("inf") for n in shape))
    return text if len(text) < 200 else f"{text[:200]}..."


def chunk_shape(
    shape: tuple[int, ...], itemsize: int, piece: int = PIECE, *, clipped: bool = True
) -> tuple[int, ...]:
    """Return the shape of chunks that are contiguous in C order, and of about `piece` bytes.

    Parameters
    ----------
    shape : tuple of int
        Of the array.
    itemsize : int
        Bytes of an element.
    piece : int
        Bytes of a chunk; more only where one element, or an axis of a length that has no fitting
        divisor, is larger.
    clipped : bool
        Whether the last chunk along the first axis may be shorter than the others. All other
        chunks are alike.
    """
    lengths = tuple(max(1, length) for length in shape)
    inner = itemsize
    for axis in reversed(range(len(lengths))):
        length = lengths[axis]
        if inner * length > piece:
            rows = min(length, max(1, piece // max(1, inner)))
            if axis or not clipped:
                rows = length // _pieces(length, -(-length // rows))
            return (1,) * axis + (rows,) + lengths[axis + 1 :]
        inner *= length
    return lengths


def _pieces(length: int, wanted: int) -> int:
    """Return a divisor of a length: the next from `wanted` on if it is near, else the one below."""
    finer = np.arange(wanted, min(length, wanted * _FINER) + 1)
    even = finer[length % finer == 0]
    if even.size:
        return int(even[0])
    coarser = np.arange(1, wanted)
    return int(coarser[length % coarser == 0][-1])


class RawGrid(Grid):
    """Chunks of an array that is contiguous in one object.

    Parameters
    ----------
    offset : int
        Its first byte there.
    shape, chunks : tuple of int
        Of the array, and of its chunks as `chunk_shape` gives them.
    itemsize : int
        Bytes of an element.
    key : str
        The object.
    checksum : int
        CRC-32 of all bytes, -1 for none; of use for an array of one chunk.
    fortran : bool
        Whether the first axis is the one that varies fastest: all lengths are then in that order.
    """

    def __init__(
        self,
        offset: int,
        shape: tuple[int, ...],
        chunks: tuple[int, ...],
        itemsize: int,
        *,
        key: str = "",
        checksum: int = -1,
        fortran: bool = False,
    ) -> None:
        self._offset, self._shape, self._chunks = offset, shape, chunks
        self._itemsize, self._keys, self._fortran = itemsize, (key,), fortran
        self._checksum = checksum if chunks == tuple(max(1, n) for n in shape) else -1

    def locate(self, chunks: Integers) -> Places:
        """See `Grid.locate`."""
        first = self._first_elements(chunks)
        sizes = self._sizes(chunks) * self._itemsize
        sums = np.full(first.size, self._checksum) if self._checksum >= 0 else None
        return Places(
            np.zeros(first.size, np.int64),
            self._offset + first * self._itemsize,
            sizes,
            self._keys,
            raw_sizes=sizes,
            checksums=sums,
        )

    def _first_elements(self, chunks: Integers) -> Integers:
        shape = self._shape[::-1] if self._fortran else self._shape
        steps = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        strides = np.array(steps[::-1] if self._fortran else steps, np.int64)
        return (chunks * np.array(self._chunks, np.int64)) @ strides

    def _sizes(self, chunks: Integers) -> Integers:
        """Return the elements of chunks, of which those at the end of the first axis have less."""
        sizes = np.full(chunks.shape[0], prod(self._chunks), np.int64)
        if self._shape:
            rows = self._chunks[0]
            there = np.minimum(rows, self._shape[0] - chunks[:, 0] * rows)
            sizes = there * prod(self._chunks[1:])
        return sizes
