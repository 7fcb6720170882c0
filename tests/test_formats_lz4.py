"""Cases of LZ4 that decoders got wrong, end to end: lines 1 to 9 of the list.

Expected bytes come from the specification (files built by hand) or from reference encoders.
"""

from __future__ import annotations

import random
import shutil
import subprocess

import lz4.block
import lz4.frame
import pytest
import xxhash

from gpuload.errors import ChecksumError, DecompressError, FormatError, UnsupportedCodecError
from tests.helpers import host
from tests.helpers.handmade import (
    BLOCK_SUM,
    CONTENT_SUM,
    DICT_ID,
    INDEPENDENT,
    LZ4_LEGACY_MAGIC,
    SIZE,
    V1,
    lz4_block,
    lz4_frame,
    lz4_legacy,
    lz4_literals,
    lz4_sequence,
    skippable,
    zstd_frame,
)
from tests.helpers.loading import MIB, NOISE, TEXT, decoded, written


class TestLine01ConcatenatedFrames:
    def test_each_frame_has_its_own_flags(self):
        """A file is decoded to its end; flags of a frame say nothing of the next one."""
        settings = [
            {"block_linked": False, "content_checksum": True, "block_size": 4},
            {"block_linked": True, "content_checksum": False, "block_size": 5},
            {"block_linked": False, "block_checksum": True, "store_size": False},
            {"block_linked": True, "content_checksum": True, "block_checksum": True},
        ]
        parts = [TEXT, NOISE, TEXT[::-1], TEXT[:70_000]]
        frames = [lz4.frame.compress(p, **s) for p, s in zip(parts, settings, strict=True)]
        assert decoded(b"".join(frames)) == b"".join(parts)

    @pytest.mark.parametrize("linked", [True, False])
    @pytest.mark.parametrize("checksum", [True, False])
    @pytest.mark.parametrize("size", [True, False])
    def test_of_the_same_kind(self, size, checksum, linked, tmp_path):
        """Each frame's size and checksum are of its own bytes."""
        options = {"block_linked": linked, "content_checksum": checksum, "store_size": size}
        parts = [TEXT, b"", NOISE[:70_000], TEXT[::-1]]
        data = b"".join(lz4.frame.compress(part, **options) for part in parts)
        assert decoded(data) == written(data, tmp_path / "out") == b"".join(parts)

    def test_damage_in_the_last_frame_is_found(self):
        """The checksum of the last frame counts as much as that of the first."""
        frames = bytearray(lz4.frame.compress(TEXT, content_checksum=True) * 3)
        frames[-1] ^= 1
        with pytest.raises(ChecksumError):
            decoded(bytes(frames))


class TestLine02LinkedBlocks:
    #: Two blocks; the second copies the first 20 bytes of the first from as far as can be reached.
    FIRST = random.Random(3).randbytes(65_535)
    SECOND = lz4_sequence(b"", 65_535, 20) + lz4_literals(b"tails")

    def frame(self, first: bytes) -> bytes:
        return lz4_frame(lz4_block(first, raw=True), lz4_block(self.SECOND), flags=V1)

    def test_history_of_64_kib(self):
        """A block may copy from the 64 KiB that were decoded before it, also stored ones."""
        expected = self.FIRST + self.FIRST[:20] + b"tails"
        assert lz4.frame.decompress(self.frame(self.FIRST)) == expected
        assert decoded(self.frame(self.FIRST), threads=3) == expected

    def test_reaching_before_the_first_byte(self):
        """There is no history before the frame, whatever the file holds before it."""
        before = lz4_frame(lz4_block(NOISE[:60_000], raw=True))
        with pytest.raises(DecompressError):
            decoded(before + self.frame(self.FIRST[:-1]))

    def test_match_across_the_border(self):
        """A match that starts in the history and goes on in what it writes."""
        second = lz4_sequence(b"", 3, 11) + lz4_literals(b"12345")
        data = lz4_frame(lz4_block(lz4_literals(b"abc")), lz4_block(second), flags=V1)
        assert decoded(data) == b"abc" + b"abcabcabcab" + b"12345"

    def test_reference_encoder(self):
        """What the reference library links decodes with any number of threads."""
        content = TEXT * 5
        frame = lz4.frame.compress(content, block_linked=True, block_size=4)
        assert decoded(frame, threads=1) == decoded(frame, threads=3) == content

    def test_is_told(self):
        """Blocks that cannot be batched are chained, and everyone is told why."""
        frame = lz4.frame.compress(TEXT, block_linked=True, block_size=4)
        with host.open(frame) as container:
            assert not container.batchable
            assert container.chunks["chained"][1:].all()
            assert "linked" in container.serial
            assert "linked" in container.explain()[0].reason


class TestLine03UncompressedBlocks:
    @pytest.mark.parametrize("flags", [V1 | INDEPENDENT, V1], ids=["independent", "linked"])
    def test_copied(self, flags):
        """The top bit of the size word says that the payload is the content."""
        blocks = [
            lz4_block(NOISE[:5_000], raw=True),
            lz4_block(lz4_literals(b"hello")),
            lz4_block(b"\x50hello", raw=True),
        ]
        assert decoded(lz4_frame(*blocks, flags=flags)) == NOISE[:5_000] + b"hello" + b"\x50hello"

    def test_reference_encoder(self):
        """Noise is stored by the reference encoder."""
        assert decoded(lz4.frame.compress(NOISE)) == NOISE


class TestLine04LegacyFrames:
    FULL = bytes(8 * MIB)

    def full_block(self) -> bytes:
        return lz4.block.compress(self.FULL, store_size=False)

    def test_ends_at_the_end_of_the_file(self):
        """Blocks of 8 MiB, the last one shorter, and no end mark."""
        data = lz4_legacy(self.full_block(), lz4_literals(b"the rest"))
        assert decoded(data) == self.FULL + b"the rest"

    @pytest.mark.parametrize(
        ("following", "content"),
        [
            (lz4_frame(lz4_block(lz4_literals(b"standard"))), b"standard"),
            (lz4_legacy(lz4_literals(b"legacy again")), b"legacy again"),
            (skippable(b"skipped", magic=0x184D2A5F), b""),
        ],
        ids=["standard", "legacy", "skippable"],
    )
    def test_ends_at_a_known_magic(self, following, content):
        """A size word that is a magic number starts the next frame."""
        assert decoded(lz4_legacy(lz4_literals(b"legacy")) + following) == b"legacy" + content

    def test_empty(self):
        """A legacy frame without blocks is a file of no bytes."""
        assert decoded(LZ4_LEGACY_MAGIC) == b""

    def test_tool(self):
        """What ``lz4 -l`` writes."""
        if shutil.which("lz4") is None:
            pytest.skip("the lz4 tool is not installed")
        content = TEXT + self.FULL + NOISE
        made = subprocess.run(["lz4", "-l", "-c"], input=content, capture_output=True, check=True)
        assert made.stdout.startswith(LZ4_LEGACY_MAGIC)
        assert decoded(made.stdout) == content


class TestLine05ContentSizeOfLz4:
    BLOCKS = tuple(lz4_block(lz4_literals(part)) for part in (b"one ", b"and a ", b"two"))
    CONTENT = b"one and a two"

    @pytest.mark.parametrize("flags", [V1 | INDEPENDENT, V1], ids=["independent", "linked"])
    def test_absent_and_blocks_partly_filled(self, flags):
        """Without a content size only decoding tells how much there is."""
        data = lz4_frame(*self.BLOCKS, flags=flags, limits=0x70)
        with host.open(data) as container:
            assert container.raw_size is None
            assert bytes(container.load()) == self.CONTENT

    def test_flushed_by_the_reference_encoder(self):
        """Flushes leave blocks short anywhere in a frame."""
        with lz4.frame.LZ4FrameCompressor(block_size=7, auto_flush=True) as encoder:
            parts = [encoder.begin(), *map(encoder.compress, (b"a", TEXT, b"b")), encoder.flush()]
        assert decoded(b"".join(parts)) == b"a" + TEXT + b"b"

    @pytest.mark.parametrize("verify", [True, False])
    @pytest.mark.parametrize("flags", [V1 | INDEPENDENT, V1], ids=["independent", "linked"])
    @pytest.mark.parametrize("size", [0, 12, 14, 2**40])
    def test_present_and_different(self, size, flags, verify):
        """A content size that is wrong is an error, even where checksums are not checked."""
        data = lz4_frame(*self.BLOCKS, flags=flags | SIZE, size=size)
        with pytest.raises(DecompressError, match=r"13.*" if size else "13"):
            decoded(data, verify=verify)

    def test_present_and_right(self):
        """The right one changes nothing."""
        data = lz4_frame(*self.BLOCKS, flags=V1 | INDEPENDENT | SIZE, size=13)
        assert decoded(data) == self.CONTENT

    def test_of_a_frame_without_blocks(self):
        """It is compared there too."""
        with pytest.raises(DecompressError):
            decoded(lz4_frame(flags=V1 | INDEPENDENT | SIZE, size=1))


class TestLine06ChecksumsOfLz4:
    PAYLOAD = lz4_sequence(b"hello ", 6, 12) + lz4_literals(b"world")
    CONTENT = b"hello hello hello world"
    FLAGS = V1 | INDEPENDENT | BLOCK_SUM | CONTENT_SUM

    def frame(self, flags: int = FLAGS) -> bytes:
        return lz4_frame(lz4_block(self.PAYLOAD, checksum=True), flags=flags, content=self.CONTENT)

    @pytest.mark.parametrize("flags", [FLAGS, FLAGS & ~INDEPENDENT], ids=["independent", "linked"])
    def test_block_checksum_is_of_the_stored_bytes(self, flags):
        """The block's checksum covers the payload, the content checksum what it decodes to."""
        assert lz4.frame.decompress(self.frame(flags)) == self.CONTENT
        with host.open(self.frame(flags)) as container:
            assert container.verify().verified == {"xxh32_stored": 1, "xxh32": 1}
            assert bytes(container.load()) == self.CONTENT

    @pytest.mark.parametrize("flags", [FLAGS, FLAGS & ~INDEPENDENT], ids=["independent", "linked"])
    @pytest.mark.parametrize("place", [-1, -9], ids=["content", "block"])
    def test_wrong(self, place, flags):
        """Either one that disagrees is a ChecksumError, unless checksums are not asked for."""
        data = bytearray(self.frame(flags))
        data[place] ^= 0x80
        with pytest.raises(ChecksumError):
            decoded(bytes(data))
        assert decoded(bytes(data), verify=False) == self.CONTENT

    @pytest.mark.parametrize("verify", [True, False])
    def test_header_checksum(self, verify):
        """The second byte of the descriptor's xxHash-32; always checked: sizes depend on it."""
        data = bytearray(self.frame())
        assert data[6] == xxhash.xxh32_intdigest(bytes(data[4:6])) >> 8 & 255
        data[6] ^= 1
        with pytest.raises(FormatError, match="byte 6"):
            decoded(bytes(data), verify=verify)


class TestLine07SkippableFrames:
    LZ4 = lz4_frame(lz4_block(lz4_literals(b"hello")))
    ZSTD = zstd_frame((0, 5, b"hello"), size=5)

    @pytest.mark.parametrize("magic", range(0x184D2A50, 0x184D2A60))
    def test_every_magic(self, magic):
        """All sixteen are skipped, before, between and behind frames."""
        skip = skippable(b"abc", magic=magic)
        assert decoded(skip + self.LZ4 + skip + self.LZ4 + skip) == b"hellohello"

    @pytest.mark.parametrize(("frame", "form"), [(LZ4, "lz4"), (ZSTD, "zstd")])
    def test_the_next_frame_tells_the_format(self, frame, form):
        """LZ4 and Zstandard share the magic; what follows decides, however many are skipped."""
        data = skippable() + skippable(NOISE) + skippable(self.ZSTD + self.LZ4) + frame
        with host.open(data) as container:
            assert container.format == form
            assert bytes(container.load()) == b"hello"

    def test_nothing_else(self):
        """A file of skippable frames only holds no bytes."""
        assert decoded(skippable(b"abc") * 3) == b""

    @pytest.mark.parametrize("frame", [LZ4, ZSTD], ids=["lz4", "zstd"])
    def test_cut_short(self, frame):
        """A skippable frame that the file does not hold whole is an error."""
        for end in (3, 7, 9):
            with pytest.raises(FormatError):
                decoded(frame + skippable(b"abc")[:end])


class TestLine08DictionariesOfLz4:
    DICTIONARY = b"the dictionary holds these words"
    #: The first block copies all of it; so does the second, if it starts anew.
    BLOCK = lz4_block(lz4_sequence(b"", 32, 32) + lz4_literals(b"; so."))

    def test_missing(self):
        """The error names the ID, in the form that the user may look for, and the option."""
        data = lz4_frame(self.BLOCK, flags=V1 | INDEPENDENT | DICT_ID, dictionary=0xC0FFEE)
        with pytest.raises(UnsupportedCodecError, match=r"12648430.*c0ffee.*--dictionary"):
            decoded(data)

    @pytest.mark.parametrize("flags", [DICT_ID, 0], ids=["named", "not named"])
    def test_supplied_for_independent_blocks(self, flags):
        """Every independent block starts with the dictionary as its history."""
        data = lz4_frame(self.BLOCK, self.BLOCK, flags=V1 | INDEPENDENT | flags, dictionary=7)
        assert decoded(data, dictionary=self.DICTIONARY) == (self.DICTIONARY + b"; so.") * 2

    def test_supplied_for_linked_blocks(self):
        """Linked blocks have it once, before the first."""
        again = lz4_block(lz4_sequence(b"", 37 + 32, 32) + lz4_literals(b"; so."))
        data = lz4_frame(self.BLOCK, again, flags=V1 | DICT_ID, dictionary=7)
        assert decoded(data, dictionary=self.DICTIONARY) == (self.DICTIONARY + b"; so.") * 2

    def test_frames_without_one(self):
        """Supplying it does no harm to frames that were made without it."""
        assert decoded(lz4.frame.compress(TEXT), dictionary=self.DICTIONARY) == TEXT

    @pytest.mark.parametrize("options", [["-BI"], ["-BD"]], ids=["independent", "linked"])
    def test_tool(self, options, tmp_path):
        """What ``lz4 -D`` writes; only the last 64 KiB of a dictionary count."""
        if shutil.which("lz4") is None:
            pytest.skip("the lz4 tool is not installed")
        dictionary = NOISE + TEXT[:60_000]
        (tmp_path / "words").write_bytes(dictionary)
        command = ["lz4", *options, "-B4", "-D", str(tmp_path / "words"), "-c"]
        content = TEXT[1_000:] + NOISE[-3_000:]
        made = subprocess.run(command, input=content, capture_output=True, check=True).stdout
        assert decoded(made, dictionary=dictionary) == content


class TestLine09Matches:
    LITERALS = b"some literals"
    FLAGS = (V1 | INDEPENDENT, V1)

    @pytest.mark.parametrize("flags", FLAGS, ids=["independent", "linked"])
    @pytest.mark.parametrize("distance", [1, 100, 65_535 - len(LITERALS)])
    def test_beyond_what_was_written(self, distance, flags):
        """A match from before the first byte is an error, however near."""
        match = lz4_sequence(self.LITERALS, len(self.LITERALS) + distance, 20)
        data = lz4_frame(lz4_block(match + lz4_literals(b"tails")), flags=flags)
        with pytest.raises(DecompressError):
            decoded(data)

    @pytest.mark.parametrize("flags", FLAGS, ids=["independent", "linked"])
    @pytest.mark.parametrize("length", [4, 20, 300])
    def test_offset_zero(self, length, flags):
        """Offset 0 is invalid."""
        payload = lz4_sequence(self.LITERALS, 0, length) + lz4_literals(b"tails")
        with pytest.raises(DecompressError, match="offset 0"):
            decoded(lz4_frame(lz4_block(payload), flags=flags))

    @pytest.mark.parametrize("flags", FLAGS, ids=["independent", "linked"])
    @pytest.mark.parametrize("sums", [BLOCK_SUM, CONTENT_SUM, BLOCK_SUM | CONTENT_SUM])
    def test_offset_zero_that_a_checksum_vouches_for(self, sums, flags):
        """A checksum decides where there is one: wrong bytes never, what it promises may come."""
        payload = lz4_sequence(self.LITERALS, 0, 20) + lz4_literals(b"tails")
        zeros = self.LITERALS + bytes(20) + b"tails"
        block = lz4_block(payload, checksum=bool(sums & BLOCK_SUM))
        assert decoded(lz4_frame(block, flags=flags | sums, content=zeros)) == zeros
        if sums & CONTENT_SUM:
            with pytest.raises(DecompressError):
                decoded(lz4_frame(block, flags=flags | sums, content=b"others"))

    def test_offset_zero_after_long_lengths(self):
        """Also where lengths of many bytes come before it, and where the block is the second."""
        long = lz4_sequence(bytes(700), 1, 900) + lz4_sequence(b"\0\0\0\0", 0, 5_000)
        good, bad = lz4_block(lz4_literals(b"good")), lz4_block(long + lz4_literals(b"tails"))
        with pytest.raises(DecompressError, match="chunk 1"):
            decoded(lz4_frame(good, bad))

    def test_zeros_that_are_no_offset(self):
        """Zeros in literals, and runs of zeros, are fine."""
        payload = lz4_sequence(bytes(9), 1, 600) + lz4_literals(bytes(300))
        assert decoded(lz4_frame(lz4_block(payload))) == bytes(909)
