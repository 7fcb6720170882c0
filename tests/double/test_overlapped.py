"""Loads to the double of a device whose stages overlap: bytes, reports, and what falls back."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from dataclasses import replace

import lz4.block
import lz4.frame
import numpy as np
import pytest

import gpuload
from gpuload import driver, lease, staging
from gpuload.engines import nvcomp, nvcomp_library, rates
from gpuload.errors import ChecksumError, DecompressError, FormatError, MemoryLimitError
from tests.helpers.device_loads import (
    UserArray,
    allocate,
    clean_loads,
    compressed,
    new_stream,
    read,
    run_alone,
    write,
)
from tests.helpers.fakecuda import Code
from tests.helpers.fakenvcomp import FakeNvcomp
from tests.helpers.handmade import (
    BGZF_EOF,
    INDEPENDENT,
    SIZE,
    SNAPPY_IDENTIFIER,
    V1,
    bgzf_block,
    gzip_member,
    lz4_block,
    lz4_frame,
    lz4_legacy,
    skippable,
    snappy_chunk,
    snappy_data,
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
        assert not chunks or report.stages["verify"].bytes >= len(found)
    else:
        assert (report.verified, report.unverified) == ({}, chunks | spans)
        assert report.verified_on == {}
    # What spans several chunks is for the host.
    assert bool(loads.done) == (verify is not True or not spans)


@each_way
@each_feed
@pytest.mark.parametrize(
    ("pieces", "piece", "slots"),
    [(1, 65_536, 2), (3, 50_001, 4), (2, 33_333, 9), (7, 20_480, 8), (1, 300_007, 3)],
)
@pytest.mark.parametrize("name", ["lz4 without its size", "snappy"])
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
    snappy_file = SNAPPY_IDENTIFIER + b"".join(map(snappy_data, parts))
    frames = b"".join(lz4_frame(lz4_block(part, raw=True)) for part in parts)
    raw = b"".join(parts)
    find_rows(monkeypatch, feed)
    for data in (snappy_file, frames, lz4_blocks(parts), frame(raw, block_checksum=True)):
        path = file(data)
        for size in range(300, 309):
            small_ranges(monkeypatch, pieces=10, piece=size, slots=12, margin=4096)
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


def test_the_fastest_engine_is_found_before_listing(loads, monkeypatch, paths):
    known = replace(driver.capabilities(0), decompress_mask=0, decompress_max_length=0)
    monkeypatch.setattr(driver, "capabilities", lambda device_id: known)
    always = {codec: rates.Rate(1e15, 0.0) for codec in rates.DEVICE_RATES["sm"]}
    monkeypatch.setitem(rates.DEVICE_RATES, "sm", always)
    for cost in ("LAUNCH", "START"):
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
def test_devices_whose_work_takes_long(cuda, loads, paths, way):
    """No place is free before the conductor waits for it."""
    cuda.fail_next("cuEventQuery", Code.NOT_READY, times=1 << 30)
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
#: Those whose rows are found before they are loaded.
NOT_LISTED_BY = {
    "walked": {"zstd frames"},
    "scanned": {"bgzf with other headers", "bgzf and zeros"},
}


@each_way
@pytest.mark.parametrize("verify", [True, "auto"])
@each_feed
@pytest.mark.parametrize("name", OF_NVCOMP)
def test_by_nvcomp(fake_nvcomp, loads, monkeypatch, file, name, feed, verify, way):
    find_rows(monkeypatch, feed)
    data, raw, kind = OF_NVCOMP[name]
    found, report = outcome(file(data), feed, way=way, verify=verify, **TRUSTED)
    assert found == raw
    assert report.engine == "nvcomp"
    assert list(report.verified) == [kind]
    assert report.unverified == {}
    # Zstandard is listed on the device, but by no thread, while it is loaded.
    listed = feed == "listed" or name in NOT_LISTED_BY.get(feed, ())
    assert loads.done == ["load_listed" if listed else "load_unlisted"]


def test_nvcomp_without_trust_takes_windows(fake_nvcomp, loads, file):
    found, report = outcome(file(bgzf(RAW)), engine="nvcomp")
    assert (found, report.engine) == (RAW, "nvcomp")
    assert loads.done == []


@pytest.mark.parametrize("before", [bgzf(RAW)[: -len(BGZF_EOF)], bgzf_block(RAW[:500])])
def test_a_plain_member_behind_bgzf(fake_nvcomp, loads, monkeypatch, file, before):
    find_rows(monkeypatch, "walked")
    raw = (RAW if len(before) > 1000 else RAW[:500]) + RAW[:90_000]
    assert outcome(file(before + gzip_member(RAW[:90_000])), **TRUSTED)[0] == raw


# --- What does not go well ------------------------------------------------------------------------


def sized(raw, size):
    """Return an LZ4 frame of full blocks with some content size."""
    parts = [raw[at : at + 65_536] for at in range(0, len(raw), 65_536)]
    return lz4_blocks(parts, V1 | INDEPENDENT | SIZE, size=size)


GOOD, SNAPPY = frame(RAW, block_checksum=True), compressed(RAW, "snappy")
WHOLE = RAW[: 5 * 65_536]
#: Blocks as an encoder writes them that is flushed now and then.
FLUSHED = [RAW[:65_536], RAW[65_536:66_000], RAW[66_000:131_000], RAW[9:65_545]] * 3
FLUSHED_SIZE = sum(map(len, FLUSHED))
#: Files that are not as most are, and options; those that are right load, whatever the way.
IRREGULAR = {
    "blocks of a flushed encoder": (lz4_blocks(FLUSHED), {}),
    "the same with its size": (
        lz4_blocks(FLUSHED, V1 | INDEPENDENT | SIZE, size=FLUSHED_SIZE),
        {},
    ),
    "frames without sizes": (frame(RAW[:300_000]) * 2 + frame(RAW[:10]), {}),
    "frames with sizes": (frame(RAW[:300_000], store_size=True) * 3, {}),
    "frames without blocks": (frame(b"") * 3 + frame(WHOLE) + frame(b""), {}),
    "a linked frame after another": (frame(WHOLE) + frame(RAW, block_linked=True), {}),
    "a linked frame": (frame(RAW, block_linked=True), {}),
    "a legacy frame after another": (
        frame(WHOLE) + lz4_legacy(lz4.block.compress(RAW, store_size=False)),
        {},
    ),
    "skippable frames": (skippable(b"1") + frame(WHOLE) + skippable(b"2") + frame(WHOLE), {}),
    "a long skippable frame": (frame(WHOLE) + skippable(bytes(5 * RANGE)) + frame(WHOLE), {}),
    "a long skippable frame at the end": (frame(RAW) + skippable(bytes(5 * RANGE)), {}),
    "padding in Snappy": (
        SNAPPY + snappy_chunk(0xFE, bytes(5 * RANGE)) + SNAPPY[len(SNAPPY_IDENTIFIER) :],
        {},
    ),
    "trailing garbage": (GOOD + b"garbage", {}),
    "trailing garbage, Snappy": (SNAPPY + b"garbage!", {}),
    "trailing zeros": (GOOD + bytes(100), {}),
    "truncated": (GOOD[:-20_000], {}),
    "truncated before its end mark": (GOOD[:-4], {}),
    "truncated in its header": (GOOD[:6], {}),
    "truncated, Snappy": (SNAPPY[:-20_000], {}),
    "a block that is too large": (flipped(GOOD, 9), {}),
    "a damaged chunk": (flipped(frame(RAW), 12), {}),
    "a damaged chunk in the middle": (flipped(SNAPPY, len(SNAPPY) // 2), {"verify": True}),
    "a wrong content checksum": (flipped(frame(RAW, content_checksum=True), -1), {"verify": True}),
    "one that is not looked at": (flipped(frame(RAW, content_checksum=True), -1), {}),
    "a wrong size, too small": (sized(RAW, len(RAW) - 5), {}),
    "a damaged chunk that is skipped": (flipped(SNAPPY, 20), {"on_error": "skip"}),
    "a damaged chunk that is tried again": (flipped(SNAPPY, 20), {"on_error": "retry-host"}),
    "less output than is allowed": (frame(RAW, store_size=True), {"max_output": len(RAW)}),
    "more output than is allowed": (frame(RAW, store_size=True), {"max_output": 600_000}),
    "more output than is allowed, Snappy": (SNAPPY, {"max_output": len(RAW) - 1}),
    "little memory": (GOOD, {"memory_limit": 1 << 20}),
    "no memory": (GOOD, {"memory_limit": 1}),
    "not trusted": (SNAPPY, {"trusted": False}),
}


@each_feed
@pytest.mark.parametrize("name", IRREGULAR)
def test_ends_as_step_by_step(monkeypatch, file, name, feed):
    """The same bytes, or the same error."""
    data, options = IRREGULAR[name]
    path = file(data)
    with pytest.MonkeyPatch.context() as patch:
        overlapped_off(patch)
        wanted = outcome(path, feed, **options)
    if "memory_limit" not in options:
        small_ranges(monkeypatch)
    find_rows(monkeypatch, feed)
    for way in ("read", "mapped") if feed == "walked" else ("read",):
        found = outcome(path, feed, way=way, **options)
        assert found[0] == wanted[0]
        assert isinstance(found[0], bytes) or found[1] == wanted[1]


#: Checksums that are wrong, of chunks whose checksums are computed on the device.
WRONG_SUMS = {
    "of an LZ4 block": flipped(GOOD, len(GOOD) - 6),
    "of stored bytes": flipped(GOOD, 300_000),
    "of Snappy": flipped(SNAPPY, len(SNAPPY_IDENTIFIER) + 4),
}


@each_feed
@pytest.mark.parametrize("name", WRONG_SUMS)
def test_a_wrong_checksum_that_was_seen_is_an_error(loads, monkeypatch, file, name, feed):
    find_rows(monkeypatch, feed)
    kind, text = outcome(file(WRONG_SUMS[name]), feed)
    assert kind is ChecksumError
    assert "checksum" in text
    found, report = outcome(file(WRONG_SUMS["of Snappy"]), feed, verify=False)
    assert found == RAW
    assert report.unverified == {"crc32c_masked": 11}


@each_feed
def test_a_frame_that_is_shorter_than_it_says(loads, monkeypatch, file, feed):
    """The last block may be anything but full; the size that the header states is checked."""
    find_rows(monkeypatch, feed)
    kind, text = outcome(file(sized(RAW, len(RAW) + 5)), feed)
    assert kind is DecompressError
    assert f"decodes to {len(RAW)} bytes, its header says {len(RAW) + 5}" in text


@pytest.mark.parametrize(
    ("feed", "size"),
    [
        ("listed", 1 << 40),
        *((feed, 900 << 20) for feed in FEEDS),
        *(pytest.param(feed, 1 << 40) for feed in ("walked", "scanned")),
    ],
)
def test_a_frame_that_is_much_shorter_than_it_says(loads, monkeypatch, file, feed, size):
    find_rows(monkeypatch, feed)
    kind, text = outcome(file(sized(RAW, size)), feed)
    assert kind is DecompressError
    assert f"decodes to {len(RAW)} bytes, its header says {size}" in text


@each_feed
def test_as_much_output_as_is_allowed(loads, monkeypatch, file, feed):
    """Of a size that is not stated, only a bound is known before it is decoded."""
    find_rows(monkeypatch, feed)
    assert outcome(file(frame(RAW)), feed, max_output=len(RAW))[0] == RAW
    kind, text = outcome(file(frame(RAW)), feed, max_output=len(RAW) - 1)
    assert kind is MemoryLimitError
    assert f"decodes to {len(RAW)} bytes or more, over the limit of {len(RAW) - 1}" in text


# --- Blocks and frames against ranges -------------------------------------------------------------


@each_way
@pytest.mark.parametrize(
    "feed",
    [
        "listed",
        "walked",
        pytest.param("scanned"),
    ],
)
def test_blocks_that_are_longer_than_ranges(monkeypatch, file, feed, way):
    small_ranges(monkeypatch, pieces=1, margin=512 << 10)
    find_rows(monkeypatch, feed)
    rng = np.random.default_rng(1)
    sizes = [30_000, 100_000, 3_000, 3_000, 20_000, 20_000, 100_000, 5_000] * 3
    parts = [rng.bytes(size) for size in sizes]
    data = lz4_frame(*(lz4_block(part, raw=True) for part in parts), limits=0x50)
    assert outcome(file(data), feed, way=way)[0] == b"".join(parts)


@each_way
@each_feed
@pytest.mark.parametrize("before", range(-12, 13, 3))
def test_frames_that_end_at_the_edges_of_ranges(monkeypatch, file, before, feed, way):
    """Headers, end marks and the first size words stand on the other side, or on both."""
    small_ranges(monkeypatch, pieces=2, piece=8192, margin=32 << 10)
    find_rows(monkeypatch, feed)
    rng, data, raw = np.random.default_rng(1), b"", b""
    for edge in range(1, 9):
        # A header takes 7 bytes, a size word and an end mark 4 each.
        payload = rng.bytes(edge * 16_384 + before - len(data) - 15)
        data += lz4_frame(lz4_block(payload, raw=True))
        raw += payload
    assert outcome(file(data), feed, way=way)[0] == raw


# --- Faults of sources and of the system ----------------------------------------------------------


class Broken(gpuload.sources.LocalFile):
    """A file that cannot be read from an offset on, or ends there."""

    def __init__(self, path, offset, error):
        super().__init__(path)
        self.offset, self.error = offset, error

    def readinto(self, offset, view):
        if offset + len(view) > self.offset:
            if self.error:
                raise OSError(self.error, "the disk is broken", self.name)
            view = view[: max(0, self.offset - offset)]
        return super().readinto(offset, view)


@each_feed
@pytest.mark.parametrize("offset", [0, 300_000, 600_000])
def test_a_read_that_fails(loads, monkeypatch, paths, feed, offset):
    find_rows(monkeypatch, feed)
    path = paths["snappy"]
    kind, text = outcome(Broken(path, offset, errno.EIO), feed, way="read")
    assert kind is OSError
    assert "the disk is broken" in text
    assert str(path) in text


@each_feed
@pytest.mark.parametrize("offset", [300_000, 600_000])
def test_a_read_that_is_short(loads, monkeypatch, paths, feed, offset):
    find_rows(monkeypatch, feed)
    kind, text = outcome(Broken(paths["snappy"], offset, 0), feed, way="read")
    assert kind is FormatError
    assert f"byte {offset}: the file ends here" in text
    assert "when opened" in text


@each_feed
@each_way
def test_a_file_that_shrinks(loads, monkeypatch, file, feed, way):
    find_rows(monkeypatch, feed)
    path, options = file(FILES["snappy"][0]), QUICK | {"way": way}
    source = gpuload.sources.LocalFile(path)
    with contextlib.ExitStack() as opened:
        load = gpuload.load
        if feed == "listed":
            load = opened.enter_context(gpuload.open(source, **options)).load
            source, options = None, {}
        os.truncate(path, 400_000)
        with pytest.raises(FormatError, match="byte 400000: the file ends here") as caught:
            load(source, **options)
        assert str(path) in str(caught.value)


def refuse(*arguments):
    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))


@each_feed
def test_files_that_cannot_be_mapped(loads, monkeypatch, paths, feed):
    """Some file systems know no mapping."""
    find_rows(monkeypatch, feed)
    monkeypatch.setattr(staging, "_map", refuse)
    assert outcome(paths["snappy"], feed, way="mapped")[0] == FILES["snappy"][1]


@each_feed
@pytest.mark.parametrize(("code", "after"), [(Code.INVALID_VALUE, 0), (Code.OUT_OF_MEMORY, 2)])
def test_pages_that_cannot_be_pinned(cuda, loads, monkeypatch, paths, feed, code, after):
    find_rows(monkeypatch, feed)
    cuda.fail_next("cuMemHostRegister", code, after=after, times=1 << 30)
    assert outcome(paths["snappy"], feed, way="mapped")[0] == FILES["snappy"][1]


@pytest.mark.parametrize("allowed", [0, 1, 2])
@each_feed
def test_threads_that_cannot_be_started(loads, monkeypatch, paths, feed, allowed):
    find_rows(monkeypatch, feed)
    start, started = threading.Thread.start, []

    def begin(thread):
        if len(started) >= allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", begin)
        found, rest = outcome(paths["snappy"], feed)
    assert found == FILES["snappy"][1] or found is MemoryLimitError, rest
    assert outcome(paths["snappy"], feed)[0] == FILES["snappy"][1]


# --- Hangs ----------------------------------------------------------------------------------------


def test_a_walk_that_is_slower_than_reading():
    """The ring is full of what nobody has looked at yet, in the middle of a range."""
    script = """
        import faulthandler, time
        faulthandler.dump_traceback_later(6, exit=True)
        import pytest
        from gpuload.resident import ResidentSource
        from tests.helpers.device_loads import compressed
        from tests.helpers.overlapped_loads import find_rows, mixed, outcome, small_ranges
        raw, patch = mixed(2_000_000), pytest.MonkeyPatch()
        small_ranges(patch, pieces=16, slots=3)
        find_rows(patch, "walked")
        right = ResidentSource.resident

        def slow(self, offset):
            time.sleep(0.02)
            return right(self, offset)

        patch.setattr(ResidentSource, "resident", slow)
        print(outcome(compressed(raw, "lz4"))[0] == raw)
        """
    assert run_alone(script) == "True"


def test_zeros_behind_bgzf():
    """More of them than there are landing places for, before the rows are known to be all."""
    script = """
        import faulthandler
        faulthandler.dump_traceback_later(6, exit=True)
        import pytest
        from gpuload.engines import nvcomp, nvcomp_library
        from tests.helpers.fakenvcomp import FakeNvcomp
        from tests.helpers.overlapped_loads import bgzf, find_rows, mixed, outcome, small_ranges
        made, patch = FakeNvcomp(cuda, 6000), pytest.MonkeyPatch()
        patch.setattr(nvcomp_library, "_candidates", lambda: [str(made.path)])
        patch.setattr(nvcomp, "raw_kernel", lambda device_id: None)
        small_ranges(patch)
        find_rows(patch, "walked")
        raw = mixed(700_000)
        data = bgzf(raw) + bytes(2_000_000)
        print(outcome(data, engine="nvcomp", trusted=True)[0] == raw)
        """
    assert run_alone(script) == "True"
