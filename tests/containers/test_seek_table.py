"""Seek tables, built by hand after the Zstandard seekable format, version 0.1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from gpuload.chunks import Checksum
from gpuload.containers import zstd
from gpuload.errors import FormatError, MemoryLimitError, UnsupportedCodecError
from gpuload.options import Options
from tests.containers.container_tests import ContainerTests, WatchedSource, columns
from tests.containers.zstd_frames import (
    HAND,
    NOISE,
    ONE,
    TEXT,
    compress,
    decode_rows,
    ends,
    frame,
    low64,
    raw,
    read,
    seek_table,
    skippable,
)

if TYPE_CHECKING:
    from gpuload.containers.base import Index

SEEKABLE_FRAMES = [compress(part) for part in (TEXT, b"", TEXT[:100])]
SEEKABLE = b"".join(SEEKABLE_FRAMES) + seek_table(
    [(len(f), len(c)) for f, c in zip(SEEKABLE_FRAMES, (TEXT, b"", TEXT[:100]), strict=True)]
)


class TestSeekableContract(ContainerTests):
    reader = zstd
    good: ClassVar = {
        "without checksums": SEEKABLE,
        "with checksums": ONE
        + HAND
        + seek_table(
            [(len(ONE), len(TEXT), low64(TEXT)), (len(HAND), 1004, low64(b"hand" + b"z" * 1000))]
        ),
    }
    whole_prefixes: ClassVar = {
        "without checksums": ends(*SEEKABLE_FRAMES),
        "with checksums": ends(ONE, HAND),
    }
    large = frame(raw(NOISE)) * 16 + seek_table([(len(frame(raw(NOISE))), len(NOISE))] * 16)


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
        f"byte {len(HAND) + 1}: the seek table is wrong: it lists a frame here, but found b5 2f",
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
    assert "the seek table is wrong: " in warning
    assert warning.endswith("; ignored")
    assert reason in warning
    with pytest.raises(FormatError, match="the seek table is wrong") as caught:
        read(data + seek_table(entries, **options), strict=True)
    assert "ignored" not in str(caught.value)


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
