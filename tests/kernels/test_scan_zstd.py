"""The kernel that finds Zstandard frames, where their headers are at their limits or damaged."""

from __future__ import annotations

import random

import pytest

from tests.containers.zstd_frames import COMPRESSED, RAW, RESERVED, RLE, block, frame, raw
from tests.helpers.handmade import skippable
from tests.helpers.lanes import build, scans
from tests.helpers.lanes.scans import BROKEN, END, LEFT, NOTHING, Case
from tests.helpers.zstd_headers import MOST_BLOCKS, header_at, random_frame

KIB, MIB = 1 << 10, 1 << 20
SINGLE = frame(raw(b"abcdef"), window=None, content_size=(6, 1))


@pytest.fixture(autouse=True, scope="module")
def _sanitizers():
    if reason := build.missing(build.ALONE):
        pytest.skip(reason)


def scanned(*files, **options):
    """Scan from the first byte of each file, known to be a header, on one lane."""
    cases = [Case("zstd", data, entry=0, **options) for data in files]
    return scans.run("zstd", cases, lanes=1, build=build.ALONE)


def taken(data):
    """Return the record of a frame that another follows; None if there is none."""
    (found,) = scanned(data + SINGLE)
    if found.stop != LEFT:
        assert (found.stop, found.records) == (BROKEN, [])
        return None
    first, second = found.records
    assert second[0] == len(data)
    return first


@pytest.mark.parametrize(
    ("field", "window"),
    [(1, None), (2, None), (4, None), (8, None), (2, 0x50), (4, 0x50), (8, 0x50)],
)
@pytest.mark.parametrize("identifier", [0, 1, 2, 4])
@pytest.mark.parametrize("checksum", [None, 0x12345678])
def test_fields(field, identifier, checksum, window):
    """Section 3.1.1.1: of every size that there is."""
    content = 5 if field == 1 else 300
    stated = content - 256 * (field == 2)
    data = frame(
        raw(bytes(content)),
        window=window,
        content_size=(stated, field),
        dictionary=(0, identifier),
        checksum=checksum,
    )
    at, size, marks, before = taken(data)
    assert (at, size, before) == (0, content, 0)
    assert marks & 0xFF == data[4]
    assert marks >> 8 & 0xFF == (window or 0)
    assert marks >> 16 == 1
    (found,) = scanned(data + SINGLE)
    assert found.records[1][3] == int.from_bytes(data[-4:], "little")


@pytest.mark.parametrize(
    "data",
    {
        "no content size": frame(raw(b"abc")),
        "a dictionary of one byte": frame(
            raw(b"abc"), window=None, content_size=(3, 1), dictionary=(1, 1)
        ),
        "a dictionary of two bytes": frame(
            raw(b"abc"), window=None, content_size=(3, 1), dictionary=(0x100, 2)
        ),
        "a dictionary of four bytes": frame(
            raw(b"abc"), window=None, content_size=(3, 1), dictionary=(1 << 31, 4)
        ),
        "the reserved bit": frame(raw(b"abc"), window=None, content_size=(3, 1), reserved=True),
        "a reserved block": frame(block(RESERVED, 3, b"abc"), content_size=(3, 4)),
        "more content than blocks hold": frame(raw(b"abc"), content_size=(4, 4)),
        "much more": frame(raw(b"abc"), content_size=(1 << 32, 8)),
        "as much as can be": frame(raw(b"abc"), content_size=((1 << 64) - 1, 8)),
        "a block larger than its window": frame(
            block(RLE, 1025, b"a"), window=0, content_size=(1025, 4)
        ),
        "a block larger than any": frame(
            block(RLE, 128 * KIB + 1, b"a"), window=0x90, content_size=(1025, 4)
        ),
        "the largest block": frame(
            block(COMPRESSED, (1 << 21) - 1, b"a"), window=0xFF, content_size=(1025, 4)
        ),
        "another magic": b"\x29" + SINGLE[1:],
        "a skippable frame": skippable(bytes(9)),
    }.items(),
    ids=lambda item: item[0],
)
def test_not_taken(data):
    assert taken(data[1]) is None


def test_every_window():
    """Section 3.1.1.1.2: blocks are no larger than the window, nor than 128 KiB."""
    good, bad = [], []
    for descriptor in range(256):
        exponent, mantissa = divmod(descriptor, 8)
        most = min(128 * KIB, (8 + mantissa) * 2 ** (10 + exponent) // 8)
        for size, files in ((most, good), (most + 1, bad)):
            fields = {"window": descriptor, "content_size": (size, 4)}
            files.append(frame(block(RLE, size, b"a"), **fields))
            files.append(frame(block(COMPRESSED, 2, b"ab"), **fields))
    assert {found.stop for found in scanned(*good)} == {LEFT}
    assert {found.stop for found in scanned(*bad)} == {BROKEN}


def test_many_blocks():
    """As many as are looked at, the content of which is as much as can be; and one more."""
    blocks = [block(RLE, 128 * KIB, b"a", last=False)] * (MOST_BLOCKS - 1)
    last = block(RLE, 128 * KIB, b"a")
    size = MOST_BLOCKS * 128 * KIB
    record = taken(frame(*blocks, last, content_size=(size, 4)))
    assert (record[1], record[2] >> 16) == (8 * MIB, MOST_BLOCKS)
    assert taken(frame(*blocks, blocks[0], last, content_size=(size, 4))) is None


def test_blocks_that_end_far_behind_the_range():
    """What is stored need not be there, but headers must."""
    data = frame(block(RAW, 128 * KIB), content_size=(128 * KIB, 4), checksum=1)
    (found,) = scanned(data[:-4])
    assert (found.stop, found.following) == (LEFT, 6 + 4 + 3 + 128 * KIB + 4)
    again = frame(block(RAW, 128 * KIB, last=False), content_size=(128 * KIB, 4))
    (found,) = scanned(again)
    assert (found.stop, found.following, found.records) == (END, 0, [])


@pytest.mark.parametrize("content", [b"", b"a", bytes(2000)])
def test_a_skippable_frame_at_the_end(content):
    data = SINGLE * 9 + skippable(content, magic=0x184D2A5E)
    # It may go on behind the range.
    cases = [Case("zstd", data[:size]) for size in range(9 * len(SINGLE) + 1, len(data) + 1)]
    for found in scans.run("zstd", cases, lanes=1, build=build.ALONE):
        assert len(found.records) == 9
        assert found.following == 9 * len(SINGLE)


def test_a_skippable_frame_in_the_middle():
    (found,) = scanned(SINGLE * 9 + skippable(bytes(5)) + SINGLE)
    assert (found.stop, found.following) == (BROKEN, 9 * len(SINGLE))


def test_magics_that_no_frame_follows():
    (found,) = scans.run(
        "zstd", [Case("zstd", SINGLE[:4] * 3000 + SINGLE * 20)], lanes=1, build=build.ALONE
    )
    assert (found.stop, found.first) == (LEFT, 12_000)
    (found,) = scans.run(
        "zstd", [Case("zstd", SINGLE[:4] * 3000 + bytes(9))], lanes=1, build=build.ALONE
    )
    assert found.stop == NOTHING


@pytest.mark.parametrize("way", ["WARPS", "EXACT", "ALONE"])
def test_damaged_headers(way):
    """Whatever stands there, what is found are frames as the model has them, within the range."""
    chosen = getattr(build, way)
    if reason := build.missing(chosen):
        pytest.skip(reason)
    rng = random.Random(way)
    cases = []
    for _ in range(2000 if way == "ALONE" else 300):
        data = bytearray(b"".join(random_frame(rng, 60) for _ in range(12)))
        starts = [at for at in range(len(data)) if data[at : at + 4] == SINGLE[:4]]
        for _ in range(rng.randrange(1, 4)):
            at = rng.choice(starts) + rng.randrange(4, 22)
            data[at % len(data)] = rng.choice((0, 1, 0x80, 255, rng.randrange(256)))
        data = bytes(data[: rng.choice((len(data), rng.randrange(1, len(data))))])
        cases.append(Case("zstd", data, entry=rng.choice((0, None)), at=rng.randrange(32)))
    lanes = 1 if way == "ALONE" else 32
    for case, found in zip(cases, scans.run("zstd", cases, lanes=lanes, build=chosen), strict=True):
        for at, content, marks, _ in found.records:
            header = header_at(case.data, at)
            assert (content, marks) == (header.content, header.marks)
            assert header.size
