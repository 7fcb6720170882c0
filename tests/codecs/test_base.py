"""What host decoders have in common."""

from __future__ import annotations

import tracemalloc
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.chunks import Checksum, Codec
from gpuload.codecs import decoders, libraries, stream_decoder
from gpuload.codecs.base import PIECE, CorruptChunkError, check, gather
from gpuload.codecs.gzip import GzipDecoder
from gpuload.codecs.lz4 import ChainDecoder
from gpuload.codecs.zstd import FrameDecoder
from gpuload.errors import UnsupportedCodecError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.helpers.payloads import encode, lay_out


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3 * PIECE // 2), max_size=12))
def test_gather_keeps_the_bytes_and_makes_pieces_of_some_size(sizes):
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    pieces = [piece.tobytes() for piece in gather(parts)]
    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) >= PIECE for piece in pieces[:-1])
    assert all(pieces)


def test_gather_does_not_wait_for_more_than_a_piece():
    def parts():
        yield bytes(PIECE)
        raise RuntimeError("one more part was asked for")

    assert next(gather(parts())).size == PIECE


def test_gather_forgets_empty_parts():
    tracemalloc.start()
    try:
        assert sum(piece.size for piece in gather(repeat(b"", 200_000))) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_check():
    # "123456789" is what CRC catalogues give check values for.
    data = np.frombuffer(b"123456789", np.uint8)
    check(Checksum.CRC32, data, 0xCBF43926)
    with pytest.raises(CorruptChunkError) as caught:
        check(Checksum.CRC32, data, 0xCBF43927)
    assert caught.value.checksum
    assert "CRC-32 of the content is 0xcbf43926, the file says 0xcbf43927" in caught.value.reason


@pytest.mark.parametrize("vouched", [True, False])
def test_every_codec_that_decodes_into_slots_has_a_decoder(vouched):
    table = decoders(Options(), vouched=vouched)
    assert set(table) == set(Codec) - {Codec.GZIP}


def test_codecs_that_the_host_does_not_decode():
    reason = "the host has no decoder for GDeflate: only nvCOMP decodes it"
    decode = decoders(Options(), vouched=True)[Codec.GDEFLATE]
    with pytest.raises(CorruptChunkError) as caught:
        decode(np.zeros(3, np.uint8), np.zeros(3, np.uint8))
    assert caught.value.reason == reason
    rows = lay_out([encode(Codec.GDEFLATE, b"abc")] * 2).rows
    with pytest.raises(UnsupportedCodecError, match=rf"^a.gd: byte {rows['offset'][0]}: {reason}$"):
        stream_decoder(BytesSource(b"", "a.gd"), rows, Options(), vouched=True)


def test_raw_payload_larger_than_its_slot():
    copy = decoders(Options(), vouched=True)[Codec.RAW]
    with pytest.raises(CorruptChunkError, match="3 stored bytes do not fit 2"):
        copy(np.zeros(3, np.uint8), np.zeros(2, np.uint8))


@pytest.mark.parametrize(
    ("codec", "kind"),
    [
        (Codec.GZIP, GzipDecoder),
        (Codec.ZSTD, FrameDecoder),
        (Codec.LZ4, ChainDecoder),
        (Codec.RAW, ChainDecoder),
    ],
)
def test_stream_decoder_of_a_row(codec, kind):
    rows = lay_out([encode(Codec.RAW, b"abc")]).rows
    rows["codec"] = codec
    assert type(stream_decoder(BytesSource(b""), rows, Options(), vouched=True)) is kind


def test_libraries_are_installed():
    assert all(version for _, library, version, _ in libraries() if library != "isal")
