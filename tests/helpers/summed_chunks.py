"""Chunks with checksums, laid out in one array of bytes as they lie in memory of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload import checksums
from gpuload.chunks import Checksum, Codec, make_table

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable

#: What the device computes.
KINDS = (
    Checksum.CRC32,
    Checksum.CRC32C_MASKED,
    Checksum.XXH32_STORED,
    Checksum.XXH32,
    Checksum.XXH64_LOW,
)
_LINE = 128


@dataclass(frozen=True)
class SummedChunks:
    """Rows, and where their bytes are.

    Attributes
    ----------
    rows : ChunkTable
        n rows, all of them with the right checksum.
    data : ndarray of uint8
        The payloads and the decoded bytes of all, and other bytes around them.
    stored, decoded : ndarray of int64, shape (n,)
        Where in `data` they start; at any remainder by 128.
    sizes : ndarray of uint32, shape (n,)
        Decoded sizes, as a device writes them.
    """

    rows: ChunkTable
    data: npt.NDArray[np.uint8]
    stored: npt.NDArray[np.int64]
    decoded: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.uint32]

    @property
    def expected(self) -> list[int]:
        """The checksum of each row."""
        return self.rows["checksum"].tolist()


def summed_chunks(
    rng: np.random.Generator,
    kinds: list[int],
    sizes: list[int],
    *,
    exact: list[bool] | bool = True,
) -> SummedChunks:
    """Return chunks of random bytes.

    Parameters
    ----------
    rng : Generator
        Where the bytes and their places come from.
    kinds, sizes : list of int, shape (n,)
        The checksum of each chunk, and the size of its payload and of what it decodes to.
    exact : list of bool, optional
        Whether the file states the size. Slots of others are larger.
    """
    count, stated = len(sizes), np.broadcast_to(exact, len(sizes))
    actual = np.array(sizes, np.int64)
    slots = actual + np.where(stated, 0, rng.integers(0, 300, count))
    # A payload and a slot for each chunk, in turn.
    rooms = np.stack((actual, slots), axis=1).ravel()
    starts = np.cumsum(rooms + 2 * _LINE) - rooms - _LINE
    starts += rng.integers(0, _LINE, starts.size)
    data = rng.integers(0, 256, int(starts[-1] + rooms[-1]) + _LINE, np.uint8)
    stored, decoded = starts[::2], starts[1::2]
    summed = np.where(np.array(kinds) == Checksum.XXH32_STORED, stored, decoded)
    found = [
        checksums.compute(kind, data[start : start + size]) if kind else 0
        for kind, start, size in zip(kinds, summed.tolist(), sizes, strict=True)
    ]
    rows = make_table(
        range(count),
        stored_size=actual,
        raw_size=slots,
        codec=Codec.RAW,
        checksum_kind=kinds,
        checksum=np.array(found, np.uint64),
        exact=stated,
    )
    return SummedChunks(rows, data, stored, decoded, actual.astype(np.uint32))
