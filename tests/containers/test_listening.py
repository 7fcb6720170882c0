"""Rows that readers hand over on the way: together they are the index, wherever a listener asks."""

from __future__ import annotations

import lz4.block
import lz4.frame
import numpy as np
import pytest

from gpuload.containers import LISTED_ON_THE_WAY, read_index
from gpuload.errors import GpuloadError
from gpuload.options import Options
from gpuload.sources import BytesSource, Source
from tests.helpers.handmade import (
    BGZF_EOF,
    SNAPPY_IDENTIFIER,
    bgzf_block,
    gzip_member,
    lz4_block,
    lz4_frame,
    lz4_legacy,
    skippable,
    snappy_chunk,
    snappy_data,
    subfield,
)

RNG = np.random.default_rng(5)
PARTS = [RNG.bytes(int(size)) for size in RNG.integers(0, 900, 40)]
RAW = b"".join(PARTS)


def lz4_of(data, **options):
    return lz4.frame.compress(data, **{"block_linked": False, "block_size": 4} | options)


def legacy():
    return lz4_legacy(*(lz4.block.compress(part, store_size=False) for part in PARTS[:9]))


FILES = {
    "lz4": lz4_frame(*(lz4_block(part, raw=True) for part in PARTS if part)),
    "lz4 frames": b"".join(lz4_of(part, content_checksum=bool(part)) for part in PARTS),
    "lz4 block checksums": lz4_of(RNG.bytes(400_000), block_checksum=True),
    "lz4 without blocks": lz4_of(b""),
    "lz4 linked": lz4_of(RAW * 9, block_linked=True) + lz4_of(RAW),
    "lz4 and others": skippable(bytes(3000)) + lz4_of(RAW) + skippable() + legacy(),
    "lz4 skippable behind": lz4_of(RAW) + skippable(bytes(5000)),
    "lz4 legacy": legacy() + legacy(),
    "snappy": SNAPPY_IDENTIFIER + b"".join(map(snappy_data, PARTS)),
    "snappy padded": b"".join(
        SNAPPY_IDENTIFIER + snappy_data(part) + snappy_chunk(0xFE, bytes(len(part)))
        for part in PARTS
    ),
    "snappy without chunks": SNAPPY_IDENTIFIER,
    "snappy of a large chunk": SNAPPY_IDENTIFIER
    + snappy_data(PARTS[0])
    + snappy_data(RNG.bytes(65_536))
    + snappy_data(PARTS[1]),
    "bgzf": b"".join(map(bgzf_block, PARTS)) + BGZF_EOF,
    "bgzf other headers": b"".join(
        bgzf_block(part, before=subfield(b"XX", b"12")) for part in PARTS
    ),
    "bgzf zeros": b"".join(map(bgzf_block, PARTS)) + BGZF_EOF + bytes(5000),
}
SIZES = [50, 64, 500, 1000, 4096, 1 << 20]

each_file = pytest.mark.parametrize("name", FILES)


class Paged(Source):
    """A source of which a reader sees a page at a time, as of one that arrives in pieces."""

    def __init__(self, data, page):
        self.name, self.size = "<bytes>", len(data)
        self._data, self._page = memoryview(data), page

    def readinto(self, offset, view):
        part = self._data[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def resident(self, offset):
        start = offset // self._page * self._page
        return self._data[start : start + self._page], start


class Listening:
    """Takes rows, and checks when they come."""

    def __init__(self, step):
        self.at = self._step = step
        self.chunks, self.spans, self.dones = [], [], []

    def take(self, chunks, spans, *, done):
        self.chunks.append(chunks.copy())
        self.spans.append(spans.copy())
        self.dones.append(done)
        self.at += self._step


def without_places(chunks):
    """Return chunks without the places of their decoded bytes, which count from each batch."""
    chunks = chunks.copy()
    chunks["dst_offset"] = 0
    return chunks


def listened(source, step, options=None):
    listener = Listening(step)
    index = read_index(source, options or Options(), listener)
    return index, listener


def check(data, source, step):
    """Check that what is handed over is the index."""
    wanted = read_index(BytesSource(data), Options())
    index, listener = listened(source, step)
    assert index.format in LISTED_ON_THE_WAY
    for found in (index.chunks, np.concatenate(listener.chunks)):
        assert np.array_equal(without_places(found), without_places(wanted.chunks))
    for found in (index.spans, np.concatenate(listener.spans)):
        assert np.array_equal(found, wanted.spans)
    assert (index.details, index.warnings) == (wanted.details, wanted.warnings)
    assert listener.dones == [False] * (len(listener.dones) - 1) + [True]
    assert len(listener.dones) <= len(data) // step + 1
    return listener


@pytest.mark.parametrize("step", SIZES)
@each_file
def test_in_memory(name, step):
    check(FILES[name], BytesSource(FILES[name]), step)


@pytest.mark.parametrize(("page", "pages"), [(7, 20), (13, 9), (64, 1), (100, 7), (4096, 1)])
@each_file
def test_in_pieces(name, page, pages):
    """A page may end anywhere, and ranges end with pages."""
    listener = check(FILES[name], Paged(FILES[name], page), page * pages)
    # Rows end in the range that they come with, also the last ones.
    step = page * pages
    for number, chunks in enumerate(listener.chunks):
        ends = chunks["offset"] + chunks["stored_size"]
        assert (ends <= (number + 1) * step).all(), number


@pytest.mark.parametrize("name", ["lz4 frames", "snappy padded", "bgzf other headers"])
def test_every_step(name):
    for page in range(40, 80):
        check(FILES[name], Paged(FILES[name], page), page * 3)


@pytest.mark.parametrize("step", [100, 1000, 10_000])
@each_file
def test_broken_files(name, step):
    """What ends too early is an error, after rows that are right."""
    data = FILES[name]
    wanted = read_index(BytesSource(data), Options()).chunks
    for cut in sorted({1, 5, len(data) // 3, len(data) // 2, len(data) - 1}):
        listener = Listening(step)
        try:
            read_index(BytesSource(data[:cut]), Options(), listener)
        except GpuloadError:
            assert True not in listener.dones
        if listener.chunks and name != "bgzf zeros":
            found = without_places(np.concatenate(listener.chunks))
            assert np.array_equal(found, without_places(wanted[: found.size]))


@pytest.mark.parametrize("step", SIZES)
def test_a_plain_member_behind_bgzf_is_never_done(step):
    """What comes then has no rows that could be handed over."""
    blocks = b"".join(map(bgzf_block, PARTS))
    index, listener = listened(BytesSource(blocks + gzip_member(RAW)), step)
    assert True not in listener.dones
    assert index.serial
    found = np.concatenate(listener.chunks)
    assert np.array_equal(without_places(found), without_places(index.chunks[:-1]))


@pytest.mark.parametrize("data", [gzip_member(RAW), b"\x28\xb5\x2f\xfd\x20\x01\x09\0\0a"])
def test_formats_that_are_not_listed_on_the_way(data):
    class Silent:
        at = 1

        def take(self, chunks, spans, *, done):
            raise AssertionError("rows were handed over")

    if data[:2] == b"\x1f\x8b":
        assert read_index(BytesSource(data), Options(), Silent()).format == "gzip"
