"""Snappy framing, against the framing format's document and cramjam's reader of it."""

from __future__ import annotations

import cramjam
import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.writers.snappy import SnappyWriter

NAMES = ["empty", "one byte", "zeros", "text", "noise", "mixed"]
IDENTIFIER = bytes.fromhex("ff060000734e61507059")


def chunks(file):
    """Return (type, masked checksum, payload) of every chunk behind the identifier."""
    assert file[:10] == IDENTIFIER
    found, at = [], 10
    while at < len(file):
        size = int.from_bytes(file[at + 1 : at + 4], "little")
        body = file[at + 4 : at + 4 + size]
        assert len(body) == size
        found.append((file[at], int.from_bytes(body[:4], "little"), body[4:]))
        at += 4 + size
    return found


def masked(data):
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk_size", [1024, 65536])
def test_chunks(name, chunk_size, stream, samples):
    data = samples[name]
    found = chunks(stream(SnappyWriter(chunk_size), data))
    assert len(found) == -(-len(data) // chunk_size)
    for number, (kind, checksum, payload) in enumerate(found):
        raw = data[number * chunk_size :][:chunk_size]
        assert kind in {0, 1}
        decoded = payload if kind == 1 else bytes(cramjam.snappy.decompress_raw(payload))
        assert decoded == raw
        assert checksum == masked(raw)


def test_known_chunk(stream):
    # CRC-32C of "123456789" is e3069283 (RFC 3720 calls it the check value of Castagnoli's CRC):
    # rotated right by 15 bits 2507c60d, plus a282ead8.
    file = stream(SnappyWriter(), b"123456789")
    assert file == IDENTIFIER + bytes.fromhex("01 0d0000 e5b08ac7") + b"123456789"


def test_empty_input_is_the_identifier(stream):
    assert stream(SnappyWriter(), b"") == IDENTIFIER


def test_noise_is_stored_as_it_is(stream, samples):
    assert {kind for kind, _, _ in chunks(stream(SnappyWriter(), samples["noise"]))} == {1}


@pytest.mark.parametrize(("packed_size", "kind"), [(3583, 0), (3584, 1), (4200, 1)])
def test_an_eighth_must_be_saved(packed_size, kind, monkeypatch, stream):
    monkeypatch.setattr("cramjam.snappy.compress_raw", lambda data: bytes(packed_size))
    assert [found[0] for found in chunks(stream(SnappyWriter(4096), b"x" * 4096))] == [kind]


@pytest.mark.parametrize("name", NAMES)
def test_reference_reader(name, stream, samples):
    assert bytes(cramjam.snappy.decompress(stream(SnappyWriter(), samples[name]))) == samples[name]


@given(
    parts=st.lists(st.tuples(st.binary(max_size=64), st.integers(1, 2000)), max_size=6),
    chunk_size=st.integers(1024, 65536),
)
def test_any_data_comes_back(stream, parts, chunk_size):
    data = b"".join(piece * count for piece, count in parts)
    file = stream(SnappyWriter(chunk_size), data)
    assert bytes(cramjam.snappy.decompress(file)) == data
    assert len(chunks(file)) == -(-len(data) // chunk_size)
