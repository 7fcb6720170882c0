"""One Zstandard frame: its header and the headers of its blocks (RFC 8878, section 3.1.1)."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpuload.errors import FormatError
    from gpuload.sources import Source

    Numbers = TypeVar("Numbers", int, npt.NDArray[np.int64])

__all__ = [
    "BLOCK_HEADER_SIZE",
    "BLOCK_LIMIT",
    "CHECKSUM_SIZE",
    "HEAD_SIZE",
    "MAGIC",
    "FrameHeader",
    "header_size",
    "parse_header",
    "walk_blocks",
    "window_size",
]

MAGIC = b"\x28\xb5\x2f\xfd"
BLOCK_HEADER_SIZE = 3
#: Block_Maximum_Size where the window is no smaller (section 3.1.1.2.4).
BLOCK_LIMIT = 128 << 10
CHECKSUM_SIZE = 4
#: What to read where a frame may start: the magic and the largest header, which has 1 + 1 + 4 + 8
#: bytes, and most often the first block's header.
HEAD_SIZE = 18 + BLOCK_HEADER_SIZE

_DESCRIPTOR_END = 5
_RLE, _COMPRESSED, _RESERVED = 1, 2, 3


class FrameHeader(NamedTuple):
    """What the header of a frame says.

    Attributes
    ----------
    size : int
        Bytes from the magic to the first block.
    single_segment : bool
        The content is one segment, which serves as the window.
    window : int
        Bytes that matches may reach back.
    content_size : int or None
        Decoded bytes; None if not stated.
    dictionary_id : int
        0 if not stated.
    checksum : bool
        Whether four bytes of checksum follow the last block.
    """

    size: int
    single_segment: bool
    window: int
    content_size: int | None
    dictionary_id: int
    checksum: bool

    @property
    def block_limit(self) -> int:
        """Most bytes of a block, stored and decoded."""
        return min(self.window, BLOCK_LIMIT)


class _Layout(NamedTuple):
    """Where the fields of a header stand, which the descriptor alone decides."""

    single_segment: bool
    checksum: bool
    dictionary_id: slice
    content_size: slice


@cache
def _layout(descriptor: int) -> _Layout:
    # Section 3.1.1.1.1.
    single_segment = bool(descriptor & 0x20)
    id_start = _DESCRIPTOR_END + (not single_segment)
    content_start = id_start + (0, 1, 2, 4)[descriptor & 3]
    end = content_start + (int(single_segment), 2, 4, 8)[descriptor >> 6]
    return _Layout(
        single_segment,
        bool(descriptor & 4),
        slice(id_start, content_start),
        slice(content_start, end),
    )


def window_size(descriptor: Numbers) -> Numbers:
    """Return the bytes of a window from its descriptor, or of many from an array of them."""
    # Section 3.1.1.1.2: five bits of exponent, three bits of mantissa in eighths.
    base = 1 << (10 + (descriptor >> 3))
    return base + base // 8 * (descriptor & 7)


def header_size(descriptor: int) -> int:
    """Return the bytes of a frame's header, the magic included, from its descriptor."""
    size: int = _layout(descriptor).content_size.stop
    return size


def parse_header(source: Source, offset: int, head: bytes) -> FrameHeader:
    """Parse the header of a frame.

    Parameters
    ----------
    source : Source
        For messages; nothing is read from it.
    offset : int
        Where the frame starts.
    head : bytes
        The `HEAD_SIZE` bytes there, fewer where the source ends; they start with `MAGIC`.

    Raises
    ------
    FormatError
        If the reserved bit is set or the header is cut short.
    """
    if len(head) < _DESCRIPTOR_END:
        raise source.truncated(offset + len(head), _DESCRIPTOR_END - len(head))
    descriptor = head[4]
    if descriptor & 8:
        message = f"frame header descriptor 0x{descriptor:02x}: the reserved bit must be zero"
        raise source.broken(offset + 4, message)
    size = header_size(descriptor)
    if len(head) < size:
        raise source.truncated(offset + len(head), size - len(head))
    return _parse_fields(head[:size])


@lru_cache(maxsize=64)
def _parse_fields(header: bytes) -> FrameHeader:
    # Most frames of a file have the same header, so that looking it up is faster than parsing it.
    layout = _layout(header[4])
    content_size = _content_size(header[layout.content_size])
    return FrameHeader(
        size=len(header),
        single_segment=layout.single_segment,
        window=content_size or 0 if layout.single_segment else window_size(header[5]),
        content_size=content_size,
        dictionary_id=int.from_bytes(header[layout.dictionary_id], "little"),
        checksum=layout.checksum,
    )


def _content_size(field: bytes) -> int | None:
    # Section 3.1.1.1.4: a field of two bytes goes on where that of one byte ends.
    if not field:
        return None
    return int.from_bytes(field, "little") + (256 if len(field) == 2 else 0)


def walk_blocks(source: Source, offset: int, header: FrameHeader, head: bytes) -> tuple[int, int]:
    """Find the end of a frame by the headers of its blocks (section 3.1.1.2).

    Parameters
    ----------
    source : Source
        The file.
    offset : int
        Where the frame starts.
    header : FrameHeader
        Its header.
    head : bytes
        What `header` was parsed from.

    Returns
    -------
    end : int
        Offset behind the frame, its checksum included.
    bound : int
        Most bytes that the blocks decode to.

    Raises
    ------
    FormatError
        If a block is of the reserved type or larger than the window allows, or the source ends
        before the frame does.
    """
    limit, peek = header.block_limit, source.peek
    place, bound, last = offset + header.size, 0, 0
    block = head[header.size : header.size + BLOCK_HEADER_SIZE]
    while not last:
        if len(block) < BLOCK_HEADER_SIZE:
            raise _cut(source, offset, place + len(block))
        word = block[0] | block[1] << 8 | block[2] << 16
        last, kind, size = word & 1, word >> 1 & 3, word >> 3
        if size > limit or kind == _RESERVED:
            raise _bad_block(source, place, kind, size, limit)
        bound += limit if kind == _COMPRESSED else size
        place += BLOCK_HEADER_SIZE + (1 if kind == _RLE else size)
        block = b"" if last else peek(place, BLOCK_HEADER_SIZE)
    end = place + CHECKSUM_SIZE * header.checksum
    if end > source.size:
        raise _cut(source, offset, end)
    return end, bound


def _bad_block(source: Source, offset: int, kind: int, size: int, limit: int) -> FormatError:
    if kind == _RESERVED:
        return source.broken(offset, "a block of type 3, which is reserved")
    message = f"a block of {size} bytes; the window of its frame allows at most {limit}"
    return source.broken(offset, message)


def _cut(source: Source, start: int, place: int) -> FormatError:
    message = f"the file ends inside the Zstandard frame that starts at byte {start}"
    return source.broken(min(place, source.size), message)
