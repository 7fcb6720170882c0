"""What the modules share that look for rows of the chunk table in the stored chunks of an array."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuload.chunks import CHUNK_DTYPE, Codec
from gpuload.codecs.base import CorruptChunkError

if TYPE_CHECKING:
    from gpuload.chunks import ChunkTable
    from gpuload.codecs.base import Bytes
    from gpuload.options import Options

__all__ = ["ChunkBytes", "Expanded", "Integers", "Shuffled", "join", "rows_of"]

Integers = npt.NDArray[np.int64]


def _no_integers() -> Integers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Shuffled:
    """Blosc blocks to unshuffle: all those of each chunk that has any, in rising order.

    Attributes
    ----------
    chunk : ndarray of int64, shape (n,)
        Number of the chunk.
    start, size : ndarray of int64, shape (n,)
        Place in the intermediate, and bytes.
    element_size : ndarray of int64, shape (n,)
        Bytes of an element. Of 1, and not `bit`, are blocks that are stored plain: a copy.
    bit : ndarray of bool, shape (n,)
        Whether `gpuload.array_codecs.BitUnshuffle` is to be done, otherwise `Unshuffle`.
    """

    chunk: Integers = field(default_factory=_no_integers)
    start: Integers = field(default_factory=_no_integers)
    size: Integers = field(default_factory=_no_integers)
    element_size: Integers = field(default_factory=_no_integers)
    bit: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))


@dataclass
class Expanded:
    """Chunks of an array as rows of the chunk table.

    Attributes
    ----------
    rows : ChunkTable
        `offset` and `dst_offset` count from the start of `stored` and of the intermediate; `asset`
        is the number of the chunk. All are exact, and none is chained.
    stored : ndarray of uint8
        What was given, or where bytes had to be decoded already, a copy with these behind it.
    shuffled : Shuffled
        What is left to do about chunks when their rows are decoded.
    """

    rows: ChunkTable
    stored: Bytes
    shuffled: Shuffled = field(default_factory=Shuffled)


@dataclass(frozen=True)
class ChunkBytes:
    """The stored bytes of n chunks.

    Attributes
    ----------
    stored : ndarray of uint8
        Holds all of them.
    starts, sizes : ndarray of int64, shape (n,)
        Where each is.
    slots, raw_sizes : ndarray of int64, shape (n,)
        Where each decodes to in the intermediate, and to how many bytes.
    options : Options
        `verify`, `window_limit` and `dictionary` matter.
    """

    stored: Bytes
    starts: Integers
    sizes: Integers
    slots: Integers
    raw_sizes: Integers
    options: Options

    @property
    def count(self) -> int:
        """The number of chunks."""
        return int(self.starts.size)

    def one(self, number: int) -> Bytes:
        """Return the stored bytes of a chunk."""
        start = int(self.starts[number])
        return self.stored[start : start + int(self.sizes[number])]

    def take(self, which: npt.NDArray[np.intp]) -> ChunkBytes:
        """Return some of the chunks."""
        starts, sizes, slots = self.starts[which], self.sizes[which], self.slots[which]
        return ChunkBytes(self.stored, starts, sizes, slots, self.raw_sizes[which], self.options)


def rows_of(chunks: ChunkBytes, **columns: Any) -> ChunkTable:
    """Return one row for each chunk: its stored bytes as they are, other than `columns` say."""
    rows = np.zeros(chunks.count, CHUNK_DTYPE)
    given: dict[str, Any] = {
        "asset": np.arange(chunks.count),
        "offset": chunks.starts,
        "stored_size": chunks.sizes,
        "raw_size": chunks.raw_sizes,
        "dst_offset": chunks.slots,
        "exact": True,
    }
    for name, values in (given | columns).items():
        rows[name] = values
    return rows


def join(chunks: ChunkBytes, parts: list[ChunkTable], decoded: dict[int, Bytes]) -> Expanded:
    """Return the rows of all chunks in their order.

    Parameters
    ----------
    chunks : ChunkBytes
        All chunks.
    parts : list of ChunkTable
        Rows of chunks that engines decode.
    decoded : dict of int to ndarray of uint8
        The bytes of the others, by the number of the chunk.

    Raises
    ------
    CorruptChunkError
        If a chunk of `decoded` has not as many bytes as it should.
    """
    for number, data in decoded.items():
        if data.size != chunks.raw_sizes[number]:
            raise CorruptChunkError(
                f"it decodes to {data.size} bytes, the array asks for {chunks.raw_sizes[number]}",
                row=number,
                actual=data.size,
            )
    stored = chunks.stored
    if decoded:
        sizes = np.array([data.size for data in decoded.values()], np.int64)
        numbers = np.array(list(decoded))
        offset = stored.size + np.cumsum(sizes) - sizes
        columns = {"asset": numbers, "offset": offset, "stored_size": sizes, "codec": Codec.RAW}
        parts = [*parts, rows_of(chunks.take(numbers), **columns)]
        stored = np.concatenate([stored, *decoded.values()])
    rows = np.concatenate(parts) if len(parts) != 1 else parts[0]
    if len(parts) > 1:
        rows = rows[np.argsort(rows["asset"], kind="stable")]
    return Expanded(rows, stored)
