"""Which rows engines on a device cannot take, and why; no device is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload import batch
from gpuload.chunks import Codec

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.driver import Capabilities

    #: For each reason, the rows that it holds for.
    Masks = dict[str, npt.NDArray[np.bool_]]

__all__ = ["KERNELS", "dependent_rows", "hardware_refusals", "sm_refusals"]

#: The kernel of each codec that has one: a source in gpuload/kernels.
KERNELS: dict[int, str] = {Codec.RAW: "raw", Codec.SNAPPY: "snappy", Codec.LZ4: "lz4"}
_HAS_KERNEL = np.isin(np.arange(max(Codec) + 1), list(KERNELS))
#: The kernels count in 32 bits, with room to spare.
_LONGEST = 1 << 30


def hardware_refusals(rows: ChunkTable, device: Capabilities) -> Masks:
    """Return why a decompression engine cannot take rows: for each reason, which it holds for."""
    bits = np.zeros(max(Codec) + 1, np.int64)
    bits[list(batch.DRIVER_CODECS)] = list(batch.DRIVER_CODECS.values())
    raw, serial = rows["codec"] == Codec.RAW, rows["codec"] == Codec.GZIP
    known = bits[rows["codec"]] & device.decompress_mask != 0
    mask = (
        f"the codec's bit is missing in the device's algorithm mask ({device.decompress_mask:#x})"
    )
    limit = device.decompress_max_length
    return {
        **dependent_rows(rows),
        mask: ~(known | raw | serial),
        f"longer than the device's maximum of {limit} bytes": known & (_longer_side(rows) > limit),
    }


def sm_refusals(rows: ChunkTable) -> Masks:
    """Return why the kernels cannot take rows: for each reason, which it holds for."""
    known = _HAS_KERNEL[rows["codec"]]
    return {
        **dependent_rows(rows),
        "there is no kernel for the codec": ~known & (rows["codec"] != Codec.GZIP),
        f"{_LONGEST} bytes or longer": known & (_longer_side(rows) >= _LONGEST),
    }


def dependent_rows(rows: ChunkTable) -> Masks:
    """Return why rows do not decode on their own: for each reason, which it holds for."""
    return {
        "one serial stream": rows["codec"] == Codec.GZIP,
        "linked to other chunks": rows["chained"] | np.append(rows["chained"][1:], False),
        "a dictionary is needed": rows["dictionary"],
    }


def _longer_side(rows: ChunkTable) -> npt.NDArray[np.uint64]:
    longer: npt.NDArray[np.uint64] = np.maximum(rows["raw_size"], rows["stored_size"])
    return longer
