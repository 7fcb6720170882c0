"""The Zstandard reader: frames built by hand after RFC 8878, of the reference tool, the corpus."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import zstandard

from gpuload.chunks import Checksum, Codec
from gpuload.containers import read_index, zstd
from gpuload.errors import FormatError, GpuloadError, MemoryLimitError, UnsupportedCodecError
from gpuload.options import Options
from gpuload.sources import BytesSource, LocalFile
from tests.containers.container_tests import ContainerTests, columns
from tests.containers.zstd_frames import (
    COMPRESSED,
    HAND,
    KIB,
    MAGIC,
    MIB,
    NOISE,
    ONE,
    RAW,
    RESERVED,
    RLE,
    TEXT,
    WINDOW_1M,
    block,
    compress,
    decode_rows,
    ends,
    frame,
    little,
    low64,
    raw,
    read,
    skippable,
)

if TYPE_CHECKING:
    from pathlib import Path


class TestZstdContract(ContainerTests):
    reader = zstd
    good: ClassVar = {
        "one frame": ONE,
        "by hand": HAND,
        "frames": ONE + HAND + ONE,
        "skippable": skippable(b"first") + ONE + skippable(b"") + HAND,
        "dictionary ID": frame(raw(b"x"), dictionary=(7, 1)),
    }
    whole_prefixes: ClassVar = {
        "frames": ends(ONE, HAND),
        "skippable": ends(skippable(b"first"), ONE, skippable(b"")),
    }
    options = Options(dictionary=b"\x37\xa4\x30\xec\x07\x00\x00\x00")
    large = frame(raw(NOISE)) * 16 + frame(*[raw(NOISE, last=False)] * 8, raw(b""))


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
    with pytest.raises(MemoryLimitError, match=rf"a window of {window} bytes, .*--max-window"):
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
