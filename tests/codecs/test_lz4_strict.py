"""The search for matches with offset 0, against a slow reading of the block format."""

from __future__ import annotations

import tracemalloc

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.codecs.lz4_strict import has_zero_offset
from tests.helpers.lz4_blocks import InvalidBlockError, Sequence, decode, sequences, write
from tests.helpers.payloads import KINDS, sample

slow = settings(deadline=None, max_examples=400, derandomize=True)

#: Bytes that mean something to a reader of sequences, wherever they stand.
telling = st.sampled_from([0, 0, 0, 1, 15, 16, 240, 241, 254, 255, 255])
lengths = st.one_of(
    st.integers(0, 20), st.sampled_from([14, 15, 16, 269, 270, 271, 524, 525, 526, 1000])
)


@st.composite
def literals(draw):
    size = draw(lengths)
    filler = bytes(draw(st.lists(telling, min_size=1, max_size=12)))
    return (filler * size)[:size]


matches = st.builds(
    Sequence,
    literals(),
    st.sampled_from([0, 0, 1, 2, 3, 255, 256, 512]),
    st.builds(lambda length: length + 4, lengths),
)


def check(block, decoded):
    expected = any(sequence.offset == 0 for sequence in sequences(block))
    found = has_zero_offset(np.frombuffer(block, np.uint8), np.frombuffer(decoded, np.uint8))
    assert found == expected
    return found


@slow
@given(st.lists(matches, max_size=6), literals())
def test_every_block_by_hand(parts, tail):
    block = write(*parts, Sequence(tail))
    assert sequences(block) == [*parts, Sequence(tail)], "the oracle reads what was written"
    try:
        decoded = decode(block, 1 << 20, bytes(range(256)) * 3, zero_offset=True)
    except InvalidBlockError:
        return  # an offset beyond the history: no decoder takes it
    check(block, decoded)


@slow
@given(st.binary(max_size=60))
def test_noise_that_the_library_takes(block):
    try:
        decoded = lz4.block.decompress(block, uncompressed_size=5000)
    except lz4.block.LZ4BlockError:
        return
    check(block, decoded)


@slow
@given(st.data())
def test_damaged_blocks_that_the_library_takes(data):
    raw = sample(data.draw(st.sampled_from(KINDS)), 300)
    block = bytearray(lz4.block.compress(raw, store_size=False))
    for _ in range(data.draw(st.integers(1, 3))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(telling)
    try:
        decoded = lz4.block.decompress(bytes(block), uncompressed_size=2000)
    except lz4.block.LZ4BlockError:
        return
    check(bytes(block), decoded)


@slow
@given(st.lists(st.one_of(st.binary(max_size=40), literals()), max_size=30))
def test_real_blocks_are_never_refused(parts):
    raw = b"".join(parts) * 2
    for settings_ in ({}, {"mode": "high_compression", "compression": 9}):
        assert not check(lz4.block.compress(raw, store_size=False, **settings_), raw)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 1000, 65536, 200_000])
def test_real_blocks_of_every_kind_are_never_refused(kind, size):
    raw = sample(kind, size)
    assert not check(lz4.block.compress(raw, store_size=False), raw)


def test_real_block_full_of_small_numbers():
    """Integers of 8 bytes: zeros everywhere, among them many that look like offsets."""
    raw = (np.arange(20_000, dtype="<u8") % 300).tobytes()
    assert not check(lz4.block.compress(raw, store_size=False), raw)


@pytest.mark.parametrize("place", [0, 1, 500, 999])
def test_one_among_a_thousand(place):
    parts = [Sequence(b"\0\0\0\0", 4, 9) for _ in range(1000)]
    parts[place] = Sequence(b"\0\0\0\0", 0, 9)
    block = write(*parts, Sequence(b"-tail"))
    assert check(block, decode(block, 1 << 20, zero_offset=True))


@pytest.mark.parametrize("run", [0, 1, 2, 5000])
def test_zeros_in_literals_are_no_offset(run):
    block = write(Sequence(b"a" * 300 + bytes(run), 1, 300), Sequence(bytes(run)))
    assert not check(block, decode(block, 1 << 20))


def test_lengths_of_many_bytes():
    """Runs of 255 are read through once, however many sequences seem to start in them."""
    block = write(Sequence(b"\xff" * 300_000, 1, 300_000), Sequence(b"", 0, 50), Sequence(b"-tail"))
    assert check(block, decode(block, 1 << 20, zero_offset=True))


def test_memory_of_a_block():
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (100_000, 10), np.uint8)
    raw[:, 6:] = 0
    stored = np.frombuffer(lz4.block.compress(raw.tobytes(), store_size=False), np.uint8)
    tracemalloc.start()
    try:
        assert not has_zero_offset(stored, raw.reshape(-1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * stored.size
