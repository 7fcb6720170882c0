"""LZ4 files: standard, legacy and skippable frames that follow one another in any order.

A standard frame is a magic number, a descriptor, blocks and an end mark; a block is a size word, a
payload and perhaps a checksum (LZ4 frame format, "General Structure of LZ4 Frame format"). The size
words are the only list of the blocks, so the walk visits each block once, between the payloads.
"""

from __future__ import annotations

import struct
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.chunks import UNKNOWN, Checksum, Codec, make_spans, make_table
from gpuload.containers import skippable
from gpuload.containers.base import Index
from gpuload.containers.lz4_frame import DESCRIPTOR_SIZE, LEGACY_MAXIMUM, Frame, read_header
from gpuload.sources import BytesSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from gpuload.chunks import ChunkTable, SpanTable
    from gpuload.containers.base import Listener
    from gpuload.errors import FormatError
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = [
    "LEGACY_MAGIC",
    "MAGIC",
    "index_of",
    "is_magic",
    "list_many",
    "read",
    "rows_of",
    "span_of",
]

MAGIC = b"\x04\x22\x4d\x18"
LEGACY_MAGIC = b"\x02\x21\x4c\x18"

#: Top bit of a size word: the payload is not compressed.
_RAW_SHIFT = 31
_SIZE_MASK = (1 << _RAW_SHIFT) - 1
#: Bytes that a block of the legacy maximum may grow to where it does not compress.
_LEGACY_STORED_MAXIMUM = LEGACY_MAXIMUM + LEGACY_MAXIMUM // 255 + 16
#: No byte of a block adds more to a length than this (LZ4 block format, "Compressed block format").
_EXPANSION = 255
_SHOWN = 16
_WORD, _LONG = struct.Struct("<I"), struct.Struct("<Q")


def is_magic(first: bytes) -> bool:
    """Return whether a frame with these first bytes is a standard or a legacy LZ4 frame."""
    return first[:4] in (MAGIC, LEGACY_MAGIC)


def read(source: Source, options: Options, listener: Listener | None = None) -> Index:
    """Read the index of an LZ4 file, one row per block.

    Parameters
    ----------
    source : Source
        Frames from the first byte to the last.
    options : Options
        `dictionary` must be given for frames that name one.
    listener : Listener, optional
        Is given the rows while they are found.

    Returns
    -------
    Index
        No format field states what a compressed block decodes to: its `raw_size` is a bound. Every
        frame with a content size or a content checksum has a span, also one without blocks.

    Raises
    ------
    FormatError
        If a header is damaged, a block is larger than its frame allows, the file is cut short, or
        bytes after a frame start no other.
    UnsupportedCodecError
        If a frame is of another version, or needs a dictionary that was not given.
    """
    walk = _Walk(source, options, listener)
    walk.run()
    spans = make_spans(walk.spans)
    return index_of(source, options, walk.frames, walk.table(), spans, walk.skippable_frames)


def index_of(
    source: Source,
    options: Options,
    frames: list[Frame],
    chunks: ChunkTable,
    spans: SpanTable,
    skippable_frames: int = 0,
) -> Index:
    """Return the index of a file from its frames, their rows, and their sizes and checksums."""
    return Index(
        format="lz4",
        source=source,
        chunks=chunks,
        spans=spans,
        serial=_serial(frames),
        strict=options.strict,
        details={**_details(frames), "skippable_frames": skippable_frames},
    )


def list_many(
    files: Sequence[memoryview], starts: Sequence[int], options: Options
) -> tuple[ChunkTable, SpanTable, list[int]]:
    """Read the indexes of files that are in memory, in a third of the time of one by one.

    Parameters
    ----------
    files : sequence of memoryview
        Their bytes.
    starts : sequence of int
        What is added to the offsets of each.
    options : Options
        As for `read`.

    Returns
    -------
    chunks, spans : ChunkTable, SpanTable
        Of all files.
    counts : list of int
        How many rows each has.
    """
    walk, ends = _Walk(BytesSource(b""), options, None), [0]
    for file in files:
        walk.source = BytesSource(file)
        walk.run()
        ends.append(len(walk.offsets))
    counts = [last - first for first, last in pairwise(ends)]
    chunks = walk.table()
    chunks["offset"] += np.repeat(np.array(starts[: len(counts)], np.uint64), counts)
    return chunks, make_spans(walk.spans), counts


class _Walk:
    """The walk over a file, and the columns that it fills."""

    def __init__(self, source: Source, options: Options, listener: Listener | None) -> None:
        self.source = source
        self.options = options
        self.listener = listener
        # Arrays and not lists: a file can consist of blocks of four bytes.
        self.offsets = array("Q")
        self.words = array("Q")
        self.checksums = array("Q")
        self.frames: list[Frame] = []
        self.counts: list[int] = []
        self.spans: list[tuple[int, int, int, int, int, int]] = []
        self.skippable_frames = 0
        self.given = self.given_spans = self.looked = 0

    def run(self) -> None:
        """Visit every frame of the file."""
        position = self._visit(0)
        while position < self.source.size:
            position = self._visit(position)
        self._count_looks(position)
        if self.listener:
            self._give(len(self.offsets), done=True)

    def _visit(self, start: int) -> int:
        # Its header may reach over what the listener waits for.
        last = min(start + 4 + DESCRIPTOR_SIZE, self.source.size - 1)
        self._give_before(last, len(self.offsets))
        magic = self.source.peek(start, 4)
        if skippable.is_magic(magic):
            self.skippable_frames += 1
            return start + skippable.HEADER_SIZE + skippable.content_size(self.source, start)
        first = len(self.offsets)
        if magic == MAGIC:
            self.frames.append(frame := read_header(self.source, start, self.options))
            self.counts.append(0)
            end = self._walk_blocks(frame, first)
            self.counts[-1] = len(self.offsets) - first
            end = self._add_span(frame, first, end)
        elif magic == LEGACY_MAGIC:
            self.frames.append(frame := Frame(start, start + 4, legacy=True))
            self.counts.append(0)
            end = self._walk_legacy_blocks(frame)
        else:
            raise _no_frame(self.source, start)
        self.counts[-1] = len(self.offsets) - first
        return end

    def _walk_blocks(self, frame: Frame, first: int) -> int:
        """Note the blocks of a standard frame; return the offset behind its end mark."""
        source, limit = self.source, frame.maximum
        note_offset, note_word = self.offsets.append, self.words.append
        note_checksum = self.checksums.append
        # What stands between two payloads: the checksum of the first, the size word of the second.
        shift, checksum_mask = (32, 0xFFFFFFFF) if frame.block_checksum else (0, 0)
        between, unpack = (8, _LONG.unpack_from) if frame.block_checksum else (4, _WORD.unpack_from)
        view, start = source.resident(frame.body)
        last = len(view) - between
        position = frame.body + 4
        word = int.from_bytes(source.peek_exact(frame.body, 4), "little")
        while word:
            size = word & _SIZE_MASK
            if size > limit:
                message = f"a block of {size} stored bytes, in a frame of blocks up to {limit}"
                raise source.broken(position - 4, message)
            note_offset(position)
            note_word(word)
            position += size
            at = position - start
            if 0 <= at <= last:
                (value,) = unpack(view, at)
            else:
                value = self._look_further(position, between, first)
                view, start = source.resident(position)
                last = len(view) - between
            note_checksum(value & checksum_mask)
            word = value >> shift
            position += between
        return position

    def _look_further(self, position: int, size: int, first: int) -> int:
        """Return a number that lies outside of the bytes that are in memory so far."""
        self._count_looks(position)
        # The last block has no checksum yet.
        self.counts[-1] = len(self.offsets) - 1 - first
        self._give_before(position, len(self.offsets) - 1)
        found = self.source.peek(position, size)
        if len(found) != size:
            raise self.source.cut_short(position, found, size)
        return int.from_bytes(found, "little")

    def _give_before(self, position: int, last: int) -> None:
        """Give the listener what it waits for, before a look that may wait for the listener."""
        while self.listener and position >= self.listener.at:
            self._give(max(self.given, last), done=False)

    def _count_looks(self, position: int) -> None:
        self.source.look(position, len(self.offsets) - self.looked)
        self.looked = len(self.offsets)

    def _give(self, last: int, *, done: bool) -> None:
        """Give the listener the rows up to `last` (exclusive)."""
        assert self.listener is not None
        chunks, spans = self.table(self.given, last), make_spans(self.spans[self.given_spans :])
        self.given, self.given_spans = last, len(self.spans)
        self.listener.take(chunks, spans, done=done)

    def _walk_legacy_blocks(self, frame: Frame) -> int:
        """Note the blocks of a legacy frame; return its end: that of the file, or a known magic."""
        source, position = self.source, frame.body
        while (word := source.peek(position, 4)) and not _starts_frame(word):
            if len(word) != 4:
                raise source.cut_short(position, word, 4)
            size = int.from_bytes(word, "little")
            if not 0 < size <= _LEGACY_STORED_MAXIMUM:
                raise _no_legacy_block(source, position, size)
            self.offsets.append(position + 4)
            self.words.append(size)
            self.checksums.append(0)
            self.counts[-1] += 1
            position += 4 + size
            if position > source.size:
                raise source.cut_short(position, b"", 0)
            self._give_before(position, len(self.offsets) - 1)
        return position

    def _add_span(self, frame: Frame, first: int, end: int) -> int:
        """Note the content size, and the checksum at `end`; return the offset behind it."""
        if frame.content_checksum:
            # A span is given with its last row.
            self._give_before(end, len(self.offsets) - 1)
        span = span_of(self.source, frame, first, len(self.offsets) - first, end)
        if span is not None:
            self.spans.append(span)
        return end + 4 * frame.content_checksum

    def table(self, first: int = 0, last: int | None = None) -> ChunkTable:
        """Return the chunk table of the blocks that were visited, or of some of them."""
        rows = slice(first, len(self.words) if last is None else last)
        frames = _Frames(self.frames, self.counts, rows)
        return rows_of(
            self.offsets[rows],
            np.array(self.words[rows], np.uint64),
            self.checksums[rows],
            maximum=frames.spread("maximum", np.uint64),
            summed=frames.spread("block_checksum", np.bool_),
            chained=frames.chained(),
            # A frame need not name the dictionary that it was made with.
            dictionary=self.options.dictionary is not None,
        )


def rows_of(
    offsets: npt.ArrayLike,
    words: npt.NDArray[np.uint64],
    checksums: npt.ArrayLike,
    *,
    maximum: npt.NDArray[np.uint64] | np.uint64,
    summed: npt.ArrayLike,
    chained: npt.ArrayLike = False,
    dictionary: bool = False,
) -> ChunkTable:
    """Return the chunk table of blocks.

    Parameters
    ----------
    offsets : array-like of int, shape (n,)
        Where their payloads start.
    words : ndarray of uint64, shape (n,)
        Their size words.
    checksums : array-like of int, shape (n,)
        Their checksums; of no meaning where they are not `summed`.
    maximum, summed, chained : array-like, shape (n,) or scalar
        What a block decodes to at most, whether it has a checksum, and whether it needs the block
        before it.
    dictionary : bool
        Whether there is one.
    """
    raw = (words >> np.uint64(_RAW_SHIFT)).astype(np.bool_)
    stored = words & np.uint64(_SIZE_MASK)
    bound = np.minimum(maximum, stored * np.uint64(_EXPANSION))
    return make_table(
        offsets,
        stored_size=stored,
        raw_size=np.where(raw, stored, bound),
        codec=np.where(raw, Codec.RAW, Codec.LZ4),
        exact=raw,
        checksum=checksums,
        checksum_kind=np.where(summed, Checksum.XXH32_STORED, Checksum.NONE),
        chained=chained,
        dictionary=~raw & dictionary,
    )


def span_of(
    source: Source, frame: Frame, first: int, count: int, end: int
) -> tuple[int, int, int, int, int, int] | None:
    """Return a frame's span for `make_spans`: its content size, and the checksum at `end`, if any.

    Parameters
    ----------
    source : Source
        The file.
    frame : Frame
        A standard frame.
    first, count : int
        Its rows.
    end : int
        Offset behind its end mark.
    """
    size = UNKNOWN if frame.content_size is None else frame.content_size
    if frame.content_checksum:
        value = int.from_bytes(source.peek_exact(end, 4), "little")
        return first, count, size, end, value, Checksum.XXH32
    if frame.content_size is not None:
        return first, count, size, frame.start + 6, 0, Checksum.NONE
    return None


class _Frames:
    """The frames of some rows."""

    def __init__(self, frames: list[Frame], counts: list[int], rows: slice) -> None:
        sizes = np.array(counts, np.intp)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        within = np.minimum(ends, rows.stop) - np.maximum(starts, rows.start)
        chosen = np.flatnonzero(within > 0)
        self._frames = [frames[number] for number in chosen.tolist()]
        self._counts = within[chosen]
        self._starts = starts[chosen] - rows.start

    def spread(self, name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
        """Return an attribute of the frames, once for each of their rows."""
        values = np.array([getattr(frame, name) for frame in self._frames], dtype)
        return np.repeat(values, self._counts)

    def chained(self) -> npt.NDArray[np.bool_]:
        """Return which rows have a row of the same linked frame before them."""
        chained = ~self.spread("independent", np.bool_)
        chained[self._starts[self._starts >= 0]] = False
        return chained


def _details(frames: list[Frame]) -> dict[str, Any]:
    """Return what ``inspect`` says; the booleans of blocks and content hold for every frame."""
    sizes = [frame.content_size for frame in frames if frame.content_size is not None]
    return {
        "frames": len(frames),
        "block_maximum": _one_or_all(frame.maximum for frame in frames),
        "block_independence": all(frame.independent for frame in frames),
        "block_checksum": bool(frames) and all(frame.block_checksum for frame in frames),
        "content_checksum": bool(frames) and all(frame.content_checksum for frame in frames),
        "content_size": sum(sizes) if len(sizes) == len(frames) else None,
        "legacy": any(frame.legacy for frame in frames),
        "dictionary_id": _one_or_all(
            frame.dictionary_id for frame in frames if frame.dictionary_id is not None
        ),
    }


def _one_or_all(values: Iterable[int]) -> int | list[int] | None:
    """Return the only distinct value, else a list of them; None without any."""
    distinct = sorted(set(values))
    if len(distinct) > 1:
        return distinct
    return distinct[0] if distinct else None


def _serial(frames: list[Frame]) -> str:
    linked = [frame.start for frame in frames if not frame.independent]
    if not linked:
        return ""
    return f"linked blocks (frame at byte {linked[0]}): each block copies from the one before"


def _starts_frame(first: bytes) -> bool:
    return is_magic(first) or skippable.is_magic(first)


def _no_frame(source: Source, offset: int) -> FormatError:
    found = source.peek(offset, _SHOWN)
    if not found:
        return source.truncated(offset, 4)
    what = "bytes after the last frame that start no frame" if offset else "no LZ4 frame"
    return source.broken(offset, f"{what}: {found.hex(' ')}; expected {MAGIC.hex(' ')}")


def _no_legacy_block(source: Source, offset: int, size: int) -> FormatError:
    return source.broken(
        offset,
        f"0x{size:08x} is neither the size of a legacy block (1 to {_LEGACY_STORED_MAXIMUM} bytes) "
        "nor the magic number of a next frame",
    )
