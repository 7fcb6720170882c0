"""Reader of gzip files (RFC 1952) and of BGZF (SAM specification, section 4.1).

A BGZF file is a gzip file whose members, called blocks, say how long they are, so that each becomes
a row. Where a plain gzip member ends only decoding finds: such a file is one row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.chunks import SPAN_DTYPE, Checksum, ChunkTable, Codec, make_table, place
from gpuload.codecs.gzip_header import (
    MAGIC,
    TRAILER_SIZE,
    MemberHeader,
    read_member_header,
    skip_zeros,
)
from gpuload.containers.base import Index

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.containers.base import Listener
    from gpuload.errors import FormatError
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = [
    "COMMON_EXTRA",
    "COMMON_SIZE",
    "COMMON_START",
    "SMALLEST",
    "index_of",
    "is_magic",
    "read",
    "rows_of",
]

#: Most decoded bytes per byte of DEFLATE: a match yields 258 bytes at most and takes two bits at
#: least, one for its length code and one for its distance code (RFC 1951, section 3.2.5).
_EXPANSION = 258 * 8 // 2
#: Most decoded bytes of a row: a server may state any size, and tables hold 64 bits.
_LARGEST = 1 << 62
#: Fewest bytes of a DEFLATE stream: 3 bits of block header and a 7-bit end-of-block code.
_DEFLATE_MINIMUM = 2
#: Most decoded bytes of a BGZF block.
_BLOCK_LIMIT = 1 << 16
#: Header of a block with BC alone: MTIME, XFL and OS stand at [4:10], BSIZE at [16:18].
COMMON_SIZE = 18
#: Fewest bytes of a block with such a header.
SMALLEST = COMMON_SIZE + _DEFLATE_MINIMUM + TRAILER_SIZE
_JOINT_SIZE = TRAILER_SIZE + COMMON_SIZE
COMMON_START = b"\x1f\x8b\x08\x04"
COMMON_EXTRA = b"\x06\x00BC\x02\x00"
#: Ends a BGZF file that was written completely.
_EOF_BLOCK = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
_SERIAL = "one serial DEFLATE stream: where members end is only found by decoding"


def is_magic(first: bytes) -> bool:
    """Return whether a file with these first bytes is gzip."""
    return first[:2] == MAGIC


def read(source: Source, options: Options, listener: Listener | None = None) -> Index:
    """Read the index of a gzip or BGZF file.

    Parameters
    ----------
    source : Source
        The file.
    options : Options
        `strict` matters here.
    listener : Listener, optional
        Is given the rows of a BGZF file while they are found.

    Returns
    -------
    Index
        BGZF: one DEFLATE row per block, with its size and CRC-32. Plain gzip: one GZIP row with
        the whole file, whose `raw_size` is the most that it can decode to.

    Raises
    ------
    FormatError
        If a header is broken or cut short, or a BGZF block contradicts itself.
    UnsupportedCodecError
        If a header names a compression method other than DEFLATE.
    """
    header = read_member_header(source.peek, 0, source.name)
    if header.bgzf_block_size is None:
        chunks = _serial_row(source, 0)
        details = _describe(header)
        return Index("gzip", source, chunks, serial=_SERIAL, strict=options.strict, details=details)
    return _read_bgzf(source, options, header, listener)


def _describe(header: MemberHeader) -> dict[str, Any]:
    return {
        "name": header.name,
        "comment": header.comment,
        "mtime": header.mtime,
        "os": header.os,
        "subfields": [identifier.decode("latin-1") for identifier, _ in header.subfields],
    }


def _serial_row(source: Source, offset: int) -> ChunkTable:
    # ISIZE is no help: it is modulo 2^32, and of the last member alone (section 2.3.1).
    size = source.size - offset
    most = min(size * _EXPANSION, _LARGEST)
    return make_table([offset], stored_size=size, raw_size=most, codec=Codec.GZIP)


@dataclass
class _Blocks:
    """BGZF blocks that follow one another, as the walk finds them."""

    starts: list[int] = field(default_factory=list)
    trailers: list[bytes] = field(default_factory=list)
    #: Header sizes of the rows whose header is not the common one.
    header_sizes: dict[int, int] = field(default_factory=dict)
    end: int = 0
    given: int = 0
    looked: int = 0

    def count_looks(self, source: Source, offset: int) -> None:
        """Say how many blocks were found up to an offset."""
        source.look(offset, len(self.starts) - self.looked)
        self.looked = len(self.starts)

    def give(self, source: Source, listener: Listener, last: int, *, done: bool) -> None:
        """Give a listener the rows up to `last` (exclusive)."""
        rows = _block_rows(source, self, self.given, last)
        self.given = last
        listener.take(rows, np.zeros(0, SPAN_DTYPE), done=done)

    def give_before(self, source: Source, listener: Listener, position: int, last: int) -> None:
        """Give a listener what it waits for, before a look that may wait for the listener."""
        while position >= listener.at:
            self.give(source, listener, max(self.given, last), done=False)


def _read_bgzf(
    source: Source, options: Options, header: MemberHeader, listener: Listener | None
) -> Index:
    blocks = _walk(source, listener)
    count = len(blocks.starts)
    if listener:
        blocks.give_before(source, listener, min(blocks.end, source.size - 1), count)
        # Members without a known end are nothing that it could be given.
        done = not is_magic(source.peek(blocks.end, 2))
        blocks.give(source, listener, count, done=done)
    chunks = _block_rows(source, blocks, 0, count)
    return index_of(source, options, header, chunks, blocks.starts[-1], blocks.end)


def index_of(
    source: Source, options: Options, header: MemberHeader, chunks: ChunkTable, last: int, end: int
) -> Index:
    """Return the index of a BGZF file from its rows, and of what follows them.

    Parameters
    ----------
    source, options : Source, Options
        See `read`.
    header : MemberHeader
        Of the first block.
    chunks : ChunkTable
        A row for each block.
    last, end : int
        Where the last block starts and ends.
    """
    details = _describe(header) | {"blocks": chunks.size}
    index = Index("bgzf", source, chunks, strict=options.strict, details=details)
    details["eof_block"] = source.peek(last, len(_EOF_BLOCK)) == _EOF_BLOCK
    if is_magic(source.peek(end, 2)):
        _append_plain_members(index, end)
    else:
        _check_end(index, end)
    return index


def _walk(source: Source, listener: Listener | None) -> _Blocks:
    blocks = _Blocks()
    starts, trailers = blocks.starts, blocks.trailers
    start, head = 0, source.peek(0, COMMON_SIZE)
    view, first = source.resident(0)
    last = len(view) - _JOINT_SIZE
    while True:
        header_size = COMMON_SIZE
        if head[:4] == COMMON_START and head[10:16] == COMMON_EXTRA and len(head) == header_size:
            size = 1 + head[16] + (head[17] << 8)
        else:
            if listener and head:
                blocks.end = start
                blocks.give_before(source, listener, start + len(head) - 1, len(starts))
            header_size, size = _uncommon_header(source, start, head)
            if not size:
                break
            blocks.header_sizes[len(starts)] = header_size
        if size < header_size + _DEFLATE_MINIMUM + TRAILER_SIZE:
            raise _too_small(source, start, size, header_size)
        end = start + size
        # The trailer of a block and the header of the next stand together.
        at = end - TRAILER_SIZE - first
        if 0 <= at <= last:
            joint = bytes(view[at : at + _JOINT_SIZE])
        else:
            joint = _look_further(source, listener, blocks, end - TRAILER_SIZE)
            view, first = source.resident(end - TRAILER_SIZE)
            last = len(view) - _JOINT_SIZE
        if len(joint) < TRAILER_SIZE:
            raise _cut(source, start, size, end - TRAILER_SIZE + len(joint))
        starts.append(start)
        trailers.append(joint[:TRAILER_SIZE])
        start, head = end, joint[TRAILER_SIZE:]
    blocks.end = start
    blocks.count_looks(source, start)
    return blocks


def _look_further(source: Source, listener: Listener | None, blocks: _Blocks, offset: int) -> bytes:
    """Return what joins two blocks where it lies outside of the bytes in memory so far."""
    blocks.count_looks(source, offset)
    if listener:
        blocks.give_before(source, listener, offset, len(blocks.starts) - 1)
    return source.peek(offset, _JOINT_SIZE)


def _uncommon_header(source: Source, offset: int, head: bytes) -> tuple[int, int]:
    """Return the sizes of the header and of the block at `offset`; a size of 0 is no block."""
    if not is_magic(head):
        return 0, 0
    header = read_member_header(source.peek, offset, source.name)
    return header.size, header.bgzf_block_size or 0


def _too_small(source: Source, start: int, size: int, header_size: int) -> FormatError:
    framing = header_size + TRAILER_SIZE
    return source.broken(
        start,
        f"BSIZE gives this BGZF block {size} bytes; its header and trailer alone take {framing} "
        f"and DEFLATE data at least {_DEFLATE_MINIMUM}",
    )


def _cut(source: Source, start: int, size: int, end: int) -> FormatError:
    return source.broken(
        min(end, source.size),
        f"the file ends inside the BGZF block at byte {start}, which takes {size} bytes (BSIZE)",
    )


def _block_rows(source: Source, blocks: _Blocks, first: int, last: int) -> ChunkTable:
    starts = np.array(blocks.starts[first:last], np.uint64)
    ends = np.array([*blocks.starts[first + 1 : last + 1], blocks.end][: starts.size], np.uint64)
    header_sizes = np.full(starts.size, COMMON_SIZE, np.uint64)
    for row, size in blocks.header_sizes.items():
        if first <= row < last:
            header_sizes[row - first] = size
    trailers = np.frombuffer(b"".join(blocks.trailers[first:last]), "<u4").reshape(-1, 2)
    return rows_of(source, starts, ends, trailers, header_sizes)


def rows_of(
    source: Source,
    starts: npt.NDArray[np.uint64],
    ends: npt.NDArray[np.uint64],
    trailers: npt.NDArray[np.uint32],
    header_sizes: npt.ArrayLike = COMMON_SIZE,
) -> ChunkTable:
    """Return the chunk table of BGZF blocks.

    Parameters
    ----------
    source : Source
        The file.
    starts, ends : ndarray of uint64, shape (n,)
        Where they start and end.
    trailers : ndarray of uint32, shape (n, 2)
        Their CRC32 and ISIZE.
    header_sizes : array-like of int, shape (n,) or scalar
        Bytes of their headers.

    Raises
    ------
    FormatError
        If one has more decoded bytes than it can hold.
    """
    checksum, raw_size = trailers.T
    offset = starts + np.asarray(header_sizes, np.uint64)
    chunks = make_table(
        offset,
        stored_size=ends - np.uint64(TRAILER_SIZE) - offset,
        raw_size=raw_size,
        checksum=checksum,
        checksum_kind=Checksum.CRC32,
        codec=Codec.DEFLATE,
        exact=True,
    )
    _check_raw_sizes(source, chunks)
    return chunks


def _check_raw_sizes(source: Source, chunks: ChunkTable) -> None:
    most = np.minimum(chunks["stored_size"] * np.uint64(_EXPANSION), np.uint64(_BLOCK_LIMIT))
    excessive = np.flatnonzero(chunks["raw_size"] > most)
    if excessive.size:
        row = chunks[excessive[0]]
        raise source.broken(
            int(row["offset"] + row["stored_size"]) + 4,
            f"ISIZE is {row['raw_size']}, but {row['stored_size']} bytes of DEFLATE in a BGZF "
            f"block hold at most {most[excessive[0]]}",
        )


def _append_plain_members(index: Index, offset: int) -> None:
    # The walk stopped at a member without BC: gunzip decodes on, and so does the streaming decoder.
    index.chunks = np.concatenate([index.chunks, _serial_row(index.source, offset)])
    place(index.chunks)
    index.serial = f"from byte {offset} on {_SERIAL}"


def _check_end(index: Index, offset: int) -> None:
    if not index.details["eof_block"]:
        missing = "the end-of-file block of BGZF is missing"
        index.warn(missing, offset, outcome="the file may be cut short")
    garbage = skip_zeros(index.source.peek, offset)
    if garbage < index.source.size:
        rest = index.source.size - garbage
        index.warn(f"{rest} bytes after the last BGZF block are no gzip member", garbage)
