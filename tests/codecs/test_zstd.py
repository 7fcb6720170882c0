"""Zstandard frames: whole ones into slots, and long ones piece by piece."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.chunks import Checksum, Codec, make_table
from gpuload.codecs import zstd as codec
from gpuload.codecs.base import PIECE, CorruptChunkError
from gpuload.errors import FormatError, MemoryLimitError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.helpers.payloads import KINDS, POISON, sample

MAGIC = b"\x28\xb5\x2f\xfd"


def compress(data, **settings_):
    return zstandard.ZstdCompressor(**settings_).compress(data)


def run(stored, capacity, *, dictionary=None, decoder=None):
    """Decode into a slot between guards and return what it holds."""
    memory = np.full(capacity + 40, POISON, np.uint8)
    decoder = decoder or codec.decoder(dictionary)
    try:
        size = decoder(np.frombuffer(stored, np.uint8), memory[20 : 20 + capacity])
    finally:
        assert set(memory[:20].tolist() + memory[20 + capacity :].tolist()) == {POISON}
    return memory[20 : 20 + size].tobytes()


def frame(*blocks, size, checksum=None):
    """Return a single-segment frame (RFC 8878, section 3.1.1) of blocks made by `block`."""
    descriptor = 0x80 | 0x20 | (4 if checksum is not None else 0)
    head = MAGIC + bytes([descriptor]) + size.to_bytes(4, "little")
    tail = b"" if checksum is None else checksum.to_bytes(4, "little")
    return head + b"".join(blocks) + tail


def block(kind, content, size=None, *, last=False):
    """Section 3.1.1.2: raw (0), RLE (1), compressed (2)."""
    size = len(content) if size is None else size
    return (last | kind << 1 | size << 3).to_bytes(3, "little") + content


SETTINGS = [{}, {"write_checksum": True}, {"write_content_size": False}, {"level": 19}]


@pytest.mark.parametrize("settings_", SETTINGS)
@pytest.mark.parametrize("size", [0, 1, 1000, 131_072, 131_073, 600_000])
@pytest.mark.parametrize("kind", ["zeros", "text", "noise", "periodic 47"])
def test_frame_of_the_reference_encoder(kind, size, settings_):
    data = sample(kind, size)
    assert run(compress(data, **settings_), size) == data


def test_raw_and_rle_blocks():
    stored = frame(
        block(1, b"x", 100_000),
        block(0, b"abc"),
        block(0, b""),
        block(1, b"y", 131_072),
        block(0, b"", last=True),
        size=100_000 + 3 + 131_072,
    )
    assert run(stored, 231_075) == b"x" * 100_000 + b"abc" + b"y" * 131_072


def test_block_of_no_sequences():
    """A compressed block may hold literals only (section 3.1.1.3): here 128 KiB of one byte."""
    # Literals section: RLE, size format 11 (20 bits); sequences section: number 0.
    literals = (1 | 3 << 2 | 131_072 << 4).to_bytes(3, "little") + b"z"
    stored = frame(block(2, literals + b"\0", last=True), size=131_072)
    assert run(stored, 131_072) == b"z" * 131_072


@pytest.mark.parametrize("settings_", SETTINGS)
def test_slot_larger_than_the_frame(settings_):
    data = sample("text", 3000)
    for more in (1, 1000, 200_000):
        assert run(compress(data, **settings_), 3000 + more) == data


@pytest.mark.parametrize("settings_", SETTINGS)
@pytest.mark.parametrize("size", [1, 3000, 300_000])
def test_slot_smaller_than_the_frame(size, settings_):
    stored = compress(sample("text", size), **settings_)
    for capacity in {0, 1, size // 2, size - 1} - {size}:
        with pytest.raises(CorruptChunkError, match=f"more than {capacity} bytes"):
            run(stored, capacity)


@pytest.mark.parametrize("settings_", SETTINGS)
@pytest.mark.parametrize("kind", ["text", "noise", "zeros"])
def test_cut_anywhere(kind, settings_):
    stored = compress(sample(kind, 150), **settings_)
    for size in range(len(stored)):
        with pytest.raises(CorruptChunkError):
            run(stored[:size], 150)


def test_cut_between_blocks():
    data = sample("noise", 400_000)
    stored = compress(data)
    for blocks in (1, 2):
        with pytest.raises(CorruptChunkError, match="blocks end at"):
            run(stored[: len(stored) - 3 - blocks * 131_072], 400_000)


@pytest.mark.parametrize("more", [b"\0", b"\xff" * 9, compress(b"another frame"), MAGIC])
@pytest.mark.parametrize("settings_", SETTINGS)
def test_bytes_behind_the_frame(settings_, more):
    with pytest.raises(CorruptChunkError, match="blocks end at"):
        run(compress(b"abc" * 100, **settings_) + more, 2000)


def test_wrong_checksum():
    stored = bytearray(compress(sample("text", 3000), write_checksum=True))
    stored[-1] ^= 1
    with pytest.raises(CorruptChunkError) as caught:
        run(bytes(stored), 3000)
    assert caught.value.checksum


def test_wrong_checksum_of_nothing():
    stored = bytearray(compress(b"", write_checksum=True))
    stored[-1] ^= 1
    with pytest.raises(CorruptChunkError) as caught:
        run(bytes(stored), 0)
    assert caught.value.checksum


def test_damaged_block_is_no_matter_of_a_checksum():
    stored = bytearray(compress(sample("text", 3000)))
    stored[7] |= 3 << 1  # the reserved block type, behind a header of 7 bytes
    with pytest.raises(CorruptChunkError) as caught:
        run(bytes(stored), 3000)
    assert not caught.value.checksum


@pytest.mark.parametrize("size", [0, 1, 2999, 3001, 2**32 - 1])
def test_content_size_that_is_wrong(size):
    data = sample("noise", 3000)
    stored = frame(block(0, data, last=True), size=size)
    with pytest.raises(CorruptChunkError):
        run(stored, 3000)
    with pytest.raises(CorruptChunkError):
        run(stored, 5000)


@pytest.mark.parametrize(
    "stored", [b"", b"\x28", MAGIC, MAGIC + b"\x20", b"\x50\x2a\x4d\x18\4\0\0\0abcd"]
)
def test_what_is_no_frame(stored):
    for capacity in (0, 4, 1000):
        with pytest.raises(CorruptChunkError):
            run(stored, capacity)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.binary(max_size=60), st.sampled_from([0, 1, 20, 70_000]))
def test_noise(stored, capacity):
    try:
        assert len(run(MAGIC + stored, capacity)) <= capacity
    except CorruptChunkError:
        return


def test_damage_never_passes_a_checksum():
    rng, data = random.Random(3), sample("text", 2000)
    good = compress(data, write_checksum=True)
    decoder = codec.decoder(None)
    for _ in range(2000):
        stored = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            stored[rng.randrange(len(stored))] = rng.randrange(256)
        try:
            assert run(bytes(stored), 2000, decoder=decoder) == data
        except CorruptChunkError:
            assert run(good, 2000, decoder=decoder) == data


def test_one_decoder_on_eight_threads():
    """The library's own decoders crash when threads share one."""
    decoder, wrong = codec.decoder(None), []
    frames = [(sample(kind, 50_000 + i), i) for i, kind in enumerate(KINDS)]
    frames = [(data, compress(data, level=1 + i % 9, write_checksum=True)) for data, i in frames]
    barrier = threading.Barrier(8)

    def work(number):
        rng = random.Random(number)
        barrier.wait()
        for _ in range(150):
            data, stored = rng.choice(frames)
            if run(stored, len(data), decoder=decoder) != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class TestDictionary:
    content = sample("noise", 5000)

    def test_raw_content(self):
        data = self.content[300:4000]
        given_ = zstandard.ZstdCompressionDict(self.content, zstandard.DICT_TYPE_RAWCONTENT)
        stored = compress(data, dict_data=given_)
        assert len(stored) < 100
        assert run(stored, len(data), dictionary=self.content) == data

    def test_trained(self):
        trained = zstandard.train_dictionary(3000, [sample("text", 400, i) for i in range(60)])
        data = sample("text", 400, 7)
        stored = compress(data, dict_data=trained)
        assert run(stored, 400, dictionary=trained.as_bytes()) == data
        for other in (None, self.content):
            with pytest.raises(CorruptChunkError):
                run(stored, 400, dictionary=other)

    def test_frame_that_needs_none(self):
        assert run(compress(b"abc" * 100), 300, dictionary=self.content) == b"abc" * 100


class TestWindow:
    """A frame without a content size needs its window; limits are exact powers of two."""

    def stored(self, window_log):
        parameters = zstandard.ZstdCompressionParameters(
            window_log=window_log, write_content_size=False
        )
        encoder = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return encoder.compress(bytes(3 << window_log)) + encoder.flush()

    def test_within_the_limit(self):
        data = bytes(3 << 17)
        for limit in (1 << 17, (1 << 17) + 1, 1 << 20):
            assert streamed(self.stored(17), window_limit=limit) == data

    def test_beyond_the_limit(self):
        for limit in (1, 1 << 10, 1 << 16):
            with pytest.raises(MemoryLimitError, match="--max-window"):
                streamed(self.stored(17), window_limit=limit)

    def test_a_slot_needs_no_window(self):
        """Readers compare windows with the limit; what passes them must decode."""
        assert run(self.stored(17), 3 << 17) == bytes(3 << 17)


class TestEmbeddedChecksum:
    @pytest.mark.parametrize("size", [0, 1, 5000])
    def test_there(self, size):
        data = sample("text", size)
        stored = np.frombuffer(compress(data, write_checksum=True), np.uint8)
        assert codec.embedded_checksum(stored) == xxhash.xxh64_intdigest(data) & 0xFFFFFFFF

    @pytest.mark.parametrize("size", [0, 1, 5000])
    def test_not_there(self, size):
        stored = np.frombuffer(compress(sample("text", size)), np.uint8)
        assert codec.embedded_checksum(stored) is None


def stream(stored, *, before=b"before", kind=Checksum.NONE, checksum=0, size=None, **options):
    """Return a decoder of a frame that stands somewhere in a file."""
    row = make_table(
        [len(before)],
        stored_size=len(stored) if size is None else size,
        codec=Codec.ZSTD,
        checksum_kind=kind,
        checksum=checksum,
    )
    return codec.FrameDecoder(BytesSource(before + stored, "a.zst"), row, Options(**options))


def streamed(stored, **more):
    return b"".join(
        piece.tobytes() for piece in stream(stored + b"behind", size=len(stored), **more).pieces()
    )


class TestStream:
    @pytest.mark.parametrize("settings_", SETTINGS)
    @pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
    @pytest.mark.parametrize("kind", ["text", "noise", "zeros"])
    def test_frame_of_the_reference_encoder(self, kind, size, settings_):
        if settings_.get("level") == 19:
            size = min(size, PIECE + 1)
        data = sample(kind, size)
        assert streamed(compress(data, **settings_)) == data

    def test_pieces_are_bounded(self):
        sizes = [piece.size for piece in stream(compress(bytes(20 * PIECE + 5))).pieces()]
        assert sizes[:20] == [PIECE] * 20
        assert sum(sizes[20:]) == 5

    def test_piece_is_valid_while_the_next_one_is_made(self):
        data = sample("noise", 5 * PIECE + 9)
        pieces, place = stream(compress(data)).pieces(), 0
        before = next(pieces)
        for piece in pieces:
            # `before` is read only after the next piece was made.
            assert before.tobytes() == data[place : place + before.size]
            place += before.size
            before = piece
        assert before.tobytes() == data[place:]

    def test_next_piece_does_not_overwrite_this_one(self):
        pieces = list(zip(*[stream(compress(bytes(4 * PIECE))).pieces()] * 2, strict=False))
        for one, other in pieces:
            assert not np.shares_memory(one, other)

    def test_wrong_checksum(self):
        stored = bytearray(compress(sample("text", 2 * PIECE), write_checksum=True))
        stored[-1] ^= 1
        with pytest.raises(CorruptChunkError) as caught:
            streamed(bytes(stored))
        assert caught.value.checksum

    def test_verified_checksum_is_counted(self):
        data = sample("text", 5000)
        right = xxhash.xxh64_intdigest(data) & 0xFFFFFFFF
        stored = compress(data, write_checksum=True)
        one = stream(stored, kind=Checksum.XXH64_LOW, checksum=right)
        assert sum(piece.size for piece in one.pieces()) == 5000
        assert one.verified == {Checksum.XXH64_LOW: 1}

    def test_checksum_beside_the_frame(self):
        data = sample("text", 5000)
        right = xxhash.xxh64_intdigest(data) & 0xFFFFFFFF
        assert streamed(compress(data), kind=Checksum.XXH64_LOW, checksum=right) == data
        with pytest.raises(CorruptChunkError) as caught:
            streamed(compress(data), kind=Checksum.XXH64_LOW, checksum=right ^ 1)
        assert caught.value.checksum

    def test_nothing_is_verified_unasked(self):
        stored = compress(sample("text", 5000), write_checksum=True)
        one = stream(stored, kind=Checksum.XXH64_LOW, verify=False)
        assert sum(piece.size for piece in one.pieces()) == 5000
        assert not one.verified.total()

    @pytest.mark.parametrize("missing", [1, 3, 4, 5, 100])
    def test_cut_frame(self, missing):
        stored = compress(sample("text", 2 * PIECE), write_checksum=True)
        with pytest.raises(CorruptChunkError):
            streamed(stored[:-missing])

    @pytest.mark.parametrize("more", [b"\0", compress(b"another frame")])
    def test_bytes_behind_the_frame(self, more):
        with pytest.raises(CorruptChunkError):
            streamed(compress(sample("text", 5000)) + more)

    def test_damaged_frame(self):
        stored = bytearray(compress(sample("text", 2 * PIECE), write_checksum=True))
        stored[len(stored) // 2] ^= 0x55
        with pytest.raises(CorruptChunkError):
            streamed(bytes(stored))

    def test_source_that_ends_early(self):
        stored = compress(sample("noise", 2 * PIECE))
        with pytest.raises(FormatError, match=r"a\.zst: byte 100006: the file ends here"):
            list(stream(stored[:100_000], size=len(stored)).pieces())

    def test_dictionary(self):
        content = sample("noise", 5000)
        given_ = zstandard.ZstdCompressionDict(content, zstandard.DICT_TYPE_RAWCONTENT)
        stored = compress(content * 3, dict_data=given_)
        assert streamed(stored, dictionary=content) == content * 3
