"""What kernels of filters and boxes touch, for those who check it before they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload.filters.box_plan import BOX_DTYPE
from gpuload.filters.plan import ALGORITHMS, DELTA_DTYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    #: The column of the address, bytes, whether they are written, the alignment they need, and how
    #: many bytes before the address they start, if they do not start there.
    Range = tuple[str, int, bool, int] | tuple[str, int, bool, int, int]
    Words = Callable[[int, int], npt.NDArray[np.int64]]

__all__ = ["ALGORITHMS", "ranges", "sizes"]

#: As in gpuload/kernels/delta.cu.
_SUM, _ADD_UP, _RUN = range(3)
#: The bytes of a box, about: of more, the elements are copied one by one.
_SMALL = 1 << 10


def sizes(name: str, rows: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Return about how many bytes operations read and write."""
    if name == "boxes":
        return np.full(rows.size, _SMALL, np.uint64)
    return rows["src_num_bytes"] + rows["dst_num_bytes"]


def ranges(name: str, row: np.void, words: Words) -> list[Range]:
    """Return what an operation touches.

    Parameters
    ----------
    name : str
        The kernel.
    row : PARAMS_DTYPE
        The operation.
    words : callable
        ``words(address, count)`` reads integers of 64 bits.
    """
    if name == "boxes":
        return _of_box(row, row.view(BOX_DTYPE), words)
    if name == "delta":
        return _of_delta(row.view(DELTA_DTYPE))
    return [
        ("src", int(row["src_num_bytes"]), False, 1),
        ("dst", int(row["dst_num_bytes"]), True, 1),
    ]


def _of_delta(part: np.void) -> list[Range]:
    stage = part["stage"]
    sums = 8 * int(part["parts"]) if stage == _ADD_UP else 8 if part["sums"] else 0
    found: list[Range] = [("dst_act_bytes", sums, stage != _RUN, 8)] if sums else []
    if stage == _ADD_UP:
        return found
    dst = int(part["room"]) if stage == _RUN else 0
    return [*found, ("src", int(part["size"]), False, 1), ("dst", dst, True, 1)]


def _of_box(row: np.void, box: np.void, words: Words) -> list[Range]:
    axes, element = int(box["axes"]), int(box["element"])
    extents = words(int(box["extents"]), axes)
    distances = words(int(box["distances"]), 2 * axes)
    found: list[Range] = [
        ("src_num_bytes", 8 * axes, False, 8),
        ("dst_act_bytes", 16 * axes, False, 8),
    ]
    for column, strides in (("src", distances[:axes]), ("dst", distances[axes:])):
        reach = (extents - 1) * strides
        before = -int(np.minimum(reach, 0).sum())
        size = before + int(np.maximum(reach, 0).sum()) + element
        found.append((column, size, column == "dst", element, before))
    return found
