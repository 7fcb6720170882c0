"""The Zstandard reader: frames built by hand after RFC 8878, of the reference tool, the corpus."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import xxhash
import zstandard

from gpuload.chunks import Checksum, Codec
from gpuload.containers import read_index, zstd
from gpuload.errors import FormatError, GpuloadError, MemoryLimitError, UnsupportedCodecError
from gpuload.options import Options
from gpuload.sources import BytesSource, LocalFile
from tests.containers.container_tests import ContainerTests, WatchedSource, columns

if TYPE_CHECKING:
    from pathlib import Path

    from gpuload.containers.base import Index

MAGIC = b"\x28\xb5\x2f\xfd"
RAW, RLE, COMPRESSED, RESERVED = range(4)
KIB, MIB = 1 << 10, 1 << 20
#: Window descriptor of 1 MiB: exponent 10, mantissa 0.
WINDOW_1M = 0x50


def little(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def block(kind: int, size: int, content: bytes = b"", *, last: bool = True) -> bytes:
    return little(size << 3 | kind << 1 | last, 3) + content


def raw(content: bytes, *, last: bool = True) -> bytes:
    return block(RAW, len(content), content, last=last)


def frame(
    *blocks: bytes,
    window: int | None = WINDOW_1M,
    content_size: tuple[int, int] | None = None,
    dictionary: tuple[int, int] = (0, 0),
    checksum: int | None = None,
    reserved: bool = False,
) -> bytes:
    """Return a frame; sizes and IDs are pairs of value and field size, no window is one segment."""
    content, content_bytes = content_size or (0, 0)
    identifier, id_bytes = dictionary
    descriptor = {0: 0, 1: 0, 2: 1, 4: 2, 8: 3}[content_bytes] << 6 | {0: 0, 1: 1, 2: 2, 4: 3}[
        id_bytes
    ]
    descriptor |= (window is None) << 5 | reserved << 3 | (checksum is not None) << 2
    header = MAGIC + bytes([descriptor]) + (b"" if window is None else bytes([window]))
    header += little(identifier, id_bytes) + little(content, content_bytes)
    return header + b"".join(blocks) + (b"" if checksum is None else little(checksum, 4))


def skippable(content: bytes, magic: int = 0x184D2A50) -> bytes:
    return little(magic, 4) + little(len(content), 4) + content


def seek_table(
    entries: list[tuple[int, ...]], *, descriptor: int | None = None, count: int | None = None
) -> bytes:
    """Return a seek table; entries are (stored size, decoded size) and maybe a checksum."""
    if descriptor is None:
        descriptor = 0x80 * any(len(entry) == 3 for entry in entries)
    count = len(entries) if count is None else count
    content = b"".join(little(value, 4) for entry in entries for value in entry)
    footer = little(count, 4) + bytes([descriptor]) + little(0x8F92EAB1, 4)
    return skippable(content + footer, 0x184D2A5E)


def low64(content: bytes) -> int:
    return xxhash.xxh64_intdigest(content) & 0xFFFFFFFF


def compress(content: bytes, **flags: bool) -> bytes:
    return zstandard.ZstdCompressor(level=3, **flags).compress(content)


def read(data: bytes, **options: Any) -> Index:
    return zstd.read(BytesSource(data, "a.zst"), Options(**options))


def decode_rows(data: bytes, index: Index) -> bytes:
    """Decode every row with libzstd and check its size and checksum."""
    parts = []
    for row in index.chunks:
        payload = data[int(row["offset"]) : int(row["offset"] + row["stored_size"])]
        part = zstandard.ZstdDecompressor().stream_reader(payload).read()
        assert len(part) == row["raw_size"] if row["exact"] else len(part) <= row["raw_size"]
        assert row["checksum"] == (low64(part) if row["checksum_kind"] else 0)
        parts.append(part)
    return b"".join(parts)


TEXT = b"some text, some more text; " * 20
ONE = compress(TEXT, write_checksum=True)
HAND = frame(raw(b"hand", last=False), block(RLE, 1000, b"z"))
SEEKABLE_FRAMES = [compress(part) for part in (TEXT, b"", TEXT[:100])]
SEEKABLE = b"".join(SEEKABLE_FRAMES) + seek_table(
    [(len(f), len(c)) for f, c in zip(SEEKABLE_FRAMES, (TEXT, b"", TEXT[:100]), strict=True)]
)
NOISE = random.Random(1).randbytes(64 * KIB)


def ends(*parts: bytes) -> list[int]:
    return [len(b"".join(parts[:i])) for i in range(1, len(parts) + 1)]


class TestZstdContract(ContainerTests):
    reader = zstd
    good: ClassVar = {
        "one frame": ONE,
        "by hand": HAND,
        "frames": ONE + HAND + ONE,
        "skippable": skippable(b"first") + ONE + skippable(b"") + HAND,
        "seekable": SEEKABLE,
        "dictionary ID": frame(raw(b"x"), dictionary=(7, 1)),
    }
    whole_prefixes: ClassVar = {
        "frames": ends(ONE, HAND),
        "skippable": ends(skippable(b"first"), ONE, skippable(b"")),
        "seekable": ends(*SEEKABLE_FRAMES),
    }
    options = Options(dictionary=b"\x37\xa4\x30\xec\x07\x00\x00\x00")
    large = frame(raw(NOISE)) * 16 + frame(*[raw(NOISE, last=False)] * 8, raw(b""))


class TestSeekableContract(ContainerTests):
    reader = zstd
    good: ClassVar = {
        "with checksums": ONE
        + HAND
        + seek_table(
            [(len(ONE), len(TEXT), low64(TEXT)), (len(HAND), 1004, low64(b"hand" + b"z" * 1000))]
        )
    }
    whole_prefixes: ClassVar = {"with checksums": ends(ONE, HAND)}
    large = frame(raw(NOISE)) * 16 + seek_table([(len(frame(raw(NOISE))), len(NOISE))] * 16)


@pytest.mark.parametrize(
    "first", [b"", MAGIC[:3], b"\x27" * 4, b"\x50\x2a\x4d\x18", b"\x29" + MAGIC[1:]]
)
def test_is_no_magic(first: bytes) -> None:
    assert not zstd.is_magic(first)


def test_is_magic() -> None:
    assert zstd.is_magic(MAGIC)
    assert zstd.is_magic(ONE[:16])


# --- frames


def test_a_frame_is_a_row() -> None:
    index = read(ONE)
    assert columns(index, "offset", "stored_size", "raw_size", "exact", "codec", "dictionary") == [
        (0, len(ONE), len(TEXT), True, Codec.ZSTD, False)
    ]
    assert columns(index, "checksum", "checksum_kind") == [(low64(TEXT), Checksum.XXH64_LOW)]
    assert (index.format, index.serial) == (
        "zstd",
        "one Zstandard frame: its blocks copy from one another",
    )
    assert index.details == {
        "frames": 1,
        "skippable_frames": 0,
        "seek_table": False,
        "window": len(TEXT),
        "checksums": 1,
        "dictionary_id": 0,
    }


def test_no_content_size_gives_an_upper_bound() -> None:
    blocks = (
        raw(b"hand", last=False),
        block(RLE, 1000, b"z", last=False),
        block(COMPRESSED, 5, b"abcde"),
    )
    for window, most in ((WINDOW_1M, 128 * KIB), (0x01, 1152), (0x38, 128 * KIB)):
        index = read(frame(*blocks, window=window))
        assert columns(index, "raw_size", "exact") == [(4 + 1000 + most, False)]


def test_no_content_size_from_the_library() -> None:
    data = compress(NOISE + TEXT, write_content_size=False)
    index = read(data)
    assert not index.exact
    assert decode_rows(data, index) == NOISE + TEXT


@pytest.mark.parametrize(
    ("content_size", "expected"),
    [((3, 8), 3), ((3, 4), 3), ((0, 2), 256), ((744, 2), 1000)],
)
def test_content_size_fields(content_size: tuple[int, int], expected: int) -> None:
    index = read(frame(block(RLE, 1000, b"z"), content_size=content_size))
    assert columns(index, "raw_size", "exact") == [(expected, True)]


@pytest.mark.parametrize("content_size", [(255, 1), (0, 2), (256, 4), (256, 8)])
def test_single_segment(content_size: tuple[int, int]) -> None:
    size = content_size[0] + 256 * (content_size[1] == 2)
    data = frame(block(RLE, size, b"z"), window=None, content_size=content_size)
    index = read(data)
    assert columns(index, "raw_size", "exact") == [(size, True)]
    assert index.details["window"] == size
    assert decode_rows(data, index) == b"z" * size


@pytest.mark.parametrize(("id_size", "identifier"), [(1, 200), (2, 60_000), (4, 4_000_000_000)])
def test_all_header_fields_together(id_size: int, identifier: int) -> None:
    data = frame(
        raw(b"abc"), content_size=(3, 8), dictionary=(identifier, id_size), checksum=0x12345678
    )
    dictionary = b"\x37\xa4\x30\xec" + little(identifier, 4)
    index = read(data, dictionary=dictionary)
    names = ("stored_size", "raw_size", "exact", "checksum", "dictionary")
    assert columns(index, *names) == [(len(data), 3, True, 0x12345678, True)]
    assert index.details["dictionary_id"] == identifier


def test_several_frames_are_batchable() -> None:
    data = ONE + HAND + ONE
    index = read(data)
    assert index.batchable
    assert columns(index, "offset", "dst_offset") == [
        (0, 0),
        (len(ONE), len(TEXT)),
        (len(ONE + HAND), len(TEXT) + 1004),
    ]
    assert decode_rows(data, index) == TEXT + b"hand" + b"z" * 1000 + TEXT
    assert (index.details["frames"], index.details["checksums"]) == (3, 2)


def test_empty_frames() -> None:
    empty = frame(raw(b""), window=None, content_size=(0, 1))
    index = read(empty + ONE + empty)
    assert columns(index, "raw_size") == [(0,), (len(TEXT),), (0,)]
    assert index.serial, "one frame has it all"
    assert read(empty).batchable
    assert decode_rows(empty, read(empty)) == b""


def test_many_blocks_are_walked_to_the_last() -> None:
    data = frame(*[raw(b"ab", last=False)] * 5000, block(RLE, 128 * KIB, b"z"))
    assert columns(read(data + ONE), "offset", "raw_size") == [
        (0, 10_000 + 128 * KIB),
        (len(data), len(TEXT)),
    ]


def test_a_full_block_is_valid() -> None:
    index = read(
        frame(raw(bytes(128 * KIB), last=False), block(COMPRESSED, 128 * KIB, bytes(128 * KIB)))
    )
    assert columns(index, "raw_size") == [(256 * KIB,)]


@pytest.mark.parametrize("kind", [RAW, RLE, COMPRESSED])
@pytest.mark.parametrize(
    ("window", "most"), [(WINDOW_1M, 128 * KIB), (0, 1 * KIB), (1, 1152), (0x0F, 3840)]
)
def test_block_larger_than_the_window_allows(kind: int, window: int, most: int) -> None:
    content = bytes(most + 1)
    read(frame(block(kind, most, content[: 1 if kind == RLE else most]), window=window))
    with pytest.raises(
        FormatError, match=f"byte 6: a block of {most + 1} bytes; .* at most {most}"
    ):
        read(frame(block(kind, most + 1, content), window=window))


def test_block_larger_than_a_single_segment() -> None:
    with pytest.raises(FormatError, match=r"byte 6: a block of 5 bytes; .* at most 4"):
        read(frame(block(RLE, 5, b"z"), window=None, content_size=(4, 1)))


def test_reserved_block_type() -> None:
    with pytest.raises(FormatError, match="byte 6: a block of type 3, which is reserved"):
        read(frame(block(RESERVED, 0)))


def test_reserved_header_bit() -> None:
    with pytest.raises(FormatError, match=r"byte 4: .*the reserved bit must be zero"):
        read(frame(raw(b"x"), reserved=True))


def test_huge_content_size_is_refused_without_a_limit() -> None:
    data = frame(raw(b""), window=None, content_size=(1 << 60, 8))
    assert len(data) == 16
    with pytest.raises(FormatError, match=r"1152921504606846976 decoded bytes; .* hold at most 0"):
        read(data)


def test_content_size_above_what_the_blocks_hold() -> None:
    blocks = raw(b"hand", last=False), block(COMPRESSED, 5, b"abcde")
    assert read(frame(*blocks, content_size=(4 + 128 * KIB, 8))).exact
    with pytest.raises(FormatError, match=f"byte 0: the frame states {5 + 128 * KIB} decoded"):
        read(frame(*blocks, content_size=(5 + 128 * KIB, 8)))


@pytest.mark.parametrize("behind", [b"\0", b"garbage", b"\x28\xb5\x2f\xfc", bytes(100)])
def test_bytes_behind_the_last_frame(behind: bytes) -> None:
    with pytest.raises(FormatError, match=f"byte {len(ONE)}: no Zstandard frame starts here"):
        read(ONE + behind)


def test_empty_file() -> None:
    with pytest.raises(FormatError, match=r"a\.zst: byte 0: the file is empty"):
        read(b"")


@pytest.mark.parametrize(
    ("magic", "version"),
    [(b"\xfd\x2f\xb5\x1e", "0.1")]
    + [(bytes([0x20 + v]) + MAGIC[1:], f"0.{v}") for v in range(2, 8)],
)
def test_old_versions(magic: bytes, version: str) -> None:
    assert zstd.is_magic(magic)
    for before in (b"", ONE):
        with pytest.raises(UnsupportedCodecError, match=f"byte {len(before)}: .* {version};"):
            read(before + magic + bytes(20))


# --- window and dictionary


@pytest.mark.parametrize(
    ("descriptor", "window"),
    [
        (0x00, KIB),
        (0x01, KIB + 128),
        (0x07, 1920),
        (0x88, 128 * MIB),
        (0x89, 144 * MIB),
        (0xA8, 2 << 30),
        (0xFF, 15 << 38),
    ],
)
def test_window_descriptor(descriptor: int, window: int) -> None:
    data = frame(raw(b"x"), window=descriptor)
    assert read(data, window_limit=window).details["window"] == window
    with pytest.raises(MemoryLimitError, match=rf"a window of {window} bytes, .*--window-limit"):
        read(data, window_limit=window - 1)


def test_default_window_limit() -> None:
    read(frame(raw(b"x"), window=0x88))
    with pytest.raises(
        MemoryLimitError, match=rf"a\.zst: byte {len(ONE)}: .*the option window_limit"
    ):
        read(ONE + frame(raw(b"x"), window=0x89))


def test_single_segment_needs_no_window() -> None:
    data = frame(block(RLE, 5000, b"z"), window=None, content_size=(5000, 4))
    assert read(data, window_limit=1024).details["window"] == 5000


def test_missing_dictionary() -> None:
    data = frame(raw(b"x"), dictionary=(123456, 4))
    with pytest.raises(UnsupportedCodecError, match=r"ID 123456; .*--dictionary") as error:
        read(ONE + data)
    assert error.value.offset == len(ONE)


@pytest.mark.parametrize(
    ("dictionary", "given"),
    [(b"raw content", "no ID"), (b"", "no ID"), (b"\x37\xa4\x30\xec\x05\0\0\0", "ID 5")],
)
def test_other_dictionary(dictionary: bytes, given: str) -> None:
    with pytest.raises(UnsupportedCodecError, match=f"ID 7; .*given has {given}$"):
        read(frame(raw(b"x"), dictionary=(7, 1)), dictionary=dictionary)


def test_dictionary_id_0_means_none() -> None:
    index = read(frame(raw(b"x"), dictionary=(0, 2)))
    assert columns(index, "dictionary", "stored_size") == [(False, 12)]


def test_frames_without_dictionary_beside_one_with() -> None:
    data = ONE + frame(raw(b"x"), dictionary=(7, 1)) + ONE
    index = read(data, dictionary=b"\x37\xa4\x30\xec\x07\0\0\0")
    assert columns(index, "dictionary") == [(False,), (True,), (False,)]


# --- skippable frames


@pytest.mark.parametrize("size", [0, 1, 5, 70_000])
def test_skippable_frames_anywhere(size: int) -> None:
    skip = skippable(bytes(size), 0x184D2A5F)
    data = skip + skip + ONE + skip + HAND + skip
    index = read(data)
    assert decode_rows(data, index) == TEXT + b"hand" + b"z" * 1000
    assert (index.details["frames"], index.details["skippable_frames"]) == (2, 4)
    assert read_index(BytesSource(data), Options()).format == "zstd"


def test_skippable_frame_beyond_the_end() -> None:
    data = ONE + skippable(b"content")
    with pytest.raises(FormatError, match=f"byte {len(data) - 1}: the file ends here"):
        read(data[:-1])


# --- seek table


def listed(data: bytes, entries: list[tuple[int, ...]], **options: Any) -> Index:
    return read(data + seek_table(entries, **options))


def test_seek_table_gives_exact_sizes() -> None:
    frames = [compress(TEXT[:size], write_content_size=False) for size in (500, 1, 300)]
    data = b"".join(frames)
    index = listed(data, [(len(f), size) for f, size in zip(frames, (500, 1, 300), strict=True)])
    assert index.exact
    assert index.batchable
    assert index.details["seek_table"]
    assert (index.details["frames"], index.details["skippable_frames"]) == (3, 1)
    assert columns(index, "raw_size", "checksum_kind") == [(500, 0), (1, 0), (300, 0)]
    assert decode_rows(data, index) == TEXT[:500] + TEXT[:1] + TEXT[:300]
    assert not index.warnings


def test_seek_table_gives_checksums() -> None:
    data = HAND + ONE
    content = b"hand" + b"z" * 1000
    index = listed(data, [(len(HAND), 1004, low64(content)), (len(ONE), len(TEXT), low64(TEXT))])
    assert decode_rows(data, index) == content + TEXT
    assert columns(index, "checksum_kind") == [(Checksum.XXH64_LOW,)] * 2
    assert index.details["checksums"] == 2


def test_checksums_of_the_frames_count_beside_a_table_without() -> None:
    index = listed(HAND + ONE, [(len(HAND), 1004), (len(ONE), len(TEXT))])
    assert columns(index, "checksum", "checksum_kind") == [
        (0, Checksum.NONE),
        (low64(TEXT), Checksum.XXH64_LOW),
    ]


def test_blocks_of_listed_frames_are_not_walked() -> None:
    big = frame(*[raw(b"ab", last=False)] * 1000, raw(b""))
    source = WatchedSource(big * 10 + seek_table([(len(big), 2000)] * 10))
    assert zstd.read(source, Options()).exact
    assert source.reads < 20


def test_listed_skippable_frames_make_no_rows() -> None:
    skip = skippable(b"user data")
    data = skip + ONE + skip
    index = listed(data, [(len(skip), 0), (len(ONE), len(TEXT)), (len(skip), 0)])
    assert index.details["seek_table"]
    assert columns(index, "offset", "stored_size") == [(len(skip), len(ONE))]
    assert (index.details["frames"], index.details["skippable_frames"]) == (1, 3)


def test_unused_bits_are_ignored() -> None:
    assert listed(ONE, [(len(ONE), len(TEXT))], descriptor=3).details["seek_table"]


def test_table_of_no_frames() -> None:
    assert len(listed(b"", []).chunks) == 0


GOOD = (len(ONE), len(TEXT))


#: Frames, the entries of their table, how it is built, and why it is ignored.
CONTRADICTIONS: dict[str, tuple[bytes, list[tuple[int, ...]], dict[str, int], str]] = {
    "reserved bits": (ONE, [GOOD], {"descriptor": 4}, "descriptor 0x04 has reserved bits"),
    "count": (ONE, [GOOD], {"count": 2}, "no skippable frame with 2 entries"),
    "largest count": (ONE, [GOOD], {"count": 2**32 - 1}, "no skippable frame with 4294967295"),
    "entry size": (ONE, [GOOD], {"descriptor": 0x80}, "no skippable frame with 1 entries"),
    "too short": (ONE, [(len(ONE) - 1, len(TEXT))], {}, f"{len(ONE) - 1} bytes, but {len(ONE)}"),
    "too long": (ONE, [GOOD, GOOD], {}, "add up to"),
    "too many": (ONE, [(1, 1)] * 100, {}, "100 frames do not fit"),
    "frame of 0 bytes": (ONE, [(0, 0), GOOD], {}, "fewer bytes than any frame"),
    "frame of 8 bytes": (HAND + ONE, [(8, 0), (len(HAND + ONE) - 8, 9)], {}, "of 8 bytes that"),
    "no frame there": (
        HAND + ONE,
        [(len(HAND) + 1, 1004), (len(ONE) - 1, len(TEXT))],
        {},
        f"byte {len(HAND) + 1}: the seek table is ignored: it lists a frame here, but found b5 2f",
    ),
    "content size": (
        ONE,
        [(len(ONE), 539)],
        {},
        "it lists 539 decoded bytes, the frame states 540",
    ),
    "checksum": (ONE, [(*GOOD, low64(TEXT) ^ 1)], {}, "its checksum 0x"),
    "more than fits": (HAND, [(len(HAND), 1 << 30)], {}, "more than its header allows"),
    "skippable frame with content": (
        skippable(b"1") + ONE,
        [(9, 1), GOOD],
        {},
        "of 9 bytes starts",
    ),
    "two skippable frames as one": (
        skippable(b"1") * 2 + ONE,
        [(18, 0), GOOD],
        {},
        "a skippable frame of 9 bytes starts here; it lists one of 18 bytes",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_table_that_contradicts_the_file(case: str) -> None:
    data, entries, options, reason = CONTRADICTIONS[case]
    index = listed(data, entries, **options)
    assert not index.details["seek_table"]
    assert index.chunks.tolist() == read(data).chunks.tolist()
    (warning,) = index.warnings
    assert "the seek table is ignored: " in warning
    assert reason in warning
    with pytest.raises(FormatError, match="the seek table is ignored"):
        read(data + seek_table(entries, **options), strict=True)


def test_table_that_lists_a_broken_header() -> None:
    broken = frame(raw(b"x"), reserved=True)
    with pytest.raises(FormatError, match="the reserved bit must be zero"):
        listed(broken, [(len(broken), 1)])


def test_table_must_end_the_file() -> None:
    table = seek_table([GOOD])
    assert not read(ONE + table + skippable(b"")).details["seek_table"]
    assert not read(ONE + table[:-1] + b"\0").warnings


def test_other_skippable_frame_with_the_magic_of_a_table() -> None:
    index = read(ONE + skippable(b"no table", 0x184D2A5E))
    assert not index.details["seek_table"]
    assert not index.warnings


def test_listed_frames_need_windows_and_dictionaries_too() -> None:
    large = frame(raw(b"x"), window=0xFF)
    with pytest.raises(MemoryLimitError, match=f"byte {len(ONE)}: .*window_limit"):
        listed(ONE + large, [GOOD, (len(large), 1)])
    other = frame(raw(b"x"), dictionary=(99, 1))
    with pytest.raises(UnsupportedCodecError, match="ID 99"):
        listed(ONE + other, [GOOD, (len(other), 1)])


# --- reference tools and the corpus


@pytest.mark.skipif(not shutil.which("zstd"), reason="needs the zstd tool")
@pytest.mark.parametrize("flags", [(), ("--no-check",), ("-19",), ("--long=27",), ("-B16K", "-T2")])
def test_zstd_tool(flags: tuple[str, ...]) -> None:
    content = NOISE * 3 + TEXT * 3000
    command = ["zstd", "-c", *flags]
    data = subprocess.run(command, input=content, check=True, capture_output=True).stdout
    assert decode_rows(data * 2, read(data * 2)) == content * 2


def streams(corpus: Path, *, expect: str) -> list[dict[str, Any]]:
    entries = json.loads((corpus / "manifest.json").read_text())
    return [
        entry
        for entry in entries
        if (entry["format"], entry["kind"], entry["expect"]) == ("zstd", "stream", expect)
    ]


def test_every_good_file_of_the_corpus(corpus: Path) -> None:
    for entry in streams(corpus, expect="ok"):
        with LocalFile(corpus / entry["file"]) as source:
            index = zstd.read(source, Options())
        size = int(index.chunks["raw_size"].sum())
        assert size == entry["size"] if index.exact else size >= entry["size"], entry["file"]
        assert not index.warnings


@pytest.mark.parametrize(
    ("file", "frames", "skippable_frames", "uses_table"),
    [
        ("multi_frame", 3, 0, False),
        ("pzstd", 1, 1, False),
        ("seekable", 5, 1, True),
        ("seekable_hand_checksums", 8, 1, True),
        ("skippable", 2, 2, False),
        ("window_1k", 1, 0, False),
    ],
)
def test_rows_of_the_corpus(
    corpus: Path, file: str, frames: int, skippable_frames: int, uses_table: bool
) -> None:
    data = (corpus / f"zstd/{file}.zst").read_bytes()
    index = read(data)
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
    assert decode_rows(data, index) == reader.read()
    details = index.details
    assert (details["frames"], details["skippable_frames"]) == (frames, skippable_frames)
    assert details["seek_table"] is uses_table


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("bad/block_size_huge", FormatError),
        ("bad/block_type_3", FormatError),
        ("bad/content_size_huge", FormatError),
        ("bad/magic", FormatError),
        ("bad/raw_past_end", FormatError),
        ("bad/reserved_bit", FormatError),
        ("bad/trailing_garbage", FormatError),
        ("bad/trunc_checksum", FormatError),
        ("bad/trunc_header", FormatError),
        ("bad/trunc_middle", FormatError),
        ("bad/trunc_second_frame", FormatError),
        ("bad/window_huge", MemoryLimitError),
        ("bad/zero_bytes", FormatError),
        ("dictionary_needed", UnsupportedCodecError),
    ],
)
def test_bad_files_of_the_corpus(corpus: Path, file: str, error: type[GpuloadError]) -> None:
    with LocalFile(corpus / f"zstd/{file}.zst") as source, pytest.raises(error):
        zstd.read(source, Options())


def test_dictionary_of_the_corpus(corpus: Path) -> None:
    dictionary = (corpus / "zstd/dictionary.dict").read_bytes()
    identifier = zstandard.ZstdCompressionDict(dictionary).dict_id()
    data = (corpus / "zstd/dictionary_needed.zst").read_bytes()
    index = read(data, dictionary=dictionary)
    assert columns(index, "dictionary") == [(True,)]
    assert index.details["dictionary_id"] == identifier
    with pytest.raises(UnsupportedCodecError, match=str(identifier)):
        read(data)
    without_id = read((corpus / "zstd/dictionary_needed_no_id.zst").read_bytes())
    assert columns(without_id, "dictionary") == [(False,)]
