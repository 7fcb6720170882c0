"""Cases of Zstandard that decoders got wrong, end to end: lines 10 to 18 of the list.

Expected bytes come from the specification (files built by hand) or from reference encoders.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess

import numpy as np
import pytest
import xxhash
import zstandard

from gpuload.errors import (
    ChecksumError,
    DecompressError,
    FormatError,
    FormatWarning,
    GpuloadError,
    MemoryLimitError,
    UnsupportedCodecError,
)
from tests.helpers import host
from tests.helpers.handmade import skippable, zstd_frame, zstd_header, zstd_seek_table
from tests.helpers.loading import MIB, NOISE, TEXT, allocating_at_most, decoded, written

RAW_BLOCK, RUN, COMPRESSED = 0, 1, 2
#: Window descriptors of 128 KiB, 128 MiB, an eighth more than that, and 256 MiB.
WINDOW_128K, WINDOW_128M, WINDOW_144M, WINDOW_256M = 7 << 3, 17 << 3, 17 << 3 | 1, 18 << 3


def zstd(data: bytes, *, size: bool = True, checksum: bool = True, **options) -> bytes:
    """Return one frame of the reference encoder."""
    return zstandard.ZstdCompressor(
        write_content_size=size, write_checksum=checksum, **options
    ).compress(data)


class TestLine10NoContentSize:
    def test_found_by_decoding(self, tmp_path):
        """The decoded size of a frame that does not state it is found, not guessed."""
        data = zstd(TEXT, size=False)
        with host.open(data) as container:
            assert container.raw_size is None
            assert container.raw_bound >= len(TEXT)
        assert decoded(data) == written(data, tmp_path / "out") == TEXT

    def test_into_memory_of_the_right_size(self):
        """The caller may know it."""
        out = np.empty(len(TEXT), np.uint8)
        host.load(zstd(TEXT, size=False), out=out)
        assert out.tobytes() == TEXT

    def test_takes_no_more_memory_than_needed(self):
        """A run of 128 KiB in four bytes does not make the bound of a block of text its size."""
        data = zstd_frame(*[(RUN, 131_072, b"x")] * 8, window=WINDOW_128K) + zstd(TEXT, size=False)
        assert decoded(data) == b"x" * MIB + TEXT


class TestLine11SeveralZstdFrames:
    PARTS = (TEXT, b"", NOISE, TEXT[:1], b"", TEXT[::-1])

    @pytest.mark.parametrize("size", [True, False], ids=["sizes", "no sizes"])
    def test_all_are_decoded(self, size):
        """Each frame is a chunk, also an empty one."""
        data = b"".join(zstd(part, size=size) for part in self.PARTS)
        with host.open(data, threads=3) as container:
            assert container.chunks.size == len(self.PARTS)
            assert container.batchable
            assert bytes(container.load()) == b"".join(self.PARTS)

    def test_many_small_ones(self):
        """Thousands of frames of a few bytes."""
        parts = [b"%d" % n for n in range(3_000)]
        assert decoded(b"".join(map(zstd, parts)), threads=3) == b"".join(parts)

    def test_tool(self):
        """What pzstd writes."""
        if shutil.which("pzstd") is None:
            pytest.skip("the pzstd tool is not installed")
        content = TEXT * 9
        made = subprocess.run(["pzstd", "-q", "-p2", "-c"], input=content, capture_output=True)
        assert decoded(made.stdout) == content


class TestLine12SkippableZstdFrames:
    @pytest.mark.parametrize("size", [0, 1, 7, 65_536, 3 * MIB])
    def test_of_any_size(self, size):
        """Whatever is in them, also something that looks like a frame."""
        frame = zstd(TEXT)
        skip = skippable((frame * (size // len(frame) + 1))[:size])
        assert decoded(skip + frame + skip + skip + frame + skip) == TEXT * 2


class TestLine13BytesAfterTheLastFrame:
    @pytest.mark.parametrize(
        "tail", [b"\0", b"\0\0\0\0", b"PK\3\4", b"\x28", b"\x28\xb5\x2f", NOISE]
    )
    def test_refused(self, tail):
        """What starts no frame is an error, and the error says where it is."""
        frame = zstd(TEXT)
        with pytest.raises(FormatError, match=f"byte {len(frame)}|frame that starts"):
            decoded(frame + tail)


class TestLine14Windows:
    @pytest.mark.parametrize("window", [WINDOW_144M, WINDOW_256M, 0xFF])
    def test_refused_above_128_mib(self, window):
        """The error names the option that allows it, and no memory was taken for the window."""
        data = zstd_frame((RAW_BLOCK, 5, b"hello"), window=window)
        with (
            allocating_at_most(8 * MIB),
            pytest.raises(MemoryLimitError, match=r"window_limit.*--max-window"),
        ):
            decoded(data)

    def test_128_mib(self):
        """The limit itself is fine."""
        assert decoded(zstd_frame((RAW_BLOCK, 5, b"hello"), window=WINDOW_128M)) == b"hello"

    @pytest.mark.parametrize(
        ("window", "limit"), [(WINDOW_144M, 144 * MIB), (WINDOW_256M, 256 * MIB)]
    )
    def test_allowed(self, window, limit):
        """The option takes the exact size."""
        data = zstd_frame((RAW_BLOCK, 5, b"hello"), window=window)
        assert decoded(data, window_limit=limit) == b"hello"
        with pytest.raises(MemoryLimitError):
            decoded(data, window_limit=limit - 1)

    def test_small_limit(self):
        """A limit below the default is kept too."""
        with pytest.raises(MemoryLimitError, match="131072"):
            decoded(zstd_frame((RAW_BLOCK, 5, b"hello"), window=WINDOW_128K), window_limit=131_071)

    def test_single_segment(self, tmp_path):
        """A single segment is its own window: bytes if it goes to memory, else the same refusal."""
        data = zstd_frame(*[(RUN, 131_072, b"x")] * 1_040, size=130 * MIB)
        assert len(host.load(data)) == 130 * MIB
        with pytest.raises(MemoryLimitError, match="window_limit"):
            written(data, tmp_path / "out")
        assert len(written(data, tmp_path / "out", window_limit=130 * MIB)) == 130 * MIB


@pytest.fixture(scope="module")
def dictionary():
    rng = random.Random(5)
    words = [b"alpha", b"beta", b"gamma", b"delta", b"epsilon", b"zeta"]
    samples = [b" ".join(rng.choices(words, k=200)) for _ in range(300)]
    return zstandard.train_dictionary(4_096, samples, dict_id=31_337)


class TestLine15DictionariesOfZstd:
    def test_missing(self, dictionary):
        """The error prints the ID and names the option."""
        with pytest.raises(UnsupportedCodecError, match=r"31337.*--dictionary"):
            decoded(zstd(TEXT, dict_data=dictionary))

    def test_another_one(self, dictionary):
        """The error prints both IDs."""
        other = bytearray(dictionary.as_bytes())
        other[4:8] = struct.pack("<I", 99)
        with pytest.raises(UnsupportedCodecError, match=r"31337.*99"):
            decoded(zstd(TEXT, dict_data=dictionary), dictionary=bytes(other))

    @pytest.mark.parametrize("memory_limit", [256 * MIB, 1_000])
    def test_supplied(self, dictionary, memory_limit, tmp_path):
        """With it frames decode, and so do frames without one in the same file."""
        content = b"alpha beta gamma delta epsilon zeta " * 3_000
        data = zstd(content, dict_data=dictionary) + zstd(TEXT) + zstd(content)
        options = {"dictionary": dictionary.as_bytes(), "memory_limit": memory_limit}
        expected = content + TEXT + content
        assert decoded(data, **options) == written(data, tmp_path / "out", **options) == expected

    def test_raw_content(self):
        """A dictionary without magic is the history itself, and has no ID."""
        words = TEXT[:5_000]
        raw = zstandard.ZstdCompressionDict(words, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        data = zstd(TEXT[1_000:9_000], dict_data=raw)
        assert decoded(data, dictionary=words) == TEXT[1_000:9_000]

    def test_damaged(self):
        """A dictionary that is no good is an error of gpuload's, not the library's."""
        with pytest.raises(GpuloadError, match="dictionary"):
            decoded(zstd(TEXT), dictionary=b"\x37\xa4\x30\xec" + b"garbage" * 9)

    def test_corpus(self, corpus):
        """The corpus' own dictionary, with and without an ID in the frame's header."""
        dictionary = (corpus / "zstd/dictionary.dict").read_bytes()
        named, unnamed = (
            host.load(corpus / f"zstd/dictionary_needed{suffix}.zst", dictionary=dictionary)
            for suffix in ("", "_no_id")
        )
        assert bytes(named) == bytes(unnamed)
        assert len(named) == 9_000


class TestLine16SeekTable:
    PARTS = (TEXT[:70_000], NOISE[:20_000], TEXT[:1_000])

    def sums(self, flip: int = 0) -> list[int]:
        return [xxhash.xxh64_intdigest(part) & 0xFFFFFFFF ^ flip for part in self.PARTS]

    def file(self, sizes=None, *, checksums=None, **options) -> bytes:
        """Return frames and their seek table, with other decoded sizes than theirs if wanted."""
        frames = [zstd(part, **options) for part in self.PARTS]
        sizes = [len(part) for part in self.PARTS] if sizes is None else sizes
        entries = [(len(frame), size) for frame, size in zip(frames, sizes, strict=True)]
        return b"".join(frames) + zstd_seek_table(entries, checksums)

    @pytest.mark.parametrize("size", [True, False], ids=["sizes", "no sizes"])
    @pytest.mark.parametrize("checksum", [True, False], ids=["checksum", "no checksum"])
    def test_is_the_index(self, size, checksum):
        """With a table every decoded size is known before decoding."""
        data = self.file(size=size, checksum=checksum, checksums=self.sums())
        with host.open(data) as container:
            assert container.details["seek_table"]
            assert container.raw_size == sum(map(len, self.PARTS))
            assert bytes(container.load()) == b"".join(self.PARTS)
            assert container.verify().verified == {"xxh64_low": 3}

    @pytest.mark.parametrize("memory_limit", [256 * MIB, 100])
    @pytest.mark.parametrize("change", [-1, 1])
    def test_wrong_sizes(self, change, memory_limit, tmp_path):
        """A size that only the table states is compared with what is decoded."""
        sizes = [len(part) for part in self.PARTS]
        sizes[1] += change
        data = self.file(sizes, size=False)
        with pytest.raises(DecompressError):
            decoded(data, memory_limit=memory_limit)
        with pytest.raises(DecompressError):
            written(data, tmp_path / "out", memory_limit=memory_limit)

    @pytest.mark.parametrize("memory_limit", [256 * MIB, 100])
    def test_wrong_checksums(self, memory_limit, tmp_path):
        """A checksum that only the table has is compared too, also of frames that are streamed."""
        data = self.file(checksum=False, checksums=self.sums(flip=1))
        with pytest.raises(ChecksumError):
            decoded(data, memory_limit=memory_limit)
        with pytest.raises(ChecksumError):
            written(data, tmp_path / "out", memory_limit=memory_limit)
        report = host.open(data, memory_limit=memory_limit).verify()
        assert [failure.chunk for failure in report.failures] == [0, 1, 2]
        assert report.verified == {}

    @pytest.mark.parametrize("memory_limit", [256 * MIB, 100])
    @pytest.mark.parametrize("checksum", [True, False], ids=["cut", "junk"])
    def test_frames_that_end_elsewhere(self, checksum, memory_limit, tmp_path):
        """A frame without its checksum, or with bytes behind it: the table says where it ends."""
        frames = [zstd(part, checksum=checksum) for part in self.PARTS]
        frames[0] = frames[0][:-4] if checksum else frames[0] + b"junk"
        entries = [(len(f), len(part)) for f, part in zip(frames, self.PARTS, strict=True)]
        data = b"".join(frames) + zstd_seek_table(entries)
        with pytest.raises(DecompressError):
            decoded(data, memory_limit=memory_limit)
        with pytest.raises(DecompressError):
            written(data, tmp_path / "out", memory_limit=memory_limit)

    def test_contradicts_the_frames(self):
        """A table that cannot be right is ignored, with a warning; the frames are what counts."""
        data = self.file([70_001, 20_000, 1_000])
        with pytest.warns(FormatWarning, match="seek table"):
            assert decoded(data) == b"".join(self.PARTS)
        with pytest.raises(FormatError, match="seek table"):
            decoded(data, strict=True)

    @pytest.mark.parametrize(
        "table",
        [
            zstd_seek_table([(20, 20)]),
            zstd_seek_table([(1 << 31, 20)] * 3),
            zstd_seek_table([(8, 0)], reserved=0x40),
            skippable(struct.pack("<IBI", 0x7FFFFFF, 0, 0x8F92EAB1), magic=0x184D2A5E),
        ],
        ids=["sum", "large", "reserved", "count"],
    )
    def test_nonsense(self, table):
        """So is one whose entries or whose footer make no sense."""
        data = zstd(TEXT) + table
        with allocating_at_most(16 * MIB), pytest.warns(FormatWarning, match="seek table"):
            assert decoded(data) == TEXT


class TestLine17OddBlocksOfZstd:
    #: A raw literals section of "abcd" and one sequence: 4 literals, offset 4, length 3.
    LITERALS = bytes([4 << 3]) + b"abcd"
    #: All three codes are runs, so that the bit stream holds the 2 bits of the offset only.
    RUN_TABLES = LITERALS + bytes([1, 0b01_01_01_00, 4, 2, 0, 0b1_11])
    #: Match lengths by a table of 32 cells for two symbols of 16 cells each, the smallest there is.
    TINY_TABLE = LITERALS + bytes([1, 0b01_01_10_00, 4, 2, 0x10, 0x3F, 0b1_00000_11])
    NOTHING = bytes(2)

    @pytest.mark.parametrize(
        ("blocks", "content"),
        [
            ([(COMPRESSED, 2, NOTHING)], b""),
            ([(COMPRESSED, 2, NOTHING), (RAW_BLOCK, 3, b"abc")], b"abc"),
            ([(COMPRESSED, 10, RUN_TABLES)], b"abcdabc"),
            ([(COMPRESSED, 12, TINY_TABLE)], b"abcdabc"),
            ([(RUN, 131_072, b"r")], b"r" * 131_072),
            ([(RUN, 5, b"r"), (COMPRESSED, 12, TINY_TABLE)], b"rrrrrabcdabc"),
            ([(RUN, 0, b"r"), (RAW_BLOCK, 0, b""), (RUN, 1, b"r")], b"r"),
            ([(RAW_BLOCK, 131_072, bytes(131_072))], bytes(131_072)),
        ],
    )
    @pytest.mark.parametrize("sized", [True, False], ids=["size", "no size"])
    def test_valid(self, blocks, content, sized, tmp_path):
        """Blocks that encoders seldom write, each of them allowed (RFC 8878, section 3.1.1.3)."""
        blocks = [(kind, len(body) if kind == COMPRESSED else n, body) for kind, n, body in blocks]
        size = {"size": len(content)} if sized else {}
        data = zstd_frame(*blocks, window=WINDOW_128K, content=content, **size)
        assert zstandard.ZstdDecompressor().decompressobj().decompress(data) == content
        assert decoded(data) == written(data, tmp_path / "out", memory_limit=1) == content

    def test_one_byte_more_than_a_block_may_hold(self):
        """131,072 bytes are the limit (section 3.1.1.2.4)."""
        data = zstd_frame((RUN, 131_073, b"r"), window=WINDOW_128M)
        with pytest.raises(FormatError, match="131073"):
            decoded(data)


class TestLine18HugeSizesOfZstd:
    @pytest.mark.parametrize(
        "data",
        [
            zstd_header(size=2**40),
            zstd_frame((RAW_BLOCK, 0, b""), size=2**40),
            zstd_frame((RAW_BLOCK, 0, b""), size=2**64 - 1),
            zstd_frame((RAW_BLOCK, 0, b""), size=2**63, window=WINDOW_128K),
            zstd_frame((COMPRESSED, 2, bytes(2)), size=2**62, window=WINDOW_128K),
        ],
    )
    def test_stated_only(self, data):
        """A frame of a few bytes is refused before memory is taken for what it declares."""
        with allocating_at_most(8 * MIB), pytest.raises(GpuloadError):
            decoded(data, max_output=2**63)

    def test_real(self):
        """One that does hold 2 GiB meets the default limit, before any of it is decoded."""
        data = zstd_frame(*[(RUN, 131_072, b"x")] * 16_384, size=2**31)
        with (
            allocating_at_most(8 * MIB),
            pytest.raises(MemoryLimitError, match=r"2147483648.*max_output.*--max-output"),
        ):
            decoded(data)
