"""Files that a device lists: the same rows as those of the readers, or none."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import lz4.frame
import numpy as np
import pytest
import zstandard

from gpuload.containers import read_index
from gpuload.engines import scan_plan
from gpuload.engines.scan_plan import SCANS, ScanPlan
from gpuload.irregular import IrregularError
from gpuload.options import Options
from gpuload.scanned import ScannedFeed
from gpuload.sources import BytesSource
from gpuload.stages import Stages
from tests.helpers.encoders import ENCODERS
from tests.helpers.handmade import (
    BGZF_EOF,
    BLOCK_SUM,
    CONTENT_SUM,
    DICT_ID,
    INDEPENDENT,
    SIZE,
    SNAPPY_IDENTIFIER,
    V1,
    bgzf_block,
    gzip_member,
    lz4_block,
    lz4_frame,
    lz4_legacy,
    lz4_literals,
    skippable,
    snappy_chunk,
    snappy_data,
    subfield,
    zstd_frame,
    zstd_seek_table,
)
from tests.helpers.host_scans import HostScans, feed_of, irregular, listed, verify
from tests.helpers.lanes import build
from tests.helpers.zstd_headers import random_frame, random_table

OPTIONS = Options()
RANGES = (4096, 65_536, 1 << 20)


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    if reason := build.missing(build.NATIVE):
        pytest.skip(reason)


# --- Contents and files ---------------------------------------------------------------------------


def content(seed, size=150_000):
    """Return bytes that compress, and some that do not."""
    rng = random.Random(seed)
    words = [rng.randbytes(rng.randrange(1, 12)) for _ in range(50)]
    parts, left = [], size
    while left > 0:
        sort = rng.randrange(3)
        part = rng.randbytes(rng.randrange(20_000)) if sort == 0 else b""
        part = part or b"".join(rng.choices(words, k=rng.randrange(1, 4000)))
        parts.append(part if sort else bytes(rng.randrange(9000)) + part)
        left -= len(parts[-1])
    return b"".join(parts)[:size]


def parts(seed, size=150_000, most=66_000):
    rng, whole = random.Random(seed), content(seed, size)
    found = []
    while whole:
        cut = rng.choice((rng.randrange(1, most), rng.randrange(1, 3000)))
        found.append(whole[:cut])
        whole = whole[cut:]
    return found


def lz4_file(data, **options):
    chosen = {"block_linked": False, "store_size": False, "block_checksum": True} | options
    return lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, **chosen)


def zstd_file(seed, *, table=False):
    frames = [zstandard.ZstdCompressor(write_checksum=True).compress(p) for p in parts(seed)]
    if not table:
        return b"".join(frames)
    sizes = [zstandard.frame_content_size(frame) for frame in frames]
    return b"".join(frames) + zstd_seek_table(list(zip(map(len, frames), sizes, strict=True)))


def zstd_frames(seed, count=120):
    """Return frames with headers of all sorts and some blocks each."""
    rng = random.Random(seed)
    return [random_frame(rng, rng.choice((40, 900, 4000))) for _ in range(count)]


def listed_frames(seed):
    frames = zstd_frames(seed)
    return b"".join(frames) + random_table(random.Random(seed), frames)


KINDS = {
    "lz4": lambda seed: lz4_file(content(seed), store_size=True),
    "lz4 without sums": lambda seed: lz4_file(content(seed), block_checksum=False),
    "lz4 of a sum": lambda seed: lz4_file(content(seed), content_checksum=True, store_size=True),
    "lz4 of small blocks": lambda seed: ENCODERS["lz4 independent blocks"](parts(seed)),
    "bgzf": lambda seed: ENCODERS["bgzf"](parts(seed)),
    "snappy": lambda seed: ENCODERS["snappy chunks"](parts(seed)),
    "zstd": lambda seed: zstd_file(seed),
    "zstd with a seek table": lambda seed: zstd_file(seed, table=True),
    "zstd of all sorts": lambda seed: b"".join(zstd_frames(seed)),
    "zstd of all sorts with a seek table": lambda seed: listed_frames(seed),
}


@pytest.mark.parametrize("size", RANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_reader(kind, size):
    for seed in range(4):
        verify(KINDS[kind](seed), size)


@pytest.mark.parametrize("kind", KINDS)
def test_segments_of_many_sizes(kind):
    data = KINDS[kind](7)
    for segment in (512, 1000, 4096, 30_000, 1 << 18):
        verify(data, 65_536, HostScans(segment))


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_of_odd_sizes(kind):
    rng = random.Random(kind)
    data = KINDS[kind](8)
    for _ in range(12):
        verify(data, rng.randrange(600, len(data) + 10), HostScans(rng.randrange(500, 5000)))


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_that_arrive_early(kind):
    """Nothing is known of where the chain gets to them."""
    scans = HostScans(1024)
    data = KINDS[kind](9)
    verify(data, 8192, scans, ahead=4)
    assert scans.entries[0] is not None
    assert set(scans.entries[1:4]) == {None}


@pytest.mark.parametrize("kind", KINDS)
def test_entries_that_are_known(kind):
    """All but those of ranges in which no chunk starts."""
    scans = HostScans(1024)
    found = verify(KINDS[kind](10), 15_000, scans)
    assert len(scans.entries) == len(found)
    assert sum(entry is not None for entry in scans.entries) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_warps(kind):
    if reason := build.missing(build.PLAIN):
        pytest.skip(reason)
    verify(KINDS[kind](11), 65_536, HostScans(4096, lanes=32))


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut(kind):
    """Ranges end inside of headers, checksums, and what marks the end."""
    data = small(kind)
    for size in range(40, len(data) + 3):
        verify(data, size, HostScans(64))


def small(kind):
    some = [
        b"abc" * 20,
        random.Random(1).randbytes(70),
        b"x",
        bytes(90),
        random.Random(2).randbytes(50),
    ]
    if kind.startswith("lz4"):
        flags = V1 | INDEPENDENT | BLOCK_SUM * ("without" not in kind)
        flags |= SIZE * (kind == "lz4") | CONTENT_SUM * ("of a sum" in kind)
        blocks = [lz4_block(part, raw=True, checksum=bool(flags & BLOCK_SUM)) for part in some]
        whole = b"".join(some)
        return lz4_frame(*blocks, flags=flags, size=len(whole), content=whole)
    if kind.startswith("zstd"):
        frames = [
            random_frame(random.Random(number), len(each)) for number, each in enumerate(some)
        ]
        return b"".join(frames) + (
            random_table(random.Random(1), frames) if "table" in kind else b""
        )
    return ENCODERS["bgzf" if kind == "bgzf" else "snappy chunks"](some)


class Counted(BytesSource):
    """Counts how often it is read."""

    def __init__(self, data):
        super().__init__(data)
        self.reads = 0

    def peek(self, offset, size):
        self.reads += 1
        return super().peek(offset, size)


@pytest.mark.parametrize(
    "encoder", ["lz4 independent blocks", "bgzf", "snappy chunks", "zstd frames"]
)
@pytest.mark.parametrize("ahead", [1, 3])
def test_little_is_read(encoder, ahead):
    """A few headers at the ends of ranges, the first and the last of the file."""
    source = Counted(ENCODERS[encoder](parts(5, 3_000_000)))
    feed = ScannedFeed(source, OPTIONS, 400_000, HostScans(40_000), Stages())
    listed(feed, source._view, ahead)
    ranges = len(list(feed.ranges()))
    assert feed.index().chunks.size > 15 * ranges
    assert source.reads < 5 * ranges


class Nothing(HostScans):
    """Finds nothing at all."""

    def changed(self, scan):
        none = np.zeros_like(scan.counts)
        return replace(scan, counts=none, starts=none)


class Shuffled(HostScans):
    """Forgets what some segments hold."""

    def changed(self, scan):
        rng = np.random.default_rng(scan.counts.size)
        return replace(scan, counts=scan.counts * rng.integers(0, 2, scan.counts.size))


@pytest.mark.parametrize("scans", [Nothing, Shuffled])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_found_is_read(kind, scans):
    verify(KINDS[kind](12), 30_000, scans(1024))


# --- What looks like a chain ----------------------------------------------------------------------


def test_small_integers_that_are_stored():
    rng = np.random.default_rng(3)
    blocks = [
        lz4_block(rng.integers(0, most, 16_384, np.uint32).tobytes(), raw=True, checksum=True)
        for most in (5, 100, 3000, 60_000, 3, 20_000)
    ]
    data = lz4_frame(*blocks, flags=V1 | INDEPENDENT | BLOCK_SUM)
    for size in (*RANGES, 50_000):
        verify(data, size, HostScans(4096))


@pytest.mark.parametrize("kind", KINDS)
def test_files_in_files(kind):
    """Whole files that are stored have chains of their own."""
    inner = [KINDS[kind](seed)[:65_000] for seed in range(3)]
    if kind.startswith("lz4"):
        data = lz4_frame(*(lz4_block(each, raw=True) for each in inner))
    elif kind.startswith("zstd"):
        stored = [zstd_frame((0, len(each), each), size=len(each)) for each in inner]
        data = b"".join(stored) + (
            random_table(random.Random(1), stored) if "table" in kind else b""
        )
    elif kind == "bgzf":
        data = b"".join(bgzf_block(each, level=0) for each in inner) + BGZF_EOF
    else:
        data = SNAPPY_IDENTIFIER + b"".join(snappy_data(each, checksum=0) for each in inner)
    for size in RANGES:
        verify(data, size, HostScans(2048))


def test_zeros():
    blocks = [lz4_block(bytes(65_536), raw=True) for _ in range(4)]
    for size in RANGES:
        verify(lz4_frame(*blocks), size)


def test_chunks_of_the_smallest_sizes():
    blocks = [lz4_block(b"", raw=True), lz4_block(lz4_literals(b"")), lz4_block(b"a", raw=True)]
    verify(lz4_frame(*blocks * 300), 4096)
    verify(lz4_frame(*blocks * 300), 4096, HostScans(4096))
    verify(SNAPPY_IDENTIFIER + (snappy_data(b"") + snappy_data(b"z")) * 500, 4096)
    verify(BGZF_EOF * 1000, 4096)


def test_more_headers_than_there_is_room_for(monkeypatch):
    """The rest is read."""
    monkeypatch.setattr(scan_plan, "_LEAST", 2048)
    data = lz4_frame(*[lz4_block(b"ab", raw=True)] * 3000)
    verify(data, 8192, HostScans(2048))


def test_too_many_headers_that_are_not_found(monkeypatch):
    monkeypatch.setattr("gpuload.scanned._BY_HAND", 100)
    data = lz4_frame(*[lz4_block(b"ab", raw=True)] * 300)
    verify(data, 600, Nothing(256))
    with pytest.raises(IrregularError, match="too many headers"):
        listed(feed_of(data, 4096, Nothing(256), OPTIONS), data)


# --- Files of other sorts -------------------------------------------------------------------------


def test_an_end_block_that_is_missing():
    data = b"".join(bgzf_block(part) for part in parts(1))
    verify(data, 65_536)
    assert "end-of-file block" in read_index(BytesSource(data), OPTIONS).warnings[0]
    irregular(data, options=Options(strict=True))


LZ4, BLOCK = lz4_frame(lz4_block(bytes(3000), raw=True)), lz4_block(bytes(3000), raw=True)
BGZF = bgzf_block(content(2, 9000)) + bgzf_block(content(3, 9000))
SNAPPY = SNAPPY_IDENTIFIER + snappy_data(content(4, 9000), checksum=0)


@pytest.mark.parametrize(
    "data",
    {
        "two frames": LZ4 + LZ4,
        "a legacy frame": lz4_legacy(bytes(90)),
        "a skippable frame": skippable(bytes(90)) + LZ4,
        "a skippable frame behind": LZ4 + skippable(bytes(90)),
        "trailing bytes": LZ4 + b"abc",
        "trailing zeros": LZ4 + bytes(4),
        "no end mark": LZ4[:-4],
        "half an end mark": LZ4[:-2],
        "a block that is cut": LZ4[:-9],
        "linked blocks": lz4_frame(BLOCK, BLOCK, flags=V1),
        "no blocks": lz4_frame(b""),
        "a block that is too large": lz4_frame(BLOCK, lz4_block(bytes(65_537), raw=True)),
        "a size that is wrong": lz4_frame(BLOCK, flags=V1 | INDEPENDENT | SIZE, size=5),
        "a dictionary": lz4_frame(BLOCK, flags=V1 | INDEPENDENT | DICT_ID, dictionary=5),
        "a header that is damaged": LZ4[:6] + b"!" + LZ4[7:],
        "no content checksum": lz4_frame(BLOCK, flags=V1 | INDEPENDENT | CONTENT_SUM)[:-4],
        "plain gzip": gzip_member(bytes(900)),
        "plain gzip behind": BGZF + gzip_member(bytes(900)),
        "other subfields": BGZF + bgzf_block(b"abc", before=subfield(b"XY", b"12")) + BGZF_EOF,
        "zeros behind blocks": BGZF + BGZF_EOF + bytes(50),
        "bytes behind blocks": BGZF + BGZF_EOF + b"abc",
        "a block of gzip that is cut": BGZF[:-9],
        "a block that is too small": BGZF + BGZF_EOF[:16] + b"\x05\0" + BGZF_EOF[18:],
        "too large a block": BGZF + BGZF_EOF[:-4] + struct.pack("<I", 65_537),
        "padding": SNAPPY + snappy_chunk(0xFE, bytes(99)),
        "another identifier": SNAPPY + SNAPPY,
        "an identifier that is damaged": SNAPPY_IDENTIFIER[:-1] + b"Z" + SNAPPY[10:],
        "a reserved chunk": SNAPPY + snappy_chunk(2, bytes(99)),
        "a chunk that is cut": SNAPPY[:-1],
        "a header that is cut": SNAPPY + b"\0\0",
        "too short a chunk": SNAPPY + snappy_chunk(1, b"abc"),
        "too long a chunk": SNAPPY + snappy_chunk(1, bytes(65_541)),
        "no decoded length": SNAPPY + snappy_chunk(0, bytes(4) + b"\xff\xff\xff\xff\xff\xff"),
        "no chunks": SNAPPY_IDENTIFIER,
        "zstd frames without sizes": ENCODERS["zstd frames without sizes"]([b"abc", b"d"])[11:],
        "nothing known": b"hello, world",
        "nothing": b"",
    }.items(),
    ids=lambda item: item[0],
)
def test_irregular(data):
    irregular(data[1])


def test_a_dictionary_that_is_given():
    irregular(LZ4, options=Options(dictionary=b"abc"))


def test_memory_for_rows():
    """A row for each four bytes would take more than it may."""
    data = lz4_frame(*[lz4_block(b"", raw=True)] * 70_000)
    verify(data, 65_536)
    irregular(data, 65_536, options=Options(memory_limit=16 << 20))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind):
    """They are listed as their readers list them, or not at all."""
    rng = random.Random(kind)
    whole = small(kind)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 3)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 255, rng.randrange(256)))
        data = bytes(data[: rng.choice((len(data), len(data), rng.randrange(len(data))))])
        size = rng.randrange(100, len(whole) + 50)
        try:
            listed(feed_of(data, size, HostScans(128), OPTIONS), data)
        except IrregularError:
            continue
        verify(data, size, HostScans(128))


def test_index_before_all_rows():
    feed = feed_of(LZ4, 1000, HostScans(1024), OPTIONS)
    with pytest.raises(IrregularError):
        feed.index()


# --- Plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("size", [1, 4096, 1 << 20, 52 << 20, 256 << 20])
def test_memory_of_plans(name, size):
    plan = ScanPlan(SCANS[name], size)
    assert plan.size <= 4 << 20
    assert plan.count == -(-size // scan_plan.SEGMENT)
    params = plan.params(1 << 30, 1 << 20, 5, 1 << 16, summed=True)
    starts, ends = params["start"].tolist(), params["end"].tolist()
    assert starts == [0, *ends[:-1]]
    assert ends[-1] == size
    outputs = params["output"].astype(np.int64)
    assert (np.diff(outputs) == params["room"][0]).all()
    assert outputs[0] >= (1 << 20) + 68 * plan.count
    assert outputs[-1] + int(params["room"][0]) <= (1 << 20) + plan.size
    assert (outputs % 4 == 0).all()


@pytest.mark.parametrize("size", [0, (256 << 20) + 1])
def test_sizes_that_no_range_has(size):
    with pytest.raises(ValueError, match=f"a range of {size} bytes"):
        ScanPlan(SCANS["lz4"], size)


def test_a_kernel_that_does_nothing():
    """What memory held before is nothing that was found."""
    plan = ScanPlan(SCANS["lz4"], 1 << 20)
    scan = plan.found(np.full(plan.count, 0xFFFFFFFF, np.uint32), np.full(plan.size, 7, np.uint8))
    assert not scan.counts.any()
    assert scan.positions.size == 0
