"""Plain gzip on the host: members one after the other, whose ends only decoding finds.

Sizes and checksums are those of RFC 1952, section 2.3.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload import checksums
from gpuload.chunks import Checksum
from gpuload.codecs import inflate
from gpuload.codecs.base import (
    PIECE,
    Bytes,
    CorruptChunkError,
    StreamDecoder,
    gather,
    mismatch,
)
from gpuload.codecs.gzip_header import MAGIC, TRAILER_SIZE, read_member_header, skip_zeros

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["GzipDecoder"]

#: Stored bytes fed at a time. Few at first: what is left over where a member ends is thrown away,
#: and a file may be made of very many tiny members.
_FIRST_FEED = 4 << 10
_FEED = 256 << 10


class GzipDecoder(StreamDecoder):
    """The members of one row, which reaches to the end of the file."""

    def pieces(self) -> Iterator[Bytes]:
        """See `StreamDecoder.pieces`."""
        return gather(self._members())

    def _members(self) -> Iterator[bytes]:
        start = int(self.rows["offset"][0])
        end = start + int(self.rows["stored_size"][0])
        more = True
        while more:
            header = read_member_header(self.source.peek, start, self.source.name)
            start = yield from self._member(start + header.size, end)
            more = self._another(start, end)

    def _member(self, start: int, end: int) -> Generator[bytes, None, int]:
        """Yield what a member decodes to; return the offset behind its trailer."""
        crc32, crc, size = checksums.crc32(), 0, 0
        parts = self._inflate(start, end)
        while True:
            try:
                part = next(parts)
            except StopIteration as stop:
                trailer: int = stop.value
                break
            crc = crc32(part, crc) if self.options.verify else 0
            size += len(part)
            yield part
        self._check_trailer(trailer, crc, size)
        return trailer + TRAILER_SIZE

    def _inflate(self, position: int, end: int) -> Generator[bytes, None, int]:
        """Yield the parts of a DEFLATE stream; return the offset behind it."""
        stream, feed, data = inflate.new_stream(), _FIRST_FEED, b""
        while not stream.eof:
            if stream.needs_input:
                data = self.source.peek(position, min(feed, end - position))
                if not data:
                    raise CorruptChunkError("the file ends inside this DEFLATE stream", offset=end)
                self.position = position = position + len(data)
                feed = min(_FEED, 2 * feed)
            try:
                yield stream.decompress(data, max_length=PIECE)
            except inflate.errors() as error:
                raise CorruptChunkError(
                    f"the DEFLATE stream is damaged before here ({error})", offset=position
                ) from None
            data = b""
        return position - len(stream.unused_data)

    def _check_trailer(self, offset: int, crc: int, size: int) -> None:
        trailer = self.source.peek_exact(offset, TRAILER_SIZE)
        if not self.options.verify:
            return
        stored_crc, stored_size = (int.from_bytes(trailer[i : i + 4], "little") for i in (0, 4))
        if crc != stored_crc:
            message = mismatch(Checksum.CRC32, stored_crc, crc)
            raise CorruptChunkError(message, offset=offset, checksum=True)
        if size % 2**32 != stored_size:
            message = (
                f"the member decodes to {size} bytes, its trailer says {stored_size} (modulo 2^32)"
            )
            raise CorruptChunkError(message, offset=offset + 4, checksum=True)
        self.verified[Checksum.CRC32] += 1

    def _another(self, offset: int, end: int) -> bool:
        """Return whether another member starts at `offset`; note what else is there."""
        if offset >= end:
            return False
        if self.source.peek(offset, 2) == MAGIC:
            return True
        behind = skip_zeros(self.source.peek, offset)
        if behind < end:
            found = self.source.peek(behind, 8).hex(" ")
            message = f"bytes after the last gzip member that are no gzip member ({found})"
            self.warnings.append((message, behind))
        return False
