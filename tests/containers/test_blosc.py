"""Blosc chunks as rows: their streams, blocks and filters (lines 29 to 32 of the format cases)."""

from __future__ import annotations

import random
import struct

import cramjam
import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.chunks import Checksum, Codec
from gpuload.codecs.base import CorruptChunkError
from tests.helpers.expanding import attempt, decoded, expanded

library = pytest.importorskip("numcodecs.blosc", reason="numcodecs makes the chunks")

CNAMES = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]
CODECS = {"lz4": Codec.LZ4, "lz4hc": Codec.LZ4, "zlib": Codec.DEFLATE, "zstd": Codec.ZSTD}
#: Numbers of compressors in headers.
LZ4, SNAPPY = 1, 2
BOTH = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streams"])


def sample(size):
    """Return bytes that compress, whether shuffled or not."""
    return np.round(20 * np.sin(np.arange(size) / 9)).astype(np.int8).tobytes()


def compressed(raw, cname="lz4", element_size=4, shuffle=1, block_size=0, level=5):
    made = library.compress(raw, cname.encode(), level, shuffle, block_size, typesize=element_size)
    return bytes(made)


def handmade(raw_size, block_size, blocks, *, flags, element_size=1, begin=None):
    """Return a chunk of blocks, each a list of payloads."""
    bodies = [b"".join(struct.pack("<I", len(p)) + p for p in block) for block in blocks]
    table = 16 + 4 * len(blocks)
    begins = begin or np.cumsum([table, *map(len, bodies)])[:-1].tolist()
    body = struct.pack(f"<{len(begins)}I", *begins) + b"".join(bodies)
    sizes = (raw_size, block_size, 16 + len(body))
    return struct.pack("<BBBBIII", 2, 1, flags, element_size, *sizes) + body


def reason_of(chunk, raw_size, *, streams=True, **options):
    """Return why a chunk between two good ones is refused."""
    good = compressed(sample(4000))
    with pytest.raises(CorruptChunkError) as caught:
        decoded("blosc", [good, chunk, good], [4000, raw_size, 4000], streams=streams, **options)
    assert caught.value.row == 1
    return caught.value.reason


def changed(chunk, place, value, width=4):
    return chunk[:place] + value.to_bytes(width, "little") + chunk[place + width :]


@BOTH
@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize("cname", CNAMES)
def test_all_element_sizes(cname, shuffle, streams):
    raws, chunks = [], []
    for element in range(1, 18):
        for size in (0, 1, element, 127, 128, element * 320, element * 320 + 3, 20_011):
            for block in (0, 256 * element, 1000):
                raws.append(sample(size))
                chunks.append(compressed(raws[-1], cname, element, shuffle, block))
    assert decoded("blosc", chunks, list(map(len, raws)), streams=streams) == raws


@BOTH
@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=3000),
    st.integers(1, 20),
    st.sampled_from(CNAMES),
    st.integers(1, 255),
    st.integers(0, 2),
    st.sampled_from([0, 1, 300, 1024, 5000]),
    st.integers(0, 9),
)
def test_any_bytes(streams, data, repeats, cname, element, shuffle, block, level):
    raw = data * repeats
    chunk = compressed(raw, cname, element, shuffle, block, level)
    assert decoded("blosc", [chunk], [len(raw)], streams=streams) == [raw]


@pytest.mark.parametrize("cname", CODECS)
def test_a_row_for_each_stream(cname):
    raw = sample(1 << 20)
    chunk = compressed(raw, cname, 4, 1, 4 << 10)
    # The encoder makes larger blocks than it is asked for if it splits them.
    block = int.from_bytes(chunk[8:12], "little")
    count, per_block = len(raw) // block, 1 if chunk[2] & 16 else 4
    assert count > 1
    found, slots, _ = expanded("blosc", [chunk] * 3, [len(raw)] * 3, streams=True)
    assert found.rows.size == 3 * count * per_block
    assert set(found.rows["codec"].tolist()) <= {CODECS[cname], Codec.RAW}
    assert CODECS[cname] in found.rows["codec"]
    assert set(found.rows["raw_size"].tolist()) == {block // per_block}
    blocks = found.shuffled
    assert blocks.chunk.tolist() == np.repeat(range(3), count).tolist()
    places = np.add.outer(slots, np.arange(count) * block).ravel()
    assert blocks.start.tolist() == places.tolist()
    assert set(blocks.size.tolist()) == {block}
    assert set(blocks.element_size.tolist()) == {4}
    assert not blocks.bit.any()


def test_zlib_streams_have_their_checksum():
    raw = sample(20_000)
    found, _, _ = expanded("blosc", [compressed(raw, "zlib", 1)], [len(raw)], streams=True)
    assert set(found.rows["checksum_kind"].tolist()) == {Checksum.ADLER32}


def test_blosclz_is_one_row_for_the_host():
    raw = sample(20_000)
    for streams in (False, True):
        found, _, _ = expanded("blosc", [compressed(raw, "blosclz")], [len(raw)], streams=streams)
        assert found.rows["codec"].tolist() == [Codec.BLOSC]
        assert not found.shuffled.start.size


def test_without_streams_every_compressed_chunk_is_one_row():
    raw = sample(20_000)
    chunks = [compressed(raw, cname) for cname in CNAMES]
    found, _, _ = expanded("blosc", chunks, [len(raw)] * len(chunks), streams=False)
    assert found.rows["codec"].tolist() == [Codec.BLOSC] * len(chunks)


@BOTH
def test_29_a_copied_chunk_has_neither_blocks_nor_filters(streams):
    raw = random.Random(1).randbytes(1000)
    chunk = compressed(raw, level=0)
    assert chunk[2] & 3 == 3, "copied, and a shuffle that was asked for"
    assert chunk[16:] == raw
    found, _, _ = expanded("blosc", [chunk], [1000], streams=streams)
    assert found.rows["codec"].tolist() == [Codec.RAW]
    assert decoded("blosc", [chunk], [1000], streams=streams) == [raw]


@BOTH
def test_29_a_stream_as_long_as_it_decodes_to_is_raw(streams):
    # Blocks of 512 bytes in four streams of 128; the third stream is stored.
    raw = b"\1" * 256 + random.Random(2).randbytes(128) + b"\2" * 128
    parts = [raw[at : at + 128] for at in range(0, 512, 128)]
    payloads = [lz4.block.compress(part, store_size=False) for part in parts]
    payloads[2] = parts[2]
    chunk = handmade(512, 512, [payloads], flags=LZ4 << 5, element_size=4)
    assert decoded("blosc", [chunk], [512], streams=streams) == [raw]
    found, _, _ = expanded("blosc", [chunk], [512], streams=True)
    assert found.rows["codec"].tolist() == [Codec.LZ4, Codec.LZ4, Codec.RAW, Codec.LZ4]


@BOTH
@pytest.mark.parametrize(
    ("flags", "element", "block", "splits"),
    [
        (0, 4, 512, 4),
        (0x10, 4, 512, 1),
        (0, 4, 508, 1),
        (0, 16, 2048, 16),
        (0, 17, 17 * 128, 1),
        (0, 1, 512, 1),
    ],
)
def test_30_which_blocks_are_split(flags, element, block, splits, streams):
    # A whole block, and a shorter one, which is never split.
    raw = sample(block + block // 2)
    size = block // splits
    parts = [raw[at : at + size] for at in range(0, block, size)]
    blocks = [parts, [raw[block:]]]
    packed = [[lz4.block.compress(p, store_size=False) for p in part] for part in blocks]
    chunk = handmade(len(raw), block, packed, flags=LZ4 << 5 | flags, element_size=element)
    assert decoded("blosc", [chunk], [len(raw)], streams=streams) == [raw]
    assert expanded("blosc", [chunk], [len(raw)], streams=True)[0].rows.size == splits + 1


@BOTH
@pytest.mark.parametrize("size", [1024, 1024 + 32, 1024 + 36, 1024 + 7, 1024 + 66])
def test_31_bits_of_a_block_that_is_no_multiple_of_8_elements_are_as_they_were(size, streams):
    raw = sample(size)
    chunk = compressed(raw, "lz4", 4, 2, 1024)
    assert decoded("blosc", [chunk], [size], streams=streams) == [raw]
    found, _, _ = expanded("blosc", [chunk], [size], streams=True)
    last = size - 1024
    if last and not chunk[2] & 2 and found.shuffled.size.tolist() == [1024, last]:
        assert bool(found.shuffled.bit[1]) == (last // 4 % 8 == 0 and last >= 4)
        assert found.shuffled.element_size[1] == (4 if found.shuffled.bit[1] else 1)


@BOTH
def test_32_the_header_decides_the_filter(streams):
    raw = sample(4000)
    chunks = [compressed(raw, "lz4", 4, shuffle) for shuffle in (0, 1, 2)]
    assert decoded("blosc", chunks, [4000] * 3, streams=streams) == [raw] * 3
    blocks = expanded("blosc", chunks, [4000] * 3, streams=True)[0].shuffled
    assert blocks.chunk.tolist() == [1, 2]
    assert blocks.bit.tolist() == [False, True]


@BOTH
@pytest.mark.parametrize("compressor", [5, 6, 7])
def test_32_unknown_compressors_are_named(compressor, streams):
    chunk = compressed(sample(4000))
    chunk = changed(chunk, 2, chunk[2] & 31 | compressor << 5, 1)
    assert f"compressor {compressor}" in reason_of(chunk, 4000, streams=streams)


@BOTH
@pytest.mark.parametrize("shuffle", [0, 1, 4])
@pytest.mark.parametrize("block", [512, 192])
def test_snappy(block, shuffle, streams):
    """A compressor that no library here writes in Blosc; small blocks are decoded at once."""
    raw = sample(block * 2)
    plain = [raw[at : at + block] for at in range(0, len(raw), block)]
    packed = [[bytes(cramjam.snappy.compress_raw(part))] for part in plain]
    flags = SNAPPY << 5 | 0x10 | shuffle
    chunk = handmade(len(raw), block, packed, flags=flags, element_size=2)
    twin = handmade(
        len(raw),
        block,
        [[lz4.block.compress(part, store_size=False)] for part in plain],
        flags=LZ4 << 5 | 0x10 | shuffle,
        element_size=2,
    )
    expected = bytes(library.decompress(twin))
    mixed = [chunk, twin, chunk]
    assert decoded("blosc", mixed, [len(raw)] * 3, streams=streams) == [expected] * 3


@BOTH
def test_blocks_in_any_order(streams):
    raw = sample(1024)
    packed = [lz4.block.compress(raw[at : at + 512], store_size=False) for at in (0, 512)]
    first = 24 + 4 + len(packed[1])
    chunk = handmade(1024, 512, [[packed[1]], [packed[0]]], flags=0x30, begin=[first, 24])
    assert decoded("blosc", [chunk], [1024], streams=streams) == [raw]


@BOTH
def test_bytes_behind_a_chunk_are_not_of_it(streams):
    raw = sample(4000)
    for shuffle in (0, 1, 2):
        chunk = compressed(raw, "zstd", 4, shuffle) + b"padding"
        assert decoded("blosc", [chunk], [4000], streams=streams) == [raw]


@BOTH
@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, 3, "version 3"),
        (1, 2, "version 2 of a Blosc compressor"),
        (3, 0, "elements of 0"),
        (4, 4001, "4001 decoded bytes, the array asks for 4000"),
        (8, 0, "blocks of 0 bytes"),
        (8, 4001, "blocks of 4001 bytes"),
        (8, 1, "ends in its table"),
        (12, 15, "15 stored bytes"),
        (12, 2**32 - 1, "4294967295 stored bytes"),
        (16, 19, "starts at byte 19"),
        (16, 2**32 - 1, "starts at byte 4294967295"),
    ],
)
def test_damaged_framing(place, value, reason, streams):
    chunk = changed(compressed(sample(4000)), place, value, 1 if place < 4 else 4)
    assert reason in reason_of(chunk, 4000, streams=streams)


@BOTH
@pytest.mark.parametrize("size", [0, 15, 16, 18, 40])
def test_cut(size, streams):
    assert "bytes" in reason_of(compressed(sample(4000))[:size], 4000, streams=streams)


@pytest.mark.parametrize("value", [0, 2**31 - 1, 2**32 - 1, 1001])
def test_damaged_size_of_a_stream(value):
    chunk = changed(compressed(sample(4000)), 20, value)
    assert f"stream of {value} stored bytes" in reason_of(chunk, 4000)


def test_blocks_that_overlap():
    packed = lz4.block.compress(bytes(512), store_size=False)
    chunk = handmade(1024, 512, [[packed], []], flags=0x30, begin=[24, 24])
    assert "overlap" in reason_of(chunk, 1024)


def test_more_streams_than_bytes():
    chunk = handmade(2048 * 50, 2048, [[b"\0"]] * 50, flags=0x20, element_size=16)
    assert "800 streams" in reason_of(chunk, 2048 * 50)


def test_split_blocks_of_no_whole_elements():
    chunk = handmade(1000, 1000, [[b"\0"]], flags=0x20, element_size=3)
    assert "blocks of 1000 bytes, split in elements of 3" in reason_of(chunk, 1000)


def test_very_small_blocks_are_left_to_the_library():
    """So that no chunk becomes as many rows as it has bytes."""
    raw = sample(1000)
    packed = [[raw[at : at + 10]] for at in range(0, 1000, 10)]
    chunk = handmade(1000, 10, packed, flags=0x30)
    assert expanded("blosc", [chunk], [1000], streams=True)[0].rows["codec"].tolist() == [7]
    assert decoded("blosc", [chunk], [1000], streams=True) == [raw]


def test_a_window_beyond_the_limit():
    frame = bytes.fromhex("28b52ffd 00 a0 010000") + bytes(20)  # RFC 8878: 2^(10+20) bytes
    chunk = handmade(512, 512, [[frame]], flags=4 << 5 | 0x10)
    assert "--max-window" in reason_of(chunk, 512)


@pytest.mark.parametrize("count", [1, 9])
def test_mutations(count):
    """Either mode gives the bytes of the reference, or refuses the chunk."""
    rng, passed = random.Random(count), 0
    raws = [sample(size // 4 * 4) for size in (300, 4000, 9001)]
    goods = [
        (raw, compressed(raw, cname, 4, shuffle, block))
        for raw in raws
        for cname in CNAMES
        for shuffle in (0, 1, 2)
        for block in (0, 1024)
    ]
    for _ in range(1500):
        raw, good = rng.choice(goods)
        bad = bytearray(good)
        for _ in range(rng.choice([1, 1, 3])):
            place = rng.randrange(min(len(bad), rng.choice([24, 60, len(bad)])))
            bad[place] = rng.choice([0, 1, 127, 128, 255, bad[place] ^ 1 << rng.randrange(8)])
        chunks, sizes = [good] * (count - 1) + [bytes(bad)], [len(raw)] * count
        for streams in (False, True):
            found, row = attempt("blosc", chunks, sizes, streams=streams)
            if found is None:
                assert row == count - 1
                continue
            assert found[-1] == bytes(library.decompress(bytes(bad)))
            passed += 1
    assert passed
