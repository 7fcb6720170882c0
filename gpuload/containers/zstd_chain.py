"""Zstandard files of many frames that state their sizes: the framing that a scan can find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload.containers import seek_table, skippable, zstd, zstd_frame
from gpuload.containers.base import Index
from gpuload.containers.bounded import BoundedSource
from gpuload.containers.chain import Chain
from gpuload.containers.seek_table import UnusableSeekTableError
from gpuload.errors import MemoryLimitError

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable, SpanTable
    from gpuload.options import Options
    from gpuload.sources import Source

    Positions = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint32]

__all__ = ["ZstdChain"]

#: Marks of a skippable frame: as a descriptor it has the reserved bit.
_SKIPPED = 0xFFFFFFFF
#: Looks of the reader that are not at frames, and some more.
_OTHER_LOOKS = 8
_CHECKSUM_FLAG, _SINGLE_SEGMENT = 0x04, 0x20
_HEADER_SIZES = np.array([zstd_frame.header_size(number) for number in range(256)], np.int64)


class ZstdChain(Chain):
    """Frames, and perhaps a skippable one behind them.

    A record has the content size, marks, and the word before it, which is the checksum of the frame
    before. The marks are the descriptor, the window descriptor and, in 16 bits, the number of
    blocks; frames whose blocks were counted already have none.
    """

    name, head, before, words = "zstd", zstd_frame.HEAD_SIZE, zstd_frame.CHECKSUM_SIZE, 3

    def __init__(self, source: Source, options: Options) -> None:
        super().__init__(source, options)
        #: Counts looks as it does for the reader.
        self._counted = BoundedSource(source, options)
        self._look(_OTHER_LOOKS, 0)
        try:
            self._table = seek_table.find(source)
        except UnusableSeekTableError as error:
            raise self.irregular(error.offset) from error
        self._count = self._skipped = self._window = 0

    def visit(self, position: int, around: bytes) -> tuple[int, tuple[int, ...]]:
        """See `Chain.visit`; no header is a skippable frame that something follows."""
        before, head = around[: self.before], around[self.before :]
        head = head[: max(0, self.source.size - position)]
        checksum = int.from_bytes(before, "little")
        if skippable.is_magic(head):
            return self._skip(position), (0, _SKIPPED, checksum)
        if head[:4] != zstd_frame.MAGIC:
            raise self.irregular(position)
        following, size, marks = self._walk(position, head)
        return following, (size, marks, checksum)

    def _skip(self, position: int) -> int:
        end = position + skippable.HEADER_SIZE + skippable.content_size(self.source, position)
        if end != self.source.size:
            raise self.irregular(position)
        return end

    def _walk(self, position: int, head: bytes) -> tuple[int, int, int]:
        """Return where a frame ends, its content size and its marks."""
        try:
            frame, _ = zstd.walk_frame(self._counted, position, head)
        except MemoryLimitError as error:
            raise self.irregular(position) from error
        header = frame.header
        if header.content_size is None or header.dictionary_id or header.content_size >> 32:
            raise self.irregular(position)
        marks = int.from_bytes(head[4 : 5 if header.single_segment else 6], "little")
        return position + frame.stored_size, header.content_size, marks

    def record_before(self, around: bytes) -> tuple[int, ...]:
        """See `Chain.record_before`."""
        return 0, 0, int.from_bytes(around[: self.before], "little")

    def rows(self, positions: Positions, words: Words) -> ChunkTable:
        """See `Chain.rows`."""
        if len(words) > 1 and words[-2, 1] == _SKIPPED:
            # Its record ends the last frame as well as that of the end does.
            self._skipped = 1
            positions, words = positions[:-1], words[:-1]
        frames = _Frames(positions, words)
        if frames.start.size:
            self._check_needs(frames)
        if self._table is not None:
            self._compare(frames, self._table.columns)
        self._count += frames.start.size
        checksum = np.where(frames.summed, frames.checksum, 0)
        return zstd.rows_of(
            frames.start, frames.stored_size, frames.raw_size, checksum, summed=frames.summed
        )

    def _check_needs(self, frames: _Frames) -> None:
        """Leave it to the reader to say what is needed that there is not."""
        self._look(int(frames.blocks.sum()), int(frames.start[-1]))
        needed = frames.window > self.options.window_limit
        if (needed & ~frames.single_segment).any():
            raise self.irregular(int(frames.start[0]))
        self._window = max(self._window, int(frames.window.max()))

    def _look(self, times: int, position: int) -> None:
        try:
            self._counted.look(position, times)
        except MemoryLimitError as error:
            raise self.irregular(position) from error

    def _compare(self, frames: _Frames, columns: npt.NDArray[np.uint32]) -> None:
        """Compare frames with the entries of a seek table, and take the checksums from there."""
        entries = columns[self._count : self._count + frames.start.size].astype(np.int64)
        if len(entries) != frames.start.size:
            raise self.irregular(int(frames.start[0]))
        same = (entries[:, :2] == np.stack([frames.stored_size, frames.raw_size], 1)).all(1)
        same &= frames.fit()
        if entries.shape[1] == 3:
            same &= ~frames.summed | (entries[:, 2] == frames.checksum)
            frames.checksum, frames.summed = entries[:, 2], np.ones(same.size, np.bool_)
        if not same.all():
            raise self.irregular(int(frames.start[same.argmin()]))

    def index(self, chunks: ChunkTable, spans: SpanTable, last: int, end: int) -> Index:
        """See `Chain.index`."""
        if self._table is not None and self._count != self._table.count:
            raise self.irregular(end)
        index = Index("zstd", self.source, chunks, strict=self.options.strict)
        zstd.describe(
            index,
            skippable_frames=self._skipped,
            seek_table=self._table is not None,
            window=self._window,
        )
        return index


class _Frames:
    """The columns of n frames, from n + 1 records."""

    def __init__(self, positions: Positions, words: Words) -> None:
        marks = words[:-1, 1].astype(np.int64)
        self._descriptor, self.blocks = marks & 0xFF, marks >> 16
        self.start = positions[:-1]
        self.stored_size = np.diff(positions)
        self.raw_size = words[:-1, 0].astype(np.int64)
        self.checksum = words[1:, 2].astype(np.int64)
        self.summed = (marks & _CHECKSUM_FLAG) != 0
        self.single_segment = (marks & _SINGLE_SEGMENT) != 0
        described = zstd_frame.window_size(marks >> 8 & 0xFF)
        self.window = np.where(self.single_segment, self.raw_size, described)

    def fit(self) -> npt.NDArray[np.bool_]:
        """Return which of them a seek table may list."""
        framing = _HEADER_SIZES[self._descriptor] + zstd_frame.CHECKSUM_SIZE * self.summed
        limit = np.minimum(self.window, zstd_frame.BLOCK_LIMIT)
        found: npt.NDArray[np.bool_] = zstd.fits(self.stored_size, self.raw_size, framing, limit)
        return found
