"""Reader of Zstandard files (RFC 8878): one row per frame.

A row's payload is the whole frame, from its magic to its checksum. Where a frame ends, the headers
of its blocks tell; a seek table at the end of the file saves that walk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuload.chunks import Checksum, ChunkTable, Codec, make_table
from gpuload.containers import seek_table, skippable, zstd_frame
from gpuload.containers.base import Index
from gpuload.containers.seek_table import Entry, SeekTable, UnusableSeekTableError
from gpuload.containers.zstd_frame import BLOCK_HEADER_SIZE, CHECKSUM_SIZE, HEAD_SIZE, MAGIC
from gpuload.errors import FormatError, MemoryLimitError, UnsupportedCodecError

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.containers.zstd_frame import FrameHeader, Numbers
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = ["Frame", "describe", "fits", "is_magic", "read", "rows_of", "walk_frame"]

#: Formats before RFC 8878 by their magic. Version 0.1 alone wrote it in big-endian order.
_LEGACY = {b"\xfd\x2f\xb5\x1e": "0.1"} | {
    bytes([0x20 + minor]) + MAGIC[1:]: f"0.{minor}" for minor in range(2, 8)
}
#: Magic of a dictionary in the format of section 5; others are raw content and have no ID.
_DICTIONARY_MAGIC = b"\x37\xa4\x30\xec"
#: Fewest bytes of a block that decodes to something: an RLE block.
_SMALLEST_BLOCK = BLOCK_HEADER_SIZE + 1
_SERIAL = "one Zstandard frame: its blocks copy from one another"


class Frame(NamedTuple):
    """A frame that holds data.

    Attributes
    ----------
    offset, stored_size : int
        Its first byte, and the bytes from its magic to its checksum.
    raw_size : int
        Decoded bytes: the size if `exact`, else an upper bound.
    exact : bool
        Whether the file states it.
    checksum : int or None
        None if there is none.
    header : FrameHeader
        What its header says.
    """

    offset: int
    stored_size: int
    raw_size: int
    exact: bool
    checksum: int | None
    header: FrameHeader


class _Listing(NamedTuple):
    """The frames of a file."""

    frames: list[Frame]
    skippable_frames: int
    seek_table: bool


def is_magic(first: bytes) -> bool:
    """Return whether a file with these first bytes is Zstandard, of this or of an old version."""
    return first[:4] == MAGIC or first[:4] in _LEGACY


def read(source: Source, options: Options) -> Index:
    """Read the index of a Zstandard file.

    Parameters
    ----------
    source : Source
        The file; skippable frames may come first.
    options : Options
        `window_limit`, `dictionary` and `strict` matter here.

    Returns
    -------
    Index
        One row per frame. `raw_size` is exact where the frame or a seek table states it; else it
        is the most that the frame's blocks can decode to.

    Raises
    ------
    FormatError
        If a frame is broken or cut short, states more content than its blocks can hold, or is
        followed by bytes that start no frame.
    MemoryLimitError
        If a frame needs a larger window than the options allow.
    UnsupportedCodecError
        If a frame needs a dictionary other than that of the options, or is of a version before
        0.8.
    """
    if not source.size:
        raise source.broken(0, "the file is empty; expected a Zstandard frame")
    index = Index("zstd", source, make_table([]), strict=options.strict)
    listing = _read_listed(index) or _walk(source)
    for frame in listing.frames:
        _check_needs(source, frame, options)
    index.chunks = _make_rows(listing.frames)
    headers = [frame.header for frame in listing.frames]
    describe(
        index,
        skippable_frames=listing.skippable_frames,
        seek_table=listing.seek_table,
        window=max((header.window for header in headers), default=0),
        dictionary_id=next((h.dictionary_id for h in headers if h.dictionary_id), 0),
    )
    return index


def _walk(source: Source) -> _Listing:
    """List the frames by the headers of their blocks."""
    frames = []
    skippable_frames = 0
    offset, head = 0, source.peek(0, HEAD_SIZE)
    while head:
        if head[:4] == MAGIC:
            frame, head = walk_frame(source, offset, head)
            frames.append(frame)
            offset += frame.stored_size
        elif skippable.is_magic(head):
            offset += skippable.HEADER_SIZE + skippable.content_size(source, offset)
            head = source.peek(offset, HEAD_SIZE)
            skippable_frames += 1
        else:
            raise _no_frame(source, offset, head)
    return _Listing(frames, skippable_frames, seek_table=False)


def walk_frame(source: Source, offset: int, head: bytes) -> tuple[Frame, bytes]:
    """Return the frame at an offset, and the head of the next one.

    Parameters
    ----------
    source : Source
        The file.
    offset : int
        Where the frame starts.
    head : bytes
        The `HEAD_SIZE` bytes there, fewer where the source ends; they start with the magic.

    Raises
    ------
    FormatError
        If it is broken or cut short, or states more content than its blocks can hold.
    """
    header = zstd_frame.parse_header(source, offset, head)
    end, bound = zstd_frame.walk_blocks(source, offset, header, head)
    exact = header.content_size is not None
    raw_size = bound if header.content_size is None else header.content_size
    if raw_size > bound:
        message = f"the frame states {raw_size} decoded bytes; its blocks hold at most {bound}"
        raise source.broken(offset, message)
    tail, head = _peek_seam(source, end)
    checksum = tail if header.checksum else None
    return Frame(offset, end - offset, raw_size, exact, checksum, header), head


def _peek_seam(source: Source, end: int) -> tuple[int, bytes]:
    """Return what stands at the seam of two frames: the checksum, if there is one, and the head."""
    seam = source.peek(end - CHECKSUM_SIZE, CHECKSUM_SIZE + HEAD_SIZE)
    return int.from_bytes(seam[:CHECKSUM_SIZE], "little"), seam[CHECKSUM_SIZE:]


def _no_frame(source: Source, offset: int, head: bytes) -> FormatError | UnsupportedCodecError:
    if version := _LEGACY.get(head[:4]):
        message = f"a frame of Zstandard {version}; only 0.8 and later (RFC 8878) are known"
        return UnsupportedCodecError(message, source=source.name, offset=offset)
    found = head[:4].hex(" ")
    message = f"no Zstandard frame starts here: found {found}, expected {MAGIC.hex(' ')}"
    return source.broken(offset, message)


def _read_listed(index: Index) -> _Listing | None:
    """List the frames by the seek table; None if there is none or it contradicts the file."""
    try:
        table = seek_table.find(index.source)
        return _follow(index.source, table) if table else None
    except UnusableSeekTableError as error:
        index.warn(f"the seek table is wrong: {error}", error.offset)
        return None


def _follow(source: Source, table: SeekTable) -> _Listing:
    frames = []
    offset, head = 0, source.peek(0, HEAD_SIZE)
    for entry in table.entries():
        tail, next_head = _peek_seam(source, offset + entry.stored_size)
        if skippable.is_magic(head):
            _match_skippable(offset, head, entry)
        else:
            frames.append(_match_frame(source, offset, head, entry, tail))
        offset, head = offset + entry.stored_size, next_head
    # One more holds the table.
    skippable_frames = table.count - len(frames) + 1
    return _Listing(frames, skippable_frames, seek_table=True)


def _match_skippable(offset: int, head: bytes, entry: Entry) -> None:
    size = skippable.HEADER_SIZE + int.from_bytes(head[4:8], "little")
    if (size, 0) != (entry.stored_size, entry.raw_size):
        reason = (
            f"a skippable frame of {size} bytes starts here; it lists one of {entry.stored_size} "
            f"bytes that decode to {entry.raw_size}"
        )
        raise UnusableSeekTableError(reason, offset)


def _match_frame(source: Source, offset: int, head: bytes, entry: Entry, tail: int) -> Frame:
    """Return the frame that `entry` lists, if what stands at `offset` can be that frame."""
    if head[:4] != MAGIC:
        reason = f"it lists a frame here, but found {head[:4].hex(' ')}"
        raise UnusableSeekTableError(reason, offset)
    try:
        header = zstd_frame.parse_header(source, offset, head)
    except FormatError as error:
        raise UnusableSeekTableError("it lists a frame here, which is broken", offset) from error
    _match_sizes(offset, header, entry)
    checksum = tail if header.checksum else entry.checksum
    if entry.checksum not in (None, checksum):
        reason = f"its checksum 0x{entry.checksum:08x} is not the 0x{checksum:08x} of the frame"
        raise UnusableSeekTableError(reason, offset)
    return Frame(offset, entry.stored_size, entry.raw_size, True, checksum, header)  # noqa: FBT003


def _match_sizes(offset: int, header: FrameHeader, entry: Entry) -> None:
    if header.content_size not in (None, entry.raw_size):
        reason = f"it lists {entry.raw_size} decoded bytes, the frame states {header.content_size}"
        raise UnusableSeekTableError(reason, offset)
    framing = header.size + CHECKSUM_SIZE * header.checksum
    if not fits(entry.stored_size, entry.raw_size, framing, header.block_limit):
        reason = (
            f"it lists a frame of {entry.stored_size} bytes that decode to {entry.raw_size}, "
            "more than its header allows"
        )
        raise UnusableSeekTableError(reason, offset)


def fits(stored_size: Numbers, raw_size: Numbers, framing: Numbers, block_limit: Numbers) -> Any:
    """Return whether a frame can have its decoded size, or which can of many.

    Its blocks are not looked at, so that their number is only bounded.

    Parameters
    ----------
    stored_size, raw_size : int or ndarray of int64
        Its bytes and its decoded bytes.
    framing : int or ndarray of int64
        Bytes of its header and of its checksum.
    block_limit : int or ndarray of int64
        Most bytes of a block.
    """
    room = stored_size - framing
    return (room >= BLOCK_HEADER_SIZE) & (raw_size <= room // _SMALLEST_BLOCK * block_limit)


def _check_needs(source: Source, frame: Frame, options: Options) -> None:
    header, limit = frame.header, options.window_limit
    # A single segment is decoded into its contiguous output, which serves as the window.
    if header.window > limit and not header.single_segment:
        raise MemoryLimitError(
            f"{source.name}: byte {frame.offset}: a Zstandard frame needs a window of "
            f"{header.window} bytes, more than the limit of {limit}; the option window_limit "
            "(--max-window) raises it"
        )
    if header.dictionary_id and header.dictionary_id != _dictionary_id(options.dictionary):
        message = _dictionary_message(header.dictionary_id, options.dictionary)
        raise UnsupportedCodecError(message, source=source.name, offset=frame.offset)


def _dictionary_id(dictionary: bytes | None) -> int:
    if dictionary is None or dictionary[:4] != _DICTIONARY_MAGIC:
        return 0
    return int.from_bytes(dictionary[4:8], "little")


def _dictionary_message(needed: int, dictionary: bytes | None) -> str:
    needs = f"a Zstandard frame needs the dictionary with ID {needed}"
    if dictionary is None:
        return f"{needs}; give it with the option dictionary (--dictionary)"
    given = _dictionary_id(dictionary)
    return f"{needs}; the dictionary that was given has {f'ID {given}' if given else 'no ID'}"


def _make_rows(frames: list[Frame]) -> ChunkTable:
    if not frames:
        return make_table([])
    offset, stored_size, raw_size, exact, checksum, header = zip(*frames, strict=True)
    return rows_of(
        offset,
        stored_size,
        raw_size,
        [value or 0 for value in checksum],
        summed=[value is not None for value in checksum],
        exact=exact,
        dictionary=[h.dictionary_id != 0 for h in header],
    )


def rows_of(
    offset: npt.ArrayLike,
    stored_size: npt.ArrayLike,
    raw_size: npt.ArrayLike,
    checksum: npt.ArrayLike,
    *,
    summed: npt.ArrayLike,
    exact: npt.ArrayLike = True,
    dictionary: npt.ArrayLike = False,
) -> ChunkTable:
    """Return the chunk table of frames.

    Parameters
    ----------
    offset, stored_size : array-like of int, shape (n,)
        Where they start, and their bytes.
    raw_size, exact : array-like, shape (n,)
        As in the table.
    checksum : array-like of int, shape (n,)
        0 where there is none.
    summed, dictionary : array-like of bool, shape (n,) or scalar
        Whether there is one, and whether a dictionary is needed.
    """
    return make_table(
        offset,
        stored_size=stored_size,
        raw_size=raw_size,
        exact=exact,
        checksum=checksum,
        checksum_kind=np.where(summed, Checksum.XXH64_LOW, Checksum.NONE),
        codec=Codec.ZSTD,
        dictionary=dictionary,
    )


def describe(
    index: Index,
    *,
    skippable_frames: int,
    seek_table: bool,
    window: int,
    dictionary_id: int = 0,
) -> None:
    """Note in an index that has its rows what is known of the file.

    Parameters
    ----------
    index : Index
        The file.
    skippable_frames : int
        How many there are, that of a seek table included.
    seek_table : bool
        Whether the frames were compared with one.
    window : int
        The largest of a frame.
    dictionary_id : int
        The first that a frame needs.
    """
    chunks = index.chunks
    if np.count_nonzero(chunks["raw_size"]) == 1:
        index.serial = _SERIAL
    index.details = {
        "frames": chunks.size,
        "skippable_frames": skippable_frames,
        "seek_table": seek_table,
        "window": window,
        "checksums": int(np.count_nonzero(chunks["checksum_kind"])),
        "dictionary_id": dictionary_id,
    }
