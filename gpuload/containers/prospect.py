"""What the first bytes of a file promise about the rest, before it is listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuload.chunks import Codec
from gpuload.codecs.gzip_header import read_member_header
from gpuload.containers import gzip, lz4, snappy, zstd_frame
from gpuload.containers.lz4_frame import read_header
from gpuload.errors import FormatError, MemoryLimitError, UnsupportedCodecError

if TYPE_CHECKING:
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = ["Prospect", "prospect"]

#: Most decoded bytes of a chunk of Snappy framing (section 4.2) and of a BGZF block.
_CHUNK = 1 << 16
#: Most decoded bytes of a Zstandard frame that is a chunk among many: those of 64 blocks, which is
#: how many scans look at.
_FRAME = 64 * zstd_frame.BLOCK_LIMIT


@dataclass(frozen=True)
class Prospect:
    """A file of many independent chunks, as it seems.

    Attributes
    ----------
    codec : Codec
        Of most chunks.
    chunk_size : int
        Decoded bytes of most chunks.
    raw_size : int or None
        Decoded bytes of the first frame, if it states them.
    serial_checksum : bool
        Whether there is a checksum that covers several chunks.
    on_the_way : bool
        Whether the reader hands over rows while it goes.
    """

    codec: Codec
    chunk_size: int
    raw_size: int | None = None
    serial_checksum: bool = False
    on_the_way: bool = True


def prospect(source: Source, options: Options) -> Prospect | None:
    """Return what a file promises; None if it must be listed first, or is broken."""
    try:
        return _prospect(source, options)
    except (FormatError, MemoryLimitError, UnsupportedCodecError):
        return None


def _prospect(source: Source, options: Options) -> Prospect | None:
    first = source.peek(0, 4)
    if first == lz4.MAGIC:
        frame = read_header(source, 0, options)
        if not frame.independent or options.dictionary is not None:
            return None
        size, serial = frame.content_size, frame.content_checksum
        return Prospect(Codec.LZ4, frame.maximum, size, serial)
    if snappy.is_magic(first):
        return Prospect(Codec.SNAPPY, _CHUNK)
    if first == zstd_frame.MAGIC:
        return _zstd(source, options)
    if gzip.is_magic(first):
        header = read_member_header(source.peek, 0, source.name)
        return Prospect(Codec.DEFLATE, _CHUNK) if header.bgzf_block_size else None
    return None


def _zstd(source: Source, options: Options) -> Prospect | None:
    header = zstd_frame.parse_header(source, 0, source.peek(0, zstd_frame.HEAD_SIZE))
    size = header.content_size or 0
    if not 0 < size <= _FRAME or header.dictionary_id or options.dictionary is not None:
        return None
    return Prospect(Codec.ZSTD, size, on_the_way=False)
