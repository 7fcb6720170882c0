"""The header of one gzip member (RFC 1952, section 2.3).

It stands on the codecs' floor because two floors need it: the gzip reader for the first member and
for BGZF blocks, the streaming decoder for the members that only decoding finds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from gpuload.errors import FormatError, UnsupportedCodecError

__all__ = [
    "MAGIC",
    "TRAILER_SIZE",
    "MemberHeader",
    "Peek",
    "read_member_header",
    "skip_zeros",
]

#: ID1 and ID2.
MAGIC = b"\x1f\x8b"
#: CRC32 and ISIZE behind the compressed data (section 2.3.1).
TRAILER_SIZE = 8
#: Bytes looked at a time for the end of zero padding.
_PADDING_PIECE = 1 << 20

#: Returns up to `size` bytes at `offset`, fewer only where the source ends: ``(offset, size)``.
Peek = Callable[[int, int], bytes]

_FIXED_SIZE = 10
_DEFLATE = 8
_FHCRC, _FEXTRA, _FNAME, _FCOMMENT = 0x02, 0x04, 0x08, 0x10
_RESERVED = 0xE0
#: Bytes asked for at a time; most headers fit in one piece.
_PIECE = 256
#: FNAME and FCOMMENT end at a zero byte, however far; no honest one is longer than this.
_STRING_LIMIT = 1 << 20


@dataclass(frozen=True)
class MemberHeader:
    """What the header of a gzip member says.

    Attributes
    ----------
    size : int
        Bytes from the magic to the first byte of compressed data.
    flags : int
        FLG.
    mtime : int
        MTIME, seconds since 1970; 0 means none.
    os : int
        OS, the file system the member was made on; 255 means unknown.
    subfields : tuple of (bytes, bytes)
        Identifier (SI1 and SI2) and content of each subfield of FEXTRA, in their order. What
        does not parse as subfields is left out.
    name, comment : str or None
        FNAME and FCOMMENT, decoded as ISO 8859-1; None if absent.
    """

    size: int
    flags: int
    mtime: int
    os: int
    subfields: tuple[tuple[bytes, bytes], ...] = ()
    name: str | None = None
    comment: str | None = None

    @property
    def bgzf_block_size(self) -> int | None:
        """Bytes of the whole member if it is a BGZF block, else None.

        The BC subfield of length 2 makes it one, wherever it stands among the subfields; it holds
        the size minus 1 (SAM specification, section 4.1).
        """
        for identifier, content in self.subfields:
            if identifier == b"BC" and len(content) == 2:
                return int.from_bytes(content, "little") + 1
        return None


def read_member_header(peek: Peek, offset: int, source_name: str) -> MemberHeader:
    """Read and check the header of the gzip member at `offset`.

    Parameters
    ----------
    peek : callable
        ``peek(offset, size)`` returns up to `size` bytes, fewer only where the source ends.
    offset : int
        Where the member starts.
    source_name : str
        What error messages call the source.

    Returns
    -------
    MemberHeader
        FHCRC, if present, was compared with the header.

    Raises
    ------
    FormatError
        If the magic is wrong, a reserved flag is set (a decompressor must give an error, section
        2.3.1.2), the source ends in the header, FNAME or FCOMMENT does not end, or FHCRC differs.
    UnsupportedCodecError
        If the compression method is not DEFLATE.
    """
    cursor = _Cursor(peek, offset, source_name)
    fixed = cursor.take(_FIXED_SIZE, "fixed fields")
    _check_fixed(fixed, offset, source_name)
    flags = fixed[3]
    extra = cursor.take_counted("FEXTRA") if flags & _FEXTRA else b""
    name = cursor.take_string("FNAME") if flags & _FNAME else None
    comment = cursor.take_string("FCOMMENT") if flags & _FCOMMENT else None
    if flags & _FHCRC:
        cursor.check_crc()
    return MemberHeader(
        size=cursor.position,
        flags=flags,
        mtime=int.from_bytes(fixed[4:8], "little"),
        os=fixed[9],
        subfields=_parse_subfields(extra),
        name=name,
        comment=comment,
    )


def _check_fixed(fixed: bytes, offset: int, source_name: str) -> None:
    method, flags = fixed[2], fixed[3]
    if fixed[:2] != MAGIC:
        message = f"no gzip member starts here: found {fixed[:2].hex(' ')}, expected 1f 8b"
        raise FormatError(message, source=source_name, offset=offset)
    if method != _DEFLATE:
        message = f"gzip compression method {method}; only 8 (DEFLATE) is known"
        raise UnsupportedCodecError(message, source=source_name, offset=offset + 2)
    if flags & _RESERVED:
        message = f"gzip flags 0x{flags:02x}: the reserved bits 5 to 7 must be zero"
        raise FormatError(message, source=source_name, offset=offset + 3)


def _parse_subfields(extra: bytes) -> tuple[tuple[bytes, bytes], ...]:
    # RFC 1952, section 2.3.1.1: SI1, SI2, LEN (2 bytes), LEN bytes. Writers that put something
    # else into FEXTRA exist; a file does not decode differently for it.
    subfields = []
    start = 0
    while start + 4 <= len(extra):
        end = start + 4 + int.from_bytes(extra[start + 2 : start + 4], "little")
        if end > len(extra):
            break
        subfields.append((extra[start : start + 2], extra[start + 4 : end]))
        start = end
    return tuple(subfields)


class _Cursor:
    """Reads one header from front to back, in pieces, as far as its fields turn out to reach."""

    def __init__(self, peek: Peek, offset: int, source_name: str) -> None:
        self._peek = peek
        self._offset = offset
        self._source_name = source_name
        self._data = bytearray()
        self.position = 0

    def take(self, size: int, field: str) -> bytes:
        """Return the next `size` bytes."""
        end = self.position + size
        while len(self._data) < end:
            self._grow(end - len(self._data), field)
        taken = bytes(self._data[self.position : end])
        self.position = end
        return taken

    def take_counted(self, field: str) -> bytes:
        """Return the bytes whose number stands before them, as of FEXTRA."""
        size = int.from_bytes(self.take(2, field), "little")
        return self.take(size, field)

    def take_string(self, field: str) -> str:
        """Return the text up to the next zero byte, which is skipped."""
        searched = self.position
        while (end := self._data.find(0, searched)) < 0:
            searched = len(self._data)
            if searched - self.position > _STRING_LIMIT:
                raise self._broken(f"{field} has no end within {_STRING_LIMIT} bytes")
            self._grow(1, field)
        text = self._data[self.position : end].decode("latin-1")
        self.position = end + 1
        return text

    def check_crc(self) -> None:
        """Compare FHCRC, which comes next, with the bytes before it."""
        expected = zlib.crc32(self._data[: self.position]) & 0xFFFF
        found = int.from_bytes(self.take(2, "FHCRC"), "little")
        if found != expected:
            self.position -= 2
            raise self._broken(f"FHCRC is 0x{found:04x}, but the header's is 0x{expected:04x}")

    def _grow(self, wanted: int, field: str) -> None:
        # As much again as there is, so that a long name takes few reads.
        size = max(wanted, _PIECE, len(self._data))
        piece = self._peek(self._offset + len(self._data), size)
        if not piece:
            self.position = len(self._data)
            raise self._broken(f"the source ends here, in {field}")
        self._data += piece

    def _broken(self, message: str) -> FormatError:
        return FormatError(
            f"{message} (header of the gzip member at byte {self._offset})",
            source=self._source_name,
            offset=self._offset + self.position,
        )


def skip_zeros(peek: Peek, offset: int) -> int:
    """Return the first byte from `offset` on that is not zero, or the end of the source.

    Tapes are padded with zeros, which gunzip ignores behind the last member.
    """
    while piece := peek(offset, _PADDING_PIECE):
        rest = piece.lstrip(b"\0")
        if rest:
            return offset + len(piece) - len(rest)
        offset += len(piece)
    return offset
