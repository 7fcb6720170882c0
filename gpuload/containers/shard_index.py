"""The indexes of shards (the sharding codec of Zarr 3, "Binary shard format").

An index is as many pairs of 64-bit numbers, offset and size, as there are inner chunks, in C order,
and maybe their CRC-32C.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuload.errors import FormatError, MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from gpuload.sources.stores import Store

    Integers = npt.NDArray[np.int64]
    Entries = npt.NDArray[np.uint64]

__all__ = ["Shard", "ShardIndexes", "ShardLevel"]

#: Offset and size of a chunk that is missing.
_MISSING = np.uint64(2**64 - 1)
_ENTRY = 16
_CHECKSUM = 4
#: Indexes that are requested side by side from a store that waits for a network.
_IN_FLIGHT = 16


@dataclass(frozen=True)
class ShardLevel:
    """How a shard is divided.

    Attributes
    ----------
    ratio : tuple of int
        Inner chunks of a shard along each axis.
    at_start : bool
        Whether the index is at the start of the shard; else at its end.
    checksum : bool
        Whether a CRC-32C of the index is behind it.
    order : str
        "<" or ">": the byte order of the index.
    """

    ratio: tuple[int, ...]
    at_start: bool = False
    checksum: bool = True
    order: str = "<"

    @property
    def count(self) -> int:
        """Inner chunks of a shard."""
        return prod(self.ratio)

    @property
    def index_size(self) -> int:
        """Bytes of the index and its checksum."""
        return _ENTRY * self.count + (_CHECKSUM if self.checksum else 0)


class Shard(NamedTuple):
    """Where a shard is: the object, its first byte there, and its bytes."""

    key: str
    start: int
    size: int


class ShardIndexes:
    """The indexes of all shards of a level; any thread may use it.

    Parameters
    ----------
    store : Store
        Where the shards are.
    level : ShardLevel
        How they are divided.
    memory_limit : int
        Bytes that one index may take.
    kept : int
        Bytes of indexes that are kept; those that were used last.
    """

    def __init__(self, store: Store, level: ShardLevel, memory_limit: int, kept: int) -> None:
        self._store, self._level = store, level
        self._limit, self._most = memory_limit, kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[Shard, Entries] = OrderedDict()
        self._held = 0

    def locate(
        self, shard: Shard, entries: Entries, numbers: Integers
    ) -> tuple[Integers, Integers]:
        """Return where chunks of a shard are.

        Parameters
        ----------
        shard : Shard
            The shard.
        entries : ndarray of uint64
            Its index, as `each` gives it.
        numbers : ndarray of int64, shape (n,)
            The chunks.

        Returns
        -------
        offsets, sizes : ndarray of int64, shape (n,)
            Offsets in the object; sizes are -1 for chunks that are missing.

        Raises
        ------
        FormatError
            If one is outside of the shard.
        """
        offsets, sizes = entries[numbers].T
        missing = (offsets == _MISSING) & (sizes == _MISSING)
        size = np.uint64(shard.size)
        outside = ~missing & ((offsets > size) | (sizes > size - np.minimum(offsets, size)))
        if outside.any():
            bad = int(np.flatnonzero(outside)[0])
            raise self._outside(shard, int(numbers[bad]), int(offsets[bad]), int(sizes[bad]))
        offsets[missing], sizes[missing] = 0, 0
        places = offsets.astype(np.int64) + shard.start
        return places, np.where(missing, -1, sizes.astype(np.int64))

    def each(self, shards: Sequence[Shard]) -> Iterator[Entries]:
        """Yield the indexes of shards, read side by side where that waits for a network.

        Raises
        ------
        FormatError
            If a shard is too short for an index, or the checksum of one is wrong.
        MemoryLimitError
            If an index is too large.
        """
        if not self._store.remote or len(shards) < 2:
            yield from map(self._index, shards)
            return
        left = iter(shards)
        with ThreadPoolExecutor(_IN_FLIGHT) as threads:
            while some := list(islice(left, 4 * _IN_FLIGHT)):
                yield from threads.map(self._index, some)

    def _index(self, shard: Shard) -> Entries:
        with self._lock:
            kept = self._kept.get(shard)
            if kept is not None:
                self._kept.move_to_end(shard)
                return kept
        entries = self._read(shard)
        with self._lock:
            self._held += 0 if shard in self._kept else entries.nbytes
            self._kept[shard] = entries
            while self._held > self._most:
                self._held -= self._kept.popitem(last=False)[1].nbytes
        return entries

    def _read(self, shard: Shard) -> Entries:
        level, wanted = self._level, self._level.index_size
        if shard.size < wanted:
            raise self._broken(
                shard,
                shard.start,
                f"a shard of {shard.size} bytes; the index alone of its {level.count} chunks has "
                f"{wanted}",
            )
        if wanted > self._limit:
            raise MemoryLimitError(
                f"{self._store.location(shard.key)}: the index of a shard has {wanted} bytes, "
                f"memory_limit is {self._limit}; raise it (--memory-limit)"
            )
        data = np.empty(wanted, np.uint8)
        self._store.readinto(shard.key, self._place(shard), memoryview(data))
        if level.checksum:
            self._check(shard, data)
        pairs = data[: _ENTRY * level.count].view(f"{level.order}u8").reshape(-1, 2)
        return pairs.astype(np.uint64, copy=False)

    def _check(self, shard: Shard, data: npt.NDArray[np.uint8]) -> None:
        import google_crc32c

        told = int.from_bytes(data[-_CHECKSUM:].tobytes(), "little")
        actual = int(google_crc32c.value(data[:-_CHECKSUM].tobytes()))
        if told != actual:
            message = f"the index of the shard has the CRC-32C {actual:08x}, {told:08x} is stored"
            raise self._broken(shard, self._place(shard), message)

    def _place(self, shard: Shard) -> int:
        """Return where the index of a shard is in the object."""
        at_end = 0 if self._level.at_start else shard.size - self._level.index_size
        return shard.start + at_end

    def _outside(self, shard: Shard, number: int, offset: int, size: int) -> FormatError:
        message = (
            f"the index of the shard has chunk {number} in {size} bytes at {offset}, which is "
            f"outside of the {shard.size} bytes of the shard"
        )
        return self._broken(shard, self._place(shard) + _ENTRY * number, message)

    def _broken(self, shard: Shard, offset: int, message: str) -> FormatError:
        return FormatError(message, source=self._store.location(shard.key), offset=offset)
