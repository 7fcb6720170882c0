"""Cases of gzip and BGZF that decoders got wrong, end to end: lines 19 to 25 of the list.

Expected bytes come from the specification (files built by hand) or from reference encoders.
"""

from __future__ import annotations

import gzip
import itertools
import shutil
import struct
import subprocess
import zlib

import pytest

from gpuload.errors import ChecksumError, FormatError, FormatWarning, GpuloadError
from tests.helpers import host
from tests.helpers.handmade import (
    BGZF_EOF,
    FCOMMENT,
    FEXTRA,
    FHCRC,
    FNAME,
    bgzf_block,
    gzip_member,
    subfield,
)
from tests.helpers.loading import MIB, NOISE, TEXT, allocating_at_most, decoded, written


class TestLine19GzipMembers:
    def test_several_also_empty_ones(self, tmp_path):
        """All members are decoded, wherever empty ones stand."""
        parts = [b"", TEXT, b"", b"", NOISE, b"x", b""]
        data = b"".join(map(gzip.compress, parts))
        assert decoded(data) == written(data, tmp_path / "out") == b"".join(parts)

    def test_nothing_but_empty_ones(self):
        """They hold no bytes."""
        assert decoded(gzip.compress(b"") * 9) == b""

    def test_many_small_ones(self):
        """Thousands of members of a few bytes."""
        parts = [b"%d" % n for n in range(3_000)]
        assert decoded(b"".join(gzip_member(part) for part in parts)) == b"".join(parts)

    @pytest.mark.parametrize("size", [4_085, 4_086, 4_087, 4_088, 4_096, 4_097, 65_535, 262_144])
    def test_that_end_where_reading_pauses(self, size):
        """A member that ends at, or a byte before or behind, the end of what was read at once."""
        content = NOISE * 3
        stored = size - 18 - 5
        data = gzip_member(content[:stored], level=0) + gzip_member(b"next")
        assert decoded(data) == content[:stored] + b"next"

    def test_bgzf_that_goes_on_as_gzip(self):
        """Members without BC after BGZF blocks are members all the same."""
        data = bgzf_block(TEXT[:60_000]) + gzip_member(NOISE) + bgzf_block(b"more")
        assert decoded(data) == TEXT[:60_000] + NOISE + b"more"


class TestLine20IsizeOfGzip:
    @pytest.mark.parametrize("size", [0, len(TEXT) - 1, len(TEXT) + 1, 0xFFFFFFFF])
    def test_wrong(self, size):
        """It is compared with what was decoded, and no memory is taken for what it claims."""
        with allocating_at_most(64 * MIB), pytest.raises(ChecksumError, match=str(len(TEXT))):
            decoded(gzip_member(TEXT, size=size))

    def test_wrong_in_bgzf(self):
        """In BGZF too, where it is the block's size."""
        data = bytearray(bgzf_block(TEXT[:60_000]) + BGZF_EOF)
        data[-len(BGZF_EOF) - 4] ^= 1
        with pytest.raises(GpuloadError):
            decoded(bytes(data))

    @pytest.mark.slow
    def test_of_a_member_above_4_gib(self):
        """The size modulo 2^32 is the right one, and the next member is found."""
        data = gzip_of_zeros(2**32 + 5 * MIB) + gzip_member(b"next")
        with host.open(data, max_output=2**33) as container:
            report = container.verify()
        assert report.failures == []
        assert report.raw_size == 2**32 + 5 * MIB + 4


def gzip_of_zeros(size: int) -> bytes:
    """Return a member of whole MiB of zeros, made of one piece that is repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(size // MIB):
        crc = zlib.crc32(bytes(MIB), crc)
    header = gzip_member(b"")[:10]
    return header + piece * (size // MIB) + b"\3\0" + struct.pack("<II", crc, size % 2**32)


class TestLine21AfterTheLastGzipMember:
    @pytest.mark.parametrize("strict", [False, True])
    @pytest.mark.parametrize("zeros", [1, 7, 8, 512, 300_000])
    @pytest.mark.parametrize("file", [gzip_member(TEXT), bgzf_block(TEXT[:60_000]) + BGZF_EOF])
    def test_zeros_are_ignored(self, file, zeros, strict):
        """Padding with zeros, as tapes have it, is not even worth a warning."""
        assert decoded(file + bytes(zeros), strict=strict) == decoded(file)

    @pytest.mark.parametrize("tail", [b"x", b"\x1f", b"garbage", bytes(20) + b"garbage"])
    @pytest.mark.parametrize("file", [gzip_member(TEXT), bgzf_block(TEXT[:60_000]) + BGZF_EOF])
    def test_other_bytes(self, file, tail):
        """They are ignored with a warning that says where they are; to strict they are an error."""
        place = len(file + tail) - len(tail.lstrip(b"\0"))
        with pytest.warns(FormatWarning, match=f"byte {place}: .*; ignored$"):
            assert bytes(host.load(file + tail)) == decoded(file)
        with pytest.raises(FormatError, match=f"byte {place}") as caught:
            decoded(file + tail, strict=True)
        assert "ignored" not in str(caught.value)

    def test_no_member_behind_zeros(self):
        """gunzip does not look for members behind padding; neither do we, but we warn."""
        with pytest.warns(FormatWarning):
            assert bytes(host.load(gzip_member(TEXT) + bytes(9) + gzip_member(b"x"))) == TEXT


class TestLine22GzipHeaders:
    EXTRA = subfield(b"AB", b"something") + subfield(b"CD", b"")
    FLAGS = tuple(
        sum(chosen)
        for count in range(5)
        for chosen in itertools.combinations((FHCRC, FEXTRA, FNAME, FCOMMENT), count)
    )

    @pytest.mark.parametrize("flags", FLAGS)
    def test_optional_fields(self, flags):
        """Any of the four optional fields, in the order of RFC 1952, section 2.3."""
        data = gzip_member(TEXT, flags=flags, extra=self.EXTRA)
        assert gzip.decompress(data) == TEXT
        with host.open(data) as container:
            assert container.details["name"] == ("name.bin" if flags & FNAME else None)
            assert container.details["comment"] == ("a comment" if flags & FCOMMENT else None)
            assert container.details["subfields"] == (["AB", "CD"] if flags & FEXTRA else [])
            assert bytes(container.load()) == TEXT

    @pytest.mark.parametrize("flags", FLAGS[1:])
    def test_in_the_second_member(self, flags):
        """Every member has a header of its own."""
        data = gzip_member(TEXT) + gzip_member(NOISE, flags=flags, extra=self.EXTRA)
        assert decoded(data) == TEXT + NOISE

    @pytest.mark.parametrize("extra", [b"", b"A", subfield(b"AB", bytes(65_531))])
    def test_extra_field_of_any_size(self, extra):
        """XLEN counts, whether or not the bytes make subfields."""
        assert decoded(gzip_member(TEXT, flags=FEXTRA, extra=extra)) == TEXT

    @pytest.mark.parametrize("flags", [f for f in FLAGS if f & FHCRC])
    @pytest.mark.parametrize("first", [b"", gzip_member(b"first")], ids=["first", "second"])
    def test_header_crc(self, first, flags):
        """FHCRC, the low half of the header's CRC-32, is compared."""
        good = gzip_member(TEXT, flags=flags, extra=self.EXTRA)
        bad = bytearray(good)
        bad[4] ^= 1
        assert decoded(first + good).endswith(TEXT)
        with pytest.raises(FormatError, match="FHCRC"):
            decoded(first + bytes(bad))


class TestLine23EndOfBgzf:
    def test_empty_block_in_the_middle(self):
        """It is no end; what follows is decoded."""
        data = bgzf_block(TEXT[:9_000]) + BGZF_EOF * 2 + bgzf_block(NOISE[:9_000]) + BGZF_EOF
        assert decoded(data) == TEXT[:9_000] + NOISE[:9_000]

    def test_missing(self):
        """A file without the end block decodes with a warning; to strict it is an error."""
        data = bgzf_block(TEXT[:9_000])
        with pytest.warns(FormatWarning, match="end-of-file block"):
            assert bytes(host.load(data)) == TEXT[:9_000]
        with pytest.raises(FormatError, match="end-of-file block"):
            decoded(data, strict=True)

    def test_nothing_else(self):
        """A file of the end block alone holds no bytes."""
        assert decoded(BGZF_EOF) == b""

    def test_tool(self):
        """What bgzip writes."""
        if shutil.which("bgzip") is None:
            pytest.skip("the bgzip tool is not installed")
        made = subprocess.run(["bgzip", "-c"], input=TEXT, capture_output=True, check=True).stdout
        assert made.endswith(BGZF_EOF)
        assert decoded(made, threads=3) == TEXT


class TestLine24BgzfSubfield:
    OTHER = subfield(b"XY", b"other")

    @pytest.mark.parametrize("around", [(OTHER, b""), (b"", OTHER), (OTHER * 3, OTHER)])
    def test_not_the_first(self, around):
        """BC counts wherever it stands among the subfields; BSIZE is the block's size minus 1."""
        before, after = around
        block = bgzf_block(TEXT[:50_000], before=before, after=after)
        data = block + bgzf_block(NOISE[:50_000]) + block + BGZF_EOF
        with host.open(data) as container:
            assert container.format == "bgzf"
            assert container.chunks.size == 4
            assert bytes(container.load()) == TEXT[:50_000] + NOISE[:50_000] + TEXT[:50_000]

    @pytest.mark.parametrize("content", [b"", b"\1", b"\1\2\3", b"\xff\xff\0\0"])
    def test_of_another_length(self, content):
        """A BC subfield that is not two bytes long means nothing: the file is plain gzip."""
        data = gzip_member(TEXT, flags=FEXTRA, extra=subfield(b"BC", content))
        with host.open(data * 2) as container:
            assert container.format == "gzip"
            assert bytes(container.load()) == TEXT * 2

    @pytest.mark.parametrize("change", [-1, 1, 1_000])
    def test_wrong_size(self, change):
        """A block that states another size than it has is an error, whatever lies behind it."""
        block = bytearray(bgzf_block(NOISE[:20_000]))
        block[16:18] = struct.pack("<H", len(block) - 1 + change)
        with pytest.raises(GpuloadError):
            decoded(bytes(block) + bgzf_block(NOISE[:20_000]) + BGZF_EOF)


class TestLine25ChecksumsOfGzip:
    @pytest.mark.parametrize("damaged", range(3))
    @pytest.mark.parametrize("make", [gzip_member, bgzf_block])
    def test_of_every_member(self, make, damaged):
        """CRC-32 is compared for each, unless checksums are not asked for."""
        parts = [TEXT[:30_000], NOISE[:30_000], TEXT[-30_000:]]
        members = [bytearray(make(part)) for part in parts]
        members[damaged][-8] ^= 1
        data = b"".join(members) + BGZF_EOF
        with pytest.raises(ChecksumError, match="CRC-32"):
            decoded(data)
        assert decoded(data, verify=False) == b"".join(parts)

    @pytest.mark.parametrize("make", [gzip_member, bgzf_block])
    def test_stored_only(self, make):
        """DEFLATE may hold nothing but stored blocks."""
        assert decoded(make(NOISE[:60_000], level=0) + BGZF_EOF) == NOISE[:60_000]

    @pytest.mark.parametrize("size", [0, 1, 65_535, 65_536])
    def test_stored_blocks_of_any_size(self, size):
        """Also an empty one, and more than one of them."""
        content = NOISE[:size]
        assert decoded(gzip_member(content, level=0)) == content
