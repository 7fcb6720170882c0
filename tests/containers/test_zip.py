"""Members of zip files as arrays of bytes."""

from __future__ import annotations

import io
import random
import zipfile
import zlib

import numpy as np
import pytest

from gpuload.array_codecs import Compression
from gpuload.containers import zip as zip_file
from gpuload.containers.zip_directory import read_directory
from gpuload.errors import FormatError, GpuloadError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.containers.array_reading import DamagedError, asset_named, load
from tests.containers.zip_files import Entry
from tests.containers.zip_files import zip_file as zipped
from tests.helpers.mutations import mutated

DATA = b"some data that repeats, repeats, repeats " * 99


def read(data: bytes):
    return zip_file.read(BytesSource(data, "a.zip"), Options())


def content(index, name: str) -> bytes:
    return load(index, asset_named(index, name)).tobytes()


def test_members():
    index = read(
        zipped(Entry(b"s", DATA), Entry(b"x/d", DATA, 8), Entry(b"e"), Entry(b"f", b"", 8))
    )
    assert [asset.name for asset in index.assets] == ["s", "x/d", "e", "f"]
    assert content(index, "s") == content(index, "x/d") == DATA
    assert content(index, "e") == content(index, "f") == b""
    assert (index.format, index.details) == ("zip", {"stored": 2, "deflated": 2})
    deflated = asset_named(index, "x/d")
    assert deflated.pipeline.steps == (Compression("deflate"),)
    assert deflated.codecs == ("deflate",)
    assert (deflated.dtype, deflated.shape) == (np.uint8, (len(DATA),))


def test_a_directory_that_has_been_read_already():
    source = BytesSource(zipped(Entry(b"s", DATA)))
    index = zip_file.read(source, Options(), read_directory(source))
    assert content(index, "s") == DATA


@pytest.mark.parametrize("method", [0, 8])
def test_checksums(method):
    index = read(zipped(Entry(b"a", DATA, method), Entry(b"b", DATA, method, crc=5)))
    places = asset_named(index, "a").grid.locate(np.zeros((1, 1), np.int64))
    assert places.checksums.tolist() == [zlib.crc32(DATA)]
    assert places.raw_sizes.tolist() == [len(DATA)]
    assert content(index, "a") == DATA
    with pytest.raises(DamagedError, match="CRC-32"):
        content(index, "b")


def test_large_stored_members_are_cut_and_not_checked(monkeypatch):
    monkeypatch.setattr(zip_file, "ONE_CHUNK", 1_000)
    monkeypatch.setattr(zip_file, "PIECE", 300)
    index = read(zipped(Entry(b"a", DATA), Entry(b"b", DATA[:1_000]), Entry(b"c", DATA, 8)))
    assert index.details["unchecked"] == ["a"]
    assert asset_named(index, "a").chunk_shape == (300,)
    assert asset_named(index, "b").chunk_shape == (1_000,)
    assert asset_named(index, "c").chunk_shape == (len(DATA),)
    places = asset_named(index, "a").grid.locate(np.array([[1], [13]]))
    assert places.checksums is None
    assert places.sizes.tolist() == [300, len(DATA) - 13 * 300]
    assert content(index, "a") == DATA


def test_broken_members_do_not_keep_others():
    index = read(zipped(Entry(b"a", DATA, flags=1), Entry(b"../b", DATA), Entry(b"c", DATA)))
    assert "encrypted" in asset_named(index, "a").error
    assert "points out" in asset_named(index, "../b").error
    assert asset_named(index, "a").grid is None
    assert content(index, "c") == DATA


def test_a_member_whose_local_header_is_broken():
    index = read(zipped(Entry(b"a", DATA, local_magic=b"XXXX"), Entry(b"c", DATA)))
    with pytest.raises(FormatError, match=r"a\.zip: byte 0: member 'a'"):
        content(index, "a")
    assert content(index, "c") == DATA


@pytest.mark.parametrize("seed", range(4))
def test_damaged(seed):
    """Members, or a GpuloadError; and what zipfile makes of a member, if both make something."""
    rng = random.Random(seed)
    files = [
        zipped(Entry(b"s", DATA[:500]), Entry(b"x/d", DATA, 8), Entry(b"e")),
        zipped(Entry(b"d", DATA, 8, flags=8, descriptor=b"PK\x07\x08" + bytes(12))),
    ]
    for _ in range(250):
        data = mutated(rng, files)
        try:
            index = read(data)
        except GpuloadError:
            continue
        for asset in index.assets:
            try:
                found = load(index, asset).tobytes()
            except (GpuloadError, DamagedError):
                continue
            assert found == _by_zipfile(data, asset.name, found)


def _by_zipfile(data: bytes, name: str, found: bytes) -> bytes:
    """Return what zipfile says; it looks at more than gpuload does in local headers."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(name)
    except Exception:  # noqa: BLE001
        return found
