"""Where the chunks of Zarr arrays are: in an object each, or many of them in shards.

A shard has an index of the chunks in it (the sharding codec of Zarr 3, "Binary shard format"). Of
shards whose chunks are wanted, the index alone is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload.containers.array import Grid, Places
from gpuload.containers.shard_index import Shard, ShardIndexes, ShardLevel
from gpuload.options import DEFAULT_MEMORY_LIMIT

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.sources.stores import Store

    Integers = npt.NDArray[np.int64]

__all__ = ["ChunkKeys", "KeyGrid", "ShardGrid", "ShardLevel"]

#: Most bytes of indexes that are kept.
_LARGEST_KEPT = 32 << 20


@dataclass(frozen=True)
class ChunkKeys:
    """The keys of an array's stored objects (Zarr 3, "Chunk key encoding").

    Attributes
    ----------
    prefix : str
        What they begin with.
    separator : str
        "/" or ".", between numbers.
    only : str
        The key, behind `prefix`, of the chunk of an array of no axes.
    """

    prefix: str
    separator: str
    only: str

    def of(self, chunks: Integers) -> list[str]:
        """Return the keys of chunks, shape (n, axes)."""
        count, axes = chunks.shape
        if not axes:
            return [self.prefix + self.only] * count
        columns = [map(str, chunks[:, axis].tolist()) for axis in range(axes)]
        separator, prefix = self.separator, self.prefix
        return [prefix + separator.join(row) for row in zip(*columns, strict=True)]


class KeyGrid(Grid):
    """Chunks that are an object each.

    Parameters
    ----------
    store : Store
        Where they are.
    keys : ChunkKeys
        What they are called.
    """

    def __init__(self, store: Store, keys: ChunkKeys) -> None:
        self._store, self._keys = store, keys

    def locate(self, chunks: Integers) -> Places:
        """See `Grid.locate`."""
        keys = self._keys.of(chunks)
        sizes = self._store.sizes(keys)
        objects = np.where(sizes < 0, -1, np.arange(len(keys)))
        offsets = np.zeros(len(keys), np.int64)
        return Places(objects, offsets, np.maximum(sizes, 0), keys)


@dataclass
class _Found:
    """Where chunks are, as far as is known; shape (n,) each, a size is -1 for what is missing."""

    objects: Integers
    offsets: Integers
    sizes: Integers


class ShardGrid(Grid):
    """Chunks in shards, which may themselves be in shards.

    Parameters
    ----------
    store : Store
        Where the outermost shards are.
    keys : ChunkKeys
        What they are called.
    levels : tuple of ShardLevel
        How shards are divided, the outermost first.
    memory_limit : int
        Bytes that an index may take; some of that is kept for the next call.
    """

    def __init__(
        self,
        store: Store,
        keys: ChunkKeys,
        levels: tuple[ShardLevel, ...],
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        self._store, self._keys, self._levels = store, keys, levels
        kept = min(memory_limit // 8, _LARGEST_KEPT) // max(1, len(levels))
        self._indexes = [ShardIndexes(store, level, memory_limit, kept) for level in levels]

    def locate(self, chunks: Integers) -> Places:
        """See `Grid.locate`."""
        ratios = [np.array(level.ratio, np.int64) for level in self._levels]
        whole = np.prod(ratios, axis=0).astype(np.int64)
        shards, inside = chunks // whole, chunks % whole
        first, objects = _distinct(shards)
        keys = self._keys.of(shards[first])
        found = _Found(objects, np.zeros_like(objects), self._store.sizes(keys)[objects])
        for indexes, ratio in zip(self._indexes, ratios, strict=True):
            whole = whole // ratio
            _descend(indexes, keys, found, _linear(inside // whole, ratio))
            inside = inside % whole
        found.objects[found.sizes < 0] = -1
        return Places(found.objects, found.offsets, np.maximum(found.sizes, 0), keys)


def _descend(indexes: ShardIndexes, keys: list[str], found: _Found, numbers: Integers) -> None:
    """Replace shards by those chunks in them that have these numbers."""
    groups = _groups(found)
    firsts = [int(rows[0]) for rows in groups]
    shards = [
        Shard(keys[found.objects[row]], int(found.offsets[row]), int(found.sizes[row]))
        for row in firsts
    ]
    for rows, shard, entries in zip(groups, shards, indexes.each(shards), strict=True):
        places = indexes.locate(shard, entries, numbers[rows])
        found.offsets[rows], found.sizes[rows] = places


def _linear(places: Integers, shape: Integers) -> Integers:
    """Return the numbers, in C order, of places in a grid."""
    strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1)[: shape.size]
    return (places @ strides.astype(np.int64)).astype(np.int64)


def _distinct(places: Integers) -> tuple[Integers, Integers]:
    """Return the first row of each distinct place, and the number of each row's place."""
    if not places.size:
        alike = np.zeros(places.shape[0], np.int64)
        return alike[:1], alike
    numbers = _linear(places, places.max(axis=0) + 1)
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    return first, which.reshape(-1).astype(np.int64)


def _groups(found: _Found) -> list[Integers]:
    """Return the rows of the chunks in each shard that is there."""
    rows = np.flatnonzero(found.sizes >= 0)
    if not rows.size:
        return []
    order = np.lexsort((found.offsets[rows], found.objects[rows]))
    rows = rows[order]
    objects, offsets = found.objects[rows], found.offsets[rows]
    new = np.flatnonzero((objects[1:] != objects[:-1]) | (offsets[1:] != offsets[:-1])) + 1
    return np.split(rows, new)
