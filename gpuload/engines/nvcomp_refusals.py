"""Which rows nvCOMP cannot take, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import Codec
from gpuload.engines.nvcomp_abi import METHODS
from gpuload.engines.nvcomp_plan import framed_size, place_size, scratch_size
from gpuload.engines.refusals import dependent_rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.engines.nvcomp_library import Library

__all__ = ["refusals"]


def refusals(rows: ChunkTable, library: Library, limit: int) -> dict[str, npt.NDArray[np.bool_]]:
    """Return why nvCOMP cannot take rows: for each reason, which rows it holds for.

    Parameters
    ----------
    rows : ChunkTable
        n rows.
    library : Library
        Called for the device that is current.
    limit : int
        Bytes of scratch memory.
    """
    most = np.zeros(max(Codec) + 1, np.uint64)
    most[list(METHODS)] = [method.limit for method in METHODS.values()]
    codec, stored, raw = rows["codec"], framed_size(rows), rows["raw_size"]
    serial, copied, known = codec == Codec.GZIP, codec == Codec.RAW, most[codec] > 0
    snappy, long = codec == Codec.SNAPPY, known & (np.maximum(raw, stored) > most[codec])
    return {
        **dependent_rows(rows),
        "nvCOMP does not decode the codec": ~(known | copied | serial),
        "the length is not before the elements, where nvCOMP wants it": (
            snappy & (rows["prefix_size"] == 0)
        ),
        "nothing is stored": known & (stored == 0) & (raw > 0),
        "longer than nvCOMP takes": long,
        f"one chunk takes more than {limit} bytes of scratch memory (memory_limit)": (
            _too_much_scratch(rows, known & ~long, library, limit)
        ),
    }


def _too_much_scratch(
    rows: ChunkTable, which: npt.NDArray[np.bool_], library: Library, limit: int
) -> npt.NDArray[np.bool_]:
    """Return which rows take too much on their own, if their source has to be moved."""
    found = np.zeros(rows.size, np.bool_)
    codecs, raw, stored = rows["codec"], rows["raw_size"], framed_size(rows)
    for codec in np.unique(codecs[which]).tolist():
        mine = which & (codecs == codec)
        # A file's chunks have few different sizes.
        sizes, of = np.unique(raw[mine], return_inverse=True)
        temp = np.array([library.temp_size(codec, 1, size, size) for size in sizes.tolist()])
        moves = library.alignments(codec).input > 1
        moved = place_size(stored[mine].astype(np.int64)) * moves
        found[mine] = scratch_size(temp[of], moved) > limit
    return found
