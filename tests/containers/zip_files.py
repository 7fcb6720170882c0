"""Zip files byte by byte, as APPNOTE.TXT has them (sections 4.3.7, 4.3.12, 4.3.16, 4.4)."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

__all__ = ["Entry", "zip_file"]


@dataclass
class Entry:
    """A member; fields that are None are what they should be."""

    name: bytes
    data: bytes = b""
    method: int = 0
    flags: int = 0
    stored: bytes | None = None
    crc: int | None = None
    stored_size: int | None = None
    raw_size: int | None = None
    header_offset: int | None = None
    local_name: bytes | None = None
    local_extra: bytes = b""
    local_magic: bytes = b"PK\x03\x04"
    local_method: int | None = None
    local_flags: int | None = None
    local_sizes: tuple[int, int] | None = None
    extra: bytes = b""
    descriptor: bytes = b""
    needed: int = 20

    @property
    def payload(self) -> bytes:
        if self.stored is not None:
            return self.stored
        if self.method != 8:
            return self.data
        encoder = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        return encoder.compress(self.data) + encoder.flush()

    @property
    def sizes(self) -> tuple[int, int, int]:
        """CRC-32, stored size and raw size, as the directory is to have them."""
        crc = zlib.crc32(self.data) if self.crc is None else self.crc
        stored = len(self.payload) if self.stored_size is None else self.stored_size
        return crc, stored, len(self.data) if self.raw_size is None else self.raw_size

    def local(self) -> bytes:
        name = self.name if self.local_name is None else self.local_name
        crc, *sizes = (0, 0, 0) if self.descriptor else self.sizes
        header = struct.pack(
            "<4sHHHHHIIIHH",
            self.local_magic,
            self.needed,
            self.flags if self.local_flags is None else self.local_flags,
            self.method if self.local_method is None else self.local_method,
            0,
            33,
            crc,
            *(sizes if self.local_sizes is None else self.local_sizes),
            len(name),
            len(self.local_extra),
        )
        return header + name + self.local_extra + self.payload + self.descriptor

    def central(self, offset: int) -> bytes:
        offset = offset if self.header_offset is None else self.header_offset
        head = struct.pack(
            "<4sHHHHHHIIIHHHHHII",
            b"PK\x01\x02",
            20,
            self.needed,
            self.flags,
            self.method,
            0,
            33,
            *self.sizes,
            len(self.name),
            len(self.extra),
            0,
            0,
            0,
            0,
            offset,
        )
        return head + self.name + self.extra


def zip_file(*entries: Entry, prefix: bytes = b"", comment: bytes = b"") -> bytes:
    """Return a zip file; the offsets in it do not count the prefix."""
    body, directory = b"", b""
    for entry in entries:
        directory += entry.central(len(body))
        body += entry.local()
    end = struct.pack(
        "<4sHHHHIIH",
        b"PK\x05\x06",
        0,
        0,
        len(entries),
        len(entries),
        len(directory),
        len(body),
        len(comment),
    )
    return prefix + body + directory + end + comment
