"""Arrays that lie in their files as they go to a device: read, and copied to their place.

Nothing has to be looked at, so that threads need a few pinned bytes each: the less memory they
write to and copy from in turn, the more of it stays in the caches between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.array_codecs import Skip
from gpuload.array_engines import COPY
from gpuload.array_shape import Shape

if TYPE_CHECKING:
    from gpuload.array_part import Context
    from gpuload.array_plan import ArrayPlan
    from gpuload.options import Options
    from gpuload.stations import Station

__all__ = ["CopyPart", "CopyWork", "copy_parts", "copy_shape", "is_copied"]

#: Bytes that are read and copied at once, and threads that do it: of 16 cores, 8 brought 33.7 GB/s,
#: 12 brought 27 and all of them 24.7.
_PIECE, _THREADS = 4 << 20, 8


@dataclass(frozen=True)
class CopyPart:
    """Bytes of an object of a plan's store, and the address on the device that they go to."""

    plan: ArrayPlan
    key: str
    offset: int
    target: int
    size: int


def is_copied(plan: ArrayPlan, options: Options) -> bool:
    """Return whether all chunks go to the result as they are stored."""
    if plan.asset.pipeline.compression or plan.undone or plan.missing.any():
        return False
    sums = plan.places.checksums
    if options.verify and sums is not None and (sums >= 0).any():
        return False
    return bool(plan.contiguous.all() and (plan.places.sizes == plan.encoded_sizes).all())


def copy_shape(options: Options) -> Shape:
    """Return the shape of stations that copy."""
    count = max(1, min(options.thread_count, _THREADS, options.memory_limit // _PIECE))
    return Shape(count, min(_PIECE, options.memory_limit), 0, 0, 0, 0, 0)


def copy_parts(plan: ArrayPlan, target: int, most: int) -> list[CopyPart]:
    """Return what is to be copied of a plan, in pieces of at most `most` bytes."""
    skip = sum(step.size for step in plan.asset.pipeline.filters if isinstance(step, Skip))
    places = plan.places
    offsets, sizes = places.offsets + skip, places.sizes - skip
    apart = (np.diff(places.objects) != 0) | (offsets[1:] != offsets[:-1] + sizes[:-1])
    apart |= plan.targets[1:] != plan.targets[:-1] + sizes[:-1]
    first = np.concatenate([[0], np.flatnonzero(apart) + 1])[: sizes.size]
    total = np.add.reduceat(sizes, first) if first.size else sizes
    pieces = -(-total // most)
    owner = np.repeat(np.arange(first.size), pieces)
    done = (np.arange(owner.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * most
    which = first[owner]
    columns = (offsets[which] + done, target + plan.targets[which] + done)
    left = np.minimum(total[owner] - done, most)
    keys = [places.keys[number] for number in places.objects[which].tolist()]
    rows = zip(keys, *(each.tolist() for each in (*columns, left)), strict=True)
    return [CopyPart(plan, *row) for row in rows]


class CopyWork:
    """One piece: what `gpuload.array_part.PartWork` is for a part."""

    def __init__(self, context: Context, part: CopyPart, station: Station) -> None:
        self._context, self._station, self._part = context, station, part

    def submit(self) -> None:
        """Read the piece, and submit its copy."""
        part, station = self._part, self._station
        with self._context.stages.measure("read", part.size):
            view = memoryview(station.stored)[: part.size]
            part.plan.store.readinto(part.key, part.offset, view)
        handle = int(station.stream.handle)
        driver.memcpy_async(part.target, station.stored_address, part.size, handle)

    def settle(self) -> None:
        """Wait for the copy."""
        self._station.sync()
        self._context.engines.used.add(COPY)
