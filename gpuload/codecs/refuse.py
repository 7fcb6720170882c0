"""Refuse the first damaged one of many chunks that are looked at together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload.codecs.base import Bytes, CorruptChunkError

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

__all__ = ["bytes_at", "refuse", "words_at"]


def refuse(
    conditions: dict[str, npt.NDArray[np.bool_]],
    rows: Integers | None = None,
    **values: npt.NDArray[np.generic],
) -> None:
    """Raise an error if any condition holds for any row.

    Parameters
    ----------
    conditions : dict of str to ndarray of bool, shape (n,)
        What is wrong with rows, in the words of an error message; names of `values` in braces
        stand for theirs. Of several that hold for a row the first is told.
    rows : ndarray of int64, shape (n,), optional
        Numbers of the chunks; by default they are counted.
    **values : ndarray, shape (n,)
        What the messages tell.

    Raises
    ------
    CorruptChunkError
        With the number of the chunk as `row`.
    """
    bad = np.logical_or.reduce(list(conditions.values()))
    if not bad.any():
        return
    at = int(bad.argmax())
    reason = next(reason for reason, mask in conditions.items() if mask[at])
    told = {name: value[at].item() for name, value in values.items()}
    raise CorruptChunkError(reason.format(**told), row=at if rows is None else int(rows[at]))


def bytes_at(stored: Bytes, places: Integers, size: int) -> Bytes:
    """Return `size` bytes from each place, shape (n, size); those that are not there are any."""
    index = np.add.outer(places, np.arange(size))
    return stored[np.minimum(index, stored.size - 1, out=index)]


def words_at(stored: Bytes, places: Integers, kind: str = "<u4") -> Integers:
    """Return the integers at places, which are inside."""
    size = np.dtype(kind).itemsize
    return bytes_at(stored, places, size).view(kind)[:, 0].astype(np.int64)
