"""Host decoders and their registry. No CUDA.

Each codec has the library that measured fastest among the well-kept ones; libraries are imported
when a file needs them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn

from gpuload.chunks import Codec
from gpuload.codecs import blosc, deflate, gzip, lz4, snappy, zstd
from gpuload.codecs.base import Bytes, CorruptChunkError, Decoder, StreamDecoder
from gpuload.errors import UnsupportedCodecError

if TYPE_CHECKING:
    from gpuload.chunks import ChunkTable
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = ["MISSING", "CorruptChunkError", "decoders", "libraries", "stream_decoder"]

#: Codecs that the host has no decoder for, and what to say where it is asked for one.
MISSING = {Codec.GDEFLATE: "the host has no decoder for GDeflate: only nvCOMP decodes it"}

#: (what, distribution, what gpuload takes it for)
_LIBRARIES = [
    ("LZ4 blocks", "cramjam", "decode"),
    ("LZ4 linked blocks", "lz4", "decode with history; compress"),
    ("Snappy", "cramjam", "decode, compress"),
    ("DEFLATE, BGZF", "deflate", "decode, compress (libdeflate)"),
    ("gzip streams", "isal", "decode (ISA-L; zlib without it)"),
    ("Zstandard", "zstandard", "decode, compress"),
    ("Blosc", "numcodecs", "decode"),
    ("xxHash", "xxhash", "checksums of LZ4 and Zstandard"),
    ("CRC-32C", "google-crc32c", "checksums of Snappy"),
]


def decoders(options: Options, *, vouched: bool) -> dict[int, Decoder]:
    """Return the decoder of every codec whose payloads decode into a slot.

    Those of `MISSING` fail every payload, and say why.

    Parameters
    ----------
    options : Options
        `dictionary` and `verify`.
    vouched : bool
        Whether checksums cover everything that is decoded; if not, LZ4 blocks are also checked
        for the fault that their library lets pass.
    """
    return {
        Codec.RAW: _copy,
        Codec.LZ4: lz4.decoder(options.dictionary, strict=not vouched),
        Codec.SNAPPY: snappy.decode,
        Codec.DEFLATE: deflate.decode,
        Codec.ZSTD: zstd.decoder(options.dictionary, verify=bool(options.verify)),
        Codec.BLOSC: blosc.decode,
        **{codec: partial(_fail, reason) for codec, reason in MISSING.items()},
    }


def stream_decoder(
    source: Source, rows: ChunkTable, options: Options, *, vouched: bool
) -> StreamDecoder:
    """Return the decoder of rows that are decoded piece by piece: a chain, or one long row.

    Raises
    ------
    UnsupportedCodecError
        If their codec is one of `MISSING`.
    """
    codec, offset = Codec(rows["codec"][0]), int(rows["offset"][0])
    if codec in MISSING:
        raise UnsupportedCodecError(MISSING[codec], source=source.name, offset=offset)
    kinds: dict[Codec, type[StreamDecoder]] = {
        Codec.GZIP: gzip.GzipDecoder,
        Codec.ZSTD: zstd.FrameDecoder,
    }
    kind = kinds.get(codec, lz4.ChainDecoder)
    return kind(source, rows, options, vouched=vouched)


def libraries() -> list[tuple[str, str, str | None, str]]:
    """Return (what, library, version or None, what it is taken for) for each host codec."""
    return [(what, name, _version(name), purpose) for what, name, purpose in _LIBRARIES]


def _version(distribution: str) -> str | None:
    # Slow to import, and only ``gpuload doctor`` asks.
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _fail(reason: str, _stored: Bytes, _slot: Bytes) -> NoReturn:
    raise CorruptChunkError(reason)


def _copy(stored: Bytes, slot: Bytes) -> int:
    if stored.size > slot.size:
        raise CorruptChunkError(f"{stored.size} stored bytes do not fit {slot.size} decoded ones")
    slot[: stored.size] = stored
    return stored.size
