"""Files whose chunks' headers form a single chain, by their formats."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import make_spans
from gpuload.codecs.gzip_header import TRAILER_SIZE, read_member_header
from gpuload.containers import gzip, lz4, snappy, zstd_frame
from gpuload.containers.chain import Chain
from gpuload.containers.lz4_frame import read_header
from gpuload.containers.zstd_chain import ZstdChain

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable, SpanTable
    from gpuload.containers.base import Index
    from gpuload.options import Options
    from gpuload.sources import Source

    Positions = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint32]

__all__ = ["Chain", "chain_of"]


def chain_of(source: Source, options: Options) -> Chain | None:
    """Return the chain of a file that seems to be nothing else; None for other files.

    Raises
    ------
    FormatError, UnsupportedCodecError
        If its first header is damaged, or asks for what is not there.
    """
    first = source.peek(0, 4)
    if first == lz4.MAGIC:
        return _Lz4Chain(source, options) if options.dictionary is None else None
    if snappy.is_magic(first):
        return _SnappyChain(source, options)
    if first == zstd_frame.MAGIC:
        return ZstdChain(source, options) if options.dictionary is None else None
    return _BgzfChain(source, options) if gzip.is_magic(first) else None


class _Lz4Chain(Chain):
    """One LZ4 frame of independent blocks; a record has the size word, and the word before it."""

    name, head, before, words = "lz4", 4, 4, 2
    _WORDS = struct.Struct("<II")
    _SIZE_MASK = (1 << 31) - 1

    def __init__(self, source: Source, options: Options) -> None:
        super().__init__(source, options)
        self._frame = frame = read_header(source, 0, options)
        if not frame.independent:
            raise self.irregular(0)
        self.first, self.longest, self.summed = frame.body, frame.maximum, frame.block_checksum

    def visit(self, position: int, around: bytes) -> tuple[int, tuple[int, ...]]:
        """See `Chain.visit`."""
        checksum, word = self._WORDS.unpack(around)
        size = word & self._SIZE_MASK
        if not word or size > self.longest:
            raise self.irregular(position)
        return position + 4 + size + 4 * self.summed, (word, checksum)

    def ends(self, position: int, around: bytes) -> bool:
        """See `Chain.ends`: an end mark, and perhaps a checksum."""
        if position + 4 > self.source.size:
            raise self.source.truncated(self.source.size, position + 4 - self.source.size)
        if any(around[self.before :]):
            return False
        if position + 4 + 4 * self._frame.content_checksum != self.source.size:
            raise self.irregular(position)
        return True

    def record_before(self, around: bytes) -> tuple[int, ...]:
        """See `Chain.record_before`."""
        return 0, int.from_bytes(around[:4], "little")

    def rows(self, positions: Positions, words: Words) -> ChunkTable:
        """See `Chain.rows`."""
        sizes = words[:-1, 0].astype(np.uint64)
        checksums = words[1:, 1] if self.summed else np.zeros(sizes.size, np.uint32)
        return lz4.rows_of(
            positions[:-1] + 4,
            sizes,
            checksums,
            maximum=np.uint64(self._frame.maximum),
            summed=self.summed,
        )

    def spans(self, count: int, end: int) -> SpanTable:
        """See `Chain.spans`."""
        span = lz4.span_of(self.source, self._frame, 0, count, end + 4)
        return make_spans([] if span is None else [span])

    def index(self, chunks: ChunkTable, spans: SpanTable, last: int, end: int) -> Index:
        """See `Chain.index`."""
        return lz4.index_of(self.source, self.options, [self._frame], chunks, spans)


class _SnappyChain(Chain):
    """Data chunks behind one identifier; a record has the first 13 bytes of a chunk."""

    name, head, before, words = "snappy", 13, 0, 4
    first = len(snappy.IDENTIFIER)
    #: What compressors are told to have room for, of 65,536 bytes, and a checksum.
    longest = 4 + 32 + 65536 + 65536 // 6
    _WORDS = struct.Struct("<IIIB")

    def __init__(self, source: Source, options: Options) -> None:
        super().__init__(source, options)
        if source.peek(0, self.first) != snappy.IDENTIFIER:
            raise self.irregular(0)

    def visit(self, position: int, around: bytes) -> tuple[int, tuple[int, ...]]:
        """See `Chain.visit`."""
        words = self._WORDS.unpack(around)
        kind, length = words[0] & 0xFF, words[0] >> 8
        if kind > 1 or length < 4:
            raise self.irregular(position)
        return position + 4 + length, words

    def record_before(self, around: bytes) -> tuple[int, ...]:
        """See `Chain.record_before`."""
        return (0,) * self.words

    def rows(self, positions: Positions, words: Words) -> ChunkTable:
        """See `Chain.rows`."""
        heads = np.ascontiguousarray(words[:-1], "<u4").view(np.uint8).reshape(-1, 4 * self.words)
        packed = np.ascontiguousarray(heads[:, : self.head])
        return snappy.rows_of(self.source, positions[:-1], packed.view(snappy.HEAD_DTYPE).ravel())

    def index(self, chunks: ChunkTable, spans: SpanTable, last: int, end: int) -> Index:
        """See `Chain.index`."""
        return snappy.index_of(self.source, self.options, chunks)


class _BgzfChain(Chain):
    """BGZF blocks with the common header; a record has BSIZE, and CRC32 and ISIZE before it."""

    name, head, before, words = "bgzf", gzip.COMMON_SIZE, TRAILER_SIZE, 3
    longest = 1 << 16
    _WORDS = struct.Struct("<II4s6x6sH")

    def __init__(self, source: Source, options: Options) -> None:
        super().__init__(source, options)
        self._header = read_member_header(source.peek, 0, source.name)
        if self._header.bgzf_block_size is None:
            raise self.irregular(0)

    def visit(self, position: int, around: bytes) -> tuple[int, tuple[int, ...]]:
        """See `Chain.visit`."""
        checksum, size, start, extra, last = self._WORDS.unpack(around)
        if start != gzip.COMMON_START or extra != gzip.COMMON_EXTRA or last + 1 < gzip.SMALLEST:
            raise self.irregular(position)
        return position + last + 1, (last, checksum, size)

    def record_before(self, around: bytes) -> tuple[int, ...]:
        """See `Chain.record_before`."""
        return 0, *self._WORDS.unpack(around)[:2]

    def rows(self, positions: Positions, words: Words) -> ChunkTable:
        """See `Chain.rows`."""
        edges = positions.astype(np.uint64)
        return gzip.rows_of(self.source, edges[:-1], edges[1:], words[1:, 1:])

    def index(self, chunks: ChunkTable, spans: SpanTable, last: int, end: int) -> Index:
        """See `Chain.index`."""
        return gzip.index_of(self.source, self.options, self._header, chunks, last, end)
