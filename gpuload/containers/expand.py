"""Turn the stored chunks of an array into rows of the chunk table.

What a chunk consists of only its bytes tell: the header of a gzip member, the streams of a Blosc
chunk. Chunks are looked at many at a time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.chunks import Checksum, Codec
from gpuload.codecs.base import CorruptChunkError
from gpuload.codecs.refuse import refuse, words_at
from gpuload.containers.blosc import expand_blosc
from gpuload.containers.chunk_bytes import ChunkBytes, Expanded, Integers, Shuffled, rows_of
from gpuload.containers.decode_outer import decode_outer
from gpuload.containers.gzip_chunks import expand_gzip
from gpuload.containers.wrapped import lz4_rows, zlib_rows
from gpuload.containers.zstd_chunks import expand_zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuload.array_codecs import Compression
    from gpuload.chunks import ChunkTable
    from gpuload.codecs.base import Bytes
    from gpuload.options import Options

__all__ = ["Expanded", "Shuffled", "expand"]

_CRC32C, _CRC32C_SIZE = "crc32c", 4
#: No compressor makes more of the bytes that are left than these: a multiple of them, and some.
_OUTER_RATIO, _OUTER_MORE = 2, 64 << 10


def expand(
    compression: Sequence[Compression],
    stored: Bytes,
    starts: Integers,
    sizes: Integers,
    slots: Integers,
    raw_sizes: Integers,
    options: Options,
    *,
    streams: bool,
    checksums: Integers | None = None,
) -> Expanded:
    """Return the rows that chunks consist of.

    Parameters
    ----------
    compression : sequence of Compression
        The steps of decoding. All but the last are done here, on the host.
    stored : ndarray of uint8
        Holds the stored bytes of n chunks.
    starts, sizes : ndarray of int64, shape (n,)
        Where each is.
    slots : ndarray of int64, shape (n,)
        Where each decodes to in the intermediate.
    raw_sizes : ndarray of int64, shape (n,)
        Bytes that each decodes to.
    options : Options
        `verify`, `window_limit` and `dictionary` matter.
    streams : bool
        Whether Blosc chunks become a row for each stream, which leaves to unshuffle them to the
        caller; otherwise they are rows of `Codec.BLOSC`, which the host decodes.
    checksums : ndarray of int64, shape (n,), optional
        CRC-32 of the decoded chunks, or -1; of "deflate", or of no compression.

    Raises
    ------
    CorruptChunkError
        If the framing of a chunk is damaged, or has another size than the array; `row` is its
        number.
    """
    chunks = ChunkBytes(stored, starts, sizes, slots, raw_sizes, options)
    names = [step.name for step in compression]
    while names and (names[0] == _CRC32C or len(names) > 1):
        name = names.pop(0)
        chunks = _without_crc32c(chunks) if name == _CRC32C else _decoded(chunks, name)
    expanders: dict[str, Callable[[ChunkBytes], Expanded]] = {
        "": _each(_raw_rows),
        "deflate": _each(partial(rows_of, codec=Codec.DEFLATE)),
        "gzip": expand_gzip,
        "zlib": _each(zlib_rows),
        "zstd": expand_zstd,
        "lz4": _each(lz4_rows),
        "blosc": partial(expand_blosc, streams=streams),
    }
    expanded = expanders["".join(names)](chunks)
    if checksums is not None and names in ([], ["deflate"]):
        known = checksums >= 0
        expanded.rows["checksum_kind"][known] = Checksum.CRC32
        expanded.rows["checksum"][known] = checksums[known]
    return expanded


def _each(rows: Callable[[ChunkBytes], ChunkTable]) -> Callable[[ChunkBytes], Expanded]:
    """Return the expander of chunks that are a row each, as they lie."""

    def expander(chunks: ChunkBytes) -> Expanded:
        found: Any = rows_of if not chunks.count else rows
        return Expanded(found(chunks), chunks.stored)

    return expander


def _raw_rows(chunks: ChunkBytes) -> ChunkTable:
    reason = "{size} stored bytes that nothing compresses, the array asks for {expected}"
    sizes, expected = chunks.sizes, chunks.raw_sizes
    refuse({reason: sizes != expected}, size=sizes, expected=expected)
    return rows_of(chunks, codec=Codec.RAW)


def _without_crc32c(chunks: ChunkBytes) -> ChunkBytes:
    """Return chunks without the CRC-32C at their end, after it was compared."""
    reason = "{size} bytes, a CRC-32C has 4"
    refuse({reason: chunks.sizes < _CRC32C_SIZE}, size=chunks.sizes)
    inner = ChunkBytes(
        chunks.stored,
        chunks.starts,
        chunks.sizes - _CRC32C_SIZE,
        chunks.slots,
        chunks.raw_sizes,
        chunks.options,
    )
    if chunks.options.verify and chunks.count:
        _check_crc32c(inner)
    return inner


def _check_crc32c(chunks: ChunkBytes) -> None:
    import google_crc32c

    told = words_at(chunks.stored, chunks.starts + chunks.sizes).tolist()
    for number, expected in enumerate(told):
        data = chunks.one(number)
        found = google_crc32c.value(data) if data.size else 0
        if found != expected:
            reason = (
                f"CRC-32C of the stored bytes is {found:#010x}, the chunk says {expected:#010x}"
            )
            raise CorruptChunkError(reason, row=number, checksum=True)


def _decoded(chunks: ChunkBytes, name: str) -> ChunkBytes:
    """Return chunks after an outer step of decoding, in a buffer of their own."""
    decoded = []
    for number, raw_size in enumerate(chunks.raw_sizes.tolist()):
        limit = _OUTER_RATIO * raw_size + _OUTER_MORE
        try:
            decoded.append(decode_outer(name, chunks.one(number), limit, chunks.options))
        except CorruptChunkError as error:
            error.row = number
            raise
    sizes = np.array([data.size for data in decoded], np.int64)
    stored = np.concatenate(decoded) if decoded else np.zeros(0, np.uint8)
    starts = np.cumsum(sizes) - sizes
    return ChunkBytes(stored, starts, sizes, chunks.slots, chunks.raw_sizes, chunks.options)
