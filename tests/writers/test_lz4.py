"""LZ4 frames, against the frame specification, python-lz4 and the lz4 tool."""

from __future__ import annotations

import struct

import lz4.block
import lz4.frame
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gpuload.writers.lz4 import Lz4Writer

NAMES = ["empty", "one byte", "zeros", "text", "noise", "mixed"]


def blocks(frame):
    """Return (is stored, payload, checksum) of every block, and what follows the end mark."""
    at, found = 15, []
    while word := int.from_bytes(frame[at : at + 4], "little"):
        size = word & 0x7FFFFFFF
        payload = frame[at + 4 : at + 4 + size]
        check = int.from_bytes(frame[at + 4 + size : at + 8 + size], "little")
        found.append((bool(word >> 31), payload, check))
        at += 8 + size
    return found, frame[at + 4 :]


@pytest.mark.parametrize(
    ("chunk_size", "code"), [(65536, 4), (262144, 5), (1048576, 6), (4194304, 7)]
)
def test_header(chunk_size, code):
    header = Lz4Writer(chunk_size).header(0x0102030405)
    assert header[:4] == bytes.fromhex("04224d18")
    # Version 01, independent blocks, block checksum, content size, content checksum.
    assert header[4] == 0b01111100
    assert header[5] == code << 4
    assert header[6:14] == bytes.fromhex("0504030201000000")
    assert header[14] == xxhash.xxh32_intdigest(header[4:14]) >> 8 & 0xFF
    assert len(header) == 15


def test_empty_input_is_an_empty_frame(stream):
    frame = stream(Lz4Writer(), b"")
    # The hash of nothing (xxHash specification, seed 0) is 02cc5d05.
    assert frame[15:] == bytes.fromhex("00000000 055dcc02")


@pytest.mark.parametrize("name", NAMES)
def test_blocks(name, stream, samples):
    data = samples[name]
    found, rest = blocks(stream(Lz4Writer(), data))
    assert len(found) == -(-len(data) // 65536)
    for number, (stored, payload, check) in enumerate(found):
        raw = data[number * 65536 :][:65536]
        decoded = payload if stored else lz4.block.decompress(payload, len(raw))
        assert decoded == raw
        assert check == xxhash.xxh32_intdigest(payload)
        assert stored == (len(payload) == len(raw))
    assert rest == struct.pack("<I", xxhash.xxh32_intdigest(data))


def test_noise_is_stored_as_it_is(stream, samples):
    found, _ = blocks(stream(Lz4Writer(), samples["noise"]))
    assert [stored for stored, _, _ in found] == [True] * 5


@pytest.mark.parametrize("level", [None, 1, 2, 3, 9, 12])
def test_levels(level, stream, samples):
    frame = stream(Lz4Writer(level=level), samples["text"])
    assert lz4.frame.decompress(frame) == samples["text"]


def test_high_level_compresses_better(stream, samples):
    sizes = [len(stream(Lz4Writer(level=level), samples["text"])) for level in (1, 3, 12)]
    assert sizes[0] > sizes[1] >= sizes[2]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk_size", [65536, 262144])
def test_lz4_tool(name, chunk_size, stream, samples, run_tool):
    frame = stream(Lz4Writer(chunk_size), samples[name])
    assert run_tool(["lz4", "-d", "-c"], frame) == samples[name]


def test_frame_info(stream, samples):
    info = lz4.frame.get_frame_info(stream(Lz4Writer(1 << 20), samples["text"]))
    assert info["content_size"] == len(samples["text"])
    assert info["block_size"] == 1 << 20
    assert info["block_checksum"]
    assert info["content_checksum"]
    assert not info["block_linked"]


@given(
    parts=st.lists(st.tuples(st.binary(max_size=64), st.integers(1, 4000)), max_size=6),
    level=st.sampled_from([None, 3, 9]),
)
def test_any_data_comes_back(stream, parts, level):
    data = b"".join(piece * count for piece, count in parts)
    assert lz4.frame.decompress(stream(Lz4Writer(level=level), data)) == data
