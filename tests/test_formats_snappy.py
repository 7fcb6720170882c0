"""Cases of Snappy framing that decoders got wrong, end to end: lines 26 to 28 of the list.

Expected bytes come from the specification (files built by hand) or from reference encoders.
"""

from __future__ import annotations

import struct

import pytest

from gpuload.errors import ChecksumError, FormatError, GpuloadError, UnsupportedCodecError
from tests.helpers import host
from tests.helpers.handmade import (
    SNAPPY_IDENTIFIER,
    crc32c,
    masked_crc32c,
    snappy_chunk,
    snappy_data,
    snappy_literal,
    varint,
)
from tests.helpers.loading import MIB, NOISE, allocating_at_most, decoded


class TestLine26SnappyChunks:
    DATA = snappy_data(b"hello")

    def test_compressed_and_uncompressed(self):
        """Types 0x00 and 0x01 hold data: "abcd" and a copy of 4 bytes from 4 bytes before."""
        copy = snappy_data(b"abcdabcd", elements=b"\x0cabcd\x01\x04")
        assert decoded(SNAPPY_IDENTIFIER + self.DATA + copy) == b"helloabcdabcd"

    @pytest.mark.parametrize("kind", range(0x02, 0x80))
    def test_reserved(self, kind):
        """Types 0x02 to 0x7f may not be skipped; the error names the type and the place."""
        data = SNAPPY_IDENTIFIER + self.DATA + snappy_chunk(kind, b"body") + self.DATA
        place = len(SNAPPY_IDENTIFIER + self.DATA)
        with pytest.raises(UnsupportedCodecError, match=f"byte {place}.*0x{kind:02x}"):
            decoded(data)

    @pytest.mark.parametrize("kind", range(0x80, 0xFF))
    def test_skipped(self, kind):
        """Types 0x80 to 0xfe are skipped, also an empty or a large one."""
        skips = [snappy_chunk(kind, body) for body in (b"", b"x", NOISE)]
        assert decoded(SNAPPY_IDENTIFIER + self.DATA.join([*skips, b""])) == b"hello" * 3

    def test_repeated_identifier(self):
        """Streams may follow one another; a damaged identifier is an error."""
        stream = SNAPPY_IDENTIFIER + self.DATA
        assert decoded(stream * 3) == b"hello" * 3
        with pytest.raises(FormatError, match=f"byte {len(stream)}"):
            decoded(stream + snappy_chunk(0xFF, b"sNaPpy") + self.DATA)

    def test_identifier_first(self):
        """A stream without it is not recognised."""
        with pytest.raises(FormatError):
            decoded(self.DATA)


class TestLine27SizesOfSnappyChunks:
    def test_padding(self):
        """Up to 2^24-1 bytes of it are skipped."""
        padding = snappy_chunk(0xFE, bytes(2**24 - 1))
        data = SNAPPY_IDENTIFIER + padding + snappy_data(b"hello") + padding
        assert decoded(data) == b"hello"

    def test_largest_chunk(self):
        """65,536 decoded bytes are the limit, compressed or not."""
        content = NOISE[:65_536]
        packed = snappy_data(content, elements=snappy_literal(content))
        assert decoded(SNAPPY_IDENTIFIER + packed + snappy_data(content)) == content * 2

    @pytest.mark.parametrize("compressed", [True, False])
    def test_one_byte_more(self, compressed):
        """It is an error, even where the bytes and the checksum are right."""
        content = NOISE[:65_537]
        elements = snappy_literal(content[:65_536]) + b"\0" + content[65_536:]
        chunk = snappy_data(content, elements=elements if compressed else None)
        with pytest.raises(FormatError, match="65537"):
            decoded(SNAPPY_IDENTIFIER + chunk)

    @pytest.mark.parametrize("size", [2**20, 2**31, 2**32 - 1])
    def test_preamble_that_lies(self, size):
        """No memory is taken for it."""
        body = struct.pack("<I", 0) + varint(size) + b"\0a"
        with allocating_at_most(8 * MIB), pytest.raises(GpuloadError):
            decoded(SNAPPY_IDENTIFIER + snappy_chunk(0, body))


class TestLine28ChecksumsOfSnappy:
    def test_masked(self):
        """CRC-32C of the decoded bytes, rotated right by 15 bits, plus a constant."""
        assert crc32c(b"123456789") == 0xE3069283
        # 0xe3069283 rotated is 0x2507c60d; the sum is taken modulo 2^32.
        assert masked_crc32c(b"123456789") == 0xC78AB0E5
        body = struct.pack("<I", 0xC78AB0E5)
        chunks = [
            snappy_chunk(1, body + b"123456789"),
            snappy_chunk(0, body + b"\x09" + b"\x20123456789"),
        ]
        data = SNAPPY_IDENTIFIER + b"".join(chunks)
        assert decoded(data) == b"123456789" * 2
        with host.open(data) as container:
            assert container.verify().verified == {"crc32c_masked": 2}

    @pytest.mark.parametrize("elements", [None, b"\x20123456789"], ids=["stored", "compressed"])
    @pytest.mark.parametrize("checksum", [0xE3069283, 0xC78AB0E4, 0])
    def test_wrong(self, checksum, elements):
        """An unmasked one is wrong like any other, unless checksums are not asked for."""
        chunk = snappy_data(b"123456789", elements=elements, checksum=checksum)
        with pytest.raises(ChecksumError, match="CRC-32C"):
            decoded(SNAPPY_IDENTIFIER + chunk)
        assert decoded(SNAPPY_IDENTIFIER + chunk, verify=False) == b"123456789"
