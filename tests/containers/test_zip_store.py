"""Zip files as stores."""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib

import numpy as np
import pytest

from gpuload.containers import zarr as reader
from gpuload.containers import zip_store
from gpuload.containers.zip_store import ZipStore
from gpuload.errors import FormatError, GpuloadError, MemoryLimitError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.containers.zarr_reading import asset_named, load
from tests.containers.zip_files import Entry, zip_file

LONG = bytes(range(256)) * 100


def store_of(members, *, method=zipfile.ZIP_STORED, options=None):
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # names that are there twice
        for name, data in members:
            archive.writestr(name, data)
    return ZipStore(BytesSource(buffer.getvalue(), "x.zip"), options)


MEMBERS = [("a/b/0", LONG), ("a/1", b"abc"), ("empty", b""), ("a/c/d/e", b"1"), ("f/", b"")]


@pytest.fixture(params=[zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def store(request):
    with store_of(MEMBERS, method=request.param) as store:
        yield store


def read(store, key, offset, size):
    buffer = bytearray(size)
    store.readinto(key, offset, memoryview(buffer))
    return bytes(buffer)


def test_sizes(store):
    keys = ["a/b/0", "a/1", "empty", "a", "a/b", "f", "f/", "../x", ""]
    assert store.sizes(keys).tolist() == [len(LONG), 3, 0, -1, -1, -1, -1, -1, -1]


def test_reading(store):
    assert read(store, "a/b/0", 0, len(LONG)) == LONG
    assert read(store, "a/b/0", 1000, 300) == LONG[1000:1300]
    assert read(store, "empty", 0, 0) == b""


def test_what_is_not_there(store):
    with pytest.raises(FormatError, match=r"x\.zip/a/1: byte 3: the member ends here"):
        read(store, "a/1", 1, 3)
    with pytest.raises(FormatError, match=r"x\.zip/a/2: .*not there"):
        read(store, "a/2", 0, 1)


def test_listing(store):
    assert store.folders("") == ["a"]
    assert store.folders("a") == ["b", "c"]
    assert store.folders("a/c") == ["d"]
    assert store.folders("none") == []


def test_deep_folders_end():
    with store_of([("a/" * 10_000 + "0", b""), ("b/0", b"")]) as store:
        assert store.folders("") == ["b"]


def test_the_last_of_several_members_counts():
    with store_of([("a", b"old"), ("b", b"x"), ("a", b"newer")]) as store:
        assert store.sizes(["a"]).tolist() == [5]
        assert read(store, "a", 0, 5) == b"newer"


def test_members_are_inflated_once(monkeypatch):
    store = store_of(MEMBERS, method=zipfile.ZIP_DEFLATED)
    calls = []
    real = zlib.decompressobj
    monkeypatch.setattr(
        zip_store.zlib, "decompressobj", lambda *args: calls.append(args) or real(*args)
    )
    for start in range(0, 1000, 100):
        read(store, "a/b/0", start, 100)
    assert len(calls) == 1


def test_a_member_that_is_too_large():
    options = Options(memory_limit=len(LONG))
    store = store_of(MEMBERS, method=zipfile.ZIP_DEFLATED, options=options)
    assert read(store, "a/1", 0, 3) == b"abc"
    with pytest.raises(MemoryLimitError, match=r"a/b/0.*memory_limit"):
        read(store, "a/b/0", 0, 1)


def test_what_is_kept_is_bounded():
    members = [(f"{n}", LONG) for n in range(20)]
    options = Options(memory_limit=8 * len(LONG))
    store = store_of(members, method=zipfile.ZIP_DEFLATED, options=options)
    for name, _ in members:
        read(store, name, 0, 10)
    assert sum(len(data) for data in store._inflated.values()) <= options.memory_limit // 4


def raw(data):
    encoder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return encoder.compress(data) + encoder.flush()


BAD = {
    "crc": Entry(b"bad", b"abc" * 50, 8, crc=1),
    "larger": Entry(b"bad", b"abc" * 50, 8, raw_size=149),
    "smaller": Entry(b"bad", b"abc" * 50, 8, raw_size=151),
    "stream": Entry(b"bad", b"abc" * 50, 8, stored=b"\xff" * 20),
    "cut": Entry(b"bad", b"abc" * 50, 8, stored=raw(b"abc" * 50)[:-3]),
    "encrypted": Entry(b"bad", b"abc", flags=1),
    "method": Entry(b"bad", b"abc", 12),
}


@pytest.mark.parametrize("name", BAD)
def test_broken_members(name):
    store = ZipStore(BytesSource(zip_file(Entry(b"good", b"xyz"), BAD[name]), "x.zip"))
    assert read(store, "good", 0, 3) == b"xyz"
    (size,) = store.sizes(["bad"]).tolist()
    with pytest.raises(GpuloadError, match=r"x\.zip"):
        read(store, "bad", 0, size)


def test_no_zip_file():
    with pytest.raises(FormatError):
        ZipStore(BytesSource(b"PK\x03\x04" + bytes(100)))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("version", [2, 3])
def test_zarr_in_a_zip_file(tmp_path, version, method):
    zarr = pytest.importorskip("zarr", reason="zarr-python is not installed")
    path, values = tmp_path / "x.zip", np.arange(20, dtype="i4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = zarr.storage.ZipStore(path, mode="w", compression=method)
        group = zarr.create_group(files, zarr_format=version)
        shards = (6,) if version == 3 else None
        array = group.create_array("a/b", shape=(20,), dtype="i4", chunks=(3,), shards=shards)
        array[...] = values
        group.attrs["again"] = 1  # writes the group's metadata another time
        files.close()
    assert reader.is_zarr(path)
    with reader.read(path, Options()).store as store:
        index = reader.read(store, Options())
        assert load(index, asset_named(index, "a/b")).tolist() == values.tolist()
        assert reader.load_with_zarr(store, "a/b").tolist() == values.tolist()
