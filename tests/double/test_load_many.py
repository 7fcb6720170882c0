"""`load_many`: many files loaded to the double of a device in windows that they share."""

from __future__ import annotations

import gc
import itertools
import os
import threading

import lz4.frame
import numpy as np
import pytest

import gpuload
from gpuload import lease
from gpuload.device_array import close_pools
from gpuload.errors import DecompressError, FormatError, FormatWarning, MemoryLimitError
from gpuload.many import JoinedFiles
from gpuload.sources import BytesSource
from tests.helpers.device_loads import clean_loads, compressed, new_stream, text
from tests.helpers.handmade import (
    INDEPENDENT,
    SIZE,
    V1,
    bgzf_block,
    lz4_legacy,
    skippable,
    snappy_data,
)
from tests.helpers.overlapped_loads import QUICK, lz4_blocks, mixed, small_ranges, spy

RAW = mixed(600_000)
RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield
        lease.release()


@pytest.fixture
def loads(monkeypatch):
    """Let few files take many ranges; return how overlapped loads ended."""
    small_ranges(monkeypatch, pieces=3, piece=128 << 10, margin=128 << 10)
    return spy(monkeypatch)


def frame(data, **options):
    chosen = {"block_size": 4, "block_linked": False, "store_size": False} | options
    return lz4.frame.compress(data, **chosen)


#: Ways to write a file, by name; all of them suit.
WRITERS = {
    "lz4": frame,
    "lz4 with its size": lambda data: frame(data, store_size=True),
    "lz4 with checksums": lambda data: frame(data, block_checksum=True, content_checksum=True),
    "snappy": lambda data: compressed(data, "snappy"),
}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes files and returns their paths."""

    def write(files):
        paths = []
        for number, data in enumerate(files):
            paths.append(tmp_path / f"file{number}")
            paths[-1].write_bytes(data)
        return paths

    return write


def parts(count, most):
    """Return parts of the content that begin and end anywhere."""
    starts = RNG.integers(0, len(RAW) - most, count).tolist()
    return [
        RAW[at : at + int(size)]
        for at, size in zip(starts, RNG.integers(1, most, count), strict=True)
    ]


def one_by_one(paths, **options):
    """Load file by file; return the bytes, or the first error's type and text."""
    try:
        return [bytes(gpuload.load(path, **QUICK | options)) for path in paths]
    except Exception as error:  # noqa: BLE001 (to be compared)
        return type(error), str(error)


def together(paths, **options):
    try:
        return [bytes(array) for array in gpuload.load_many(paths, **QUICK | options)]
    except Exception as error:  # noqa: BLE001 (to be compared)
        return type(error), str(error)


# --- What goes well -------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", ["auto", False])
@pytest.mark.parametrize("name", [*WRITERS, "all"])
def test_300_files(loads, written, name, verify):
    """In their order, each right, and none by itself."""
    raws = parts(300, 20_000)
    names = list(WRITERS) if name == "all" else [name]
    files = [WRITERS[names[number % len(names)]](raw) for number, raw in enumerate(raws)]
    arrays = gpuload.load_many(written(files), verify=verify, **QUICK)
    assert [bytes(array) for array in arrays] == raws
    assert [array.nbytes for array in arrays] == list(map(len, raws))
    assert {array.device for array in arrays} == {"cuda:0"}
    assert loads.ended == [("load_files", "done")]


def test_files_of_several_blocks(loads, written):
    """Also blocks of which only the last is anything but full."""
    raws = parts(20, 120_000)
    assert together(written(map(frame, raws))) == raws
    assert loads.done == ["load_files"]


def test_files_without_content(loads, written):
    raws = [b"", RAW[:10], b"", RAW[:70_000], b""]
    assert together(written(map(frame, raws))) == raws


def test_nothing_but_files_without_content(loads, written):
    assert together(written(map(frame, [b""] * 5))) == [b""] * 5


def test_arrays_start_where_memory_does(loads, written):
    arrays = gpuload.load_many(written(map(frame, parts(30, 9_000))), **QUICK)
    places = [array.__cuda_array_interface__["data"][0] for array in arrays]
    assert all(place % 256 == 0 for place in places)
    ends = [place + array.nbytes for place, array in zip(places, arrays, strict=True)]
    order = sorted(zip(places, ends, strict=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(order))


def test_memory_stays_with_the_last_array(cuda, loads, written):
    raws = parts(10, 9_000)
    arrays = gpuload.load_many(written(map(frame, raws)), **QUICK)
    lease.release()
    last = arrays[7]
    del arrays
    gc.collect()
    assert bytes(last) == raws[7]
    assert cuda.leaks()
    del last
    gc.collect()
    close_pools()
    assert cuda.leaks() == []


def test_a_stream(loads, written):
    raws, stream = parts(10, 9_000), new_stream()
    arrays = gpuload.load_many(written(map(frame, raws)), stream=stream, **QUICK)
    assert [bytes(array) for array in arrays] == raws
    del arrays
    stream.sync()
    stream.close()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_files(loads, written, count):
    raws = parts(count, 9_000)
    assert together(written(map(frame, raws))) == raws
    assert bool(loads.done) == (count > 0)


def test_ways_to_name_files(loads, written):
    raws = parts(6, 9_000)
    paths = written(map(frame, raws))
    assert together(iter(list(map(str, paths)))) == raws
    assert together(tuple(paths)) == raws
    assert loads.done == ["load_files"] * 2


class BytesPath:
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return os.fsencode(self.path)


def test_names_that_are_bytes(loads, written):
    raws = parts(3, 9_000)
    assert together(list(map(BytesPath, written(map(frame, raws))))) == raws


def test_the_same_file_twice(loads, written):
    raws = parts(3, 9_000)
    paths = written(map(frame, raws))
    assert together([*paths, *paths, paths[0]]) == [*raws, *raws, raws[0]]


def test_to_the_host(loads, written):
    raws = parts(5, 9_000)
    arrays = gpuload.load_many(written(map(frame, raws)), device="cpu")
    assert [bytes(array) for array in arrays] == raws
    assert loads.ended == []


# --- What goes file by file -----------------------------------------------------------------------


def test_bytes_among_paths(loads, written):
    raws = parts(4, 9_000)
    paths = written(map(frame, raws))
    assert together([paths[0], frame(raws[1]), BytesSource(frame(raws[2])), paths[3]]) == raws


OTHERS = {
    "a flushed encoder": lz4_blocks([RAW[:100], RAW[:65_536]]),
    "frames": frame(RAW[:9]) + frame(RAW[:500]),
    "a linked frame": frame(RAW[:200_000], block_linked=True),
    "a legacy frame": lz4_legacy(lz4.block.compress(RAW[:9_000], store_size=False)),
    "a skippable frame": skippable(b"1") + frame(RAW[:900]),
    "nothing but a skippable frame": skippable(b"1"),
    "a large file": frame(RAW[:300_000]),
    "zstd": compressed(RAW[:9_000], "zstd"),
    "bgzf": bgzf_block(RAW[:9_000]),
    "an empty file": b"",
    "an unknown format": b"this is no compressed file",
    "a truncated file": frame(RAW[:90_000])[:-5_000],
    "trailing garbage": frame(RAW[:9_000]) + b"garbage",
    "a damaged block": frame(b"a" * 9_000)[:12] + b"\xff" + frame(b"a" * 9_000)[13:],
    "a wrong size": lz4_blocks([RAW[:5_000]], V1 | INDEPENDENT | SIZE, size=4_999),
    "a block that is too large": b"\xff\x06\x00\x00sNaPpY" + snappy_data(b"a" * 65_537),
}


@pytest.mark.filterwarnings("ignore::gpuload.errors.FormatWarning")
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_ends_as_file_by_file(loads, written, name, place):
    """The same bytes, or the same error, which names the file."""
    files = list(map(frame, parts(3, 9_000)))
    files[place] = OTHERS[name]
    paths = written(files)
    options = {"engine": "auto"} if place else {}
    wanted = one_by_one(paths, **options)
    assert together(paths, **options) == wanted
    if isinstance(wanted, tuple) and "cannot decode this" not in wanted[1]:
        assert str(paths[place]) in wanted[1]


def test_a_file_that_is_shorter_than_it_says(loads, written):
    files = list(map(frame, parts(8, 9_000)))
    files[3] = lz4_blocks([RAW[:5_000]], V1 | INDEPENDENT | SIZE, size=5_001)
    paths = written(files)
    kind, said = together(paths)
    assert kind is DecompressError
    assert str(paths[3]) in said


def test_a_wrong_checksum(loads, written):
    files = [frame(raw, block_checksum=True) for raw in parts(8, 9_000)]
    files[3] = files[3][:-5] + bytes([files[3][-5] ^ 1]) + files[3][-4:]
    paths = written(files)
    kind, said = together(paths)
    assert kind is gpuload.errors.ChecksumError
    assert str(paths[3]) in said


def test_the_limit_is_for_each_file(loads, written):
    raws = [RAW[at : at + 9_000] for at in range(0, 90_000, 9_000)]
    paths = written(map(frame, raws))
    assert together(paths, max_output=20_000) == raws
    kind, said = together(paths, max_output=8_999)
    assert kind is MemoryLimitError
    assert str(paths[0]) in said


def test_a_file_that_is_not_there(loads, written, tmp_path):
    paths = written(map(frame, parts(3, 9_000)))
    with pytest.raises(FileNotFoundError, match="absent"):
        gpuload.load_many([paths[0], tmp_path / "absent", paths[2]], **QUICK)


def test_a_folder(loads, written, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder"):
        gpuload.load_many([*written([frame(b"a")]), tmp_path / "folder"], **QUICK)


def test_a_pipe(loads, written, tmp_path):
    """It is copied in its turn, when its writer writes."""
    raws, pipe = parts(3, 9_000), tmp_path / "pipe"
    os.mkfifo(pipe)
    paths = written(map(frame, raws))
    writer = threading.Thread(target=pipe.write_bytes, args=(frame(raws[1]),))
    writer.start()
    assert together([paths[0], pipe, paths[2]]) == raws
    writer.join()


def test_a_file_that_changes_meanwhile(loads, written, monkeypatch):
    """What was longer when it was listed is loaded by itself, as it is then."""
    raws = parts(5, 9_000)
    paths = written(map(frame, raws))
    right = JoinedFiles.__init__

    def changing(self, names):
        right(self, names)
        paths[2].write_bytes(frame(b"other"))

    monkeypatch.setattr(JoinedFiles, "__init__", changing)
    raws[2] = b"other"
    assert together(paths) == raws
    assert loads.done[:1] != ["load_files"]


def test_warnings_name_the_caller(loads, written):
    paths = written([bgzf_block(RAW[:100]), bgzf_block(RAW[:100])])
    with pytest.warns(FormatWarning, match="end-of-file block") as caught:
        gpuload.load_many(paths, device=0)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("options", [{"threads": 0}, {"engine": "none"}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        gpuload.load_many([], **options)


@pytest.mark.parametrize("more", [0, 1])
def test_a_file_as_large_as_a_piece(loads, written, more):
    """Or larger by a byte, which is too large."""
    # A header takes 7 bytes, an end mark 4, and so does the size word of each block.
    size = (128 << 10) + more
    blocks = [RNG.bytes(65_536), RNG.bytes(size - 65_536 - 19)]
    paths = written([lz4_blocks(blocks), frame(b"a")])
    assert paths[0].stat().st_size == size
    assert together(paths) == [b"".join(blocks), b"a"]
    assert ("load_files" in loads.done) == (not more)


def test_text_that_shrinks_much(loads, written):
    """Small files that decode to much."""
    raws = [text(300_000)[at:] for at in range(5)] + [bytes(500_000)] * 3
    assert together(written(map(frame, raws))) == raws
    with pytest.raises(FormatError, match="known formats"):
        gpuload.load_many(written([frame(raws[0]), b"nothing"]), **QUICK)
