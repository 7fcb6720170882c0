"""DEFLATE streams fed piece by piece, with ISA-L and with zlib."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuload.codecs import inflate
from tests.helpers.payloads import KINDS, deflate, sample

#: More calls than any stream of these tests can need.
MOST_CALLS = 20_000

fuzz = settings(
    deadline=None,
    max_examples=150,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

pytestmark = pytest.mark.usefixtures("inflate_library")


def feed(stored, *, feeds=(1 << 20,), max_length=1 << 20):
    """Decode as callers do; return the bytes, the stream and how much of `stored` was fed."""
    stream, position, out, turn = inflate.new_stream(), 0, bytearray(), 0
    for _ in range(MOST_CALLS):
        data = b""
        if stream.needs_input:
            data = stored[position : position + feeds[turn % len(feeds)]]
            position, turn = position + len(data), turn + 1
            if not data:
                break
        part = stream.decompress(data, max_length=max_length)
        assert len(part) <= max_length
        out += part
        if stream.eof:
            break
    else:
        raise AssertionError("the stream does not end")
    return bytes(out), stream, position


def test_library(inflate_library):
    assert type(inflate.new_stream()).__module__ == inflate_library


def test_new_stream():
    stream = inflate.new_stream()
    assert stream.needs_input
    assert not stream.eof


@pytest.mark.parametrize("level", [0, 1, 6, 9])
@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
@pytest.mark.parametrize("kind", KINDS)
def test_stream_of_zlib(kind, size, level):
    data = sample(kind, size)
    stored = deflate(data, level)
    out, stream, position = feed(stored + b"trailer", feeds=(4096,))
    assert out == data
    assert stream.eof
    assert position - len(stream.unused_data) == len(stored)


@pytest.mark.parametrize("max_length", [1, 7, 4096, 65536])
@pytest.mark.parametrize("feeds", [(1,), (13,), (4096,), (1 << 20,)])
def test_small_feeds_and_answers(feeds, max_length):
    data = sample("text", 9000) + bytes(4000)
    stored = deflate(data)
    out, stream, position = feed(stored + b"trailer", feeds=feeds, max_length=max_length)
    assert out == data
    assert position - len(stream.unused_data) == len(stored)


@pytest.mark.parametrize("fed", [1, 1 << 20])
def test_last_bytes_that_decode_to_many_answers(fed):
    """All of the stream is taken while most of what it decodes to is still to come."""
    for size in range(500, 600):
        out, stream, _ = feed(deflate(bytes(size)), feeds=(fed,), max_length=1)
        assert out == bytes(size)
        assert stream.eof


@fuzz
@given(st.data())
def test_any_feeds_give_the_same(data):
    raw = sample(data.draw(st.sampled_from(KINDS)), data.draw(st.integers(0, 3000)))
    stored = deflate(raw, data.draw(st.integers(0, 9)))
    rest = data.draw(st.binary(max_size=20))
    feeds = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=8))
    out, stream, position = feed(
        stored + rest, feeds=feeds, max_length=data.draw(st.sampled_from([1, 100, 1000, 1 << 20]))
    )
    assert out == raw
    unused = stream.unused_data
    assert position - len(unused) == len(stored)
    assert rest.startswith(unused)


@pytest.mark.parametrize("fed", [1, 100, 1 << 20])
def test_bomb_comes_in_bounded_answers(fed):
    stored = deflate(bytes(30 << 20), 9)
    stream, position, size = inflate.new_stream(), 0, 0
    while not stream.eof:
        data = stored[position : position + fed] if stream.needs_input else b""
        position += len(data)
        part = stream.decompress(data, max_length=1 << 20)
        assert len(part) <= 1 << 20
        size += len(part)
    assert size == 30 << 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("feeds", [(1,), (1 << 20,)])
def test_cut_anywhere_wants_more(kind, feeds):
    data = sample(kind, 150)
    stored = deflate(data)
    for size in range(len(stored)):
        out, stream, _ = feed(stored[:size], feeds=feeds)
        assert not stream.eof
        assert stream.needs_input
        assert data.startswith(out)


def test_cut_stream_gives_what_there_is():
    data = sample("text", 200_000)
    stored = deflate(data)
    out, stream, _ = feed(stored[: len(stored) // 2], feeds=(1000,))
    assert not stream.eof
    assert len(out) > 80_000
    assert data.startswith(out)


@pytest.mark.parametrize(
    "stored",
    [b"\x07\x00\x00\x00", b"\x01\x40\x00\xbf\xfe" + bytes(64), b"\x03\x02\x00\x00\x00\x00\x00\x00"],
    ids=["block type 3", "stored length", "copy before the start"],
)
def test_damage(stored):
    with pytest.raises(inflate.errors()):
        feed(stored)


@fuzz
@given(st.data())
def test_damaged_streams_decode_as_zlib_says_or_not_at_all(data):
    stored = bytearray(deflate(sample(data.draw(st.sampled_from(KINDS)), 300)))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        out, stream, fed = feed(bytes(stored), feeds=(data.draw(st.integers(1, 400)),))
    except inflate.errors():
        return
    reference = zlib.decompressobj(-zlib.MAX_WBITS)
    expected = reference.decompress(bytes(stored))
    assert stream.eof == reference.eof
    if stream.eof:
        assert out == expected
        assert fed - len(stream.unused_data) == len(stored) - len(reference.unused_data)


@fuzz
@given(st.binary(max_size=60), st.integers(1, 60))
def test_noise_ends(stored, fed):
    try:
        feed(stored, feeds=(fed,), max_length=1000)
    except inflate.errors():
        return


def test_streams_do_not_share_anything():
    rng = random.Random(4)
    datas = [sample("text", 5000, seed) for seed in range(5)]
    parts = [[deflate(data)[i : i + 50] for i in range(0, 5000, 50)] for data in datas]
    streams = [inflate.new_stream() for _ in datas]
    outs = [bytearray() for _ in datas]
    for number in rng.choices(range(5), k=2000):
        if parts[number] and not streams[number].eof:
            outs[number] += streams[number].decompress(parts[number].pop(0), max_length=1 << 20)
    assert [bytes(out) for out in outs] == datas
