"""Arrays that threads bring to a device piece by piece: copied from files, or decoded on the way.

Threads need a few pinned bytes each: the less memory they write to and copy from in turn, the more
of it stays in the caches between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload import array_stream, driver
from gpuload.array_codecs import Skip
from gpuload.array_engines import COPY
from gpuload.array_load import failure_of
from gpuload.array_part import PartWork
from gpuload.array_places import strides_of
from gpuload.array_shape import Shape
from gpuload.array_stream import ChunkStream
from gpuload.chunks import Checksum
from gpuload.codecs.base import CorruptChunkError
from gpuload.errors import MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cuda.core import Event

    from gpuload.array_part import Context
    from gpuload.array_plan import ArrayPlan
    from gpuload.array_shape import Limits
    from gpuload.options import Options
    from gpuload.stations import Station

__all__ = [
    "CopyPart",
    "CopyWork",
    "StreamWork",
    "copy_parts",
    "copy_shape",
    "is_copied",
    "stream_shape",
]

#: Pieces of a chunk that have a place in pinned memory.
_HALVES = 2
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


def stream_shape(plans: Sequence[ArrayPlan], options: Options, limits: Limits) -> Shape:
    """Return the shape of stations that decode the chunks of plans piece by piece.

    Raises
    ------
    MemoryLimitError
        If there is not enough memory on the device for a chunk of which not all is selected.
    """
    aside = [plan.raw_sizes[~plan.contiguous] for plan in plans]
    first = max((int(sizes.max(initial=0)) for sizes in aside), default=0)
    if first > limits.device:
        raise MemoryLimitError(
            f"{plans[0].name}: a chunk of {first} bytes, of which not all is selected, needs as "
            f"much memory on the device, memory_limit is {limits.device}; raise it (--memory-limit)"
        )
    chunks = sum(plan.raw_sizes.size for plan in plans)
    room = limits.device // first if first else chunks
    most = max(
        1, min(chunks, room, options.thread_count, limits.host // (_HALVES * array_stream.PIECE))
    )
    return Shape(most, _HALVES * array_stream.PIECE, 0, 0, first, 0, 0)


class StreamWork(PartWork):
    """One chunk that is decoded piece by piece; while one piece is copied, the next is decoded."""

    def submit(self) -> None:
        """Decode the chunk, and submit the copies of its pieces."""
        plan, chunk = self._plan, int(self._chunks[0])
        whole = bool(plan.contiguous[chunk])
        to = self._target + int(plan.targets[chunk]) if whole else self._station.first
        stream = ChunkStream(plan, chunk, self._context.options)
        try:
            with self._context.stages.measure("decode", int(plan.raw_sizes[chunk])):
                self._stream(stream, to)
        except CorruptChunkError as error:
            self._failed({0: failure_of(plan, chunk, error)}, retry=False)
        else:
            self._count(stream)
        if not whole:
            self._copy_boxes(self._chunks, np.array([to]), strides_of(plan))
        self._submitted = self._context.stages.now()

    def _stream(self, stream: ChunkStream, to: int) -> None:
        station = self._station
        copied: list[Event | None] = [None] * _HALVES
        for number, piece in enumerate(stream.pieces()):
            self._context.watch.check()
            half = number % _HALVES
            event = copied[half]
            if event is not None:
                with driver.calling("cuEventSynchronize", "a piece of a chunk"):
                    event.sync()
            start = half * array_stream.PIECE
            station.stored[start : start + piece.size] = piece
            self._copy(to, station.stored_address + start, piece.size)
            copied[half] = station.record()
            to += piece.size

    def _count(self, stream: ChunkStream) -> None:
        context = self._context
        with context.lock:
            context.engines.used.add("host")
            if context.options.verify:
                context.verified[stream.checksum] += 1
                context.verified_on["host"] += stream.checksum != Checksum.NONE
            else:
                context.unverified[stream.checksum] += 1
