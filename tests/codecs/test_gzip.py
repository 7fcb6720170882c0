"""Plain gzip: members one after the other (RFC 1952), with ISA-L and with zlib."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuload.chunks import UNKNOWN, Checksum, Codec, make_table
from gpuload.codecs.base import PIECE, CorruptChunkError
from gpuload.codecs.gzip import GzipDecoder
from gpuload.errors import FormatError, GpuloadError, UnsupportedCodecError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.helpers.payloads import KINDS, deflate, sample

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

pytestmark = pytest.mark.usefixtures("inflate_library")


def member(data, *, header=HEADER, crc=0, size=0, level=6):
    """Return a member; `crc` and `size` are added to the right ones."""
    trailer = (zlib.crc32(data) + crc) % 2**32, (len(data) + size) % 2**32
    return header + deflate(data, level) + b"".join(n.to_bytes(4, "little") for n in trailer)


def decoder(file, start=0, **options):
    row = make_table([start], stored_size=len(file) - start, raw_size=UNKNOWN, codec=Codec.GZIP)
    return GzipDecoder(BytesSource(file, "a.gz"), row, Options(**options))


def decode(file, start=0, **options):
    return b"".join(piece.tobytes() for piece in decoder(file, start, **options).pieces())


def failure(file, **options):
    with pytest.raises((CorruptChunkError, FormatError)) as caught:
        decode(file, **options)
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 5000, PIECE, 3 * PIECE + 1])
@pytest.mark.parametrize("kind", ["text", "noise", "zeros"])
def test_one_member(kind, size):
    data = sample(kind, size)
    assert decode(gzip.compress(data)) == data


def test_several_members():
    datas = [sample(kind, size) for kind in KINDS for size in (0, 1, 100, 70_000, 0)]
    one = decoder(b"".join(member(data, level=i % 10) for i, data in enumerate(datas)))
    assert b"".join(piece.tobytes() for piece in one.pieces()) == b"".join(datas)
    assert one.verified == {Checksum.CRC32: len(datas)}
    assert one.warnings == []


def test_every_header_field():
    header = b"\x1f\x8b\x08\x1e\x00\x00\x00\x00\x00\xff" + b"\x03\x00abc" + b"name\0" + b"words\0"
    header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    assert decode(member(b"abc", header=header) * 2) == b"abcabc"


def test_very_many_tiny_members():
    """What is read ahead of a member is read again for the next: it must be little."""
    data = [b"%d," % number for number in range(20_000)]
    assert decode(b"".join(map(member, data))) == b"".join(data)


def test_row_that_starts_behind_others():
    file = member(b"first") + member(b"second") + member(b"third")
    assert decode(file, len(member(b"first"))) == b"secondthird"


def test_pieces_are_neither_tiny_nor_huge():
    file = member(bytes(20 << 20)) + member(sample("text", 10_000)) * 300
    sizes = [piece.size for piece in decoder(file).pieces()]
    assert sum(sizes) == (20 << 20) + 3_000_000
    assert all(PIECE <= size < 2 * PIECE for size in sizes[:-1])


def test_pieces_come_before_the_end_is_read():
    data = sample("noise", 3 * PIECE)
    first = next(decoder(member(data)[: 2 * PIECE]).pieces())
    assert PIECE <= first.size < 2 * PIECE
    assert data.startswith(first.tobytes())


# What stands behind the last member


@pytest.mark.parametrize("size", [1, 2, 511, 512, 10_240, 700_000])
def test_zero_padding_is_no_news(size):
    one = decoder(member(b"abc") * 2 + bytes(size))
    assert b"".join(piece.tobytes() for piece in one.pieces()) == b"abcabc"
    assert one.warnings == []


@pytest.mark.parametrize("zeros", [0, 1, 300_000])
@pytest.mark.parametrize("garbage", [b"x", b"\x1f", b"\x1f\x8a\x08", b"\x8b\x1f", b"garbage" * 9])
def test_other_bytes_are_noted_where_they_start(garbage, zeros):
    one = decoder(member(b"abc") * 2 + bytes(zeros) + garbage)
    assert b"".join(piece.tobytes() for piece in one.pieces()) == b"abcabc"
    [(message, offset)] = one.warnings
    assert offset == 2 * len(member(b"abc")) + zeros
    assert garbage[:8].hex(" ") in message


def test_member_behind_padding_is_garbage():
    """As for gunzip, which looks for members right behind one another only."""
    one = decoder(member(b"abc") + bytes(3) + member(b"def"))
    assert b"".join(piece.tobytes() for piece in one.pieces()) == b"abc"
    assert one.warnings[0][1] == len(member(b"abc")) + 3


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (b"\x1f\x8b", FormatError),
        (b"\x1f\x8b\x07" + bytes(20), UnsupportedCodecError),
        (b"\x1f\x8b\x08\xe0" + bytes(20), FormatError),
    ],
)
def test_broken_header_of_a_second_member(start, error):
    with pytest.raises(error, match=r"^a\.gz: byte "):
        decode(member(b"abc") + start)


# Trailers


@pytest.mark.parametrize("number", [0, 1, 2])
def test_wrong_crc(number):
    parts = [member(b"abc"), member(b""), member(b"defg" * 500)]
    data = [b"abc", b"", b"defg" * 500]
    parts[number] = member(data[number], crc=1)
    error = failure(b"".join(parts))
    assert error.checksum
    assert error.offset == sum(map(len, parts[: number + 1])) - 8
    right = zlib.crc32(data[number])
    assert f"{right:#010x}" in error.reason
    assert f"{(right + 1) % 2**32:#010x}" in error.reason


@pytest.mark.parametrize("more", [1, -1, 2**16])
def test_wrong_size(more):
    error = failure(member(b"abc") + member(b"defg" * 500, size=more))
    assert error.checksum
    assert error.offset == len(member(b"abc") + member(b"defg" * 500)) - 4
    assert "2000" in error.reason
    assert str((2000 + more) % 2**32) in error.reason


def test_trailers_are_ignored_unless_verified():
    one = decoder(member(b"abc", crc=1) + member(b"def", size=1), verify=False)
    assert b"".join(piece.tobytes() for piece in one.pieces()) == b"abcdef"
    assert not one.verified.total()


# Damage


def test_cut_anywhere():
    first, second = member(sample("text", 300)), member(sample("noise", 100))
    for size in range(1, len(first)):
        assert type(failure(first[:size])) in (CorruptChunkError, FormatError)
    for size in range(len(first) + 2, len(first + second)):
        assert type(failure((first + second)[:size])) in (CorruptChunkError, FormatError)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("missing", range(1, 9))
def test_cut_trailer(missing, verify):
    file = member(b"abc")[:-missing]
    error = failure(file, verify=verify)
    assert isinstance(error, FormatError)
    assert error.offset == len(file)


@pytest.mark.parametrize("size", [30, 5000, 600_000])
def test_cut_stream_is_reported_at_the_end(size):
    file = member(sample("noise", 1 << 20))[:size]
    error = failure(file)
    assert isinstance(error, CorruptChunkError)
    assert error.offset == size
    assert not error.checksum


def test_damaged_stream():
    file = bytearray(member(sample("text", 100_000)))
    file[10_000:10_100] = bytes(100)
    error = failure(bytes(file))
    assert isinstance(error, CorruptChunkError)
    assert 10_000 <= error.offset <= len(file)


def test_what_was_decoded_before_the_damage_is_delivered():
    data = sample("noise", 3 * PIECE)
    got = []
    with pytest.raises(CorruptChunkError):
        got.extend(piece.tobytes() for piece in decoder(member(data)[: 2 * PIECE]).pieces())
    assert sum(map(len, got)) >= PIECE
    assert data.startswith(b"".join(got))


@settings(
    deadline=None,
    max_examples=200,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_damaged_files_decode_as_gzip_says_or_not_at_all(data):
    file = bytearray(member(sample("text", 100)) + member(b"") + member(sample("noise", 30)))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(file)))
        patch = data.draw(st.binary(max_size=4))
        file[place : place + data.draw(st.sampled_from([0, len(patch)]))] = patch
    one = decoder(bytes(file))
    try:
        got = b"".join(piece.tobytes() for piece in one.pieces())
    except (CorruptChunkError, GpuloadError):
        return
    end = one.warnings[0][1] if one.warnings else len(file)
    assert got == gzip.decompress(bytes(file[:end]))
