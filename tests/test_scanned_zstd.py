"""Zstandard files that a device lists: the same rows as those of the reader, or none."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import zstandard

from gpuload.containers import read_index
from gpuload.errors import GpuloadError
from gpuload.irregular import IrregularError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.containers.zstd_frames import COMPRESSED, RLE, WINDOW_1M, block, frame, raw, seek_table
from tests.helpers.handmade import skippable
from tests.helpers.host_scans import HostScans, feed_of, irregular, listed, verify
from tests.helpers.lanes import build
from tests.helpers.zstd_headers import random_frame, random_table

KIB = 1 << 10
CORPUS = Path(__file__).parent / "corpus" / "zstd"


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    if reason := build.missing(build.NATIVE):
        pytest.skip(reason)


def as_the_reader_or_not(data, size, options=None):
    """List a file; return whether that was possible, in which case the reader lists it the same."""
    options = options or Options()
    try:
        listed(feed_of(data, size, HostScans(256), options), data)
    except IrregularError:
        return False
    verify(data, size, HostScans(256), options=options)
    return True


def frames_of(seed, count=50, size=600):
    rng = random.Random(seed)
    return [random_frame(rng, rng.randrange(1, size)) for _ in range(count)]


# --- Files that are regular -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 1000, 5000, 1 << 20])
@pytest.mark.parametrize("seed", range(20))
def test_frames_of_all_sorts(seed, size):
    frames = frames_of(seed)
    verify(b"".join(frames), size, HostScans(512))
    verify(b"".join(frames) + random_table(random.Random(seed), frames), size, HostScans(512))


@pytest.mark.parametrize("path", sorted(CORPUS.rglob("*.zst*")), ids=lambda path: path.name)
def test_corpus(path):
    data = path.read_bytes()
    for size in (1000, 65_536, 1 << 22):
        as_the_reader_or_not(data, size)


def test_corpus_has_regular_files():
    files = [path.read_bytes() for path in sorted(CORPUS.glob("*.zst"))]
    assert sum(as_the_reader_or_not(data, 1 << 22) for data in files) > 5


def test_a_seek_table_that_is_longer_than_ranges():
    frames = [frame(raw(bytes([number])), content_size=(1, 4)) for number in range(250)]
    data = b"".join(frames) + random_table(random.Random(1), frames)
    for size in (50, 77, 200, 1000):
        found = verify(data, size, HostScans(64))
        assert not found[-1][0].size


@pytest.mark.parametrize("content", [b"", b"a", bytes(1000)])
def test_a_skippable_frame_behind(content):
    """It need be no seek table."""
    data = b"".join(frames_of(1)) + skippable(content)
    for size in (64, 500, 1 << 20):
        verify(data, size, HostScans(64))


def test_checksums_of_a_seek_table():
    """Frames that have none of their own get them from there."""
    frames = [frame(raw(b"abc"), content_size=(3, 4), checksum=each) for each in (5, None, 6)]
    data = b"".join(frames)
    table = seek_table([(len(each), 3, sum_) for each, sum_ in zip(frames, (5, 9, 6), strict=True)])
    found = np.concatenate([rows for rows, _ in verify(data + table, 1000)])
    assert found["checksum"].tolist() == [5, 9, 6]
    without = seek_table([(len(each), 3) for each in frames])
    found = np.concatenate([rows for rows, _ in verify(data + without, 1000)])
    assert found["checksum"].tolist() == [5, 0, 6]


def test_frames_of_more_blocks_than_are_looked_at():
    """They are read from the file."""
    blocks = [block(RLE, 9, b"a", last=False)] * 99
    long = frame(*blocks, block(RLE, 9, b"a"), content_size=(900, 4))
    short = frame(raw(b"abc"), content_size=(3, 4))
    for size in (1000, 1 << 20):
        verify((short * 9 + long) * 9, size)


def test_frames_without_content():
    empty = zstandard.ZstdCompressor().compress(b"")
    full = zstandard.ZstdCompressor(write_checksum=True).compress(b"abc")
    verify(empty * 3 + full + empty, 1000)
    verify(empty, 1000)
    verify(full, 1000)


# --- Files that are not ---------------------------------------------------------------------------

GOOD = [frame(raw(bytes(1000)), content_size=(1000, 4), checksum=7) for _ in range(9)]
WHOLE = b"".join(GOOD)
ENTRIES = [(len(each), 1000) for each in GOOD]


@pytest.mark.parametrize(
    "data",
    {
        "no size": WHOLE + frame(raw(bytes(1000))) + WHOLE,
        "no size, but in a seek table": WHOLE
        + frame(raw(bytes(1000)))
        + seek_table([*ENTRIES, (6 + 3 + 1000, 1000)]),
        "a dictionary": WHOLE + frame(raw(b"abc"), content_size=(3, 4), dictionary=(9, 1)),
        "a skippable frame before": skippable(b"abc") + WHOLE,
        "a skippable frame between": WHOLE + skippable(b"abc") + WHOLE,
        "skippable frames behind": WHOLE + skippable(b"abc") + skippable(b"abc"),
        "a skippable frame that is cut": WHOLE + skippable(b"abc")[:-1],
        "its header is cut": WHOLE + skippable(b"abc")[:7],
        "a frame that is cut": WHOLE[:-1],
        "a header that is cut": WHOLE + GOOD[0][:7],
        "a block header that is cut": WHOLE + GOOD[0][:12],
        "more content than blocks hold": WHOLE + frame(raw(b"abc"), content_size=(4, 4)),
        "very much content": WHOLE + frame(raw(b"abc"), content_size=(3 + (1 << 32), 8)),
        "an old version": WHOLE + b"\x27" + GOOD[0][1:],
        "zeros behind": WHOLE + bytes(9),
        "words behind": WHOLE + b"abc",
        "a seek table with too few frames": WHOLE + seek_table(ENTRIES[:-1]),
        "of other sizes": WHOLE
        + seek_table([(ENTRIES[0][0] + 1, 1000), (ENTRIES[0][0] - 1, 1000), *ENTRIES[2:]]),
        "of other content": WHOLE + seek_table([(ENTRIES[0][0], 999), *ENTRIES[1:]]),
        "of other checksums": WHOLE + seek_table([(*each, 8) for each in ENTRIES]),
        "of frames that are joined": WHOLE + seek_table([(2 * ENTRIES[0][0], 1000), *ENTRIES[2:]]),
        "of a later version": WHOLE + seek_table(ENTRIES, descriptor=4),
        "of more content than it allows": WHOLE
        + frame(block(COMPRESSED, 0), content_size=(5, 4))
        + seek_table([*ENTRIES, (4 + 2 + 4 + 3, 5)]),
    }.items(),
    ids=lambda item: item[0],
)
def test_irregular(data):
    irregular(data[1])


@pytest.mark.parametrize("options", [{"dictionary": b"abc"}, {"window_limit": (1 << 20) - 1}])
def test_options_that_the_reader_looks_at(options):
    irregular(WHOLE, options=Options(**options))


def test_windows():
    """A single segment needs none; others may have as much as is allowed."""
    assert WINDOW_1M == 0x50
    verify(WHOLE, 4096, options=Options(window_limit=1 << 20))
    single = zstandard.ZstdCompressor().compress(random.Random(1).randbytes(100 * KIB))
    verify(single * 2, 4096, options=Options(window_limit=1 << 10))


def test_memory_for_rows():
    small = frame(raw(b"a"), content_size=(1, 4)) * 70_000
    verify(small, 1 << 18)
    irregular(small, 1 << 18, options=Options(memory_limit=16 << 20))


@pytest.mark.parametrize("blocks", [60, 100])
def test_memory_for_looks_at_blocks(blocks):
    """The reader counts them, whoever else visits them."""
    many = frame(
        *[block(RLE, 1, b"a", last=False)] * (blocks - 1), block(RLE, 1, b"a"), content_size=(1, 4)
    )
    options = Options(memory_limit=1 << 20)
    fits = 4096 // blocks - 1
    verify(many * fits, 4096, options=options)
    for more in (2, 3, 20):
        data = many * (fits + more)
        with pytest.raises(GpuloadError, match="memory_limit"):
            read_index(BytesSource(data), options)
        irregular(data, options=options)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_files(seed):
    rng = random.Random(seed)
    frames = frames_of(seed, 9, 40)
    whole = b"".join(frames) + rng.choice((b"", skippable(b"abc"), random_table(rng, frames)))
    regular = 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 3)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 255, rng.randrange(256)))
        data = bytes(data[: rng.choice((len(data), len(data), rng.randrange(len(data))))])
        regular += as_the_reader_or_not(data, rng.randrange(30, len(whole) + 50))
    assert regular
