"""Zstandard with a seek table, against both formats' documents, zstandard and the zstd tool."""

from __future__ import annotations

import io
import random
import struct

import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gpuload.writers.zstd import ZstdWriter

NAMES = ["empty", "one byte", "zeros", "text", "noise", "mixed"]


def decode(file):
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(file), read_across_frames=True)
    return reader.read()


def seek_table(file):
    """Return (stored size, raw size, checksum) of every frame, and the offset of the table."""
    count, descriptor, magic = struct.unpack("<IBI", file[-9:])
    assert magic == 0x8F92EAB1
    assert descriptor == 0x80
    start = len(file) - 9 - 12 * count - 8
    assert struct.unpack_from("<II", file, start) == (0x184D2A5E, 12 * count + 9)
    return list(struct.iter_unpack("<III", file[start + 8 : -9])), start


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk_size", [1024, 100_000, 1 << 20])
def test_seek_table(name, chunk_size, stream, samples):
    data = samples[name]
    file = stream(ZstdWriter(chunk_size), data)
    entries, table = seek_table(file)
    # Nothing at all is one empty frame, so that the file is a Zstandard file.
    assert len(entries) == max(1, -(-len(data) // chunk_size))
    offset = 0
    for number, (stored_size, raw_size, checksum) in enumerate(entries):
        raw = data[number * chunk_size :][:chunk_size]
        frame = file[offset : offset + stored_size]
        parameters = zstandard.get_frame_parameters(frame)
        assert (parameters.content_size, parameters.has_checksum) == (len(raw), True)
        assert zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False) == raw
        assert raw_size == len(raw)
        assert checksum == xxhash.xxh64_intdigest(raw) & 0xFFFFFFFF
        offset += stored_size
    assert offset == table


@pytest.mark.parametrize("level", [None, -131072, -5, 1, 3, 12, 22])
def test_levels(level, stream, samples):
    file = stream(ZstdWriter(level=level), samples["text"])
    assert decode(file) == samples["text"]


def test_high_level_compresses_better(stream):
    words = random.Random(3).choices([b"alpha ", b"beta ", b"gamma ", b"delta ", b"\n"], k=50_000)
    data = b"".join(words)
    sizes = [len(stream(ZstdWriter(level=level), data)) for level in (-50, 1, 19)]
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("name", NAMES)
def test_zstd_tool(name, stream, samples, run_tool):
    file = stream(ZstdWriter(65536), samples[name])
    assert run_tool(["zstd", "-d", "-c"], file) == samples[name]


def test_more_frames_than_a_seek_table_lists():
    writer = ZstdWriter(1024)
    writer.check(1024 * 0x8000000)
    with pytest.raises(ValueError, match="chunk_size of zstd must be at least 1025 bytes"):
        writer.check(1024 * 0x8000000 + 1)


@given(
    parts=st.lists(st.tuples(st.binary(max_size=64), st.integers(1, 2000)), max_size=6),
    chunk_size=st.integers(1024, 200_000),
)
def test_any_data_comes_back(stream, parts, chunk_size):
    data = b"".join(piece * count for piece, count in parts)
    file = stream(ZstdWriter(chunk_size), data)
    assert decode(file) == data
    assert sum(raw_size for _, raw_size, _ in seek_table(file)[0]) == len(data)
