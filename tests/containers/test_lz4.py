"""The LZ4 reader, on frames built by hand after the frame format, and on files of real encoders."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, ClassVar

import lz4.block
import pytest
import xxhash

import gpuload.containers.lz4 as reader
from gpuload.chunks import UNKNOWN, Checksum, Codec
from gpuload.containers import read_index
from gpuload.errors import FormatError, GpuloadError, UnsupportedCodecError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.containers.container_tests import ContainerTests, columns

if TYPE_CHECKING:
    from pathlib import Path

    from gpuload.containers.base import Index

# FLG bits over version 01 (frame format, "FLG byte").
V1, INDEPENDENT, BLOCK_SUM, SIZE, CONTENT_SUM, DICT = 0x40, 0x20, 0x10, 0x08, 0x04, 0x01
END_MARK = bytes(4)

#: A block of five literals and no match (block format, "End of block conditions").
HELLO = b"\x50hello"
#: What the lz4 tool makes of nothing, 15 bytes.
EMPTY = bytes.fromhex("04224d18 6440a7 00000000 055dcc02")


def header(flags: int, *, limits: int = 0x40, size: int = 0, dictionary: int = 0) -> bytes:
    """Return a frame header; `limits` is the BD byte."""
    descriptor = bytes([flags, limits])
    descriptor += struct.pack("<Q", size) if flags & SIZE else b""
    descriptor += struct.pack("<I", dictionary) if flags & DICT else b""
    return reader.MAGIC + descriptor + bytes([xxhash.xxh32_intdigest(descriptor) >> 8 & 255])


def block(payload: bytes, *, raw: bool = False, checksum: bool = False) -> bytes:
    """Return a block with its size word, and its checksum if wanted."""
    tail = struct.pack("<I", xxhash.xxh32_intdigest(payload)) if checksum else b""
    return struct.pack("<I", len(payload) | raw << 31) + payload + tail


def frame(
    *blocks: bytes, flags: int = V1 | INDEPENDENT, content: bytes = b"", **fields: int
) -> bytes:
    """Return a frame; `content` is what its content checksum is computed from."""
    tail = struct.pack("<I", xxhash.xxh32_intdigest(content)) if flags & CONTENT_SUM else b""
    return header(flags, **fields) + b"".join(blocks) + END_MARK + tail


def legacy(*payloads: bytes) -> bytes:
    return reader.LEGACY_MAGIC + b"".join(block(payload) for payload in payloads)


def skippable(content: bytes, nibble: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + nibble, len(content)) + content


def index(data: bytes, **options: object) -> Index:
    return reader.read(BytesSource(data, "f.lz4"), Options(**options))  # type: ignore[arg-type]


PLAIN = frame(block(HELLO), block(b"raw", raw=True))
CHECKED = frame(
    block(HELLO, checksum=True),
    block(b"raw", raw=True, checksum=True),
    flags=V1 | INDEPENDENT | BLOCK_SUM | SIZE | CONTENT_SUM,
    content=b"helloraw",
    size=8,
)
LINKED = frame(block(HELLO), block(b"raw", raw=True), block(HELLO), flags=V1)
LEGACY = legacy(HELLO, HELLO)
NAMED = frame(block(HELLO), flags=V1 | INDEPENDENT | DICT, dictionary=0xDEADBEEF)


class TestLz4Contract(ContainerTests):
    reader = reader
    good: ClassVar = {
        "plain": PLAIN,
        "checked": CHECKED,
        "linked": LINKED,
        "empty": EMPTY,
        "legacy": LEGACY,
        "all kinds": skippable(b"x") + PLAIN + LEGACY + CHECKED + skippable(b"") + LINKED,
    }
    # A legacy frame may end behind its magic and behind each block (of 10 bytes, here).
    whole_prefixes: ClassVar = {
        "legacy": [4, 14],
        "all kinds": [
            9,
            9 + len(PLAIN),
            *(9 + len(PLAIN) + size for size in (4, 14, 24)),
            *(9 + len(PLAIN) + 24 + len(CHECKED) + size for size in (0, 8)),
        ],
    }
    large = frame(*[block(bytes(65536), raw=True)] * 17)


class TestLz4ContractWithDictionary(ContainerTests):
    reader = reader
    good: ClassVar = {"named": NAMED, "two": NAMED + PLAIN}
    whole_prefixes: ClassVar = {"two": [len(NAMED)]}
    large = TestLz4Contract.large
    options = Options(dictionary=b"dictionary")


class TestMagic:
    @pytest.mark.parametrize("first", [EMPTY, EMPTY[:4], LEGACY, LEGACY[:4]])
    def test_known(self, first: bytes) -> None:
        assert reader.is_magic(first)

    @pytest.mark.parametrize(
        "first", [b"", EMPTY[:3], skippable(b""), b"\x28\xb5\x2f\xfd", b"\0" * 8]
    )
    def test_other(self, first: bytes) -> None:
        assert not reader.is_magic(first)


class TestBlocks:
    def test_rows(self) -> None:
        rows = index(PLAIN).chunks
        assert rows["codec"].tolist() == [Codec.LZ4, Codec.RAW]
        assert rows["offset"].tolist() == [11, 21]
        assert rows["stored_size"].tolist() == [6, 3]
        assert rows["exact"].tolist() == [False, True]
        assert not rows["prefix_size"].any()

    def test_size_of_a_compressed_block_is_a_bound(self) -> None:
        # 255 times the stored size, and never more than the block maximum.
        blocks = [block(HELLO), block(bytes(300)), block(b"raw", raw=True)]
        assert index(frame(*blocks)).chunks["raw_size"].tolist() == [6 * 255, 65536, 3]
        assert not index(frame(*blocks)).exact

    @pytest.mark.parametrize(
        ("code", "maximum"), [(4, 1 << 16), (5, 1 << 18), (6, 1 << 20), (7, 1 << 22)]
    )
    def test_block_maximum(self, code: int, maximum: int) -> None:
        found = index(frame(block(bytes(60000)), limits=code << 4))
        assert found.details["block_maximum"] == maximum
        assert found.chunks["raw_size"].tolist() == [min(maximum, 255 * 60000)]

    @pytest.mark.parametrize("raw", [True, False])
    def test_block_of_the_maximum(self, raw: bool) -> None:
        assert index(frame(block(bytes(65536), raw=raw))).chunks["raw_size"].tolist() == [65536]

    @pytest.mark.parametrize("raw", [True, False])
    def test_block_above_the_maximum(self, raw: bool) -> None:
        with pytest.raises(FormatError, match=r"65537 stored bytes.*up to 65536") as caught:
            index(frame(block(bytes(65537), raw=raw)))
        assert caught.value.offset == 7

    def test_raw_block_of_no_bytes_is_no_end_mark(self) -> None:
        found = index(frame(block(b"", raw=True), block(HELLO)))
        assert columns(found, "codec", "stored_size") == [(Codec.RAW, 0), (Codec.LZ4, 6)]

    def test_block_checksums(self) -> None:
        found = index(CHECKED)
        sums = [xxhash.xxh32_intdigest(HELLO), xxhash.xxh32_intdigest(b"raw")]
        assert found.chunks["checksum"].tolist() == sums
        assert set(found.chunks["checksum_kind"].tolist()) == {Checksum.XXH32_STORED}
        assert found.details["block_checksum"] is True

    def test_without_block_checksums(self) -> None:
        assert columns(index(PLAIN), "checksum_kind", "checksum") == [(Checksum.NONE, 0)] * 2


class TestLinkedBlocks:
    def test_rows_after_the_first_are_chained(self) -> None:
        found = index(PLAIN + LINKED + LINKED + EMPTY)
        chained = [False, False, *[False, True, True] * 2]
        assert found.chunks["chained"].tolist() == chained
        assert found.serial.startswith(f"linked blocks (frame at byte {len(PLAIN)})")
        assert not found.batchable
        assert found.details["block_independence"] is False

    def test_independent_blocks_are_batchable(self) -> None:
        found = index(PLAIN + LEGACY)
        assert found.batchable
        assert not found.chunks["chained"].any()
        assert found.details["block_independence"] is True

    def test_a_linked_frame_without_blocks(self) -> None:
        found = index(frame(flags=V1))
        assert len(found.chunks) == 0
        assert found.serial


class TestSpans:
    def test_size_and_checksum(self) -> None:
        (span,) = index(CHECKED).spans.tolist()
        at = len(CHECKED) - 4
        assert span[:6] == (0, 2, 8, at, xxhash.xxh32_intdigest(b"helloraw"), Checksum.XXH32)

    def test_checksum_only(self) -> None:
        (span,) = index(EMPTY).spans.tolist()
        # xxHash-32 of nothing with seed 0, as the algorithm's description gives it.
        assert span[:6] == (0, 0, UNKNOWN, 11, 0x02CC5D05, Checksum.XXH32)

    def test_size_only(self) -> None:
        data = frame(block(HELLO), flags=V1 | INDEPENDENT | SIZE, size=5)
        (span,) = index(data).spans.tolist()
        assert span[:6] == (0, 1, 5, 6, 0, Checksum.NONE)
        assert index(data).details["content_size"] == 5

    def test_none(self) -> None:
        assert len(index(PLAIN + LEGACY).spans) == 0

    def test_each_frame_has_its_own(self) -> None:
        spans = index(PLAIN + CHECKED + EMPTY + CHECKED).spans
        assert spans["first"].tolist() == [2, 4, 4]
        assert spans["count"].tolist() == [2, 0, 2]

    @pytest.mark.parametrize("size", [0, 4, 1 << 60, (1 << 63) - 1])
    def test_a_wrong_size_is_only_recorded(self, size: int) -> None:
        found = index(frame(block(HELLO), flags=V1 | INDEPENDENT | SIZE, size=size))
        assert found.spans["raw_size"].tolist() == [size]
        assert found.chunks["raw_size"].tolist() == [6 * 255]

    @pytest.mark.parametrize("size", [1 << 63, UNKNOWN])
    def test_a_size_that_no_file_has(self, size: int) -> None:
        with pytest.raises(FormatError, match=f"content size of {size}") as caught:
            index(frame(block(HELLO), flags=V1 | INDEPENDENT | SIZE, size=size))
        assert caught.value.offset == 6


class TestHeader:
    def test_checksum(self) -> None:
        # 0xa7 is what the lz4 tool writes for FLG 0x64 and BD 0x40.
        damaged = EMPTY[:6] + b"\xa6" + EMPTY[7:]
        with pytest.raises(FormatError, match=r"0xa6.*0xa7") as caught:
            index(damaged)
        assert caught.value.offset == 6

    @pytest.mark.parametrize("flags", [0x00, 0x80, 0xC0])
    def test_version(self, flags: int) -> None:
        with pytest.raises(UnsupportedCodecError, match=f"version {flags >> 6}") as caught:
            index(frame(flags=flags | INDEPENDENT))
        assert caught.value.offset == 4

    @pytest.mark.parametrize(
        ("flags", "limits"), [(0x62, 0x40), (0x60, 0xC0), (0x60, 0x41), (0x60, 0x48)]
    )
    def test_reserved_bits(self, flags: int, limits: int) -> None:
        with pytest.raises(FormatError, match="reserved bits"):
            index(frame(flags=flags, limits=limits))

    @pytest.mark.parametrize("code", [0, 1, 2, 3])
    def test_block_maximum_code(self, code: int) -> None:
        with pytest.raises(FormatError, match=f"block maximum code {code}") as caught:
            index(frame(limits=code << 4))
        assert caught.value.offset == 5


class TestDictionary:
    def test_not_given(self) -> None:
        with pytest.raises(UnsupportedCodecError, match=r"3735928559.*dictionary.*--dictionary"):
            index(NAMED)

    def test_not_given_for_a_later_frame(self) -> None:
        with pytest.raises(UnsupportedCodecError) as caught:
            index(PLAIN + NAMED)
        assert caught.value.offset == len(PLAIN)

    def test_given(self) -> None:
        found = index(NAMED, dictionary=b"hello")
        assert found.chunks["dictionary"].tolist() == [True]
        assert found.details["dictionary_id"] == 0xDEADBEEF

    def test_given_for_a_frame_that_names_none(self) -> None:
        found = index(PLAIN, dictionary=b"hello")
        assert found.chunks["dictionary"].tolist() == [True, False], "a raw block needs none"
        assert found.details["dictionary_id"] is None

    def test_size_stands_before_the_dictionary_id(self) -> None:
        data = frame(block(HELLO), flags=V1 | INDEPENDENT | SIZE | DICT, size=5, dictionary=7)
        found = index(data, dictionary=b"x")
        assert found.details["dictionary_id"] == 7
        assert found.details["content_size"] == 5


class TestLegacy:
    def test_rows(self) -> None:
        found = index(LEGACY)
        assert columns(found, "codec", "offset", "stored_size", "raw_size") == [
            (Codec.LZ4, 8, 6, 6 * 255),
            (Codec.LZ4, 18, 6, 6 * 255),
        ]
        assert found.details["legacy"] is True
        assert found.details["block_maximum"] == 8 << 20

    def test_bound_is_8_mib(self) -> None:
        assert index(legacy(bytes(40000))).chunks["raw_size"].tolist() == [8 << 20]

    def test_of_nothing(self) -> None:
        assert len(index(legacy()).chunks) == 0

    @pytest.mark.parametrize("following", [EMPTY, LEGACY, skippable(b"abc"), skippable(b"", 15)])
    def test_ends_at_a_known_magic(self, following: bytes) -> None:
        found = index(LEGACY + following)
        alone = index(following)
        assert len(found.chunks) == 2 + len(alone.chunks)
        assert found.details["frames"] == 1 + alone.details["frames"]

    @pytest.mark.parametrize("size", [0, 8421521, 0x80000006, 0xFD2FB528])
    def test_size_that_is_neither_a_block_nor_a_magic(self, size: int) -> None:
        with pytest.raises(FormatError, match=f"0x{size:08x} is neither") as caught:
            index(LEGACY + struct.pack("<I", size) + bytes(100))
        assert caught.value.offset == len(LEGACY)

    def test_block_of_the_largest_size(self) -> None:
        # LZ4_compressBound of 8 MiB: n + n/255 + 16.
        assert index(legacy(bytes(8421520))).chunks["raw_size"].tolist() == [8 << 20]


class TestFrames:
    def test_each_has_its_own_flags(self) -> None:
        found = index(PLAIN + CHECKED + LEGACY + LINKED)
        kinds = [Checksum.NONE, Checksum.XXH32_STORED]
        assert found.chunks["checksum_kind"].tolist() == [kinds[i in (2, 3)] for i in range(9)]
        assert found.details["frames"] == 4
        assert found.details["block_maximum"] == [1 << 16, 8 << 20]
        assert found.details["block_checksum"] is False
        assert found.details["content_size"] is None

    def test_sizes_of_all_frames(self) -> None:
        assert index(CHECKED + CHECKED).details["content_size"] == 16

    @pytest.mark.parametrize("nibble", range(16))
    def test_skippable_anywhere(self, nibble: int) -> None:
        found = index(
            skippable(b"first", nibble) + PLAIN + skippable(b"") + PLAIN + skippable(b"z")
        )
        assert len(found.chunks) == 4
        assert found.details["skippable_frames"] == 3
        assert found.chunks["offset"][0] == 13 + 11

    def test_skippable_only(self) -> None:
        found = read_index(BytesSource(skippable(b"a") * 2), Options())
        assert found.format == "lz4"
        assert len(found.chunks) == len(found.spans) == 0
        assert found.details["frames"] == 0
        assert found.details["skippable_frames"] == 2

    @pytest.mark.parametrize("tail", [b"a", b"garbage", bytes(20), b"\x28\xb5\x2f\xfd" + bytes(9)])
    def test_bytes_after_the_last_frame(self, tail: bytes) -> None:
        with pytest.raises(FormatError, match="after the last frame that start no frame") as caught:
            index(PLAIN + tail)
        assert caught.value.offset == len(PLAIN)
        assert tail[:16].hex(" ") in str(caught.value)

    def test_no_frame(self) -> None:
        with pytest.raises(FormatError, match="no LZ4 frame: 67 61"):
            index(b"garbage")

    def test_empty_file(self) -> None:
        with pytest.raises(FormatError, match="ends here"):
            index(b"")

    def test_cut_inside_a_payload(self) -> None:
        with pytest.raises(FormatError, match=r"f\.lz4: byte 13: the file ends here") as caught:
            index(PLAIN[:13])
        assert caught.value.offset == 13


def manifest(corpus: Path, folder: str) -> dict[str, dict[str, object]]:
    entries = json.loads((corpus / "manifest.json").read_text())
    return {entry["file"]: entry for entry in entries if entry["file"].startswith(folder)}


def decode(data: bytes, found: Index) -> bytes:
    """Decode the rows of an index with the lz4 library, and check the checksums."""
    parts: list[bytes] = []
    for row in found.chunks:
        begin, stored = int(row["offset"]), int(row["stored_size"])
        payload = data[begin : begin + stored]
        if row["checksum_kind"] == Checksum.XXH32_STORED:
            assert row["checksum"] == xxhash.xxh32_intdigest(payload)
        history = b"".join(parts)[-65536:] if row["chained"] else b""
        size = int(row["raw_size"])
        if row["codec"] == Codec.LZ4:
            payload = lz4.block.decompress(payload, uncompressed_size=size, dict=history)
        assert len(payload) <= size
        parts.append(payload)
    for span in found.spans:
        first, count = int(span["first"]), int(span["count"])
        content = b"".join(parts[first : first + count])
        assert span["raw_size"] in (len(content), UNKNOWN)
        if span["checksum_kind"] == Checksum.XXH32:
            assert span["checksum"] == xxhash.xxh32_intdigest(content)
    return b"".join(parts)


class TestCorpus:
    def test_good_files_decode_from_their_tables(self, corpus: Path) -> None:
        entries = manifest(corpus, "lz4/")
        good = [name for name in entries if "/bad/" not in name]
        assert good
        for name in good:
            data = (corpus / name).read_bytes()
            content = decode(data, index(data))
            assert hashlib.sha256(content).hexdigest() == entries[name]["sha256"], name

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("block_larger_than_max", "65537 stored bytes"),
            ("block_size_huge", "2147483647 stored bytes"),
            ("header_checksum", "header's checksum"),
            ("trailing_garbage", "start no frame"),
            ("trunc_before_content_checksum", "ends here, 4 bytes too early"),
            ("trunc_before_endmark", "ends here, 4 bytes too early"),
            ("trunc_header_5", "ends here"),
            ("trunc_in_block", "ends here"),
            ("version", "version 2"),
        ],
    )
    def test_damage_that_headers_show(self, corpus: Path, name: str, message: str) -> None:
        with pytest.raises(GpuloadError, match=message):
            index((corpus / f"lz4/bad/{name}.lz4").read_bytes())

    @pytest.mark.parametrize(
        "name",
        ["block_checksum", "content_checksum", "payload_flip_crc", "size_too_small", "size_huge"],
    )
    def test_damage_that_only_decoding_shows(self, corpus: Path, name: str) -> None:
        data = (corpus / f"lz4/bad/{name}.lz4").read_bytes()
        found = index(data)
        with pytest.raises(AssertionError):
            decode(data, found)

    def test_concatenated(self, corpus: Path) -> None:
        found = index((corpus / "lz4/concat3.lz4").read_bytes())
        assert found.details["frames"] == 3
        assert found.spans["count"].tolist() == [1, 0, 1]
        stored_sum = Checksum.XXH32_STORED
        assert found.chunks["checksum_kind"].tolist() == [Checksum.NONE, stored_sum]

    def test_linked(self, corpus: Path) -> None:
        found = index((corpus / "lz4/source_linked_b4.lz4").read_bytes())
        assert found.chunks["chained"].tolist() == [False, *[True] * 6]
        assert "frame at byte 0" in found.serial

    def test_legacy_then_frame(self, corpus: Path) -> None:
        found = index((corpus / "lz4/legacy_then_frame.lz4").read_bytes())
        assert found.details["frames"] == 2
        assert found.details["legacy"] is True
        assert 8 << 20 in found.details["block_maximum"]

    def test_skippable_between(self, corpus: Path) -> None:
        found = index((corpus / "lz4/skippable_between.lz4").read_bytes())
        assert found.details["skippable_frames"] > 0
