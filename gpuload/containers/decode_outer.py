"""Decode chunks on the host whose decoded size nobody tells: inner steps of a chain follow."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from gpuload.codecs import lz4
from gpuload.codecs.base import Bytes, CorruptChunkError
from gpuload.containers import blosc, gzip_chunks, zstd_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuload.options import Options

__all__ = ["decode_outer"]

_SIZE_FIELD = 4
_BLOSC_SIZE = 4


def decode_outer(name: str, chunk: Bytes, limit: int, options: Options) -> Bytes:
    """Return what a chunk decodes to.

    Parameters
    ----------
    name : str
        The codec, as of `gpuload.array_codecs.Compression`; not "crc32c".
    chunk : ndarray of uint8
        The stored bytes.
    limit : int
        Most bytes that it may decode to.
    options : Options
        `verify`, `window_limit` and `dictionary` matter.

    Raises
    ------
    CorruptChunkError
        If it is damaged, or decodes to more.
    """
    decoders: dict[str, Callable[[Bytes, int, Options], Bytes]] = {
        "gzip": gzip_chunks.decode_chunk,
        "zstd": zstd_chunks.decode_chunk,
        "zlib": lambda chunk, limit, _: _inflate(chunk, limit, zlib.MAX_WBITS),
        "deflate": lambda chunk, limit, _: _inflate(chunk, limit, -zlib.MAX_WBITS),
        "lz4": lambda chunk, limit, _: _lz4(chunk, limit),
        "blosc": _blosc,
    }
    return decoders[name](chunk, limit, options)


def _inflate(chunk: Bytes, limit: int, bits: int) -> Bytes:
    stream = zlib.decompressobj(bits)
    try:
        decoded = stream.decompress(chunk, limit + 1)
    except zlib.error as error:
        raise CorruptChunkError(f"the DEFLATE stream does not decode ({error})") from None
    if len(decoded) > limit:
        raise CorruptChunkError(f"the DEFLATE stream decodes to more than {limit} bytes")
    if not stream.eof or stream.unused_data:
        where = "before" if stream.eof else "behind"
        raise CorruptChunkError(f"the DEFLATE stream ends {where} the end of the chunk")
    return np.frombuffer(decoded, np.uint8)


def _told_size(chunk: Bytes, at: int, limit: int) -> int:
    if chunk.size < at + _SIZE_FIELD:
        raise CorruptChunkError(f"the chunk ends after {chunk.size} bytes, in its header")
    size = int.from_bytes(chunk[at : at + _SIZE_FIELD].tobytes(), "little")
    if size > limit:
        raise CorruptChunkError(f"its header tells of {size} decoded bytes, expected are {limit}")
    return size


def _lz4(chunk: Bytes, limit: int) -> Bytes:
    decoded = np.empty(_told_size(chunk, 0, limit), np.uint8)
    size = lz4.decoder(None, strict=True)(chunk[_SIZE_FIELD:], decoded)
    if size != decoded.size:
        raise CorruptChunkError(
            f"the LZ4 block decodes to {size} bytes, the size in front of it is {decoded.size}"
        )
    return decoded


def _blosc(chunk: Bytes, limit: int, options: Options) -> Bytes:
    return blosc.decode_chunk(chunk, _told_size(chunk, _BLOSC_SIZE, limit), options)
