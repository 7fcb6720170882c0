"""The Snappy reader, on chunks built by hand after the framing format, and on files of encoders."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from typing import TYPE_CHECKING, ClassVar

import cramjam
import google_crc32c
import pytest

import gpuload.containers.snappy as reader
from gpuload.chunks import Checksum, Codec
from gpuload.containers import read_index
from gpuload.errors import FormatError, UnsupportedCodecError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.containers.container_tests import ContainerTests, columns

if TYPE_CHECKING:
    from pathlib import Path

    from gpuload.containers.base import Index

#: The stream identifier (framing format, section 4.1).
START = b"\xff\x06\x00\x00sNaPpY"
#: Snappy elements of "hello": one literal; and the preamble before them.
HELLO = b"\x10hello"
FIVE = b"\x05"


def masked(data: bytes) -> int:
    """Return the CRC-32C of decoded bytes as section 3 masks it."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def chunk(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def data_chunk(kind: int, stored: bytes, content: bytes) -> bytes:
    return chunk(kind, masked(content).to_bytes(4, "little") + stored)


def compressed(content: bytes) -> bytes:
    """Return a compressed chunk, made by the Snappy library."""
    return data_chunk(0, bytes(cramjam.snappy.compress_raw(content)), content)


def raw(content: bytes) -> bytes:
    return data_chunk(1, content, content)


def index(data: bytes) -> Index:
    return reader.read(BytesSource(data, "f.sz"), Options())


PLAIN = START + data_chunk(0, FIVE + HELLO, b"hello") + raw(b"raw")


ALL_KINDS = [
    START,
    raw(b""),
    chunk(0xFE, bytes(9)),
    compressed(b"a" * 999),
    chunk(0x80, b""),
    START,
    chunk(0xFD, b"skipped"),
    chunk(0xFE, b""),
]


class TestSnappyContract(ContainerTests):
    reader = reader
    good: ClassVar = {"plain": PLAIN, "no data": START, "all kinds": b"".join(ALL_KINDS)}
    # A stream may end behind any chunk.
    whole_prefixes: ClassVar = {
        "plain": [10, 25],
        "all kinds": list(itertools.accumulate(map(len, ALL_KINDS))),
    }
    large = START + raw(bytes(65536)) * 16 + compressed(random.Random(1).randbytes(50000)) * 4


class TestMagic:
    def test_known(self) -> None:
        assert reader.is_magic(START)
        assert reader.is_magic(START[:4])

    @pytest.mark.parametrize("first", [b"", START[:3], b"\xff\x07\x00\x00", raw(b"x"), bytes(8)])
    def test_other(self, first: bytes) -> None:
        assert not reader.is_magic(first)


class TestRows:
    def test_columns(self) -> None:
        names = ("codec", "offset", "stored_size", "raw_size", "prefix_size")
        assert columns(index(PLAIN), *names) == [
            (Codec.SNAPPY, 10 + 4 + 4 + 1, 6, 5, 1),
            (Codec.RAW, 25 + 4 + 4, 3, 3, 0),
        ]
        assert index(PLAIN).exact
        assert index(PLAIN).batchable

    def test_checksums_stay_masked(self) -> None:
        # CRC-32C of "123456789" is 0xe3069283 (its check value): rotated right by 15 bits it is
        # 0x2507c60d, and with 0xa282ead8 added 0xc78ab0e5.
        found = index(START + chunk(1, bytes.fromhex("e5b08ac7") + b"123456789"))
        expected = [(Checksum.CRC32C_MASKED, 0xC78AB0E5)]
        assert columns(found, "checksum_kind", "checksum") == expected
        assert masked(b"123456789") == 0xC78AB0E5

    @pytest.mark.parametrize("size", [1, 127, 128, 16383, 16384, 65535, 65536])
    def test_preamble_of_any_size(self, size: int) -> None:
        found = index(START + compressed(b"x" * size))
        assert found.chunks["raw_size"].tolist() == [size]
        assert found.chunks["prefix_size"].tolist() == [1 + (size >= 128) + (size >= 16384)]

    @pytest.mark.parametrize(
        "preamble", [b"\x85\x00", b"\x85\x80\x00", b"\x85\x80\x80\x00", b"\x85\x80\x80\x80\x00"]
    )
    def test_preamble_with_leading_zeros(self, preamble: bytes) -> None:
        found = index(START + data_chunk(0, preamble + HELLO, b"hello"))
        names = ("raw_size", "prefix_size", "stored_size")
        assert columns(found, *names) == [(5, len(preamble), 6)]

    def test_chunks_of_nothing(self) -> None:
        found = index(START + raw(b"") + data_chunk(0, b"\x00", b"") + raw(b"end"))
        assert columns(found, "raw_size", "stored_size") == [(0, 0), (0, 0), (3, 3)]

    def test_short_chunks_at_the_end(self) -> None:
        found = index(START + raw(b"") + chunk(0xFE, b"") + raw(b"x"))
        assert found.chunks["raw_size"].tolist() == [0, 1]


class TestLimits:
    def test_uncompressed_chunk_of_the_largest_size(self) -> None:
        assert index(START + raw(bytes(65536))).chunks["raw_size"].tolist() == [65536]

    def test_uncompressed_chunk_above_it(self) -> None:
        with pytest.raises(FormatError, match=r"65537 bytes.*at most 65536") as caught:
            index(PLAIN + raw(bytes(65537)))
        assert caught.value.offset == len(PLAIN)

    @pytest.mark.parametrize(
        ("preamble", "size"),
        [
            (b"\x81\x80\x04", 65537),
            (b"\xff\xff\xff\xff\x0f", 2**32 - 1),
            (b"\xff" * 4 + b"\x7f", 2**35 - 1),
        ],
    )
    def test_compressed_chunk_above_it(self, preamble: bytes, size: int) -> None:
        with pytest.raises(FormatError, match=f"{size} bytes"):
            index(START + data_chunk(0, preamble + HELLO, b"hello"))

    @pytest.mark.parametrize(
        "stored", [b"", b"\x85", b"\x80" * 4, b"\x85\x80\x80\x80\x80\x00", b"\xff" * 9]
    )
    def test_preamble_without_an_end(self, stored: bytes) -> None:
        with pytest.raises(FormatError, match="no decoded length") as caught:
            index(PLAIN + data_chunk(0, stored, b"") + raw(b"more"))
        assert caught.value.offset == len(PLAIN)

    @pytest.mark.parametrize("kind", [0, 1])
    @pytest.mark.parametrize("length", range(4))
    def test_no_room_for_the_checksum(self, kind: int, length: int) -> None:
        with pytest.raises(FormatError, match=f"data chunk of {length} bytes, too short") as caught:
            index(PLAIN + chunk(kind, bytes(length)) + raw(b"more"))
        assert caught.value.offset == len(PLAIN)

    def test_the_first_fault_is_reported(self) -> None:
        with pytest.raises(FormatError) as caught:
            index(PLAIN + raw(bytes(65537)) + chunk(0, b""))
        assert caught.value.offset == len(PLAIN)


class TestOtherChunks:
    def test_counts(self) -> None:
        padding = chunk(0xFE, bytes(70000))
        skipped = chunk(0x80, b"a") + chunk(0xA0, bytes(300)) + chunk(0xFD, b"")
        found = index(START + padding + skipped + PLAIN)
        assert found.details == {"identifiers": 2, "padding_bytes": 70000, "skipped_chunks": 3}
        assert len(found.chunks) == 2

    def test_largest_padding(self) -> None:
        found = index(START + chunk(0xFE, bytes(2**24 - 1)) + raw(b"x"))
        assert found.details["padding_bytes"] == 2**24 - 1
        assert found.chunks["offset"].tolist() == [10 + 4 + 2**24 - 1 + 8]

    @pytest.mark.parametrize("kind", [0x02, 0x03, 0x40, 0x7F])
    def test_reserved_types_that_must_not_be_skipped(self, kind: int) -> None:
        with pytest.raises(UnsupportedCodecError, match=f"0x{kind:02x}") as caught:
            index(PLAIN + chunk(kind, b"body"))
        assert caught.value.offset == len(PLAIN)

    @pytest.mark.parametrize(
        "tail",
        [
            b"garbage",  # the reserved type 0x67
            b"a\n",
            b"\x00\xff\xff\xff...",  # a compressed chunk of 16 MiB, which decodes to 64 KiB at most
        ],
    )
    def test_bytes_behind_the_last_chunk(self, tail: bytes) -> None:
        with pytest.raises(FormatError, match=r"form no chunk .*, or the file is cut") as caught:
            index(PLAIN + tail)
        assert caught.value.offset == len(PLAIN)

    @pytest.mark.parametrize("tail", [b"\x01", b"\x80abc", b"\x00\x00\x01\x00...", b"\xfe\xff"])
    def test_chunk_that_is_cut(self, tail: bytes) -> None:
        with pytest.raises(FormatError, match="the file ends here"):
            index(PLAIN + tail)


class TestIdentifier:
    def test_format_is_found_by_it(self) -> None:
        assert read_index(BytesSource(PLAIN), Options()).format == "snappy"

    @pytest.mark.parametrize("damaged", [START[:9] + b"y", b"\xff\x05\x00\x00sNaPp"])
    def test_damaged(self, damaged: bytes) -> None:
        for before in (b"", PLAIN):
            with pytest.raises(FormatError, match="stream identifier") as caught:
                index(before + damaged + PLAIN)
            assert caught.value.offset == len(before)

    def test_longer_than_it_is(self) -> None:
        with pytest.raises(FormatError, match="stream identifier"):
            index(START + chunk(0xFF, b"sNaPpY2"))

    def test_missing(self) -> None:
        with pytest.raises(FormatError, match=r"a Snappy stream starts with ff 06 .* not 01 0"):
            index(raw(b"hello"))

    def test_empty_file(self) -> None:
        with pytest.raises(FormatError, match="10 bytes too early"):
            index(b"")


def manifest(corpus: Path, folder: str) -> dict[str, dict[str, object]]:
    entries = json.loads((corpus / "manifest.json").read_text())
    return {entry["file"]: entry for entry in entries if entry["file"].startswith(folder)}


def decode(data: bytes, found: Index) -> bytes:
    """Decode the rows of an index with the Snappy library, and check the checksums."""
    parts = []
    for row in found.chunks:
        begin, end = int(row["offset"]), int(row["offset"]) + int(row["stored_size"])
        part = data[begin:end]
        if row["codec"] == Codec.SNAPPY:
            part = bytes(cramjam.snappy.decompress_raw(data[begin - int(row["prefix_size"]) : end]))
        assert len(part) == row["raw_size"]
        assert masked(part) == row["checksum"]
        parts.append(part)
    return b"".join(parts)


class TestCorpus:
    def test_good_files_decode_from_their_tables(self, corpus: Path) -> None:
        entries = manifest(corpus, "snappy/")
        good = [name for name in entries if "/bad/" not in name]
        assert good
        for name in [*good, "snappy/bad/zero_length_chunk.sz"]:
            data = (corpus / name).read_bytes()
            content = decode(data, index(data))
            assert hashlib.sha256(content).hexdigest() == entries[name]["sha256"], name

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("chunk_len_huge", "form no chunk"),
            ("identifier_flip", "stream identifier"),
            ("no_identifier", "a Snappy stream starts with"),
            ("preamble_huge", "decodes to 4294967295 bytes"),
            ("trunc_chunk_header", "ends here"),
            ("trunc_identifier", "ends here, 3 bytes too early"),
            ("trunc_in_chunk", "ends here"),
            ("uncompressed_over_64k", "decodes to 65537 bytes"),
        ],
    )
    def test_damage_that_headers_show(self, corpus: Path, name: str, message: str) -> None:
        with pytest.raises(FormatError, match=message):
            index((corpus / f"snappy/bad/{name}.sz").read_bytes())

    def test_unskippable(self, corpus: Path) -> None:
        with pytest.raises(UnsupportedCodecError, match="0x02"):
            index((corpus / "snappy/bad/unskippable_02.sz").read_bytes())

    @pytest.mark.parametrize("name", ["crc_compressed", "crc_uncompressed", "crc_unmasked"])
    def test_damage_that_only_decoding_shows(self, corpus: Path, name: str) -> None:
        data = (corpus / f"snappy/bad/{name}.sz").read_bytes()
        found = index(data)
        with pytest.raises(AssertionError):
            decode(data, found)

    def test_padding_and_skippable(self, corpus: Path) -> None:
        found = index((corpus / "snappy/padding_and_skippable.sz").read_bytes())
        assert found.details["padding_bytes"] > 0
        assert found.details["skipped_chunks"] == 2

    def test_identifier_in_the_middle(self, corpus: Path) -> None:
        found = index((corpus / "snappy/concat.sz").read_bytes())
        assert found.details["identifiers"] == 2
