"""BGZF, against the SAM specification, Python's gzip, and the gzip and bgzip tools."""

from __future__ import annotations

import gzip
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.writers.bgzf import BgzfWriter

NAMES = ["empty", "one byte", "zeros", "text", "noise", "mixed"]

#: SAM specification, section 4.1.2.
END_OF_FILE = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def blocks(file):
    """Return the blocks of a file, as the BSIZE fields chain them."""
    found, at = [], 0
    while at < len(file):
        assert file[at : at + 4] == bytes.fromhex("1f8b0804")
        assert file[at + 10 : at + 16] == bytes.fromhex("0600 4243 0200")
        size = int.from_bytes(file[at + 16 : at + 18], "little") + 1
        found.append(file[at : at + size])
        at += size
    assert at == len(file)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk_size", [1024, 65280])
def test_blocks(name, chunk_size, stream, samples):
    data = samples[name]
    *found, last = blocks(stream(BgzfWriter(chunk_size), data))
    assert last == END_OF_FILE
    assert len(found) == -(-len(data) // chunk_size)
    for number, block in enumerate(found):
        raw = data[number * chunk_size :][:chunk_size]
        assert len(block) <= 65536
        assert zlib.decompress(block[18:-8], wbits=-15) == raw
        assert block[-8:] == struct.pack("<II", zlib.crc32(raw), len(raw))


def test_empty_input_is_the_end_block(stream):
    assert stream(BgzfWriter(), b"") == END_OF_FILE


@pytest.mark.parametrize("level", [0, 1, 6, 9, 12])
def test_noise_fits_at_every_level(level, stream, samples):
    found = blocks(stream(BgzfWriter(level=level), samples["noise"]))
    # 18 bytes of header, 8 of footer, and 5 of a stored block (RFC 1951, section 3.2.4).
    assert max(map(len, found)) == 65280 + 31


def test_a_compressor_that_expands_is_not_used(monkeypatch, stream, samples):
    monkeypatch.setattr("deflate.deflate_compress", lambda data, level: bytes(len(data) + 300))
    file = stream(BgzfWriter(), samples["mixed"])
    assert gzip.decompress(file) == samples["mixed"]
    assert max(map(len, blocks(file))) == 65280 + 31


@pytest.mark.parametrize("level", [None, 0, 1, 6, 12])
def test_levels(level, stream, samples):
    file = stream(BgzfWriter(level=level), samples["text"])
    assert gzip.decompress(file) == samples["text"]


def test_high_level_compresses_better(stream, samples):
    sizes = [len(stream(BgzfWriter(level=level), samples["text"])) for level in (0, 1, 12)]
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tool", ["gzip", "bgzip"])
def test_tools(name, tool, stream, samples, run_tool):
    file = stream(BgzfWriter(), samples[name])
    assert run_tool([tool, "-d", "-c"], file) == samples[name]


@given(
    parts=st.lists(st.tuples(st.binary(max_size=64), st.integers(1, 2000)), max_size=6),
    chunk_size=st.integers(1024, 65280),
)
def test_any_data_comes_back(stream, parts, chunk_size):
    data = b"".join(piece * count for piece, count in parts)
    file = stream(BgzfWriter(chunk_size, level=1), data)
    assert gzip.decompress(file) == data
    assert len(blocks(file)) == -(-len(data) // chunk_size) + 1
