"""What an overlapped load brings to the device, in order: ranges of a source, and rows in them.

A file that is listed already is cut between rows. One that is not is cut anywhere, brought from its
first byte to its last, and listed by a thread that looks at what has arrived.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import UNKNOWN
from gpuload.containers import read_index
from gpuload.irregular import IrregularError
from gpuload.resident import ResidentSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt
    from cuda.core import Stream

    from gpuload.chunks import ChunkTable, SpanTable
    from gpuload.codecs.base import Bytes
    from gpuload.containers.base import Index
    from gpuload.options import Options
    from gpuload.sources import Source
    from gpuload.stages import Stages

__all__ = ["Feed", "ListedFeed", "Placing", "WalkedFeed"]

#: Bytes between payloads that are brought along rather than left out.
_GAP = 64 << 10
#: Rows that are decoded at a time, at most: each takes some hundred bytes of pinned memory.
_ROWS = 1 << 16


class Placing:
    """Gives rows their places in the result before their sizes are known.

    The blocks of an LZ4 frame do not state what they decode to: nearly always all but the last are
    full, and the last is what is missing to the frame's content size. A load that finds this to
    be wrong for a block is irregular.

    Attributes
    ----------
    count, size : int
        Rows so far, and their bytes.
    closed : bool
        Whether a frame that states its size ends with the last of them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.closed = False
        self._places: list[tuple[int, npt.NDArray[np.int64]]] = []

    def place(self, chunks: ChunkTable, spans: SpanTable) -> None:
        """Set the expected `raw_size` and the `dst_offset` of the next rows.

        Raises
        ------
        IrregularError
            If the blocks of a frame cannot have its size.
        """
        raw = chunks["raw_size"].astype(np.int64)
        stated = spans[spans["raw_size"] != UNKNOWN]
        if stated["raw_size"][stated["count"] == 0].any():
            raise IrregularError("a frame without blocks, whose header states a size")
        stated = stated[stated["count"] > 0]
        if stated.size:
            self._fit(raw, chunks["exact"], stated)
            self.closed = int(stated["first"][-1] + stated["count"][-1]) == self.count + raw.size
        elif raw.size:
            self.closed = False
        places = self.size + np.cumsum(raw) - raw
        self._places.append((self.count, places))
        self.count += raw.size
        self.size += int(raw.sum())
        chunks["raw_size"], chunks["dst_offset"] = raw, places

    def _fit(
        self, raw: npt.NDArray[np.int64], exact: npt.NDArray[np.bool_], spans: SpanTable
    ) -> None:
        """Set the sizes of rows that end a span to what is missing there."""
        first = spans["first"].astype(np.int64) - self.count
        last = first + spans["count"].astype(np.int64) - 1
        before = np.cumsum(raw) - raw
        begun = np.array([self._place_of(row) for row in first[first < 0].tolist()], np.int64)
        starts = np.concatenate((begun - self.size, before[first[first >= 0]]))
        missing = spans["raw_size"].astype(np.int64) - (before[last] - starts)
        fits = np.where(exact[last], missing == raw[last], (missing > 0) & (missing <= raw[last]))
        if not fits.all():
            raise IrregularError
        raw[last] = missing

    def _place_of(self, row: int) -> int:
        """Return the place of a row that was placed before; it counts from the next one, < 0."""
        number = row + self.count
        for first, places in reversed(self._places):
            if first <= number:
                return int(places[number - first])
        raise IrregularError


class Feed(ABC):
    """Ranges of a source, and the rows that are in each.

    Attributes
    ----------
    source : Source
        The file.
    placing : Placing
        What has given rows their places.
    """

    source: Source
    placing: Placing

    @abstractmethod
    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the first byte of each range and the one behind its last."""

    def pieces(self, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield the bytes of a range in pieces of at most `size`: where each starts and ends."""
        for offset in range(start, end, size):
            yield offset, min(offset + size, end)

    @abstractmethod
    def rows(self, number: int) -> tuple[ChunkTable, bool]:
        """Return the rows that end in a range, and whether they are the last; may wait.

        They have their places (`Placing`); ranges are asked for in their order.
        """

    def arrived(self, number: int, address: int, stream: Stream) -> None:  # noqa: B027 (few look)
        """Take note that all copies of a range to an address are submitted to a stream."""

    def carry(self, number: int) -> int | None:
        """Return from where on the next range needs the bytes of a range whose rows were asked for.

        None where only the rows of the next range tell.
        """
        return None

    @abstractmethod
    def index(self) -> Index:
        """Return the index, once all rows were given."""

    def check_sizes(
        self, rows: ChunkTable, actual: npt.NDArray[np.int64], *, complete: bool
    ) -> None:
        """Compare the decoded sizes of a range's rows with those that gave them their places.

        Only the last row of a file may be shorter, if its frame does not state its size.

        Raises
        ------
        IrregularError
            If another is.
        """
        expected = rows["raw_size"].astype(np.int64)
        full = actual == expected
        open_end = complete and not self.placing.closed
        if not full[:-1].all() or not (full[-1] or open_end):
            raise IrregularError("a block that is not full, before the last")

    def publish(self, offset: int, view: Bytes, release: Callable[[], None]) -> None:
        """Show a piece that has arrived, until `release` is called."""
        release()

    def stop(self) -> None:  # noqa: B027 (nothing waits for a file that is listed)
        """Let nobody wait any more."""


class ListedFeed(Feed):
    """Rows of a file that is listed.

    Parameters
    ----------
    index : Index
        The file.
    size : int
        Bytes of a range, at most.

    Raises
    ------
    IrregularError
        If a row does not fit in a range, or rows do not follow one another in the file.
    """

    def __init__(self, index: Index, size: int) -> None:
        self.source = index.source
        self._index = index
        self._chunks = index.chunks.copy()
        self.placing = Placing()
        self.placing.place(self._chunks, index.spans)
        start = (index.chunks["offset"] - index.chunks["prefix_size"]).astype(np.int64)
        end = (index.chunks["offset"] + index.chunks["stored_size"]).astype(np.int64)
        self._cuts = _cut(start, end, size)
        self._ranges = [(int(start[a]), int(end[b - 1])) for a, b in self._cuts]

    def ranges(self) -> Iterator[tuple[int, int]]:
        """See `Feed.ranges`."""
        return iter(self._ranges)

    def carry(self, number: int) -> int | None:
        """See `Feed.carry`."""
        return self._ranges[number][1]

    def rows(self, number: int) -> tuple[ChunkTable, bool]:
        """See `Feed.rows`."""
        first, last = self._cuts[number]
        return self._chunks[first:last], last == self._chunks.size

    def index(self) -> Index:
        """See `Feed.index`."""
        return self._index


def _cut(
    start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], size: int
) -> list[tuple[int, int]]:
    """Cut rows into ranges of at most `size` bytes without wide gaps."""
    gaps = start[1:] - end[:-1]
    if (gaps < 0).any() or (end - start > size).any():
        raise IrregularError
    apart = np.append(np.flatnonzero(gaps > _GAP) + 1, start.size)
    cuts, first = [], 0
    while first < start.size:
        room = int(np.searchsorted(end, start[first] + size, "right"))
        joined = int(apart[np.searchsorted(apart, first, "right")])
        last = min(room, joined, first + _ROWS)
        cuts.append((first, last))
        first = last
    return cuts


class WalkedFeed(Feed):
    """Rows of a file that is listed while it is brought; also a `Listener` of its reader.

    Parameters
    ----------
    source : Source
        The file.
    options : Options
        As for `read_index`.
    size : int
        Bytes of a range.
    piece_size : int
        Bytes of the pieces that are published, of which a range has a whole number; 0 if none are.
    stages : Stages
        The clock.
    """

    def __init__(
        self, source: Source, options: Options, size: int, piece_size: int, stages: Stages
    ) -> None:
        self.source = source
        self.at = self._size = size
        self.placing = Placing()
        self._options, self._stages = options, stages
        self._resident = ResidentSource(source)
        self._resident.expect(piece_size)
        self._condition = threading.Condition()
        self._given: list[ChunkTable] = []
        self._done = self._stopped = False
        self._index: Index | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._walk, name="gpuload-index", daemon=True)

    def start(self) -> None:
        """Start to list the file."""
        try:
            self._thread.start()
        except RuntimeError as error:  # the system starts no thread
            raise IrregularError(str(error)) from error

    def ranges(self) -> Iterator[tuple[int, int]]:
        """See `Feed.ranges`."""
        for start in range(0, self.source.size, self._size):
            yield start, min(start + self._size, self.source.size)

    def publish(self, offset: int, view: Bytes, release: Callable[[], None]) -> None:
        """See `Feed.publish`."""
        self._resident.publish(offset, view, release)

    def _walk(self) -> None:
        try:
            with self._stages.measure("index", self.source.size):
                self._index = read_index(self._resident, self._options, self)
                self._index.source = self.source
        except BaseException as error:  # noqa: BLE001 (for the thread that waits for rows)
            self._error = error
        finally:
            self._resident.finish()
            with self._condition:
                # What follows the rows may be more than a reader can give one by one.
                self._stopped = self._stopped or not self._done
                self._condition.notify_all()

    def take(self, chunks: ChunkTable, spans: SpanTable, *, done: bool) -> None:
        """See `Listener.take`."""
        self.placing.place(chunks, spans)
        with self._condition:
            self._given.append(chunks)
            self.at += self._size
            self._done = done
            self._condition.notify_all()

    def rows(self, number: int) -> tuple[ChunkTable, bool]:
        """See `Feed.rows`."""
        with self._condition:
            self._condition.wait_for(
                lambda: len(self._given) > number or self._done or self._stopped
            )
            if len(self._given) > number:
                last = self._done and len(self._given) == number + 1
                return self._given[number], last
            if self._done:
                return self._given[-1][:0], True
        raise IrregularError from self._error

    def index(self) -> Index:
        """See `Feed.index`."""
        self._thread.join()
        if self._index is None:
            raise IrregularError from self._error
        return self._index

    def stop(self) -> None:
        """See `Feed.stop`."""
        self._resident.stop()
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        while self._thread.is_alive():
            self._resident.cancel()
            self._thread.join(0.1)
