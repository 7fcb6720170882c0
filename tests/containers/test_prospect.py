"""What the first bytes of files promise."""

from __future__ import annotations

import gzip

import lz4.frame
import pytest
import zstandard

from gpuload.chunks import Codec
from gpuload.containers.prospect import Prospect, prospect
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.helpers.handmade import (
    DICT_ID,
    INDEPENDENT,
    SNAPPY_IDENTIFIER,
    V1,
    bgzf_block,
    lz4_frame,
    lz4_header,
    lz4_legacy,
    skippable,
    snappy_data,
    subfield,
    zstd_frame,
)

KIB = 1 << 10


def promised(data, **options):
    return prospect(BytesSource(data), Options(**options))


@pytest.mark.parametrize(("code", "size"), [(4, 64), (5, 256), (6, 1024), (7, 4096)])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_lz4(code, size, stored, checksum):
    data = lz4.frame.compress(
        bytes(9999),
        block_size=code,
        block_linked=False,
        store_size=stored,
        content_checksum=checksum,
    )
    found = promised(data)
    assert found.codec == Codec.LZ4
    # The encoder takes no larger blocks than it needs for content whose size it knows.
    assert found.chunk_size <= size * KIB
    assert found.raw_size == (9999 if stored else None)
    assert found.serial_checksum == checksum


def test_lz4_block_maximum():
    """LZ4 frame format, "BD byte": codes 4 to 7."""
    for code, size in ((4, 64 * KIB), (5, 256 * KIB), (6, 1024 * KIB), (7, 4096 * KIB)):
        assert promised(lz4_frame(limits=code << 4)).chunk_size == size


def test_snappy():
    assert promised(SNAPPY_IDENTIFIER + snappy_data(b"abc")) == Prospect(Codec.SNAPPY, 64 * KIB)


@pytest.mark.parametrize("size", [1, 300, 64 * KIB, 8 << 20])
def test_zstd(size):
    """Frames of up to 64 blocks of 128 KiB, of which the first says how large they are."""
    data = zstandard.ZstdCompressor().compress(bytes(size))
    assert promised(data) == Prospect(Codec.ZSTD, size, on_the_way=False)


def test_bgzf():
    assert promised(bgzf_block(b"abc")) == Prospect(Codec.DEFLATE, 64 * KIB)
    other = bgzf_block(b"abc", before=subfield(b"XX", b"12"))
    assert promised(other) == Prospect(Codec.DEFLATE, 64 * KIB)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x04",
        b"\x04\x22\x4d\x18",
        b"\x1f\x8b",
        b"\x1f\x8b\x08\x04",
        SNAPPY_IDENTIFIER[:3],
        b"no such format",
        gzip.compress(b"abc"),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"abc"),
        zstandard.ZstdCompressor().compress(b""),
        zstandard.ZstdCompressor().compress(bytes((8 << 20) + 1)),
        zstandard.ZstdCompressor().compress(b"abc")[:5],
        skippable(b"abc") + zstandard.ZstdCompressor().compress(b"abc"),
        zstd_frame((0, 3, b"abc"), size=3, dictionary=7),
        zstd_frame((0, 3, b"abc"), size=1 << 40, window=0x50),
        lz4.frame.compress(bytes(200_000), block_linked=True, block_size=4),
        lz4_legacy(b"\x30abc"),
        skippable(b"abc") + lz4_frame(),
        lz4_header(V1 | INDEPENDENT)[:-1] + b"\0",
        lz4_header(0x80 | INDEPENDENT),
        lz4_frame(flags=V1 | INDEPENDENT | DICT_ID, dictionary=7),
    ],
)
def test_nothing(data):
    """Of what must be listed first, is broken, or is no file."""
    assert promised(data) is None


def test_a_dictionary():
    assert promised(lz4_frame()) is not None
    assert promised(lz4_frame(), dictionary=b"words") is None
    frame = zstandard.ZstdCompressor().compress(b"abc")
    assert promised(frame) is not None
    assert promised(frame, dictionary=b"words") is None


def test_broken_sources():
    """What the system says is not for us to hide."""

    class Broken(BytesSource):
        def peek(self, offset, size):
            raise OSError(5, "the disk is broken")

    with pytest.raises(OSError, match="broken"):
        prospect(Broken(lz4_frame()), Options())
