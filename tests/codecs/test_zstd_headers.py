"""Headers of many Zstandard frames (RFC 8878, section 3.1.1), built by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import zstandard

from gpuload.codecs.zstd_headers import blocks_end, read_headers
from tests.containers import zstd_frames as handmade

#: (bytes of the field, a content size that fits)
SIZES = [(0, 0), (1, 200), (2, 256), (2, 65_791), (4, 1 << 31), (8, 1 << 40)]


def lay_out(*frames):
    starts = np.array([0, *(len(frame) for frame in frames)], np.int64).cumsum()
    return np.frombuffer(b"".join(frames), np.uint8), starts[:-1], starts[1:]


def frame(field, size, window, checksum):
    value = size - 256 * (field == 2)
    return handmade.frame(
        handmade.raw(b"x"), window=window, content_size=(value, field), checksum=checksum
    )


# One field of 1 byte is for single segments only, and these always have one.
CASES = [
    (field, size, window, checksum)
    for (field, size), window, checksum in itertools.product(SIZES, (None, 0x3A), (None, 7))
    if (field > 0 or window is not None) and (field != 1 or window is None)
]


def test_fields():
    frames = [frame(*case) for case in CASES]
    stored, starts, _ = lay_out(*frames)
    headers = read_headers(stored, starts)
    assert headers.plain.all()
    for number, (field, size, window, checksum) in enumerate(CASES):
        assert headers.sizes[number] == zstandard.frame_header_size(frames[number])
        assert headers.stated[number] == (field > 0)
        assert headers.content_sizes[number] == size
        assert headers.single_segment[number] == (window is None)
        assert headers.checksum[number] == (checksum is not None)
        assert window in (None, headers.window_descriptors[number])


@pytest.mark.parametrize(
    "other",
    [
        handmade.frame(handmade.raw(b"x"), reserved=True),
        handmade.frame(handmade.raw(b"x"), dictionary=(7, 1)),
        handmade.frame(handmade.raw(b"x"), dictionary=(0, 4)),
        handmade.skippable(b"some bytes"),
        bytes(9),
    ],
    ids=["reserved", "dictionary", "no dictionary", "skippable", "zeros"],
)
def test_frames_that_are_not_plain(other):
    stored, starts, _ = lay_out(frame(*CASES[0]), other, frame(*CASES[1]))
    assert read_headers(stored, starts).plain.tolist() == [True, False, True]


def test_header_at_the_end_of_the_bytes():
    stored, starts, _ = lay_out(frame(*CASES[0]), handmade.MAGIC + b"\xe0" + bytes(4))
    assert read_headers(stored, starts).sizes.tolist()[1] == 5 + 8


def ends(*frames, cut=0, **limits):
    """Return whether frames, which are blocks without a header, are in order."""
    stored, start, end = lay_out(*frames)
    return blocks_end(stored[: stored.size - cut], start, end, **limits).tolist()


ONE = handmade.raw(b"some")
TWO = handmade.block(handmade.RLE, 1000, b"x", last=False) + ONE
THREE = handmade.block(handmade.COMPRESSED, 6, b"anyhow", last=False) + TWO


def test_blocks_that_end_in_time():
    assert ends(ONE, TWO, THREE, handmade.raw(b"")) == [True] * 4
    assert ends() == []


@pytest.mark.parametrize(
    "other",
    [
        b"",
        ONE[:2],
        ONE[:-1],
        ONE + b"\0",
        THREE[:-1],
        THREE[: -len(ONE)],
        TWO + ONE,
        handmade.block(handmade.RESERVED, 1, b"x"),
        handmade.block(handmade.RESERVED, 1, b"x", last=False) + ONE,
        handmade.raw(b"", last=False) * 9,
    ],
)
def test_blocks_that_do_not(other):
    assert ends(ONE, other, THREE) == [True, False, True]
    assert ends(ONE, THREE, other) == [True, True, False]


def test_bytes_that_are_not_there():
    assert ends(ONE, THREE, handmade.raw(bytes(90), last=False) + ONE, cut=90) == [
        True,
        True,
        False,
    ]


def test_limits():
    assert ends(ONE, TWO, THREE, most=1) == [True, False, False]
    assert ends(ONE, TWO, THREE, most=2) == [True, True, False]
    assert ends(ONE, TWO, THREE, fewest=3) == [True, False, False]
    assert ends(ONE, TWO, THREE, fewest=2) == [True, True, False]
