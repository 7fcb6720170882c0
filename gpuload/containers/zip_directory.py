"""The central directory of a zip file, read by the standard library's zipfile, and judged.

APPNOTE.TXT of PKWARE, sections 4.3 (the parts of the file) and 4.4 (their fields). A member that is
broken does not keep the others from being read. What the local header of a member says is looked at
when the member is (see `gpuload.containers.zip_data`).
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, cast

from gpuload.errors import MemoryLimitError, UnsupportedCodecError
from gpuload.options import DEFAULT_MEMORY_LIMIT

if TYPE_CHECKING:
    from gpuload.sources import Source

__all__ = ["LOCAL_HEADER_SIZE", "Member", "read_directory"]

#: Bytes of a local header before the name (APPNOTE 4.3.7).
LOCAL_HEADER_SIZE = 30
#: Most bytes of the records at the end of a file and its comment (APPNOTE 4.3.14 to 4.3.16).
_END = 22 + (64 << 10) + 20 + 56
_ENTRY_MAGIC = b"PK\x01\x02"
#: Memory that an entry takes while the directory is read.
_BYTES_AN_ENTRY = 1 << 10
#: A byte of DEFLATE decodes to 1032 at most: a match of 258 bytes takes two bits or more.
_DEFLATE_RATIO = 1032

_STORED, _DEFLATED = 0, 8
#: APPNOTE 4.4.5.
_METHODS = {
    1: "shrink",
    6: "implode",
    9: "Deflate64",
    12: "bzip2",
    14: "LZMA",
    93: "Zstandard",
    95: "xz",
    98: "PPMd",
    99: "AES encryption",
}
#: General purpose flags (APPNOTE 4.4.4): encrypted, patch data, strongly encrypted.
_ENCRYPTED, _PATCH, _UTF8 = 0x41, 0x20, 0x800

_DAMAGE = (
    zipfile.BadZipFile,
    struct.error,
    UnicodeError,
    OverflowError,
    ValueError,
    LookupError,
    EOFError,
    TypeError,
)


class Member(NamedTuple):
    """A member of a zip file.

    Attributes
    ----------
    name : str
        Its name, with "/" between folders.
    header : int
        Offset of its local header in the file.
    stored_size, raw_size : int
        Bytes of its data as stored, and decoded.
    crc : int
        CRC-32 of the decoded bytes.
    deflated : bool
        Whether the data is a raw DEFLATE stream; else it is stored as it is.
    limit : int
        Offset that its data does not reach beyond: where the next member or the directory starts.
    error : str
        Why it cannot be read; empty if it can.
    name_bytes : bytes
        Its name as it is stored, which its local header has, too.
    """

    name: str
    header: int
    stored_size: int
    raw_size: int
    crc: int
    deflated: bool
    limit: int
    error: str = ""
    name_bytes: bytes = b""


def read_directory(source: Source, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> list[Member]:
    """Return the members of a zip file in the order of its directory, folders left out.

    Parameters
    ----------
    source : Source
        The file; bytes before the archive, as self-extracting files have them, are fine.
    memory_limit : int
        Bytes that the directory may take in memory.

    Raises
    ------
    FormatError
        If there is no directory, or it is damaged.
    UnsupportedCodecError
        If the file asks for a later version of the format.
    MemoryLimitError
        If there are too many members for `memory_limit`.
    """
    file = _File(source, memory_limit)
    try:
        with zipfile.ZipFile(cast("io.BytesIO", file)) as archive:
            entries, end = archive.infolist(), archive.start_dir
    except NotImplementedError as error:
        raise UnsupportedCodecError(f"{error}", source=source.name) from None
    except (*_DAMAGE, OSError) as error:
        raise file.failure or source.broken(
            0, f"the zip file is cut short, or its central directory is damaged: {error}"
        ) from None
    if any(entry.header_offset < 0 for entry in entries):
        # Fields have no sign: zipfile has moved them by what the directory is off.
        raise source.broken(
            end, "the central directory is here, the end record says that it is further behind"
        )
    return _members([entry for entry in entries if not _is_folder(entry)], end)


def _is_folder(entry: zipfile.ZipInfo) -> bool:
    return entry.filename.endswith("/") and entry.file_size == 0


def _members(entries: list[zipfile.ZipInfo], end: int) -> list[Member]:
    errors = [_name_error(e) or _method_error(e) or _size_error(e, end) for e in entries]
    limits, overlapping = _limits(entries, errors, end)
    counts = Counter(entry.filename for entry in entries)
    for number, entry in enumerate(entries):
        if number in overlapping:
            errors[number] = "it overlaps another member"
        elif counts[entry.filename] > 1:
            errors[number] = errors[number] or f"{counts[entry.filename]} members have this name"
    return [_member(*each) for each in zip(entries, limits, errors, strict=True)]


def _member(entry: zipfile.ZipInfo, limit: int, error: str) -> Member:
    return Member(
        name=entry.filename,
        header=entry.header_offset,
        stored_size=entry.compress_size,
        raw_size=entry.file_size,
        crc=entry.CRC,
        deflated=entry.compress_type == _DEFLATED,
        limit=limit,
        error=error,
        name_bytes=entry.orig_filename.encode(_encoding(entry.flag_bits)),
    )


def _encoding(flags: int) -> str:
    """Return how names are encoded, by the flags beside them (APPNOTE.TXT, appendix D)."""
    return "utf-8" if flags & _UTF8 else "cp437"


def _name_error(entry: zipfile.ZipInfo) -> str:
    name = entry.filename.replace("\\", "/")
    if not name:
        return "it has no name"
    if name.startswith("/") or name[1:2] == ":" or ".." in name.split("/"):
        return "its name points out of the archive; a relative path without '..' was expected"
    return ""


def _method_error(entry: zipfile.ZipInfo) -> str:
    method = entry.compress_type
    if entry.flag_bits & _ENCRYPTED:
        return "it is encrypted, which gpuload does not read; decrypt it with another tool first"
    if entry.flag_bits & _PATCH:
        return "it is patch data, which gpuload does not read"
    if method not in (_STORED, _DEFLATED):
        name = _METHODS.get(method, "unknown")
        return f"compression method {method} ({name}); gpuload reads stored and deflated members"
    return ""


def _size_error(entry: zipfile.ZipInfo, end: int) -> str:
    stored, raw, header = entry.compress_size, entry.file_size, entry.header_offset
    if header + LOCAL_HEADER_SIZE + stored > end:
        return (
            f"its {stored} bytes at byte {header} are outside of the {end} bytes before the "
            "central directory"
        )
    if entry.compress_type == _STORED and stored != raw:
        return f"it is stored as it is, in {stored} bytes, and the directory says {raw}"
    if raw > stored * _DEFLATE_RATIO:
        return f"the directory says {raw} bytes, to which {stored} bytes of DEFLATE cannot decode"
    return ""


def _limits(
    entries: list[zipfile.ZipInfo], errors: list[str], end: int
) -> tuple[list[int], set[int]]:
    """Return where the data of members has to end, and those that begin before another one ends.

    What is broken anyway is left out: its place may be wrong, too.
    """
    order = [number for number, error in enumerate(errors) if not error]
    order.sort(key=lambda number: entries[number].header_offset)
    limits, overlapping = [end] * len(entries), set()
    last, holder = 0, -1
    for before, number in zip([-1, *order], order, strict=False):
        start, own = entries[number].header_offset, _least_end(entries[number])
        if start < last:
            overlapping |= {number, holder}
        if own > last:
            last, holder = own, number
        if before >= 0:
            limits[before] = start
    return limits, overlapping


def _least_end(entry: zipfile.ZipInfo) -> int:
    return entry.header_offset + LOCAL_HEADER_SIZE + entry.compress_size


class _File(io.RawIOBase):
    """What zipfile reads a source through.

    It reads a record or two at the end, and then the directory: the end is read once.

    Attributes
    ----------
    failure : Exception or None
        What reading failed with: zipfile takes an OSError for a file that is no zip file.
    """

    def __init__(self, source: Source, memory_limit: int) -> None:
        self._source, self._limit = source, memory_limit
        self._at = 0
        self._tail_at = max(0, source.size - _END)
        self._tail = source.peek(self._tail_at, _END)
        self.failure: Exception | None = None

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._source.size)[whence]
        if at < 0:
            raise OSError("an offset before the start of the file")
        self._at = at
        return at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._source.size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        try:
            data = self._checked(self._bytes(wanted))
        except Exception as error:
            self.failure = error
            raise
        self._at += len(data)
        return data

    def _bytes(self, wanted: int) -> bytes:
        if self._at >= self._tail_at:
            first = self._at - self._tail_at
            return self._tail[first : first + wanted]
        if wanted > self._limit:
            raise self._too_large(f"{wanted} bytes")
        return self._source.peek(self._at, wanted)

    def _checked(self, data: bytes) -> bytes:
        entries = data.count(_ENTRY_MAGIC)
        if entries * _BYTES_AN_ENTRY > max(self._limit, 2 << 20):
            raise self._too_large(f"{entries} entries")
        return data

    def _too_large(self, what: str) -> MemoryLimitError:
        return MemoryLimitError(
            f"{self._source.name}: byte {self._at}: reading a zip directory of {what} takes more "
            f"than memory_limit ({self._limit} bytes); raise it (--memory-limit)"
        )
