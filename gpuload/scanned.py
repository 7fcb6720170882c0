"""Rows of a file that the device lists, where its bytes land anyway.

The device finds headers in each range, side by side and without knowing which are true: bytes of a
chunk can look like headers, too. The only chain that is trusted is that which starts with the first
header of the file. It is followed from segment to segment; where it meets no chain of a segment,
headers are read from the file one by one until it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpuload.chunks import make_spans, place
from gpuload.containers.chains import chain_of
from gpuload.engines.scan_plan import LARGEST_RANGE
from gpuload.errors import FormatError, UnsupportedCodecError
from gpuload.feeds import Feed, Placing
from gpuload.irregular import IrregularError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from cuda.core import Stream

    from gpuload.chunks import ChunkTable
    from gpuload.containers.base import Index
    from gpuload.containers.chains import Chain
    from gpuload.engines.scan_plan import Scan
    from gpuload.engines.scans import DeviceScans
    from gpuload.options import Options
    from gpuload.sources import Source
    from gpuload.stages import Stages

    Integers = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint32]

__all__ = ["ScannedFeed"]

#: Bytes that are read at a time where headers are read one by one.
_WINDOW = 4 << 10
#: Headers of a range that are read one by one, at most.
_BY_HAND = 1 << 16
#: Bytes of `memory_limit` for each row, as `gpuload.containers.bounded` has them.
_BYTES_A_ROW = 256


class _Submission(Protocol):
    def wait(self) -> Scan: ...


class ScannedFeed(Feed):
    """Rows of a file that is listed on the device, range by range.

    Parameters
    ----------
    source : Source
        A file for which reading a few bytes is cheap.
    options : Options
        As for `read_index`.
    size : int
        Bytes of a range; of fewer if that is too much for a scan.
    scans : DeviceScans
        What finds headers.
    stages : Stages
        The clock.

    Raises
    ------
    IrregularError
        If it is none of these: a single LZ4 frame of independent blocks, a Snappy stream, a BGZF
        file, Zstandard frames.
    """

    def __init__(
        self, source: Source, options: Options, size: int, scans: DeviceScans, stages: Stages
    ) -> None:
        self.source = source
        self.placing = Placing()
        self._size = min(size, LARGEST_RANGE)
        self._scans, self._stages = scans, stages
        self._follower = _Follower(_regular(source, options))
        self._submitted: dict[int, _Submission] = {}
        self._listed: list[ChunkTable] = []
        #: Their sizes as the reader has them: `Placing` changes them.
        self._sizes: list[npt.NDArray[np.uint64]] = []
        self._left = max(1 << 12, options.memory_limit // _BYTES_A_ROW)
        self._count = 0
        self._spans = make_spans([])
        self._complete = False
        self._index: Index | None = None

    def ranges(self) -> Iterator[tuple[int, int]]:
        """See `Feed.ranges`."""
        for start in range(0, self.source.size, self._size):
            yield start, min(start + self._size, self.source.size)

    def arrived(self, number: int, address: int, stream: Stream) -> None:
        """See `Feed.arrived`."""
        start, end = self._bounds(number)
        chain = self._follower.chain
        # Of other ranges it is not known yet.
        known = self._follower.position if len(self._listed) == number else -1
        self._submitted[number] = self._scans.submit(
            chain.name,
            address,
            end - start,
            stream,
            entry=known - start if start <= known < end else None,
            longest=chain.longest,
            summed=chain.summed,
        )

    def carry(self, number: int) -> int | None:
        """See `Feed.carry`."""
        return min(self._follower.held_from, self._bounds(number)[1])

    def rows(self, number: int) -> tuple[ChunkTable, bool]:
        """See `Feed.rows`."""
        scan = self._submitted.pop(number).wait()
        start, end = self._bounds(number)
        last = end == self.source.size
        try:
            with self._stages.measure("index", end - start):
                chunks = self._follower.follow(scan, start, end)
                self._finish(chunks, last=last)
        except (FormatError, UnsupportedCodecError) as error:
            raise IrregularError(str(error)) from error
        return chunks, last

    def _bounds(self, number: int) -> tuple[int, int]:
        start = number * self._size
        return start, min(start + self._size, self.source.size)

    def _finish(self, chunks: ChunkTable, *, last: bool) -> None:
        """Keep the rows as readers make them, and give them their places."""
        self._left -= chunks.size
        if self._left < 0:
            raise IrregularError("more rows than memory_limit has room for")
        self._listed.append(chunks)
        self._sizes.append(chunks["raw_size"].copy())
        self._count += chunks.size
        follower = self._follower
        if last and not self._count:
            raise IrregularError("a file without chunks")
        self._spans = follower.chain.spans(self._count if last else 0, follower.end if last else 0)
        self.placing.place(chunks, self._spans if last else self._spans[:0])
        self._complete = last

    def index(self) -> Index:
        """See `Feed.index`."""
        if self._index is None:
            self._index = self._make_index()
        return self._index

    def _make_index(self) -> Index:
        if not self._complete:
            raise IrregularError("not all rows were asked for")
        chunks = np.concatenate(self._listed)
        chunks["raw_size"] = np.concatenate(self._sizes)
        place(chunks)
        follower = self._follower
        try:
            return follower.chain.index(chunks, self._spans, follower.last, follower.end)
        except (FormatError, UnsupportedCodecError) as error:
            raise IrregularError(str(error)) from error


def _regular(source: Source, options: Options) -> Chain:
    try:
        chain = chain_of(source, options)
    except (FormatError, UnsupportedCodecError) as error:
        raise IrregularError(str(error)) from error
    if chain is None:
        raise IrregularError("a format whose headers are not scanned for")
    return chain


class _Follower:
    """Follows the true chain through what was found.

    Parameters
    ----------
    chain : Chain
        The framing.

    Attributes
    ----------
    position : int
        Of the next header.
    last, end : int
        Where the last chunk starts, and where the chain ends, once that is reached.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.position = chain.first
        self.last = self.end = -1
        self._held = _Records.of([], chain.words)
        self._window, self._window_start = b"", 0

    def follow(self, scan: Scan, start: int, end: int) -> ChunkTable:
        """Return the next rows: those before the last header of a range, or before the end."""
        found = [self._held, *self._through(scan, start, end)]
        if end == self.chain.source.size:
            around = self._around(self.position)
            if not self.chain.ends(self.position, around):
                raise self.chain.source.broken(self.position, "the chain of headers goes on")
            record = self.position, *self.chain.record_before(around)
            found.append(_Records.of([record], self.chain.words))
            self.end = self.position
        records = _Records.joined(found)
        self._held = records.part(records.positions.size - 1)
        if records.positions.size > 1:
            self.last = int(records.positions[-2])
        return self.chain.rows(records.positions, records.words)

    @property
    def held_from(self) -> int:
        """Where the header of the row starts that was found and not returned yet, or the next."""
        held = self._held.positions
        return int(held[0]) if held.size else self.position

    def _through(self, scan: Scan, start: int, end: int) -> Iterator[_Records]:
        """Yield the records of the true chain's headers in a range."""
        runs, left = _Runs(scan), _BY_HAND
        while self.position < end:
            found = runs.at(self.position - start)
            if found is None:
                by_hand = self._by_hand(runs, start, end, left)
                left -= by_hand.positions.size
                yield by_hand
                if not by_hand.positions.size:
                    return
                continue
            first, last, following = found
            positions = scan.positions[first:last] + start
            records = _Records(positions, scan.words[first:last])
            if positions[0] - start < self.chain.before:
                # What stands before it is in the range before.
                records.words[0] = self._visit(int(positions[0]))[1]
            self.position = start + following
            yield records

    def _by_hand(self, runs: _Runs, start: int, end: int, left: int) -> _Records:
        """Visit headers until one was found by the scan, too; none if the chain ends."""
        visited: list[tuple[int, ...]] = []
        while self.position < end and not runs.at(self.position - start):
            if self.chain.ends(self.position, self._around(self.position)):
                break
            if len(visited) == left:
                raise IrregularError("too many headers that were not found on the device")
            following, words = self._visit(self.position)
            visited.append((self.position, *words))
            self.position = following
        return _Records.of(visited, self.chain.words)

    def _visit(self, position: int) -> tuple[int, tuple[int, ...]]:
        return self.chain.visit(position, self._around(position))

    def _around(self, position: int) -> bytes:
        """Return the bytes of a header and those before it; zeros where the file has none."""
        begin, size = position - self.chain.before, self.chain.before + self.chain.head
        missing = max(0, -begin)
        at = begin + missing - self._window_start
        if at < 0 or at + size - missing > len(self._window):
            self._window_start = begin + missing
            self._window = self.chain.source.peek(self._window_start, _WINDOW)
            at = 0
        there = self._window[at : at + size - missing]
        return (bytes(missing) + there).ljust(size, b"\0")


class _Records:
    """Records of headers that follow one another.

    Parameters
    ----------
    positions : ndarray of int64, shape (n,)
        Where they stand in the file.
    words : ndarray of uint32, shape (n, words of the chain)
        What else is known.
    """

    def __init__(self, positions: Integers, words: Words) -> None:
        self.positions, self.words = positions, words

    @classmethod
    def of(cls, records: list[tuple[int, ...]], words: int) -> _Records:
        """Return records from tuples."""
        table = np.array(records, np.int64).reshape(-1, 1 + words)
        return cls(table[:, 0], table[:, 1:].astype(np.uint32))

    @classmethod
    def joined(cls, parts: list[_Records]) -> _Records:
        """Return the records of all."""
        positions = np.concatenate([part.positions for part in parts])
        return cls(positions, np.concatenate([part.words for part in parts]))

    def part(self, first: int) -> _Records:
        """Return those from one on."""
        first = max(0, first)
        return _Records(self.positions[first:], self.words[first:])


class _Runs:
    """Segments of a range whose chains go on in one another.

    Parameters
    ----------
    scan : Scan
        What was found in the range.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._filled = filled = np.flatnonzero(scan.counts)
        #: Numbers of those that do not go on in the next one; the last is one.
        ends = scan.exits[filled[:-1]] != scan.firsts[filled[1:]]
        self._ends = np.append(np.flatnonzero(ends), filled.size - 1)

    def at(self, position: int) -> tuple[int, int, int] | None:
        """Return the records from a header on, if it was found.

        Parameters
        ----------
        position : int
            Of the header, in the range.

        Returns
        -------
        first, last : int
            The records.
        following : int
            Where the next header stands.
        """
        scan, segment = self._scan, position // self._scan.segment
        count = int(scan.counts[segment]) if position >= 0 else 0
        if not count:
            return None
        first = int(scan.starts[segment])
        within = int(np.searchsorted(scan.positions[first : first + count], position))
        if within == count or scan.positions[first + within] != position:
            return None
        number = np.searchsorted(self._filled, segment)
        end = int(self._filled[self._ends[np.searchsorted(self._ends, number)]])
        return first + within, int(scan.starts[end] + scan.counts[end]), int(scan.exits[end])
