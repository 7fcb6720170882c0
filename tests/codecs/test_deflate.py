"""Raw DEFLATE streams of known size: blocks by hand after RFC 1951, and zlib's."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.codecs.base import CorruptChunkError
from gpuload.codecs.deflate import decode, decode_checked
from tests.helpers.payloads import KINDS, POISON, deflate, sample


def run(stored, capacity):
    """Decode into a slot between guards and return what it holds."""
    memory = np.full(capacity + 40, POISON, np.uint8)
    try:
        size = decode(np.frombuffer(stored, np.uint8), memory[20 : 20 + capacity])
    finally:
        assert set(memory[:20].tolist() + memory[20 + capacity :].tolist()) == {POISON}
    return memory[20 : 20 + size].tobytes()


def stored_block(data, *, last=True):
    """Section 3.2.4: BFINAL, BTYPE 00, LEN and its complement."""
    size = len(data).to_bytes(2, "little")
    return bytes([last]) + size + bytes(255 - byte for byte in size) + data


class Bits:
    """Section 3.1.1: bits are packed from the lowest of each byte; Huffman codes run backwards."""

    def __init__(self):
        self.bits = []

    def number(self, value, width):
        self.bits += [value >> place & 1 for place in range(width)]
        return self

    def code(self, value, width):
        self.bits += [value >> place & 1 for place in reversed(range(width))]
        return self

    def literal(self, byte):
        """Section 3.2.6, for bytes up to 143."""
        return self.code(0x30 + byte, 8)

    def copy(self, length_symbol, distance_symbol):
        return self.code(length_symbol - 256, 7).code(distance_symbol, 5)

    def end(self):
        return self.code(0, 7)

    def pack(self):
        padded = self.bits + [0] * (-len(self.bits) % 8)
        return bytes(
            sum(bit << place for place, bit in enumerate(padded[start : start + 8]))
            for start in range(0, len(padded), 8)
        )


def fixed_block():
    return Bits().number(1, 1).number(1, 2)


@pytest.mark.parametrize("level", [0, 1, 6, 9])
@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 150_000])
@pytest.mark.parametrize("kind", KINDS)
def test_stream_of_zlib(kind, size, level):
    data = sample(kind, size)
    assert run(deflate(data, level), size) == data


@pytest.mark.parametrize("strategy", [zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE])
def test_every_strategy(strategy):
    data = sample("text", 70_000)
    assert run(deflate(data, 9, strategy), len(data)) == data


def test_stored_blocks():
    blocks = stored_block(b"abc", last=False) + stored_block(b"", last=False) + stored_block(b"de")
    assert run(blocks, 5) == b"abcde"


def test_fixed_block():
    # Symbol 257 is a length of 3 (section 3.2.5), distance symbol 1 a distance of 2.
    block = fixed_block().literal(ord("a")).literal(ord("b")).copy(257, 1).end().pack()
    assert run(block, 5) == b"ababa"


def test_copy_before_the_start():
    block = fixed_block().literal(ord("a")).copy(257, 1).end().pack()
    with pytest.raises(CorruptChunkError):
        run(block, 4)


@pytest.mark.parametrize("distance_symbol", [30, 31])
def test_distance_symbols_that_never_occur(distance_symbol):
    """Section 3.2.6."""
    block = fixed_block().literal(ord("a")).copy(257, distance_symbol).end().pack()
    with pytest.raises(CorruptChunkError):
        run(block, 4)


def test_reserved_block_type():
    with pytest.raises(CorruptChunkError):
        run(Bits().number(1, 1).number(3, 2).number(0, 64).pack(), 4)


def test_length_that_is_not_its_complement():
    block = bytearray(stored_block(b"abc"))
    block[3] ^= 1
    with pytest.raises(CorruptChunkError):
        run(bytes(block), 3)


def test_stream_without_a_last_block():
    with pytest.raises(CorruptChunkError):
        run(stored_block(b"abc", last=False), 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [0, 1, 9])
def test_cut_anywhere(kind, level):
    stored = deflate(sample(kind, 120), level)
    for size in range(len(stored)):
        with pytest.raises(CorruptChunkError):
            run(stored[:size], 120)


def test_empty_stream():
    assert run(b"\x03\x00", 0) == b""
    assert run(b"\x03\x00", 9) == b""
    for cut in (b"", b"\x03"):
        with pytest.raises(CorruptChunkError):
            run(cut, 0)


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_slot_that_is_too_small(size):
    stored = deflate(sample("text", size))
    for capacity in {0, size // 2, size - 1}:
        with pytest.raises(CorruptChunkError, match=f"more than {capacity} bytes"):
            run(stored, capacity)


@pytest.mark.parametrize("more", [1, 1000])
def test_slot_larger_than_the_stream(more):
    data = sample("text", 1000)
    assert run(deflate(data), 1000 + more) == data


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.binary(max_size=60), st.sampled_from([0, 1, 20, 70_000]))
def test_noise(stored, capacity):
    try:
        got = run(stored, capacity)
    except CorruptChunkError:
        return
    assert got == zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored)


def test_damaged_streams_decode_as_zlib_says_or_not_at_all():
    rng = random.Random(3)
    for number in range(1000):
        stored = bytearray(deflate(sample(KINDS[number % 7], 200), number % 10))
        for _ in range(rng.randrange(1, 4)):
            stored[rng.randrange(len(stored))] = rng.randrange(256)
        try:
            got = run(bytes(stored), 300)
        except CorruptChunkError:
            continue
        assert got == zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored)


class TestDecodeChecked:
    """With the CRC-32 at hand, a payload must end where its stream ends."""

    @staticmethod
    def decoded(stored, size, crc):
        slot = np.full(size, 0xCD, np.uint8)
        taken = decode_checked(np.frombuffer(stored, np.uint8), slot, crc)
        return slot[:taken].tobytes()

    @pytest.mark.parametrize("data", [b"", b"a", b"hello" * 9, bytes(70_000)])
    def test_good(self, data):
        assert self.decoded(deflate(data), len(data), zlib.crc32(data)) == data

    @pytest.mark.parametrize("behind", [b"\0", b"junk", deflate(b"hidden")])
    def test_bytes_behind_the_stream(self, behind):
        data = b"hello" * 9
        with pytest.raises(CorruptChunkError, match="bytes follow the end") as caught:
            self.decoded(deflate(data) + behind, len(data), zlib.crc32(data))
        assert not caught.value.checksum

    def test_the_very_trailer_behind_the_stream(self):
        """A block that holds a whole member, its trailer too, and another one after it."""
        data = b"hello" * 9
        trailer = zlib.crc32(data).to_bytes(4, "little") + len(data).to_bytes(4, "little")
        with pytest.raises(CorruptChunkError, match="bytes follow the end"):
            self.decoded(deflate(data) + trailer + b"hidden", len(data), zlib.crc32(data))

    @pytest.mark.parametrize("inside", [b"", b"other"])
    def test_another_member_and_its_trailer_inside(self, inside):
        """Its trailer is right for what it decodes to, which is not what the row says."""
        trailer = zlib.crc32(inside).to_bytes(4, "little") + len(inside).to_bytes(4, "little")
        stored = deflate(inside) + trailer + deflate(b"hello" * 9)
        assert self.decoded(stored, 45, zlib.crc32(b"hello" * 9)) == inside

    def test_a_trailer_in_the_stream(self):
        """Its bytes may also be content."""
        data = bytes(8)
        stored = stored_block(bytes(4) + bytes(4))
        assert self.decoded(stored, 8, zlib.crc32(data)) == data
        data = bytes(range(64))
        trailer = zlib.crc32(data).to_bytes(4, "little") + len(data).to_bytes(4, "little")
        stored = deflate(data)
        assert self.decoded(stored, len(data), zlib.crc32(data)) == data
        assert trailer not in stored

    def test_wrong_checksum(self):
        with pytest.raises(CorruptChunkError, match="CRC-32") as caught:
            self.decoded(deflate(b"hello"), 5, 1)
        assert caught.value.checksum

    def test_shorter_than_stated(self):
        assert self.decoded(deflate(b"hello"), 9, 1) == b"hello"

    def test_longer_than_stated(self):
        with pytest.raises(CorruptChunkError, match="more than 3 bytes"):
            self.decoded(deflate(b"hello"), 3, zlib.crc32(b"hello"))
