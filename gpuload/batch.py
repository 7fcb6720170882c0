"""Turn rows of the chunk table into the driver's array of decompression parameters.

The layout is that of ``CUmemDecompressParams`` (CUDA driver API, ``cuMemBatchDecompressAsync``):
64 bytes an operation. Every engine on a device takes this array; the codes from 256 on are our own
and never reach the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload.chunks import Checksum, Codec

if TYPE_CHECKING:
    from gpuload.chunks import ChunkTable

__all__ = ["ALGORITHMS", "DRIVER_CODECS", "PARAMS_DTYPE", "SUMS", "build", "largest_first"]

PARAMS_DTYPE = np.dtype(
    [
        ("src_num_bytes", "<u8"),
        ("dst_num_bytes", "<u8"),
        ("dst_act_bytes", "<i8"),
        ("src", "<i8"),
        ("dst", "<i8"),
        ("algo", "<i4"),
        ("padding", "u1", (20,)),
    ]
)

#: ``CUmemDecompressAlgorithm`` bits of the codecs that the driver knows.
DRIVER_CODECS = {Codec.DEFLATE: 1, Codec.SNAPPY: 2, Codec.LZ4: 4}
#: The `algo` of every codec that decodes in a batch.
ALGORITHMS = {**DRIVER_CODECS, Codec.RAW: 256, Codec.ZSTD: 257, Codec.GDEFLATE: 258}
#: The `algo` of every checksum that there is a kernel for (``Algo`` in gpuload/kernels/batch.cuh).
SUMS = {
    Checksum.CRC32: 512,
    Checksum.CRC32C_MASKED: 513,
    Checksum.XXH32_STORED: 514,
    Checksum.XXH32: 514,
    Checksum.XXH64_LOW: 515,
}

_CODES = np.zeros(max(Codec) + 1, np.int32)
for _codec, _code in ALGORITHMS.items():
    _CODES[_codec] = _code


def build(
    rows: ChunkTable,
    *,
    src: npt.NDArray[np.int64],
    dst: npt.NDArray[np.int64],
    actual: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.intp]]:
    """Return the parameters of a batch, and the row that each operation belongs to.

    Parameters
    ----------
    rows : ChunkTable
        n rows of codecs in `ALGORITHMS`.
    src : ndarray of int64, shape (n,)
        Addresses of the bare payloads.
    dst : ndarray of int64, shape (n,)
        Addresses of the slots, each of `raw_size` bytes.
    actual : ndarray of int64, shape (n,)
        Addresses of the 32-bit words that receive the decoded sizes.

    Returns
    -------
    params : ndarray of PARAMS_DTYPE, shape (n,)
        Largest slot first, which keeps the engine busy to the end.
    order : ndarray of intp, shape (n,)
        ``params[i]`` is the operation of ``rows[order[i]]``.
    """
    order = largest_first(rows["raw_size"])
    params = np.zeros(rows.size, PARAMS_DTYPE)
    # Taking from a column on its own is twice as fast as from the rows, which lie far apart.
    params["src_num_bytes"] = np.ascontiguousarray(rows["stored_size"])[order]
    params["dst_num_bytes"] = np.ascontiguousarray(rows["raw_size"])[order]
    params["dst_act_bytes"] = actual[order]
    params["src"] = src[order]
    params["dst"] = dst[order]
    params["algo"] = _CODES[np.ascontiguousarray(rows["codec"])][order]
    return params, order


def largest_first(sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Return a stable order of descending sizes."""
    keys = sizes.max(initial=0) - sizes
    most = int(keys.max(initial=0))
    if not most:
        return np.arange(sizes.size)
    if most >> 32:
        return np.argsort(keys, kind="stable")
    # NumPy sorts 16-bit keys digit by digit, five times as fast as wider ones.
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    if not most >> 16:
        return order
    higher = (keys >> np.uint64(16)).astype(np.uint16)[order]
    return order[np.argsort(higher, kind="stable")]
