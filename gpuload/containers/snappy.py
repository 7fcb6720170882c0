"""Snappy files: a stream of chunks (Snappy framing format description).

A chunk is a type, a length of three bytes and a body. The body of a data chunk starts with the
masked CRC-32C of its decoded bytes; that of a compressed one goes on with the decoded length, the
preamble of the Snappy format. All of that is read with one call per chunk.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import SPAN_DTYPE, Checksum, Codec, make_table
from gpuload.containers.base import Index
from gpuload.errors import UnsupportedCodecError

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.containers.base import Listener
    from gpuload.errors import FormatError
    from gpuload.options import Options
    from gpuload.sources import Source

    _Column = npt.NDArray[np.int64]

__all__ = ["HEAD_DTYPE", "IDENTIFIER", "index_of", "is_magic", "read", "rows_of"]

#: The chunk that every stream starts with (section 4.1).
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"

# Chunk types (section 4); from _SKIPPABLE on, all but the identifier may be skipped.
_COMPRESSED = 0x00
_UNCOMPRESSED = 0x01
_SKIPPABLE = 0x80
_PADDING = 0xFE
_IDENTIFIER = 0xFF

_HEADER_SIZE = 4
_CHECKSUM_SIZE = 4
_PREAMBLE_SIZE = 5
_DATA_START = _HEADER_SIZE + _CHECKSUM_SIZE
#: What is read of each chunk; the word is the type and, above it, the length.
HEAD_DTYPE = np.dtype([("word", "<u4"), ("checksum", "<u4"), ("preamble", "u1", _PREAMBLE_SIZE)])
_HEAD_SIZE = HEAD_DTYPE.itemsize
_WORD = struct.Struct("<I")
#: Most bytes that a chunk may decode to (sections 4.2 and 4.3).
_MAXIMUM = 65536
#: No data chunk is longer: an element stores at most six bytes for each byte that it decodes to (a
#: literal of one byte with the longest tag; Snappy format description, section 2).
_LONGEST = _CHECKSUM_SIZE + _PREAMBLE_SIZE + 6 * _MAXIMUM


def is_magic(first: bytes) -> bool:
    """Return whether a file with these first bytes starts as a Snappy stream does."""
    return first[:_HEADER_SIZE] == IDENTIFIER[:_HEADER_SIZE]


def read(source: Source, options: Options, listener: Listener | None = None) -> Index:
    """Read the index of a Snappy file, one row per data chunk.

    Parameters
    ----------
    source : Source
        Chunks from the first byte to the last; the first is a stream identifier.
    options : Options
        `strict` is kept in the index.
    listener : Listener, optional
        Is given the rows while they are found.

    Returns
    -------
    Index
        Every row has its exact decoded size and its checksum, still masked. The payload of a
        compressed row begins behind the preamble, which is the row's prefix.

    Raises
    ------
    FormatError
        If a chunk is cut short, decodes to more than 65,536 bytes or has a damaged preamble, or a
        stream identifier is missing or damaged.
    UnsupportedCodecError
        If there is a chunk of a type that must not be skipped (section 4.5).
    """
    walk = _Walk(source, listener)
    walk.run()
    return index_of(
        source,
        options,
        walk.table(0, len(walk.positions)),
        identifiers=walk.identifiers,
        padding_bytes=walk.padding_bytes,
        skipped_chunks=walk.skipped_chunks,
    )


def index_of(
    source: Source,
    options: Options,
    chunks: ChunkTable,
    *,
    identifiers: int = 1,
    padding_bytes: int = 0,
    skipped_chunks: int = 0,
) -> Index:
    """Return the index of a stream from its rows, and how much else there is in it."""
    return Index(
        format="snappy",
        source=source,
        chunks=chunks,
        strict=options.strict,
        details={
            "identifiers": identifiers,
            "padding_bytes": padding_bytes,
            "skipped_chunks": skipped_chunks,
        },
    )


class _Walk:
    """The walk over a stream: where its data chunks stand, and what they start with."""

    def __init__(self, source: Source, listener: Listener | None) -> None:
        self.source = source
        self.listener = listener
        # No objects per chunk: a file can consist of chunks of eight bytes.
        self.positions = array("Q")
        self.heads = bytearray()
        self.identifiers = 0
        self.padding_bytes = 0
        self.skipped_chunks = 0
        self.given = self.looked = 0

    def run(self) -> None:
        """Visit every chunk of the stream."""
        source, end = self.source, self.source.size
        self._check_start(source.peek(0, len(IDENTIFIER)))
        view, start = source.resident(0)
        last, unpack, note = len(view) - _HEAD_SIZE, _WORD.unpack_from, self.positions.append
        position = 0
        while position < end:
            at = position - start
            if 0 <= at <= last:
                head: bytes | memoryview = view[at : at + _HEAD_SIZE]
                (word,) = unpack(head)
            else:
                head = self._look_further(position)
                word = int.from_bytes(head[:_HEADER_SIZE], "little")
                view, start = source.resident(position)
                last = len(view) - _HEAD_SIZE
            following = position + _HEADER_SIZE + (word >> 8)
            if following > end or len(head) < min(_HEAD_SIZE, following - position):
                raise self._no_chunk(position, bytes(head), following)
            if word & 0xFF <= _UNCOMPRESSED:
                note(position)
                # Short only at the end of the file; nothing behind a chunk's end is looked at.
                self.heads += head
            else:
                self._pass_over(position, bytes(head), word >> 8)
            position = following
        self.heads = self.heads.ljust(_HEAD_SIZE * len(self.positions), b"\0")
        self._count_looks(position)
        if self.listener:
            # What ends with the file, at `at`, ends before it.
            self._give_before(position - 1)
            self._give(len(self.positions), done=True)

    def _look_further(self, position: int) -> bytes:
        """Return the start of a chunk that lies outside of the bytes in memory so far."""
        self._count_looks(position)
        self._give_before(position)
        return self.source.peek(position, _HEAD_SIZE)

    def _give_before(self, position: int) -> None:
        """Give the listener what it waits for, before a look that may wait for the listener."""
        while self.listener and position >= self.listener.at:
            self._give(max(self.given, self.looked - 1), done=False)

    def _count_looks(self, position: int) -> None:
        self.source.look(position, len(self.positions) - self.looked)
        self.looked = len(self.positions)

    def _give(self, last: int, *, done: bool) -> None:
        """Give the listener the rows up to `last` (exclusive)."""
        assert self.listener is not None
        chunks, self.given = self.table(self.given, last), last
        self.listener.take(chunks, np.zeros(0, SPAN_DTYPE), done=done)

    def table(self, first: int, last: int) -> ChunkTable:
        """Return the chunk table of some of the data chunks."""
        heads = bytes(memoryview(self.heads)[_HEAD_SIZE * first : _HEAD_SIZE * last])
        return rows_of(self.source, self.positions[first:last], np.frombuffer(heads, HEAD_DTYPE))

    def _no_chunk(self, position: int, head: bytes, following: int) -> FormatError:
        """Return the error for bytes that would be a chunk up to `following`, past the end."""
        if len(self.positions) == 0 or _may_be_chunk(head):
            return _cut_short(self.source, position, len(head), following)
        found = head[:_HEADER_SIZE].hex(" ")
        message = f"bytes behind the last chunk that form no chunk ({found}), or the file is cut"
        return self.source.broken(position, message)

    def _check_start(self, first: bytes) -> None:
        if IDENTIFIER.startswith(first) and first != IDENTIFIER:
            raise self.source.truncated(len(first), len(IDENTIFIER) - len(first))
        if first[0] != _IDENTIFIER:
            message = f"a Snappy stream starts with {IDENTIFIER.hex(' ')}, not {first.hex(' ')}"
            raise self.source.broken(0, message)

    def _pass_over(self, position: int, head: bytes, length: int) -> None:
        """Count the chunk without data at a position."""
        kind = head[0]
        if kind == _IDENTIFIER:
            self._check_identifier(position, head[: _HEADER_SIZE + length])
        elif kind == _PADDING:
            self.padding_bytes += length
        elif kind >= _SKIPPABLE:
            self.skipped_chunks += 1
        else:
            raise UnsupportedCodecError(
                f"a chunk of the reserved type 0x{kind:02x}, which must not be skipped; known are "
                "0x00 (compressed) and 0x01 (uncompressed)",
                source=self.source.name,
                offset=position,
            )

    def _check_identifier(self, position: int, found: bytes) -> None:
        self.identifiers += 1
        if found != IDENTIFIER:
            message = f"damaged stream identifier {found.hex(' ')}; expected {IDENTIFIER.hex(' ')}"
            raise self.source.broken(position, message)


def _may_be_chunk(head: bytes) -> bool:
    """Return whether a chunk can have this type and, if it is there, this length."""
    if not head or head[0] >= _SKIPPABLE:
        return True
    length = int.from_bytes(head[1:_HEADER_SIZE], "little") if len(head) >= _HEADER_SIZE else 0
    return head[0] <= _UNCOMPRESSED and length <= _LONGEST


def rows_of(source: Source, positions: npt.ArrayLike, head: npt.NDArray[np.void]) -> ChunkTable:
    """Return the chunk table of data chunks.

    Parameters
    ----------
    source : Source
        The file.
    positions : array-like of int, shape (n,)
        Where they start.
    head : ndarray of HEAD_DTYPE, shape (n,)
        Their first bytes.

    Raises
    ------
    FormatError
        If one has no decoded length, or too large a one.
    """
    positions = np.asarray(positions, np.int64)
    room = (head["word"] >> 8).astype(np.int64) - _CHECKSUM_SIZE
    compressed = head["word"] & 0xFF == _COMPRESSED
    decoded, used = _read_preambles(head["preamble"])
    raw = np.where(compressed, decoded, room)
    prefix = np.where(compressed, used, 0)
    bad = (prefix > np.minimum(room, _PREAMBLE_SIZE)) | (raw > _MAXIMUM)
    if bad.any():
        row = int(bad.argmax())
        raise source.broken(
            int(positions[row]), _fault(int(room[row]), int(prefix[row]), int(raw[row]))
        )
    return make_table(
        positions + _DATA_START + prefix,
        stored_size=room - prefix,
        raw_size=raw,
        checksum=head["checksum"],
        checksum_kind=Checksum.CRC32C_MASKED,
        prefix_size=prefix,
        codec=np.where(compressed, Codec.SNAPPY, Codec.RAW),
        exact=True,
    )


def _read_preambles(digits: npt.NDArray[np.uint8]) -> tuple[_Column, _Column]:
    """Return the numbers that rows of varint bytes hold, and how many bytes each takes.

    A varint holds seven bits a byte, lowest first, and ends with the first byte below 128 (Snappy
    format description, section 1). One without an end takes more bytes than there are.
    """
    ends = digits < 0x80
    used = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, _PREAMBLE_SIZE + 1)
    places = np.arange(_PREAMBLE_SIZE)
    counted = np.where(places < used[:, np.newaxis], digits & 0x7F, 0).astype(np.int64)
    return (counted << 7 * places).sum(axis=1), used


def _fault(room: int, prefix: int, raw: int) -> str:
    """Return what is wrong with a data chunk that has `room` bytes behind its checksum."""
    if room < 0:
        return f"a data chunk of {room + _CHECKSUM_SIZE} bytes, too short for its checksum of 4"
    if prefix > min(room, _PREAMBLE_SIZE):
        return (
            f"no decoded length: expected a varint of 1 to {_PREAMBLE_SIZE} bytes in the {room} "
            "bytes behind the chunk's checksum"
        )
    return f"a chunk that decodes to {raw} bytes; a chunk holds at most {_MAXIMUM}"


def _cut_short(source: Source, position: int, got: int, following: int) -> FormatError:
    """Return the error for a chunk of which `got` bytes were read and `following` is the end."""
    end = source.size if following > source.size else position + got
    return source.truncated(end, following - end)
