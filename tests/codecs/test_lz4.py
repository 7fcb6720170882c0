"""LZ4 blocks: one by one, and linked."""

from __future__ import annotations

import random

import lz4.block
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.chunks import Checksum, Codec, make_table
from gpuload.codecs import lz4 as codec
from gpuload.codecs.base import PIECE, CorruptChunkError
from gpuload.errors import FormatError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.helpers.lz4_blocks import InvalidBlockError, Sequence, decode, write
from tests.helpers.payloads import KINDS, POISON, sample

#: The last match starts at least 12 bytes before the end of a block.
TAIL = Sequence(b"0123456789ab")


def compress(data, history=b""):
    return lz4.block.compress(data, store_size=False, dict=history[-65536:])


def run(stored, capacity, *, dictionary=None, strict=True):
    """Decode into a slot between guards and return what it holds."""
    memory = np.full(capacity + 40, POISON, np.uint8)
    decoder = codec.decoder(dictionary, strict=strict)
    try:
        size = decoder(np.frombuffer(stored, np.uint8), memory[20 : 20 + capacity])
    finally:
        assert set(memory[:20].tolist() + memory[20 + capacity :].tolist()) == {POISON}
    return memory[20 : 20 + size].tobytes()


@pytest.mark.parametrize("more", [0, 1, 1000])
@pytest.mark.parametrize("size", [0, 1, 12, 13, 65536, 100_000])
@pytest.mark.parametrize("kind", KINDS)
def test_block_of_the_reference_encoder(kind, size, more):
    data = sample(kind, size)
    assert run(compress(data), size + more) == data


def test_missing_dictionary_may_be_the_reason():
    hint = ", or was made with a dictionary that was not given"
    for dictionary in (None, b"a dictionary"):
        with pytest.raises(CorruptChunkError) as caught:
            run(b"\x1fa\x01", 100, dictionary=dictionary)
        assert (hint in str(caught.value)) == (dictionary is None)


def test_lengths_at_which_another_byte_begins():
    for length in (4, 18, 19, 20, 273, 274, 275, 528, 529, 530, 5000):
        for literals in (1, 14, 15, 16, 269, 270, 271, 524, 525, 526):
            block = write(Sequence((b"abc" * 200)[:literals], 1, length), TAIL)
            data = decode(block, 10_000)
            assert run(block, len(data)) == data


@pytest.mark.parametrize("offset", [*range(1, 70), 255, 256, 65534, 65535])
def test_every_short_offset(offset):
    literals = random.Random(offset).randbytes(offset)
    block = write(Sequence(literals, offset, 150), TAIL)
    assert run(block, offset + 162) == (literals * 152)[: offset + 150] + b"0123456789ab"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("stored", [b"", b"\x10", b"\xf0", b"\xf0\xff\xff", b"\x1fa\x01"])
def test_block_that_is_too_short(stored, strict):
    for capacity in (0, 1, 100):
        with pytest.raises(CorruptChunkError, match=rf"{len(stored)} stored bytes"):
            run(stored, capacity, strict=strict)


def test_block_of_no_bytes():
    assert run(b"\0", 0) == b""
    assert run(b"\0", 5) == b""


def test_slot_that_is_too_small():
    stored = compress(sample("text", 1000))
    for capacity in (0, 1, 500, 999):
        with pytest.raises(CorruptChunkError, match=f"more than {capacity} bytes"):
            run(stored, capacity)


@pytest.mark.parametrize("offset", [4, 5, 1000, 65535])
def test_match_before_the_start(offset):
    with pytest.raises(CorruptChunkError):
        run(write(Sequence(b"abc", offset, 20), TAIL), 35)


@pytest.mark.parametrize("literals", [b"", b"a", b"abcdefghijklmnop", bytes(20)])
@pytest.mark.parametrize("length", [4, 7, 8, 19, 300])
def test_match_with_offset_0(literals, length):
    block = write(Sequence(literals, 0, length), TAIL)
    size = len(literals) + length + 12
    with pytest.raises(CorruptChunkError, match="offset 0"):
        run(block, size)
    # Where a checksum vouches for the content, the library's answer is good enough: never memory
    # that was not written.
    assert run(block, size, strict=False) == literals + bytes(length) + b"0123456789ab"


def test_match_with_offset_0_behind_others():
    block = write(Sequence(b"abcd", 2, 40), Sequence(b"", 0, 9), Sequence(b"xyz", 1, 9), TAIL)
    with pytest.raises(CorruptChunkError, match="offset 0"):
        run(block, 100)


class TestFirstBytesThatLookLikeASize:
    """The library retries a block that fails as one with its size in front of it."""

    # As a block, 05 01 00 00 is a match that reaches before the start.
    @pytest.mark.parametrize("more", [0, 1, 10_000])
    @pytest.mark.parametrize("size", [0x0105, 0x0203, 0x0F04])
    def test_broken_block_with_a_valid_one_behind_the_size(self, size, more):
        data = sample("text", size)
        with pytest.raises(CorruptChunkError):
            run(size.to_bytes(4, "little") + compress(data), size + more)

    def test_whatever_the_size(self):
        """Compare with the format: a few of these are blocks, and most are not."""
        refused = 0
        for size in range(600):
            stored = size.to_bytes(4, "little") + compress(sample("noise", size))
            expected = reference(stored, 2 * size + 20)
            refused += expected is None
            assert attempt(stored, 2 * size + 20) == expected, size
        assert refused > 300

    def test_block_whose_literals_are_zeros(self):
        block = write(Sequence(bytes(3), 1, 20), Sequence(bytes(12)))
        assert block[1:4] == bytes(3)
        assert int.from_bytes(block[:4], "little") <= 63
        for capacity in (35, 63, 64, 5000):
            assert run(block, capacity) == bytes(35)


def reference(stored, capacity, history=b""):
    """Return what the format says a block decodes to; None if it is none."""
    try:
        return decode(stored, capacity, history)
    except InvalidBlockError:
        return None


def attempt(stored, capacity, **options):
    try:
        return run(stored, capacity, **options)
    except CorruptChunkError:
        return None


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.binary(max_size=40), st.sampled_from([0, 1, 20, 300, 70_000]))
def test_noise_never_decodes_to_what_the_format_does_not_say(stored, capacity):
    got = attempt(stored, capacity)
    # The library also refuses what encoders never write (matches that start or end too late).
    assert got is None or got == reference(stored, capacity)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.data())
def test_damaged_blocks_decode_as_the_format_says_or_not_at_all(data):
    block = bytearray(compress(sample(data.draw(st.sampled_from(KINDS)), 200)))
    for _ in range(data.draw(st.integers(1, 3))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    block = bytes(block[: data.draw(st.integers(1, len(block)))])
    capacity = data.draw(st.sampled_from([200, 150, 1000]))
    got = attempt(block, capacity)
    assert got is None or got == reference(block, capacity)


class TestDictionary:
    @pytest.mark.parametrize("size", [1, 100, 65535, 65536, 65537, 300_000])
    def test_block_that_copies_from_it(self, size):
        dictionary = sample("noise", size)
        data = dictionary[-500:] + b"something new" + dictionary[-60_000:]
        stored = compress(data, dictionary)
        assert run(stored, len(data), dictionary=dictionary) == data

    def test_farthest_offset(self):
        dictionary = sample("noise", 65536)
        block = write(Sequence(b"", 65535, 40), TAIL)
        expected = dictionary[1:41] + b"0123456789ab"
        assert run(block, 52, dictionary=dictionary) == expected

    def test_match_before_its_start(self):
        block = write(Sequence(b"", 101, 40), TAIL)
        with pytest.raises(CorruptChunkError):
            run(block, 52, dictionary=bytes(100))

    def test_offset_0(self):
        block = write(Sequence(b"", 0, 40), TAIL)
        with pytest.raises(CorruptChunkError, match="offset 0"):
            run(block, 52, dictionary=b"x" * 100)

    def test_empty_one_is_none(self):
        data = sample("text", 1000)
        assert run(compress(data), 1000, dictionary=b"") == data


class Chain:
    """Linked blocks as they stand in a file, behind some other bytes."""

    def __init__(self, *, sums=False):
        self.file = bytearray(b"header")
        self.sums = sums
        self.columns = {name: [] for name in ("offset", "stored_size", "raw_size", "codec")}
        self.chained, self.checksums = [], []
        self.data = b""

    def add(self, stored, raw_size, kind=Codec.LZ4, *, chained=None):
        self.columns["offset"].append(len(self.file))
        self.columns["stored_size"].append(len(stored))
        self.columns["raw_size"].append(raw_size)
        self.columns["codec"].append(kind)
        self.chained.append(bool(self.checksums) if chained is None else chained)
        self.checksums.append(xxhash.xxh32_intdigest(stored))
        self.file += stored + b"\xee\xee\xee\xee"
        return self

    def block(self, data, history=None, **options):
        """Add a block that the reference encoder makes with what came before it."""
        self.add(compress(data, self.data if history is None else history), len(data), **options)
        self.data += data
        return self

    def plain(self, data, **options):
        """Add an uncompressed block."""
        self.data += data
        return self.add(data, len(data), Codec.RAW, **options)

    def decoder(self, *, vouched=False, **options):
        rows = make_table(
            **self.columns,
            chained=self.chained,
            checksum=self.checksums,
            checksum_kind=Checksum.XXH32_STORED if self.sums else Checksum.NONE,
        )
        source = BytesSource(bytes(self.file), "chain")
        return codec.ChainDecoder(source, rows, Options(**options), vouched=vouched)

    def decode(self, **options):
        return b"".join(piece.tobytes() for piece in self.decoder(**options).pieces())


class TestChain:
    @pytest.mark.parametrize("size", [1, 7, 100, 5000, 65536, 100_000])
    def test_blocks_that_copy_from_those_before(self, size):
        chain, pattern = Chain(), sample("noise", 40_000)
        for number in range(12):
            chain.block((pattern * 3)[number * 10 : number * 10 + size])
        assert sum(chain.columns["stored_size"]) < 0.9 * len(chain.data) or size < 100
        assert chain.decode() == chain.data

    def test_history_reaches_over_many_small_blocks(self):
        chain, data = Chain(), sample("noise", 65536)
        for start in range(0, 65536, 4096):
            chain.block(data[start : start + 4096])
        chain.add(write(Sequence(b"", 65535, 100), TAIL), 112)
        assert chain.decode() == data + data[1:101] + b"0123456789ab"

    def test_history_of_no_more_than_64_kib(self):
        """An offset cannot say more, so that the first byte is out of reach."""
        chain = Chain().plain(b"a" + sample("noise", 65535))
        chain.add(write(Sequence(b"", 65535, 4), TAIL), 16)
        assert chain.decode()[65536:] == chain.data[1:5] + b"0123456789ab"

    def test_match_before_the_first_block(self):
        chain = Chain().plain(b"0123456789")
        chain.add(write(Sequence(b"", 11, 20), TAIL), 32)
        with pytest.raises(CorruptChunkError) as caught:
            chain.decode()
        assert caught.value.row == 1

    def test_uncompressed_blocks_are_history(self):
        chain, noise = Chain(), sample("noise", 3000)
        chain.plain(noise).block(noise[500:]).plain(b"xy").plain(noise[:50]).block(noise[:60] * 2)
        assert max(chain.columns["stored_size"][i] for i in (1, 4)) < 100
        assert chain.decode() == chain.data

    def test_row_that_is_not_chained_starts_anew(self):
        chain = Chain().plain(b"0123456789")
        chain.add(write(Sequence(b"", 5, 20), TAIL), 32, chained=False)
        with pytest.raises(CorruptChunkError):
            chain.decode()

    def test_frames_behind_one_another(self):
        chain, text = Chain(), sample("text", 900)
        for _ in range(3):
            chain.block(text, history=b"", chained=False).block(text[100:], history=text)
        assert chain.decode() == chain.data == (text + text[100:]) * 3

    def test_dictionary_before_every_row_that_starts_anew(self):
        chain, dictionary = Chain(), sample("noise", 70_000)
        for _ in range(2):
            chain.block(dictionary[-300:], history=dictionary, chained=False)
            chain.block(dictionary[-900:-300], history=dictionary + dictionary[-300:])
        assert max(chain.columns["stored_size"]) < 60
        assert chain.decode(dictionary=dictionary) == chain.data

    def test_no_rows_of_content(self):
        assert Chain().block(b"").block(b"").decode() == b""

    def test_pieces_are_neither_tiny_nor_huge(self):
        chain = Chain()
        for number in range(300):
            chain.plain(bytes([number % 256]) * 10_000)
        pieces = [piece.size for piece in chain.decoder().pieces()]
        assert sum(pieces) == 3_000_000
        assert all(PIECE <= size < PIECE + 10_000 for size in pieces[:-1])

    def test_block_checksums(self):
        chain = Chain(sums=True).plain(b"abc").block(sample("text", 500)).block(b"abc" * 9)
        decoder = chain.decoder()
        assert b"".join(piece.tobytes() for piece in decoder.pieces()) == chain.data
        assert decoder.verified == {Checksum.XXH32_STORED: 3}

    @pytest.mark.parametrize("row", [0, 1, 2])
    def test_wrong_block_checksum(self, row):
        chain = Chain(sums=True).plain(b"abc").block(sample("text", 500)).block(b"abc" * 9)
        chain.checksums[row] ^= 0x80
        decoder = chain.decoder()
        with pytest.raises(CorruptChunkError, match="xxHash-32 of the stored block") as caught:
            list(decoder.pieces())
        assert (caught.value.row, caught.value.checksum) == (row, True)
        assert decoder.verified[Checksum.XXH32_STORED] == row
        assert chain.decode(verify=False) == chain.data

    def test_nothing_is_verified_unasked(self):
        decoder = Chain(sums=True).plain(b"abc").block(b"abc" * 9).decoder(verify=False)
        assert sum(piece.size for piece in decoder.pieces()) == 30
        assert not decoder.verified.total()

    def test_damaged_block(self):
        chain = Chain().plain(b"abc").block(sample("text", 500)).add(b"\xf0", 100)
        with pytest.raises(CorruptChunkError) as caught:
            chain.decode()
        assert (caught.value.row, caught.value.checksum) == (2, False)

    @pytest.mark.parametrize("history", [b"", b"0123456789"])
    def test_match_with_offset_0(self, history):
        chain = Chain().plain(history)
        chain.add(write(Sequence(b"ab", 0, 20), TAIL), 34)
        with pytest.raises(CorruptChunkError, match="offset 0") as caught:
            chain.decode()
        assert caught.value.row == 1
        assert chain.decode(vouched=True) == history + b"ab" + bytes(20) + b"0123456789ab"

    def test_block_larger_than_its_bound(self):
        chain = Chain().plain(b"abc").add(compress(bytes(1000)), 999)
        with pytest.raises(CorruptChunkError, match="more than 999 bytes"):
            chain.decode()

    def test_block_that_looks_size_prefixed(self):
        chain = Chain().plain(b"abc").add((0x105).to_bytes(4, "little") + compress(bytes(261)), 261)
        with pytest.raises(CorruptChunkError):
            chain.decode()

    def test_source_that_ends_early(self):
        chain = Chain().plain(b"abc").block(sample("text", 500))
        del chain.file[-20:]
        with pytest.raises(FormatError, match=f"byte {len(chain.file)}: the file ends here"):
            chain.decode()
