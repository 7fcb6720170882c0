"""Zstandard files that the double of a device lists while they are loaded, by nvCOMP's double."""

from __future__ import annotations

import random

import numpy as np
import pytest
import zstandard

from gpuload import lease
from gpuload.engines import nvcomp, nvcomp_library, rates
from gpuload.errors import ChecksumError, DecompressError, FormatError, MemoryLimitError
from tests.containers.zstd_frames import COMPRESSED, block, frame, low64, raw, seek_table
from tests.helpers.device_loads import clean_loads, compressed
from tests.helpers.fakenvcomp import FakeNvcomp
from tests.helpers.handmade import skippable
from tests.helpers.overlapped_loads import (
    find_rows,
    mixed,
    outcome,
    overlapped_off,
    small_ranges,
    spy,
)

RAW = mixed(900_000)
TRUSTED = {"engine": "nvcomp", "trusted": True}
RANGE = 256 << 10

each_way = pytest.mark.parametrize("way", ["read", "mapped"])


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield
        lease.release()


@pytest.fixture(autouse=True)
def _nvcomp(cuda, monkeypatch):
    made = FakeNvcomp(cuda, 6000)
    monkeypatch.setattr(nvcomp_library, "_candidates", lambda: [str(made.path)])
    monkeypatch.setattr(nvcomp, "raw_kernel", lambda device_id: None)
    nvcomp_library._find.cache_clear()
    yield
    nvcomp_library._find.cache_clear()


@pytest.fixture
def loads(monkeypatch):
    small_ranges(monkeypatch)
    return spy(monkeypatch)


@pytest.fixture
def file(tmp_path):
    def write_file(data):
        (tmp_path / "file").write_bytes(data)
        return tmp_path / "file"

    return write_file


def frames(size, *, checksum=True, content=RAW, **options):
    """Return frames of so many decoded bytes each, which no seek table follows."""
    encoder = zstandard.ZstdCompressor(write_checksum=checksum, **options)
    return [encoder.compress(content[at : at + size]) for at in range(0, len(content), size)]


def table_of(stored, size, content=RAW, *, wrong=None):
    """Return the seek table of frames; with checksums, one of which is wrong, if that is asked."""
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    sizes = [(len(each), len(part)) for each, part in zip(stored, parts, strict=True)]
    if wrong is None:
        return seek_table(sizes)
    sums = [low64(part) ^ (number == wrong) for number, part in enumerate(parts)]
    return seek_table([(*each, sum_) for each, sum_ in zip(sizes, sums, strict=True)])


def flipped(data, place, bit=1):
    changed = bytearray(data)
    changed[place] ^= bit
    return bytes(changed)


# --- What goes well -------------------------------------------------------------------------------

SMALL, UNSUMMED = frames(3000), frames(3000, checksum=False)
FILES = {
    "as gpuload writes it": compressed(RAW, "zstd", chunk_size=65_536),
    "of several blocks": compressed(RAW, "zstd", chunk_size=200_000),
    "of few bytes": b"".join(SMALL),
    "of few bytes with a table": b"".join(SMALL) + table_of(SMALL, 3000),
    "of few bytes with checksums in a table": b"".join(UNSUMMED)
    + table_of(UNSUMMED, 3000, wrong=len(RAW)),
    "without checksums": b"".join(frames(65_536, checksum=False)),
    "a skippable frame behind": b"".join(SMALL) + skippable(bytes(1000)),
    "a long one behind": b"".join(SMALL) + skippable(bytes(RANGE)),
}


@each_way
@pytest.mark.parametrize("verify", [True, False, "auto"])
@pytest.mark.parametrize("name", FILES)
def test_a_file(loads, file, name, verify, way):
    data = FILES[name]
    found, report = outcome(file(data), way=way, verify=verify, **TRUSTED)
    assert found == RAW
    assert loads.ended == [("load_unlisted", "done")]
    count = len(SMALL) if "few" in name or "behind" in name else report.chunks
    assert (report.engine, report.chunks) == ("nvcomp", count)
    assert (report.raw_size, report.stored_size) == (len(RAW), len(data))
    assert report.stages["index"].bytes == len(data)
    assert len(report.windows) == -(-len(data) // RANGE)
    assert sum(window.chunks for window in report.windows) == count
    sums = {} if name == "without checksums" else {"xxh64_low": count}
    assert report.verified == (sums if verify else {})
    assert report.unverified == ({} if verify else sums)
    assert report.verified_on == ({"device": count} if verify and sums else {})


def test_no_thread_lists_it(loads, monkeypatch, file):
    """Were it not listed on the device, it would be listed before it is loaded."""
    find_rows(monkeypatch, "walked")
    assert outcome(file(FILES["as gpuload writes it"]), **TRUSTED)[0] == RAW
    assert loads.ended == [("load_unlisted", "irregular"), ("load_listed", "done")]


def test_every_edge_between_ranges(monkeypatch, file):
    """Wherever ranges end in a frame, its headers, its checksum or the seek table."""
    rng = random.Random(3)
    parts = [rng.randbytes(size) for size in (999, 64, 1, 2, 500, 31, 700, 5, 3000)]
    stored = []
    for part in parts:
        cut = len(part) // 2
        blocks = raw(part[:cut], last=False), raw(part[cut:])
        stored.append(frame(*blocks, content_size=(len(part), 4)))
    data = b"".join(stored) + seek_table(
        [(len(each), len(part)) for each, part in zip(stored, parts, strict=True)]
    )
    path = file(data)
    for size in range(290, 320):
        small_ranges(monkeypatch, pieces=10, piece=size, slots=12, margin=4096)
        for whole in (data, b"".join(stored)):
            path.write_bytes(whole)
            assert outcome(path, "scanned", **TRUSTED)[0] == b"".join(parts), size


@each_way
def test_the_shape_for_little_memory(monkeypatch, file, way):
    """What is made of a real limit, without any of these tests' changes."""
    loads, content = spy(monkeypatch), mixed(30 << 20)
    data = b"".join(frames(65_536, content=content))
    found, report = outcome(file(data), way=way, memory_limit=60 << 20, **TRUSTED)
    assert found == content
    assert loads.ended == [("load_unlisted", "done")]
    assert len(report.windows) > 1


def test_the_fastest_engine_is_found_before_listing(loads, monkeypatch, file):
    always = {codec: rates.Rate(1e15, 0.0) for codec in rates.DEVICE_RATES["nvcomp"]}
    monkeypatch.setitem(rates.DEVICE_RATES, "nvcomp", always)
    for cost in ("LAUNCH", "START"):
        monkeypatch.setattr(rates, cost, 0)
    found, report = outcome(file(FILES["of few bytes"]), engine="auto", trusted=True)
    assert (found, report.engine) == (RAW, "nvcomp")
    assert loads.done == ["load_unlisted"]


# --- What does not --------------------------------------------------------------------------------

WHOLE = FILES["of few bytes"]
WINDOWS = b"".join(frame(raw(RAW[:900]), content_size=(900, 4)) for _ in range(400))
IRREGULAR = {
    "no sizes": (b"".join(frames(65_536, write_content_size=False)), {}),
    "no size in the middle": (WHOLE + frame(raw(RAW[:999])) + WHOLE, {}),
    "a skippable frame in the middle": (WHOLE + skippable(bytes(300)) + WHOLE, {}),
    "a long skippable frame in the middle": (WHOLE + skippable(bytes(5 * RANGE)) + WHOLE, {}),
    "a skippable frame before each": (
        b"".join(skippable(bytes(4)) + each for each in frames(65_536)),
        {},
    ),
    "a frame of many blocks": (WHOLE + frames(9 << 20, content=bytes(9 << 20))[0] + WHOLE, {}),
    "a long frame": (
        WHOLE + frames(900_000, content=np.random.default_rng(1).bytes(900_000))[0] + WHOLE,
        {},
    ),
    "a seek table of other sizes": (WHOLE + table_of(SMALL[:-2], 3000, RAW[: 298 * 3000]), {}),
    "frames without content": (frame(raw(b""), content_size=(0, 4)) * 9 + WHOLE, {}),
    "trailing garbage": (WHOLE + b"garbage", {}),
    "trailing zeros": (WHOLE + bytes(100), {}),
    "truncated": (WHOLE[:-2], {}),
    "truncated in a header": (WHOLE + WHOLE[:7], {}),
    "truncated in a seek table": (FILES["as gpuload writes it"][:-5], {}),
    "truncated in the middle": (WHOLE[: len(WHOLE) // 2], {}),
    "damaged content": (flipped(WHOLE, len(WHOLE) // 2 + 5), {"verify": True}),
    "a damaged magic": (WHOLE + flipped(WHOLE, 1), {}),
    "a damaged descriptor": (WHOLE + flipped(WHOLE, 4, 8), {}),
    "a damaged size": (WHOLE + flipped(WHOLE, 5), {}),
    "a damaged block": (WHOLE + flipped(WHOLE, 7, 6), {}),
    "a wrong checksum": (flipped(WHOLE, -1), {"verify": True}),
    "a wrong checksum in a seek table": (
        b"".join(UNSUMMED) + table_of(UNSUMMED, 3000, wrong=200),
        {"verify": True},
    ),
    "one that is not looked at": (flipped(WHOLE, -1), {"verify": False}),
    "content that decodes to nothing good": (
        WHOLE + frame(block(COMPRESSED, 9, bytes(9)), content_size=(100, 4)),
        {},
    ),
    "less content than is stated": (WHOLE + frame(raw(b"abc"), content_size=(4, 4)), {}),
    "a dictionary that is needed": (
        WHOLE + frame(raw(b"abc"), content_size=(3, 4), dictionary=(5, 1)),
        {},
    ),
    "a dictionary that is given": (WHOLE, {"dictionary": b"words"}),
    "windows as large as is allowed": (WINDOWS, {"window_limit": 1 << 20}),
    "windows that are too large": (WINDOWS, {"window_limit": (1 << 20) - 1}),
    "as much output as is allowed": (WHOLE, {"max_output": len(RAW)}),
    "more output than is allowed": (WHOLE, {"max_output": len(RAW) - 1}),
    "little memory": (WHOLE, {"memory_limit": 1 << 20}),
    "no memory": (WHOLE, {"memory_limit": 1}),
    "not trusted": (WHOLE, {"trusted": False}),
}


@pytest.mark.parametrize("name", IRREGULAR)
def test_ends_as_step_by_step(monkeypatch, file, name):
    """The same bytes, or the same error."""
    data, options = IRREGULAR[name]
    path, options = file(data), TRUSTED | options
    with pytest.MonkeyPatch.context() as patch:
        overlapped_off(patch)
        wanted = outcome(path, **options)
    if "memory_limit" not in options:
        small_ranges(monkeypatch)
    found = outcome(path, **options)
    assert found[0] == wanted[0]
    assert isinstance(found[0], bytes) or found[1] == wanted[1]


def test_errors(loads, file):
    """Some of the above by their names."""
    for name, kind, text in (
        ("truncated", FormatError, "the file ends inside the Zstandard frame"),
        ("a wrong checksum", DecompressError, "chunk 299"),
        ("a wrong checksum in a seek table", ChecksumError, "chunk 200"),
        ("windows that are too large", MemoryLimitError, "needs a window of 1048576 bytes"),
        ("more output than is allowed", MemoryLimitError, "over the limit of 899999"),
    ):
        data, options = IRREGULAR[name]
        found = outcome(file(data), **TRUSTED | options)
        assert found[0] is kind, name
        assert text in found[1]


@pytest.mark.parametrize("seed", range(12))
def test_damaged_files(monkeypatch, file, seed):
    rng = random.Random(seed)
    data = bytearray(FILES["of few bytes with a table"])
    for _ in range(rng.randrange(1, 3)):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 255, rng.randrange(256)))
    path = file(bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))
    with pytest.MonkeyPatch.context() as patch:
        overlapped_off(patch)
        wanted = outcome(path, verify=True, **TRUSTED)
    small_ranges(monkeypatch)
    found = outcome(path, verify=True, **TRUSTED)
    assert found[0] == wanted[0]
    assert isinstance(found[0], bytes) or found[1] == wanted[1]
