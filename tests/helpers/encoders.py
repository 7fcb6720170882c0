"""Reference encoders: parts of a content in, a file out whose chunks are about those parts."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import cramjam
import lz4.block
import lz4.frame
import zstandard

from tests.helpers.handmade import (
    BGZF_EOF,
    SNAPPY_IDENTIFIER,
    bgzf_block,
    lz4_legacy,
    skippable,
    snappy_data,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ENCODERS"]


def _lz4_blocks(parts: list[bytes], **options) -> bytes:
    with lz4.frame.LZ4FrameCompressor(auto_flush=True, block_size=4, **options) as encoder:
        return b"".join([encoder.begin(), *map(encoder.compress, parts), encoder.flush()])


def _lz4_independent(parts: list[bytes]) -> bytes:
    return _lz4_blocks(parts, block_linked=False, block_checksum=True)


def _lz4_linked(parts: list[bytes]) -> bytes:
    return _lz4_blocks(parts, block_linked=True, content_checksum=True)


def _lz4_unchecked(parts: list[bytes]) -> bytes:
    return _lz4_blocks(parts, block_linked=False)


def _lz4_frames(parts: list[bytes]) -> bytes:
    return b"".join(
        lz4.frame.compress(part, content_checksum=True, block_linked=number % 4 > 0)
        for number, part in enumerate(parts)
    )


def _lz4_legacy(parts: list[bytes]) -> bytes:
    return lz4_legacy(*(lz4.block.compress(part, store_size=False) for part in parts))


def _zstd_frames(parts: list[bytes]) -> bytes:
    return b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(p) for p in parts)


def _zstd_sizeless(parts: list[bytes]) -> bytes:
    encoder = zstandard.ZstdCompressor(write_content_size=False)
    return skippable(b"first").join([b"", *map(encoder.compress, parts)])


def _zstd_blocks(parts: list[bytes]) -> bytes:
    encoder = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    blocks = [encoder.compress(part) + encoder.flush(flush) for part in parts]
    return b"".join([*blocks, encoder.flush()])


def _gzip_members(parts: list[bytes]) -> bytes:
    return b"".join(gzip.compress(part, compresslevel=1 + len(part) % 9) for part in parts)


def _bgzf(parts: list[bytes]) -> bytes:
    return b"".join(map(bgzf_block, _cut(parts, 65_000))) + BGZF_EOF


def _snappy(parts: list[bytes]) -> bytes:
    # The encoder makes nothing at all of nothing, where the format asks for an identifier.
    return SNAPPY_IDENTIFIER + b"".join(bytes(cramjam.snappy.compress(part)) for part in parts)


def _snappy_chunks(parts: list[bytes]) -> bytes:
    def chunk(part: bytes) -> bytes:
        # Without its preamble, which is one to three bytes long here and ends below 128.
        packed = bytes(cramjam.snappy.compress_raw(part))
        start = next(at for at, byte in enumerate(packed) if byte < 0x80) + 1
        return snappy_data(part, elements=packed[start:])

    return SNAPPY_IDENTIFIER + b"".join(map(chunk, _cut(parts, 65_536)))


def _cut(parts: list[bytes], size: int) -> list[bytes]:
    return [part[at : at + size] for part in parts for at in range(0, max(1, len(part)), size)]


ENCODERS: dict[str, Callable[[list[bytes]], bytes]] = {
    "lz4 independent blocks": _lz4_independent,
    "lz4 linked blocks": _lz4_linked,
    "lz4 blocks without checksums": _lz4_unchecked,
    "lz4 frames": _lz4_frames,
    "lz4 legacy": _lz4_legacy,
    "zstd frames": _zstd_frames,
    "zstd frames without sizes": _zstd_sizeless,
    "zstd blocks": _zstd_blocks,
    "gzip members": _gzip_members,
    "bgzf": _bgzf,
    "snappy": _snappy,
    "snappy chunks": _snappy_chunks,
}
