"""What a device says that it decoded, against what the rows of a batch allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.engines.base import Outcome, Status

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable

__all__ = ["compare_sizes"]


def compare_sizes(
    rows: ChunkTable, sizes: npt.NDArray[np.unsignedinteger[Any]], outcome: Outcome
) -> None:
    """Note the decoded sizes of rows, and which rows fail for theirs.

    Parameters
    ----------
    rows : ChunkTable
        n rows.
    sizes : ndarray of an unsigned type, shape (n,)
        What the device wrote; the type's largest value is what stood there before.
    outcome : Outcome
        Of the batch. Rows that have failed before stay as they are.
    """
    unwritten, raw = np.iinfo(sizes.dtype).max, rows["raw_size"]
    good = outcome.status == Status.OK
    outcome.actual[good] = np.where(sizes == unwritten, 0, sizes)[good]
    wrong = (sizes > raw) | (rows["exact"] & (sizes != raw))
    for row in np.flatnonzero(wrong & good).tolist():
        wanted = f"{raw[row]}" if rows["exact"][row] else f"at most {raw[row]}"
        found = "no size" if sizes[row] == unwritten else f"{sizes[row]} bytes"
        outcome.fail(row, Status.SIZE, f"the engine reports {found}, the file says {wanted}")
        outcome.blame[row] = "size"
