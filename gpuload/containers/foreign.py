"""Formats that gpuload knows by sight only, so that a message can name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuload.sources import Source

__all__ = ["name_of"]

#: What a file is called, by the bytes that it starts with.
_NAMES = {
    b"\xfd7zXZ\x00": "this is an xz file",
    b"BZh": "this is a bzip2 file",
    b"PK\x03\x04": "this is a zip file",
    b"PK\x05\x06": "this is an empty zip file",
    b"LZIP": "this is an lzip file",
    b"7z\xbc\xaf\x27\x1c": "this is a 7z file",
    b"\x89HDF\r\n\x1a\n": "this is an HDF5 file",
    b"PAR1": "this is a Parquet file",
    # Two bytes are thin evidence (RFC 1950, section 2.2: CMF and FLG).
    b"x\x01": "this looks like a zlib stream",
    b"x\x5e": "this looks like a zlib stream",
    b"x\x9c": "this looks like a zlib stream",
    b"x\xda": "this looks like a zlib stream",
}
#: POSIX ustar: the magic of a tar header, and where it stands.
_TAR, _TAR_OFFSET = b"ustar", 257


def name_of(source: Source) -> str:
    """Return what a source is, as the start of a sentence; empty if nothing is recognised."""
    if source.peek(_TAR_OFFSET, len(_TAR)) == _TAR:
        return "this is a tar file that is not compressed"
    first = source.peek(0, max(map(len, _NAMES)))
    return next((name for magic, name in _NAMES.items() if first.startswith(magic)), "")
