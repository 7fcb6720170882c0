"""Check sizes and checksums that cover several chunks, while the chunks pass by in order."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gpuload import checksums
from gpuload.chunks import UNKNOWN, Checksum, Codec
from gpuload.codecs.base import CorruptChunkError, mismatch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from gpuload.chunks import SpanTable
    from gpuload.codecs.base import Bytes
    from gpuload.containers.base import Index

    Report = Callable[[np.void, CorruptChunkError], None]

__all__ = ["SpanChecker", "vouched"]


class SpanChecker:
    """Follows the decoded bytes of a table and compares each span when its last row has passed.

    Parameters
    ----------
    spans : SpanTable
        In the order of their rows.
    verify : bool
        Whether to check checksums; stated sizes are always checked.
    report : callable
        Called for each span that disagrees.

    Attributes
    ----------
    verified : collections.Counter
        How many checksums of each kind agreed.
    """

    def __init__(self, spans: SpanTable, *, verify: bool, report: Report) -> None:
        self._spans = list(spans[::-1])  # the current one is the last
        self._verify = verify
        self._report = report
        self._spoiled: set[int] = set()
        self.verified: Counter[int] = Counter()
        self._begin()

    def _begin(self) -> None:
        self._size = 0
        kind = int(self._spans[-1]["checksum_kind"]) if self._spans else Checksum.NONE
        hashed = self._verify and kind != Checksum.NONE
        self._hasher = checksums.running(kind) if hashed else None

    def feed_rows(self, first: int, sizes: npt.NDArray[np.int64], data: Bytes) -> None:
        """Take the decoded bytes of whole rows, `sizes` bytes each, that follow one another."""
        if not self._spans:
            return
        edges = np.concatenate(([0], np.cumsum(sizes))).tolist()
        row, last = first, first + sizes.size
        while row < last:
            self.passed(row)
            stop = self._next_change(row, last)
            self.feed(row, data[edges[row - first] : edges[stop - first]])
            row = stop
        self.passed(last)

    def _next_change(self, row: int, last: int) -> int:
        """Return the row, at most `last`, at which the next span starts or the current one ends."""
        if not self._spans:
            return last
        first, count = int(self._spans[-1]["first"]), int(self._spans[-1]["count"])
        return min(last, first if row < first else first + count)

    def feed(self, row: int, data: Bytes) -> None:
        """Take some of the decoded bytes of the span that `row` belongs to."""
        self.passed(row)
        if not self._spans or row < self._spans[-1]["first"]:
            return
        self._size += data.size
        if self._hasher:
            self._hasher.update(data)

    def spoil(self, row: int) -> None:
        """Note that a row did not decode: its span cannot be checked."""
        self._spoiled.add(row)

    def passed(self, row: int) -> None:
        """Compare the spans that end before `row`."""
        while self._spans and self._spans[-1]["first"] + self._spans[-1]["count"] <= row:
            span = self._spans[-1]
            rows = range(int(span["first"]), int(span["first"] + span["count"]))
            if not any(row in rows for row in self._spoiled):
                self._compare(span)
            self._spans.pop()
            self._begin()

    def _compare(self, span: np.void) -> None:
        stated, kind = int(span["raw_size"]), int(span["checksum_kind"])
        if stated not in (UNKNOWN, self._size):
            reason = f"the frame decodes to {self._size} bytes, its header says {stated}"
            self._report(span, CorruptChunkError(reason, actual=self._size))
        elif self._hasher:
            found, expected = self._hasher.intdigest(), int(span["checksum"])
            if found == expected:
                self.verified[kind] += 1
            else:
                reason = mismatch(kind, expected, found)
                self._report(span, CorruptChunkError(reason, actual=self._size, checksum=True))


def vouched(index: Index, *, spans: bool) -> bool:
    """Return whether checksums cover every LZ4 block, the only codec whose library is lenient."""
    covered = index.chunks["checksum_kind"] != Checksum.NONE
    for span in index.spans[(index.spans["checksum_kind"] != Checksum.NONE) & spans]:
        covered[int(span["first"]) : int(span["first"] + span["count"])] = True
    return bool(covered[index.chunks["codec"] == Codec.LZ4].all())
