"""Raw Snappy blocks: elements by hand after the format description, and the reference encoder's."""

from __future__ import annotations

import random

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.codecs.base import CorruptChunkError
from gpuload.codecs.snappy import decode
from tests.helpers.payloads import KINDS, POISON, sample, varint


def run(stored, capacity):
    """Decode into a slot between guards and return what it holds."""
    memory = np.full(capacity + 40, POISON, np.uint8)
    try:
        size = decode(np.frombuffer(stored, np.uint8), memory[20 : 20 + capacity])
    finally:
        assert set(memory[:20].tolist() + memory[20 + capacity :].tolist()) == {POISON}
    return memory[20 : 20 + size].tobytes()


def literal(data, size_bytes=None):
    """Section 2.1: the length minus 1 in the tag, or for more than 60 in 1 to 4 bytes behind it."""
    if len(data) <= 60:
        return bytes([len(data) - 1 << 2]) + data
    size_bytes = size_bytes or (len(data) - 1).bit_length() + 7 >> 3
    return bytes([59 + size_bytes << 2]) + (len(data) - 1).to_bytes(size_bytes, "little") + data


def copy(offset, length, offset_bytes):
    """Section 2.2: copies with offsets of 1, 2 and 4 bytes."""
    if offset_bytes == 1:
        return bytes([offset >> 8 << 5 | length - 4 << 2 | 1, offset & 255])
    tag = length - 1 << 2 | (2 if offset_bytes == 2 else 3)
    return bytes([tag]) + offset.to_bytes(offset_bytes, "little")


def block(size, *elements):
    return varint(size) + b"".join(elements)


@pytest.mark.parametrize("size", [0, 1, 59, 60, 61, 65535, 65536, 65537, 200_000])
@pytest.mark.parametrize("kind", KINDS)
def test_block_of_the_reference_encoder(kind, size):
    data = sample(kind, size)
    assert run(bytes(cramjam.snappy.compress_raw(data)), size) == data


@pytest.mark.parametrize("size", [1, 2, 59, 60, 61, 256, 257, 65536, 65537, 70_000])
def test_literal(size):
    data = sample("noise", size)
    assert run(block(size, literal(data)), size) == data


@pytest.mark.parametrize("size_bytes", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [61, 200])
def test_literal_with_a_longer_length_than_it_needs(size, size_bytes):
    data = sample("noise", size)
    assert run(block(size, literal(data, size_bytes)), size) == data


@pytest.mark.parametrize("length", range(4, 12))
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 255, 256, 2047])
def test_copy_with_offset_of_1_byte(offset, length):
    check_copy(offset, length, 1)


@pytest.mark.parametrize("offset_bytes", [2, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 8, 16, 17, 63, 64])
@pytest.mark.parametrize("offset", [1, 2, 3, 5, 8, 15, 16, 17, 63, 64, 65, 2048, 65535])
def test_copy_with_longer_offset(offset, length, offset_bytes):
    check_copy(offset, length, offset_bytes)


def test_copy_from_farther_than_64_kib():
    check_copy(65536, 64, 4)
    check_copy(150_000, 64, 4)


def check_copy(offset, length, offset_bytes):
    before = sample("noise", offset)
    elements = (literal(before), copy(offset, length, offset_bytes))
    expected = (before * (length + 1))[: offset + length]
    assert run(block(offset + length, *elements), offset + length) == expected


@pytest.mark.parametrize("offset_bytes", [1, 2, 4])
@pytest.mark.parametrize("offset", [0, 4, 5, 300, 2047])
def test_copy_from_nowhere(offset, offset_bytes):
    with pytest.raises(CorruptChunkError):
        run(block(11, literal(b"abc"), copy(offset, 8, offset_bytes)), 11)


def test_first_element_is_a_copy():
    with pytest.raises(CorruptChunkError):
        run(block(8, copy(1, 8, 1)), 8)


@pytest.mark.parametrize("size", [1, 50, 70, 300, 70_000])
def test_literal_that_is_cut_short(size):
    with pytest.raises(CorruptChunkError):
        run(block(size, literal(bytes(size))[:-1]), size)


def test_literal_of_4_gib():
    with pytest.raises(CorruptChunkError):
        run(block(50, b"\xfc\xff\xff\xff\xff", bytes(50)), 50)


@pytest.mark.parametrize("size", [0, 1, 9, 11, 1000, 2**32 - 1])
def test_preamble_that_is_wrong(size):
    """Whether it is the slot's size or not."""
    stored = block(size, literal(b"0123456789"))
    for capacity in {10, 2000, size % 2000}:
        with pytest.raises(CorruptChunkError):
            run(stored, capacity)


@pytest.mark.parametrize(
    "preamble", [b"", b"\x80", b"\xff" * 5, b"\xff" * 10, b"\xff\xff\xff\xff\x7f"]
)
def test_preamble_that_is_none(preamble):
    with pytest.raises(CorruptChunkError):
        run(preamble, 100)


def test_slot_larger_than_the_block():
    assert run(block(3, literal(b"abc")), 100) == b"abc"


def test_slot_smaller_than_the_block():
    with pytest.raises(CorruptChunkError, match="do not decode to 2 bytes"):
        run(block(3, literal(b"abc")), 2)


def test_block_of_no_bytes():
    assert run(b"\0", 0) == b""
    assert run(b"\0", 5) == b""


@pytest.mark.parametrize("kind", KINDS)
def test_cut_anywhere(kind):
    stored = bytes(cramjam.snappy.compress_raw(sample(kind, 150)))
    for size in range(len(stored)):
        with pytest.raises(CorruptChunkError):
            run(stored[:size], 150)


def test_bytes_behind_the_last_element():
    stored = bytes(cramjam.snappy.compress_raw(sample("text", 150)))
    for more in (b"\0", b"\x00x", copy(1, 4, 1)):
        with pytest.raises(CorruptChunkError):
            run(stored + more, 150)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.binary(max_size=60), st.sampled_from([0, 1, 20, 70_000]))
def test_noise(stored, capacity):
    try:
        assert len(run(stored, capacity)) <= capacity
    except CorruptChunkError:
        return


def test_damage():
    rng = random.Random(3)
    for number in range(1000):
        stored = bytearray(cramjam.snappy.compress_raw(sample(KINDS[number % 7], 200)))
        for _ in range(rng.randrange(1, 4)):
            stored[rng.randrange(len(stored))] = rng.randrange(256)
        try:
            assert len(run(bytes(stored), 200)) <= 200
        except CorruptChunkError:
            continue
