"""Many small files as one: read side by side, listed where they lie in memory, decoded together."""

from __future__ import annotations

import os
import stat
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import UNKNOWN
from gpuload.containers import lz4, read_index
from gpuload.containers.base import Index
from gpuload.containers.lz4_many import list_alike
from gpuload.errors import GpuloadError
from gpuload.feeds import Feed, Placing
from gpuload.irregular import IrregularError
from gpuload.sources import BytesSource, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from gpuload.chunks import ChunkTable, SpanTable
    from gpuload.codecs.base import Bytes
    from gpuload.options import Options

    Integers = npt.NDArray[np.int64]

__all__ = ["JoinedFiles", "ManyFeed"]

#: Arrays start at multiples of this, as memory from CUDA does.
_ALIGNMENT = 256


class JoinedFiles(Source):
    """Local files, one behind the other.

    Parameters
    ----------
    paths : sequence of str
        Regular files.

    Raises
    ------
    IrregularError
        If one is no regular file, or empty.

    Attributes
    ----------
    edges : list of int
        Where each starts, and where the last ends.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.name = f"{len(paths)} files"
        self._paths = paths
        facts = [os.stat(path) for path in paths]  # noqa: PTH116 (a third of the time)
        if not all(stat.S_ISREG(each.st_mode) and each.st_size for each in facts):
            raise IrregularError("a file that is empty, or none")
        self.edges: list[int] = [0, *np.cumsum([each.st_size for each in facts]).tolist()]
        self.size = self.edges[-1]

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`; `offset` must be where a file starts, and a file end the view.

        Raises
        ------
        IrregularError
            If a file has another size than it had.
        """
        first = bisect_right(self.edges, offset) - 1
        place = 0
        for number in range(first, len(self._paths)):
            size = self.edges[number + 1] - self.edges[number]
            if place + size > len(view):
                break
            self._read(self._paths[number], view[place : place + size])
            place += size
        return place

    def _read(self, path: str, view: memoryview) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            got = os.readv(descriptor, [view])
        finally:
            os.close(descriptor)
        if got != len(view):
            raise IrregularError(path)


class ManyFeed(Feed):
    """Many files, which are listed by the threads that read them.

    Parameters
    ----------
    files : JoinedFiles
        The files.
    options : Options
        As for `read_index`.
    size : int
        Bytes of a range.
    codecs : collection of int
        What the engine decodes.

    Attributes
    ----------
    places, sizes : ndarray of int64
        Where in the result the bytes of each file start, and how many there are, once all of it is
        loaded.

    Raises
    ------
    IrregularError
        If a file is larger than a piece, or than a range.
    """

    def __init__(self, files: JoinedFiles, options: Options, size: int, codecs: set[int]) -> None:
        self.source: JoinedFiles = files
        self._options, self._size, self._codecs = options, size, codecs
        count = len(files.edges) - 1
        self.places, self.sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._listed: dict[int, tuple[ChunkTable, SpanTable, list[int]]] = {}
        self._ranges = _join(files.edges, size)
        self._last = len(self._ranges) - 1
        self.placing = Placing()
        self._end = 0
        self._ends: dict[int, npt.NDArray[np.bool_]] = {}
        self._closed: dict[int, npt.NDArray[np.bool_]] = {}
        self._numbers: dict[int, Integers] = {}
        self._chunks: list[ChunkTable] = []

    def ranges(self) -> Iterator[tuple[int, int]]:
        """See `Feed.ranges`."""
        edges = self.source.edges
        return iter([(edges[first], edges[last]) for first, last in self._ranges])

    def pieces(self, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
        """See `Feed.pieces`; files are not cut."""
        edges = self.source.edges
        first, last = (bisect_left(edges, edge) for edge in (start, end))
        for one, other in _join(edges[first : last + 1], size):
            yield edges[first + one], edges[first + other]

    def publish(self, offset: int, view: Bytes, release: Callable[[], None]) -> None:
        """See `Feed.publish`."""
        try:
            first = bisect_left(self.source.edges, offset)
            last = bisect_left(self.source.edges, offset + view.size)
            bounds = self.source.edges[first : last + 1]
            self._listed[first] = _list(memoryview(view), bounds, self._options)
        finally:
            release()

    def carry(self, number: int) -> int | None:
        """See `Feed.carry`."""
        return self.source.edges[self._ranges[number][1]]

    def rows(self, number: int) -> tuple[ChunkTable, bool]:
        """See `Feed.rows`."""
        first, last = self._ranges[number]
        parts = [self._listed.pop(at) for at in range(first, last) if at in self._listed]
        counts = np.array([count for _, _, part in parts for count in part], np.int64)
        chunks = np.concatenate([chunks for chunks, _, _ in parts])
        spans = _joined_spans(parts)
        self._check(chunks)
        stated = spans[(spans["raw_size"] != UNKNOWN) & (spans["count"] > 0)]
        closed = np.zeros(chunks.size, np.bool_)
        closed[(stated["first"] + stated["count"] - 1).astype(np.int64)] = True
        self._closed[id(chunks)] = closed
        Placing().place(chunks, spans)
        self._place(number, chunks, first, counts)
        self._chunks.append(chunks)
        return chunks, number == self._last

    def _check(self, chunks: ChunkTable) -> None:
        known = np.isin(chunks["codec"], list(self._codecs)).all()
        if not known or chunks["chained"].any() or chunks["dictionary"].any():
            raise IrregularError("chunks that the engine cannot take")

    def _place(self, number: int, chunks: ChunkTable, first: int, counts: Integers) -> None:
        """Let every file start at an aligned place."""
        edges = np.concatenate(([0], np.cumsum(chunks["raw_size"].astype(np.int64))))
        rows = np.concatenate(([0], np.cumsum(counts)))
        begun, ended = edges[rows[:-1]], edges[rows[1:]]
        sizes = ended - begun
        self._check_limits(first, sizes)
        room = -(-sizes // _ALIGNMENT) * _ALIGNMENT
        places = self._end + np.cumsum(room) - room
        self._end += int(room.sum())
        self.places[first : first + counts.size] = places
        self.sizes[first : first + counts.size] = sizes
        chunks["dst_offset"] += np.repeat((places - begun).astype(np.uint64), counts)
        ends = np.zeros(chunks.size, np.bool_)
        ends[(rows[1:] - 1)[counts > 0]] = True
        self._ends[id(chunks)] = ends
        self._numbers[id(chunks)] = first + np.flatnonzero(counts > 0)

    def _check_limits(self, first: int, sizes: Integers) -> None:
        stored = np.diff(self.source.edges[first : first + sizes.size + 1]).tolist()
        limits = [self._options.output_limit(size) for size in stored]
        if (sizes > np.array(limits)).any():
            raise IrregularError("a file that decodes to more than is allowed")

    def check_sizes(self, rows: ChunkTable, actual: Integers, *, complete: bool) -> None:
        """See `Feed.check_sizes`."""
        ends = self._ends.pop(id(rows))
        missing = rows["raw_size"].astype(np.int64) - actual
        if missing[~ends | self._closed.pop(id(rows))].any():
            raise IrregularError("a block that is not full, before the last")
        self.sizes[self._numbers.pop(id(rows))] -= missing[ends]

    def index(self) -> Index:
        """See `Feed.index`; the offsets are those of the joined files."""
        chunks = np.concatenate(self._chunks)
        return Index("many", self.source, chunks)


def _join(edges: list[int], size: int) -> list[tuple[int, int]]:
    """Return ranges of files that have at most `size` bytes together."""
    cuts, first = [0], 0
    while first < len(edges) - 1:
        last = bisect_right(edges, edges[first] + size) - 1
        if last <= first:
            raise IrregularError("a file that is larger than a piece")
        cuts.append(last)
        first = last
    return list(pairwise(cuts))


def _list(
    view: memoryview, edges: list[int], options: Options
) -> tuple[ChunkTable, SpanTable, list[int]]:
    """Return the rows and spans of files that lie behind one another, and how many each has."""
    alike = list_alike(view, edges, options)
    if alike is not None:
        return alike
    parts = [view[one - edges[0] : other - edges[0]] for one, other in pairwise(edges)]
    try:
        if all(lz4.is_magic(bytes(part[:4])) for part in parts):
            chunks, spans, counts = lz4.list_many(parts, edges, options)
        else:
            chunks, spans, counts = _list_each(parts, edges, options)
    except GpuloadError as error:
        # Which file it is, and what else is wrong with it, is found file by file.
        raise IrregularError(str(error)) from error
    return chunks, spans, counts


def _list_each(
    parts: list[memoryview], edges: list[int], options: Options
) -> tuple[ChunkTable, SpanTable, list[int]]:
    chunks, spans, first = [], [], 0
    for part, start in zip(parts, edges, strict=False):
        index = read_index(BytesSource(part), options)
        if index.warnings:
            raise IrregularError(index.warnings[0])
        index.chunks["offset"] += np.uint64(start)
        index.spans["first"] += np.uint64(first)
        first += index.chunks.size
        chunks.append(index.chunks)
        spans.append(index.spans)
    return np.concatenate(chunks), np.concatenate(spans), [each.size for each in chunks]


def _joined_spans(parts: list[tuple[ChunkTable, SpanTable, list[int]]]) -> SpanTable:
    spans, first = [], 0
    for chunks, found, _ in parts:
        found["first"] += np.uint64(first)
        first += chunks.size
        spans.append(found)
    return np.concatenate(spans)
