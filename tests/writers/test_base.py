"""Parameters that all writers check."""

from __future__ import annotations

import pytest

from gpuload.writers import WRITERS, make_writer


@pytest.mark.parametrize(
    ("codec", "chunk_size", "level"),
    [("lz4", 65536, 1), ("gzip", 65280, 6), ("zstd", 1048576, 3), ("snappy", 65536, None)],
)
def test_defaults(codec, chunk_size, level):
    writer = make_writer(codec)
    assert (writer.codec, writer.chunk_size, writer.level) == (codec, chunk_size, level)


def test_unknown_codec_lists_the_known_ones():
    with pytest.raises(ValueError, match="one of lz4, gzip, zstd, snappy, not 'brotli'"):
        make_writer("brotli")


@pytest.mark.parametrize(
    ("codec", "chunk_size", "allowed"),
    [
        ("lz4", 65535, "one of 65536, 262144, 1048576, 4194304 bytes, not 65535"),
        ("lz4", 0, "one of 65536"),
        ("gzip", 65281, "1024 to 65280 bytes, not 65281"),
        ("gzip", 1023, "1024 to 65280"),
        ("zstd", 1023, "1024 to 1073741824"),
        ("zstd", (1 << 30) + 1, "1024 to 1073741824"),
        ("snappy", 65537, "1024 to 65536"),
        ("snappy", -1, "1024 to 65536"),
        ("snappy", 2048.5, "1024 to 65536"),
    ],
)
def test_chunk_size_out_of_range(codec, chunk_size, allowed):
    with pytest.raises(ValueError, match=f"chunk_size of {codec} must be {allowed}"):
        make_writer(codec, chunk_size)


@pytest.mark.parametrize(
    ("codec", "level", "allowed"),
    [
        ("lz4", 0, "1 to 12, not 0"),
        ("lz4", 13, "1 to 12, not 13"),
        ("gzip", -1, "0 to 12"),
        ("gzip", 13, "0 to 12"),
        ("zstd", 23, "-131072 to 22"),
        ("zstd", -131073, "-131072 to 22"),
        ("snappy", 1, "left out"),
        ("snappy", 0, "left out"),
    ],
)
def test_level_out_of_range(codec, level, allowed):
    with pytest.raises(ValueError, match=f"level of {codec} must be {allowed}"):
        make_writer(codec, level=level)


@pytest.mark.parametrize("codec", WRITERS)
def test_chunk_count(codec):
    writer = make_writer(codec)
    size = writer.chunk_size
    counts = [writer.chunk_count(raw) for raw in (0, 1, size, size + 1)]
    assert counts == [0, 1, 1, 2]
