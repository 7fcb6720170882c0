"""The seek table of the Zstandard seekable format, version 0.1.0.

It is the content of a skippable frame at the very end of a file: an entry per frame, then a footer
of 9 bytes, which is the number of frames, a descriptor and a magic number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.containers import skippable
from gpuload.errors import GpuloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.sources import Source

__all__ = ["Entry", "SeekTable", "UnusableSeekTableError", "find"]

#: Seekable_Magic_Number 0x8F92EAB1, the last bytes of the file.
_MAGIC = b"\xb1\xea\x92\x8f"
#: Skippable_Magic_Number 0x184D2A5E.
_FRAME_MAGIC = b"\x5e\x2a\x4d\x18"
_FOOTER_SIZE = 9
_CHECKSUM_FLAG = 0x80
#: Must be zero; bits 1 and 0 must be ignored.
_RESERVED_BITS = 0x7C


class UnusableSeekTableError(GpuloadError):
    """A seek table contradicts its file; the frames can be found without it.

    Parameters
    ----------
    reason : str
        What disagrees.
    offset : int
        Byte offset in the file at which it was seen.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.offset = offset


class Entry(NamedTuple):
    """What a seek table says of one frame.

    Attributes
    ----------
    stored_size : int
        Bytes of the frame.
    raw_size : int
        Decoded bytes; 0 also for a skippable frame.
    checksum : int or None
        Low 32 bits of the xxHash-64 of the decoded bytes; None if the table has no checksums.
    """

    stored_size: int
    raw_size: int
    checksum: int | None


@dataclass(frozen=True)
class SeekTable:
    """The entries of a seek table, one per frame before it.

    Attributes
    ----------
    columns : numpy.ndarray of uint32, shape (count, 2 or 3)
        Compressed_Size, Decompressed_Size and, if the table has them, Checksum.
    """

    columns: npt.NDArray[np.uint32]

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.columns)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries in the order of the frames."""
        has_checksums = self.columns.shape[1] == 3
        checksums = self.columns[:, 2].tolist() if has_checksums else [None] * self.count
        sizes = self.columns[:, :2].T.tolist()
        return map(Entry, *sizes, checksums)


def find(source: Source) -> SeekTable | None:
    """Read the seek table at the end of a source.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    SeekTable or None
        None if the file does not end in one. Its frames fill the file up to the table; whether
        frames really start there was not looked at.

    Raises
    ------
    UnusableSeekTableError
        If the table is of a later version or its sizes cannot be those of the file.
    """
    footer_start = source.size - _FOOTER_SIZE
    footer = source.peek(max(0, footer_start), _FOOTER_SIZE)
    if footer[5:] != _MAGIC:
        return None
    if footer[4] & _RESERVED_BITS:
        reason = f"its descriptor 0x{footer[4]:02x} has reserved bits set: a later version"
        raise UnusableSeekTableError(reason, footer_start + 4)
    count = int.from_bytes(footer[:4], "little")
    entry_size = 12 if footer[4] & _CHECKSUM_FLAG else 8
    start = _find_start(source, count, entry_size)
    # Checked before the entries are read, so that a large table cannot come with a small file.
    if count * skippable.HEADER_SIZE > start:
        reason = f"{count} frames do not fit into the {start} bytes before it"
        raise UnusableSeekTableError(reason, footer_start)
    return _read_entries(source, start, count, entry_size)


def _find_start(source: Source, count: int, entry_size: int) -> int:
    content_size = count * entry_size + _FOOTER_SIZE
    start = source.size - content_size - skippable.HEADER_SIZE
    header = source.peek(max(0, start), skippable.HEADER_SIZE)
    matches = header[:4] == _FRAME_MAGIC and int.from_bytes(header[4:], "little") == content_size
    if start < 0 or not matches:
        reason = f"no skippable frame with {count} entries stands before its footer"
        raise UnusableSeekTableError(reason, source.size - _FOOTER_SIZE)
    return start


def _read_entries(source: Source, start: int, count: int, entry_size: int) -> SeekTable:
    buffer = bytearray(count * entry_size)
    source.read_exact(start + skippable.HEADER_SIZE, memoryview(buffer))
    columns = np.frombuffer(buffer, "<u4").reshape(count, entry_size // 4)
    total = int(columns[:, 0].sum(dtype=np.uint64))
    if total != start:
        reason = f"its frames add up to {total} bytes, but {start} bytes stand before it"
        raise UnusableSeekTableError(reason, start)
    if (columns[:, 0] < skippable.HEADER_SIZE).any():
        raise UnusableSeekTableError("it lists a frame of fewer bytes than any frame has", start)
    return SeekTable(columns)
