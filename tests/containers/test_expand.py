"""Stored chunks of arrays as rows of the chunk table."""

from __future__ import annotations

import gzip
import hashlib
import random
import zlib

import google_crc32c
import lz4.block
import numpy as np
import pytest
import zstandard

from gpuload.array_codecs import Compression
from gpuload.chunks import Checksum, Codec
from gpuload.codecs.base import CorruptChunkError
from gpuload.containers.expand import expand
from gpuload.options import Options
from tests.conftest import corpus_entries, corpus_folder
from tests.helpers.expanding import attempt, decoded, expanded

RAWS = [bytes(0), b"a", b"some text " * 500, random.Random(4).randbytes(3000), bytes(70_000)]
#: Few chunks are looked at one by one, many together.
COUNTS = pytest.mark.parametrize("count", [1, 8])
#: A skippable frame (RFC 8878, section 3.1.2).
SKIPPABLE = bytes.fromhex("5c2a4d18 03000000") + b"any"


def crc32c(data):
    return google_crc32c.value(data).to_bytes(4, "little") if data else bytes(4)


def raw_deflate(data):
    encoder = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return encoder.compress(data) + encoder.flush()


def frame(data, **settings):
    return zstandard.ZstdCompressor(**settings).compress(data)


def sized_lz4(data):
    return len(data).to_bytes(4, "little") + lz4.block.compress(data, store_size=False)


ENCODERS = {
    "deflate": raw_deflate,
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zstd": frame,
    "lz4": sized_lz4,
}


def round_trip(names, raws, chunks, **more):
    for streams in (False, True):
        assert decoded(names, chunks, list(map(len, raws)), streams=streams, **more) == raws


def reason_of(names, chunk, raw_size, count=1, **options):
    """Return why the last of some chunks is refused; the others are good."""
    names = [names] if isinstance(names, str) else names
    good = b"good" * 40
    packed = good
    for name in reversed(names):
        packed = packed + crc32c(packed) if name == "crc32c" else ENCODERS[name](packed)
    chunks, sizes = [packed] * (count - 1) + [chunk], [len(good)] * (count - 1) + [raw_size]
    with pytest.raises(CorruptChunkError) as caught:
        decoded(names, chunks, sizes, streams=False, **options)
    assert caught.value.row == count - 1
    return caught.value.reason


@pytest.mark.parametrize("name", ENCODERS)
@COUNTS
def test_round_trips(name, count):
    raws = RAWS * count
    round_trip(name, raws, [ENCODERS[name](raw) for raw in raws])


def test_nothing_to_expand():
    none, empty = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    for name in (*ENCODERS, "blosc", "crc32c"):
        step = (Compression(name),)
        for steps in (step, step * 2):
            found = expand(steps, empty, none, none, none, none, Options(), streams=True)
            assert found.rows.size == found.shuffled.start.size == 0


# --- As they are ----------------------------------------------------------------------------------


def test_chunks_that_nothing_compresses():
    round_trip([], RAWS, RAWS)
    found, _, _ = expanded([], RAWS, list(map(len, RAWS)), streams=True)
    assert set(found.rows["codec"].tolist()) == {Codec.RAW}


@pytest.mark.parametrize("size", [0, 9, 11])
def test_chunks_of_another_size(size):
    assert f"{size} stored bytes" in reason_of([], bytes(size), 10, 3)


@pytest.mark.parametrize("names", [[], ["deflate"]])
def test_checksums_that_the_container_tells(names):
    raws, pack = RAWS[1:4], raw_deflate if names else bytes
    sums = np.array([zlib.crc32(raws[0]), -1, zlib.crc32(raws[2])])
    chunks, sizes = [pack(raw) for raw in raws], list(map(len, raws))
    rows = expanded(names, chunks, sizes, streams=True, checksums=sums)[0].rows
    assert rows["checksum_kind"].tolist() == [Checksum.CRC32, Checksum.NONE, Checksum.CRC32]
    assert decoded(names, chunks, sizes, streams=False, checksums=sums) == raws
    with pytest.raises(CorruptChunkError, match="CRC-32"):
        decoded(names, chunks, sizes, streams=False, checksums=sums ^ 1)


# --- CRC-32C, and chains --------------------------------------------------------------------------


def test_crc32c():
    round_trip(["crc32c"], RAWS, [raw + crc32c(raw) for raw in RAWS])
    packed = [frame(raw) for raw in RAWS]
    chunks = [each + crc32c(each) for each in packed]
    round_trip(["crc32c", "zstd"], RAWS, chunks)
    found, _, _ = expanded(["crc32c", "zstd"], chunks, list(map(len, RAWS)), streams=True)
    assert set(found.rows["codec"].tolist()) == {Codec.ZSTD}


@COUNTS
def test_crc32c_that_differs(count):
    packed = frame(b"abc")
    wrong = packed + bytes(4)
    assert "CRC-32C" in reason_of(["crc32c", "zstd"], wrong, 3, count)
    assert decoded(["crc32c", "zstd"], [wrong], [3], streams=False, verify=False) == [b"abc"]
    assert "a CRC-32C has 4" in reason_of(["crc32c"], b"abc", 0, count)


@pytest.mark.parametrize("outer", [*ENCODERS, "blosc"])
@pytest.mark.parametrize("inner", ENCODERS)
def test_chains(outer, inner):
    blosc = pytest.importorskip("numcodecs.blosc") if outer == "blosc" else None
    pack = (lambda data: bytes(blosc.compress(data, b"lz4", 5, 1))) if blosc else ENCODERS[outer]
    raws = RAWS[1:]
    round_trip([outer, inner], raws, [pack(ENCODERS[inner](raw)) for raw in raws])
    checked = [pack(ENCODERS[inner](raw)) for raw in raws]
    checked = [each + crc32c(each) for each in checked]
    round_trip(["crc32c", outer, inner], raws, checked)


@pytest.mark.parametrize("outer", ["gzip", "zlib", "zstd", "deflate", "lz4"])
def test_chains_that_grow_without_bounds(outer):
    bomb = ENCODERS[outer](bytes(20 << 20))
    assert "more than" in (why := reason_of([outer, "zstd"], bomb, 100)) or "expected" in why
    assert reason_of([outer, "zstd"], bomb[:-5], 100)
    assert reason_of([outer, "zstd"], b"", 100)


# --- gzip (lines 19 to 25 of the format cases) ----------------------------------------------------


def test_a_gzip_member_is_a_deflate_row_with_its_checksum():
    found, _, _ = expanded("gzip", [gzip.compress(RAWS[2])], [len(RAWS[2])], streams=True)
    assert found.rows["codec"].tolist() == [Codec.DEFLATE]
    assert found.rows["checksum_kind"].tolist() == [Checksum.CRC32]
    assert found.rows["checksum"].tolist() == [zlib.crc32(RAWS[2])]


@COUNTS
def test_several_gzip_members(count):
    raw, pack = RAWS[2], gzip.compress
    chunks = [
        pack(raw[:10]) + pack(raw[10:]),
        pack(b"") + pack(raw),
        pack(raw) + pack(b""),
        pack(b"", 0) + pack(raw),
        pack(raw) + bytes(7),
        pack(raw, 0),
        pack(raw),
    ] * count
    round_trip("gzip", [raw] * len(chunks), chunks)


@COUNTS
def test_optional_fields_of_gzip(count):
    plain = gzip.compress(RAWS[2], mtime=0)
    header = plain[:3] + b"\x1e" + plain[4:10] + b"\x05\0extraname\0comment\0"
    chunk = header + (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") + plain[10:]
    round_trip("gzip", [RAWS[2]] * count, [chunk] * count)
    found, _, _ = expanded("gzip", [chunk] * count, [len(RAWS[2])] * count, streams=True)
    assert set(found.rows["codec"].tolist()) == {Codec.DEFLATE}


@COUNTS
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: b"\x1f\x8c" + c[2:], "no gzip member starts here"),
        (lambda c: c[:2] + b"\7" + c[3:], "method 7"),
        (lambda c: c[:3] + b"\x80" + c[4:], "reserved"),
        (lambda c: c[:9], "ends here"),
        (lambda c: c[:15], "header"),
        (lambda c: c[:-8] + bytes(4) + c[-4:], "CRC-32"),
        (lambda c: c[:-4] + bytes(4), "trailer says 0"),
        (lambda c: c[:-20], "ends"),
        (lambda c: c + b"other", "no gzip member"),
        (lambda c: c + gzip.compress(b"more"), "more than"),
        (lambda c: b"", "ends here"),
    ],
)
def test_damaged_gzip(change, reason, count):
    assert reason in reason_of("gzip", change(gzip.compress(RAWS[2])), len(RAWS[2]), count)


@COUNTS
@pytest.mark.parametrize("size", [0, 1, 4999, 5001])
def test_gzip_of_another_size(size, count):
    reason = reason_of("gzip", gzip.compress(RAWS[2]), size, count)
    assert "5000" in reason or "more than" in reason


# --- zlib -----------------------------------------------------------------------------------------


@COUNTS
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: b"\x78\x9d" + c[2:], "header is 0x789d"),
        (lambda c: b"\x77\x85" + c[2:], "method 7"),
        (lambda c: b"\x88\x1c" + c[2:], "window"),
        (lambda c: b"\x78\xbb" + c[2:], "dictionary"),
        (lambda c: c[:-1] + bytes([c[-1] ^ 1]), "Adler-32"),
        (lambda c: c[:6], "6 bytes are no zlib"),
        (lambda c: b"", "0 bytes"),
    ],
)
def test_damaged_zlib(change, reason, count):
    assert reason in reason_of("zlib", change(zlib.compress(RAWS[2])), len(RAWS[2]), count)


def test_adler_is_not_compared_if_nobody_wants_it():
    wrong = zlib.compress(b"abc")[:-1] + b"\0"
    assert decoded("zlib", [wrong], [3], streams=False, verify=False) == [b"abc"]


# --- LZ4 (line 33) --------------------------------------------------------------------------------


def test_33_numcodecs_lz4():
    codec = pytest.importorskip("numcodecs").LZ4()
    round_trip("lz4", RAWS, [bytes(codec.encode(raw)) for raw in RAWS])


@COUNTS
def test_damaged_lz4(count):
    chunk = sized_lz4(RAWS[2])
    assert "is 5000, the array asks for 4999" in reason_of("lz4", chunk, 4999, count)
    assert "LZ4 block" in reason_of("lz4", chunk[:-3], 5000, count)
    for size in range(5):
        assert f"{size} bytes are no LZ4" in reason_of("lz4", chunk[:size], 5000, count)


# --- Zstandard (lines 10 to 18) -------------------------------------------------------------------


@COUNTS
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("sizes", [False, True])
def test_zstd_frames(sizes, sums, count):
    raws = [bytes(size) + b"end" for size in (0, 200, 253, 256, 70_000, 300_000)] * count
    chunks = [frame(raw, write_checksum=sums, write_content_size=sizes) for raw in raws]
    round_trip("zstd", raws, chunks)
    rows = expanded("zstd", chunks, list(map(len, raws)), streams=True)[0].rows
    assert rows.size == len(raws)
    assert rows["raw_size"].tolist() == list(map(len, raws))
    kind = Checksum.XXH64_LOW if sums else Checksum.NONE
    assert set(rows["checksum_kind"].tolist()) == {kind}
    if sums:
        tails = [int.from_bytes(chunk[-4:], "little") for chunk in chunks]
        assert rows["checksum"].tolist() == tails


@COUNTS
def test_several_zstd_frames(count):
    a, b, c = b"first" * 100, b"second" * 1000, b""
    unsized = {"write_content_size": False}
    one = frame(a) + SKIPPABLE + frame(b, write_checksum=True) + frame(c)
    chunks = [SKIPPABLE * 2 + one + SKIPPABLE] * count
    round_trip("zstd", [a + b] * count, chunks)
    rows = expanded("zstd", chunks, [len(a + b)] * count, streams=True)[0].rows
    assert rows["raw_size"].tolist() == [len(a), len(b), 0] * count
    one_unknown = [frame(a) + frame(b, **unsized)] * count
    round_trip("zstd", [a + b] * count, one_unknown)
    assert (
        expanded("zstd", one_unknown, [len(a + b)] * count, streams=True)[0].rows.size == 2 * count
    )
    unknown = [frame(a, **unsized) + frame(b, **unsized)] * count
    round_trip("zstd", [a + b] * count, unknown)
    found, _, _ = expanded("zstd", unknown, [len(a + b)] * count, streams=True)
    assert found.rows["codec"].tolist() == [Codec.RAW] * count


def test_frames_decoded_at_once_stand_behind_the_others():
    unsized, raw = {"write_content_size": False}, b"text" * 300
    chunks = [frame(raw), frame(raw[:4], **unsized) + frame(raw[4:], **unsized), frame(raw)]
    found, _, _ = expanded("zstd", chunks, [len(raw)] * 3, streams=True)
    assert found.rows["codec"].tolist() == [Codec.ZSTD, Codec.RAW, Codec.ZSTD]
    round_trip("zstd", [raw] * 3, chunks)


def test_frames_of_unknown_size_that_are_too_large():
    chunk = frame(bytes(1 << 20), write_content_size=False) * 2
    for size in (0, 100, (1 << 20) + 5):
        assert "more than" in reason_of("zstd", chunk, size)
    assert "decodes to 2097152" in reason_of("zstd", chunk, 3 << 20)


@COUNTS
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: b"", "no Zstandard frame"),
        (lambda c: c[:3], "no Zstandard frame starts"),
        (lambda c: b"\0" + c[1:], "no Zstandard frame starts"),
        (lambda c: c[:4], "too early"),
        (lambda c: c[:6], "too early"),
        (lambda c: c[:-1], "ends inside"),
        (lambda c: c + b"other", "no Zstandard frame starts"),
        (lambda c: SKIPPABLE, "no Zstandard frame in the 11 bytes"),
        (lambda c: c + SKIPPABLE[:-1], "too early"),
        (lambda c: c[:4] + bytes([c[4] | 8]) + c[5:], "reserved"),
        (lambda c: c + c, "state 10000 bytes"),
    ],
)
def test_damaged_zstd(change, reason, count):
    assert reason in reason_of("zstd", change(frame(RAWS[2])), len(RAWS[2]), count)


@COUNTS
@pytest.mark.parametrize("size", [0, 4999, 5001])
def test_zstd_of_another_size(size, count):
    assert "state 5000 bytes" in reason_of("zstd", frame(RAWS[2]), size, count)
    assert reason_of("zstd", frame(RAWS[2], write_content_size=False), size, count)


@COUNTS
def test_zstd_checksum_that_differs(count):
    chunk = frame(RAWS[2], write_checksum=True)
    chunk = chunk[:-1] + bytes([chunk[-1] ^ 1])
    assert "checksum" in reason_of("zstd", chunk, len(RAWS[2]), count)
    assert decoded("zstd", [chunk], [len(RAWS[2])], streams=False, verify=False) == [RAWS[2]]


@COUNTS
def test_windows_beyond_the_limit(count):
    parameters = zstandard.ZstdCompressionParameters(window_log=24)
    encoder = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    raw = bytes(1 << 20)
    chunk = encoder.compress(raw) + encoder.flush()
    round_trip("zstd", [raw] * count, [chunk] * count)
    assert "--max-window" in reason_of("zstd", chunk, 1 << 20, count, window_limit=1 << 20)


@COUNTS
def test_zstd_dictionaries(count):
    samples = [b"some words %d and more of them" % number * 4 for number in range(300)]
    trained = zstandard.train_dictionary(2000, samples)
    chunk = zstandard.ZstdCompressor(dict_data=trained).compress(samples[7])
    reason = reason_of("zstd", chunk, len(samples[7]), count)
    assert f"ID {trained.dict_id()}" in reason
    assert "--dictionary" in reason
    given = {"dictionary": trained.as_bytes()}
    round_trip("zstd", [samples[7]] * count, [chunk] * count, **given)
    found, _, _ = expanded("zstd", [chunk], [len(samples[7])], streams=True, **given)
    assert found.rows["dictionary"].all()


# --- The corpus, and any bytes --------------------------------------------------------------------

BUFFERS = [
    entry for entry in corpus_entries("buffer") if entry["codec"]["id"] in (*ENCODERS, "blosc")
]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("entry", BUFFERS, ids=[entry["file"] for entry in BUFFERS])
def test_buffers_of_the_corpus(entry, streams):
    if entry["codec"]["id"] == "blosc":
        pytest.importorskip("numcodecs.blosc")
    data = (corpus_folder() / entry["file"]).read_bytes()
    # The damaged ones are made of an array of 32,000 bytes.
    size = entry.get("size", 32_000)
    allowed = {entry["expect"], entry.get("also_accept", entry["expect"])}
    try:
        found = decoded(entry["codec"]["id"], [data], [size], streams=streams)[0]
    except CorruptChunkError:
        assert "error" in allowed
    else:
        assert "ok" in allowed
        assert hashlib.sha256(found).hexdigest() == entry["sha256"]


@COUNTS
@pytest.mark.parametrize("name", ENCODERS)
def test_mutations(name, count):
    """What passes with a checksum is right, and no other error comes of any bytes."""
    rng, raw = random.Random(f"{name} {count}"), b"some text and " * 40
    settings = {"write_checksum": True} if name == "zstd" else {}
    good = ENCODERS[name](raw, **settings)
    for _ in range(800):
        bad = bytearray(good)
        for _ in range(rng.choice([1, 2])):
            place = rng.randrange(len(bad))
            how = rng.randrange(4)
            if how == 0:
                bad[place] ^= 1 << rng.randrange(8)
            elif how == 1:
                bad[place] = rng.choice([0, 255, 128])
            elif how == 2:
                bad[place:place] = rng.randbytes(3)
            else:
                del bad[max(1, place) :]
        chunks, sizes = [good] * (count - 1) + [bytes(bad)], [len(raw)] * count
        found, row = attempt(name, chunks, sizes, streams=bool(rng.randrange(2)))
        if found is None:
            assert row == count - 1
            continue
        unchecked = name in ("lz4", "deflate") or (name == "zstd" and not bad[4] & 4)
        assert unchecked or found[-1] == raw
