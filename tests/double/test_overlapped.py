"""Loads to the double of a device whose stages overlap: bytes, reports, and what falls back."""

from __future__ import annotations

import errno
import itertools
import warnings

import lz4.block
import lz4.frame
import numpy as np
import pytest

import gpuload
from gpuload import driver, lease, overlapped_load, staging
from gpuload.engines import nvcomp, nvcomp_library, rates
from gpuload.errors import ChecksumError, FormatError, MemoryLimitError
from gpuload.feeds import ListedFeed
from gpuload.options import Options
from tests.helpers.device_loads import (
    UserArray,
    allocate,
    clean_loads,
    compressed,
    new_stream,
    read,
    write,
)
from tests.helpers.fakenvcomp import FakeNvcomp
from tests.helpers.handmade import (
    BGZF_EOF,
    INDEPENDENT,
    SIZE,
    V1,
    bgzf_block,
    gzip_member,
    lz4_block,
    lz4_frame,
    lz4_legacy,
    skippable,
    snappy_chunk,
)
from tests.helpers.overlapped_loads import (
    FEEDS,
    QUICK,
    bgzf,
    find_rows,
    lz4_blocks,
    mixed,
    outcome,
    overlapped_off,
    regular_files,
    small_ranges,
    spy,
)

MIB = 1 << 20
SIZE_OF_FILES = 1_100_000
FILES = regular_files(SIZE_OF_FILES)
RAW = mixed(700_000)
#: Bytes of a range in these tests, but for those that say something else.
RANGE = 256 << 10
#: Files of several frames are not what is looked for on the device.
NOT_SCANNED = {"lz4 frames of full blocks"}

each_file = pytest.mark.parametrize("name", FILES)
each_feed = pytest.mark.parametrize("feed", FEEDS)
each_way = pytest.mark.parametrize("way", ["read", "mapped"])


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield
        lease.release()


@pytest.fixture
def loads(monkeypatch):
    """Let files take many ranges; return how overlapped loads ended."""
    small_ranges(monkeypatch)
    return spy(monkeypatch)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    made = {name: folder / name for name in FILES}
    for name, path in made.items():
        path.write_bytes(FILES[name][0])
    return made


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a file."""

    def write_file(data):
        (tmp_path / "file").write_bytes(data)
        return tmp_path / "file"

    return write_file


def frame(data, **options):
    """Return an LZ4 frame of independent blocks of 64 KiB."""
    chosen = {"block_size": 4, "block_linked": False, "store_size": False} | options
    return lz4.frame.compress(data, **chosen)


def flipped(data, place):
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


# --- What goes well -------------------------------------------------------------------------------


@each_way
@each_feed
@each_file
def test_a_file(loads, paths, monkeypatch, name, feed, way):
    find_rows(monkeypatch, feed)
    data, raw = FILES[name]
    found, report = outcome(paths[name], feed, way=way)
    assert found == raw
    if feed == "scanned" and name in NOT_SCANNED:
        return
    assert loads.ended == [("load_listed" if feed == "listed" else "load_unlisted", "done")]
    check_report(report, way, data, raw)


def check_report(report, way, data, raw):
    """Check what a report says, but for checksums."""
    assert report.engine == "sm"
    assert (report.raw_size, report.stored_size) == (len(raw), len(data))
    assert list(report.ways) == [way]
    assert 0 < report.ways[way] <= len(data)
    assert len(report.windows) >= report.ways[way] / RANGE
    for window in report.windows:
        assert (window.engine, window.way) == ("sm", way)
        assert 0 <= window.start <= window.submitted <= window.stop
    assert sum(window.chunks for window in report.windows) == report.chunks
    assert sum(window.stored_size for window in report.windows) == report.ways[way]
    assert {"read", "copy", "decode"} <= set(report.stages)
    assert report.stages["read"].bytes == report.ways[way]
    assert report.peak_device > 0
    assert report.peak_host > 0
    assert report.seconds > 0
    assert report.failures == []


#: Checksums of files, of chunks and of what spans several of them.
SUMS = {
    "lz4 without its size": ({}, {}),
    "lz4 with block checksums": ({"xxh32_stored": 17}, {}),
    "lz4 with a content checksum": ({}, {"xxh32": 1}),
    "lz4 of noise": ({"xxh32_stored": 17}, {}),
    "snappy": ({"crc32c_masked": 17}, {}),
}


@pytest.mark.parametrize("verify", [True, False, "auto"])
@each_feed
@pytest.mark.parametrize("name", SUMS)
def test_checksums(loads, paths, monkeypatch, name, feed, verify):
    find_rows(monkeypatch, feed)
    chunks, spans = SUMS[name]
    found, report = outcome(paths[name], feed, verify=verify)
    assert found == FILES[name][1]
    if verify is True:
        assert (report.verified, report.unverified) == (chunks | spans, {})
    elif verify:
        assert (report.verified, report.unverified) == (chunks, spans)
        assert report.verified_on == ({"device": 17} if chunks else {})
        assert ("verify" in report.stages) == bool(chunks)
    else:
        assert (report.verified, report.unverified) == ({}, chunks | spans)
        assert report.verified_on == {}
    # What spans several chunks is for the host.
    assert bool(loads.done) == (verify is not True or not spans)


@each_way
@each_feed
@pytest.mark.parametrize(
    ("pieces", "piece", "slots"),
    [(1, 65_536, 2), (3, 50_001, 4), (2, 33_333, 9), (7, 20_480, 2), (1, 300_007, 3)],
)
@pytest.mark.parametrize("name", ["lz4 without its size", "snappy", "snappy of small chunks"])
def test_ranges_of_other_shapes(monkeypatch, paths, name, feed, way, pieces, piece, slots):
    """Rows lie in two ranges, pieces start anywhere in a page, and a ring holds little."""
    small_ranges(monkeypatch, pieces=pieces, piece=piece, slots=slots)
    find_rows(monkeypatch, feed)
    assert outcome(paths[name], feed, way=way)[0] == FILES[name][1]


@each_feed
def test_every_edge_between_ranges(monkeypatch, file, feed):
    """Wherever ranges end in a row, its header, its checksum or its frame."""
    rng = np.random.default_rng(4)
    parts = [rng.bytes(size) for size in (999, 64, 1, 2, 500, 31, 700, 5, 3000)]
    snappy_file = compressed(b"".join(parts), "snappy", chunk_size=333)
    frames = b"".join(lz4_frame(lz4_block(part, raw=True)) for part in parts)
    raw = b"".join(parts)
    find_rows(monkeypatch, feed)
    small_ranges(monkeypatch, pieces=1, piece=4096, margin=4096)
    for data in (snappy_file, frames, lz4_blocks(parts), frame(raw, block_checksum=True)):
        path = file(data)
        for size in range(300, 340):
            small_ranges(monkeypatch, pieces=2, piece=size, margin=4096)
            assert outcome(path, feed)[0] == raw, (len(data), size)


def test_the_shape_for_little_memory(monkeypatch, tmp_path, cuda):
    """What is made of a real limit, without any of these tests' changes."""
    loads, raw = spy(monkeypatch), mixed(30 * MIB)
    (tmp_path / "file").write_bytes(frame(raw, block_checksum=True))
    for way in ("read", "mapped"):
        found, report = outcome(tmp_path / "file", way=way, memory_limit=60 * MIB)
        assert found == raw
        assert report.peak_device <= 60 * MIB
        assert report.peak_host <= 60 * MIB
        assert len(report.windows) > 1
    assert loads.ended == [("load_unlisted", "done")] * 2


@pytest.mark.parametrize("feed", ["walked", "scanned", "listed"])
def test_in_memory_of_the_host(loads, monkeypatch, feed):
    """Bytes that are no file are read."""
    find_rows(monkeypatch, feed)
    data, raw = FILES["snappy"]
    found, report = outcome(data, feed, way="mapped")
    assert found == raw
    assert list(report.ways) == ["read"]
    assert len(loads.done) == 1


@each_feed
@pytest.mark.parametrize("name", ["lz4 with its size", "lz4 without its size", "snappy"])
def test_into_an_array_of_the_caller(loads, monkeypatch, paths, name, feed):
    find_rows(monkeypatch, feed)
    raw, stream = FILES[name][1], new_stream()
    with allocate("DecompressMemory", len(raw) + MIB, stream) as address:
        write(address, b"\xa5" * (len(raw) + MIB), stream)
        found, _ = outcome(paths[name], feed, out=UserArray(address, len(raw)))
        assert found == raw
        assert read(address, len(raw) + MIB, stream) == raw + b"\xa5" * MIB
    stream.close()
    # Of a last block that is not full nobody knows beforehand that it fits.
    assert bool(loads.done) == (name != "lz4 without its size")


@pytest.mark.parametrize("change", [-1, 1])
@each_feed
@pytest.mark.parametrize("name", ["lz4 with its size", "lz4 without its size", "snappy"])
def test_an_array_of_another_size(loads, monkeypatch, paths, name, feed, change):
    find_rows(monkeypatch, feed)
    raw, stream = FILES[name][1], new_stream()
    with allocate("DecompressMemory", len(raw) + MIB, stream) as address:
        write(address, b"\xa5" * (len(raw) + MIB), stream)
        kind, text = outcome(paths[name], feed, out=UserArray(address, len(raw) + change))
        assert kind is ValueError
        assert f"out holds {len(raw) + change} bytes" in text
        assert read(address + len(raw) + 1, MIB - 1, stream) == b"\xa5" * (MIB - 1)
    stream.close()


@each_feed
def test_comes_after_the_work_of_its_stream(loads, monkeypatch, paths, feed):
    """A fill of the destination is queued still when the load begins, and must not win."""
    from cuda.core import Buffer

    find_rows(monkeypatch, feed)
    raw, stream = FILES["snappy"][1], new_stream()
    with allocate("DecompressMemory", len(raw), stream) as address:
        Buffer.from_handle(address, len(raw)).fill(0xEE, stream=stream)
        out = UserArray(address, len(raw), stream=int(stream.handle))
        assert outcome(paths["snappy"], feed, out=out)[0] == raw
        assert read(address, len(raw), stream) == raw
    stream.close()
    assert loads.done


def test_the_fastest_engine_is_found_before_listing(loads, monkeypatch, paths, cuda):
    cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
    always = {codec: rates.Rate(1e15, 0.0) for codec in rates.DEVICE_RATES["sm"]}
    monkeypatch.setitem(rates.DEVICE_RATES, "sm", always)
    for cost in ("LAUNCH", "START", "STAGED"):
        monkeypatch.setattr(rates, cost, 0)
    found, report = outcome(paths["snappy"], engine="auto")
    assert (found, report.engine) == (FILES["snappy"][1], "sm")
    assert loads.done == ["load_unlisted"]


def test_sets_are_used_again(loads, paths, cuda):
    outcome(paths["snappy"])
    before = cuda.recorder.calls["cuStreamCreateWithPriority"]
    for _ in range(3):
        assert outcome(paths["snappy"])[0] == FILES["snappy"][1]
    assert cuda.recorder.calls["cuStreamCreateWithPriority"] == before


@pytest.mark.parametrize("way", ["read", "mapped", "auto"])
def test_devices_whose_work_takes_long(loads, monkeypatch, paths, way):
    """No place is free before the conductor waits for it."""
    from cuda.core import Event

    class Slow:
        is_done = False

        def __init__(self, event):
            self.event = event

        def sync(self):
            self.event.sync()

        def __sub__(self, other):
            return self.event - other.event

    mark = lease.Landing.mark
    monkeypatch.setattr(lease.Landing, "mark", lambda self, number: Slow(mark(self, number)))
    assert Event
    for feed in FEEDS:
        with pytest.MonkeyPatch.context() as patch:
            find_rows(patch, feed)
            assert outcome(paths["lz4 of noise"], feed, way=way)[0] == FILES["lz4 of noise"][1]
    assert len(loads.done) == len(FEEDS)


# --- nvCOMP ---------------------------------------------------------------------------------------


@pytest.fixture
def fake_nvcomp(cuda, monkeypatch):
    made = FakeNvcomp(cuda, 6000)
    monkeypatch.setattr(nvcomp_library, "_candidates", lambda: [str(made.path)])
    monkeypatch.setattr(nvcomp, "raw_kernel", lambda device_id: None)
    nvcomp_library._find.cache_clear()
    yield made
    nvcomp_library._find.cache_clear()


TRUSTED = {"engine": "nvcomp", "trusted": True}
#: Files for nvCOMP: what they decode to, and their checksums.
OF_NVCOMP = {
    "bgzf": (bgzf(RAW), RAW, "crc32"),
    "bgzf with other headers": (
        b"".join(
            bgzf_block(RAW[at : at + 60_000], before=b"XX\x02\x0012")
            for at in range(0, len(RAW), 60_000)
        )
        + BGZF_EOF,
        RAW,
        "crc32",
    ),
    "bgzf without its end": (bgzf(RAW)[: -len(BGZF_EOF)], RAW, "crc32"),
    "bgzf and zeros": (bgzf(RAW) + bytes(200), RAW, "crc32"),
    "zstd frames": (compressed(RAW, "zstd", chunk_size=65_536), RAW, "xxh64_low"),
    "snappy": (compressed(RAW, "snappy"), RAW, "crc32c_masked"),
    "lz4": (frame(RAW, block_checksum=True), RAW, "xxh32_stored"),
}


@each_way
@pytest.mark.parametrize("verify", [True, "auto"])
@pytest.mark.parametrize("feed", ["listed", "walked"])
@pytest.mark.parametrize("name", OF_NVCOMP)
def test_by_nvcomp(fake_nvcomp, loads, monkeypatch, file, name, feed, verify, way):
    find_rows(monkeypatch, feed)
    data, raw, kind = OF_NVCOMP[name]
    found, report = outcome(file(data), feed, way=way, verify=verify, **TRUSTED)
    assert found == raw
    assert report.engine == "nvcomp"
    assert list(report.verified) == [kind]
    assert report.unverified == {}
    # Zstandard is not listed while it is loaded.
    wanted = "load_listed" if feed == "listed" or name.startswith("zstd") else "load_unlisted"
    assert loads.done == [wanted]


def test_nvcomp_without_trust_takes_windows(fake_nvcomp, loads, file):
    found, report = outcome(file(bgzf(RAW)), engine="nvcomp")
    assert (found, report.engine) == (RAW, "nvcomp")
    assert loads.done == []


@pytest.mark.parametrize("before", [bgzf(RAW)[: -len(BGZF_EOF)], bgzf_block(RAW[:500])])
def test_a_plain_member_behind_bgzf(fake_nvcomp, loads, monkeypatch, file, before):
    find_rows(monkeypatch, "walked")
    raw = (RAW if len(before) > 1000 else RAW[:500]) + RAW[:90_000]
    assert outcome(file(before + gzip_member(RAW[:90_000])), **TRUSTED)[0] == raw
