"""NPZ files, written by NumPy and by hand."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib

import numpy as np
import pytest

import gpuload
from gpuload.array_codecs import Compression, Skip, Swap, Transpose
from gpuload.containers import npz
from gpuload.containers import zip as zip_file
from gpuload.errors import DecompressError, FormatError, GpuloadError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.containers.array_reading import DamagedError, asset_named, load
from tests.containers.test_npy import ARRAYS, handmade, saved
from tests.containers.test_zip_directory import CountingSource
from tests.containers.zip_files import Entry
from tests.containers.zip_files import zip_file as zipped
from tests.helpers.mutations import mutated

WRITERS = {"stored": np.savez, "compressed": np.savez_compressed}


def written(arrays: dict[str, np.ndarray], how: str) -> bytes:
    buffer = io.BytesIO()
    WRITERS[how](buffer, **arrays)
    return buffer.getvalue()


def read(data: bytes):
    return npz.read(BytesSource(data, "a.npz"), Options())


def native(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("="))


@pytest.mark.parametrize("how", WRITERS)
def test_arrays(how):
    index = read(written(ARRAYS, how))
    assert [asset.name for asset in index.assets] == list(ARRAYS)
    assert index.format == "npz"
    for name, expected in ARRAYS.items():
        found = load(index, asset_named(index, name))
        assert found.dtype == native(expected).dtype
        assert found.shape == expected.shape
        assert found.tobytes() == native(expected).tobytes("C")


def test_steps_of_deflated_members():
    index = read(written({"a": np.asfortranarray(np.ones((9, 5), ">f4"))}, "compressed"))
    (asset,) = index.assets
    assert asset.pipeline.steps == (
        Compression("deflate"),
        Skip(128),
        Swap(4),
        Transpose((1, 0), 4),
    )
    places = asset.grid.locate(np.zeros((1, 2), np.int64))
    assert places.raw_sizes.tolist() == [128 + 180]


@pytest.mark.parametrize("name", ["float", "fortran", "big", "scalar", "text"])
def test_checksums_of_stored_members(name):
    """The CRC-32 of the zip file is of the header, too; that of the elements follows from it."""
    index = read(written({"a": ARRAYS[name]}, "stored"))
    (asset,) = index.assets
    places = asset.grid.locate(np.zeros((1, len(asset.shape)), np.int64))
    data = ARRAYS[name].tobytes("A")
    assert places.sizes.tolist() == [len(data)]
    assert places.checksums.tolist() == [zlib.crc32(data)]


def test_damage_to_stored_elements_is_found():
    data = bytearray(written({"a": np.arange(1_000)}, "stored"))
    data[2_000] ^= 1
    index = read(bytes(data))
    with pytest.raises(DamagedError, match="CRC-32"):
        load(index, index.assets[0])


def test_large_stored_members_are_cut(monkeypatch):
    monkeypatch.setattr(zip_file, "ONE_CHUNK", 1_000)
    monkeypatch.setattr(zip_file, "PIECE", 300)
    arrays = {name: ARRAYS[name] for name in ("float", "fortran", "big", "bool", "big fortran")}
    index = read(written(arrays, "stored"))
    assert index.details["unchecked"] == ["float", "fortran"]
    assert asset_named(index, "float").chunk_shape == (2, 31)
    assert asset_named(index, "fortran").chunk_shape == (5, 6, 1)
    for name, expected in arrays.items():
        assert load(index, asset_named(index, name)).tobytes() == native(expected).tobytes("C")


def test_other_members_are_bytes():
    data = zipped(Entry(b"a.npy", saved(np.ones(3))), Entry(b"notes.txt", b"hello", 8))
    index = read(data)
    assert [asset.name for asset in index.assets] == ["a", "notes.txt"]
    assert load(index, index.assets[1]).tobytes() == b"hello"


def test_short_names_that_are_taken():
    one, other = np.ones(3), np.zeros(2)
    names = [b"a.npy", b"a", b"b.npy", b"b.npy.npy", b".npy"]
    data = zipped(*(Entry(name, saved(one if b"b" in name else other)) for name in names))
    index = read(data)
    assert [asset.name for asset in index.assets] == ["a.npy", "a", "b", "b.npy.npy", ".npy"]
    assert load(index, index.assets[2]).tolist() == one.tolist()


@pytest.mark.parametrize("method", [0, 8])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no npy header"),
        (b"\x93NUM", "no npy header"),
        (b"something else, and much of it" * 99, "no npy header"),
        (saved(np.ones(99))[:50], "cut short"),
        (saved(np.ones(99))[:-1], "takes 792 bytes, the member has 791"),
        (saved(np.ones(99)) + b"x", "takes 792 bytes, the member has 793"),
        (saved(np.array([None]), allow_pickle=True), "pickle"),
        (handmade("{'descr': '<f4', 'fortran_order': False, 'shape': (2**70,)}\n"), "broken"),
        (handmade("{'descr': '>f4', 'fortran_order': False, 'shape': (10**30,)}\n"), "broken"),
        (saved(np.zeros(2, [("a", ">f4")])), "structured"),
        (handmade("{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}\n") + b"x", "takes 0"),
        (handmade("{'descr': '<f4', 'fortran_order': False, 'shape': ()}\n"), "takes 4 bytes"),
        (handmade("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}\n"), "negative"),
        (saved(np.zeros(1, [("a", "f4"), ("b", "O")]), allow_pickle=True), "pickle"),
        (b"\x93NUMPY\x01\x00" + struct.pack("<H", 65_535) + b" " * 65_535, "header of 65535 bytes"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 70_000) + b" " * 70_000, "header of 70000 bytes"),
        (b"\x93NUMPY\x03\x00" + b"\xff" * 4 + b" " * 70_000, "header of 4294967295 bytes"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 20_000) + b" " * 20_000, "header is broken"),
        (written({"a": np.ones(9)}, "stored"), "no npy header (93 4e 55 4d 50 59) but 50 4b 03 04"),
    ],
)
def test_broken_members_do_not_keep_others(content, message, method):
    data = zipped(Entry(b"bad.npy", content, method), Entry(b"good.npy", saved(np.ones(3))))
    index = read(data)
    assert message in asset_named(index, "bad").error
    assert load(index, asset_named(index, "good")).tolist() == [1, 1, 1]


@pytest.mark.parametrize("there", [0, 98, 100])
def test_elements_that_decode_to_another_size(there):
    """The header agrees with the directory, and the DEFLATE stream with none of them."""
    encoder = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    stored = encoder.compress(saved(np.ones(99))[:128] + bytes(8 * there)) + encoder.flush()
    bad = Entry(b"bad.npy", saved(np.ones(99)), 8, stored=stored)
    data = zipped(bad, Entry(b"good.npy", saved(np.ones(3)), 8))
    assert not asset_named(read(data), "bad").error
    with gpuload.open(data, device="cpu") as container:
        with pytest.raises(DecompressError, match=r"bad: chunk 0 at byte 37: .*920"):
            container.load("bad")
        assert np.asarray(container.load("good")).tolist() == [1, 1, 1]
        assert [failure.asset for failure in container.verify().failures] == ["bad"]


def test_archives_in_archives_are_bytes():
    inner = written({"a": np.ones(9)}, "stored")
    data = zipped(Entry(b"inner.npz", inner, 8), Entry(b"b.npy", saved(np.ones(3))))
    index = read(data)
    assert load(index, asset_named(index, "inner.npz")).tobytes() == inner
    assert load(index, asset_named(index, "b")).tolist() == [1, 1, 1]


def test_deflated_headers_that_are_damaged():
    bad = Entry(b"bad.npy", saved(np.ones(9)), 8, stored=b"\xff" * 60)
    flawed = Entry(b"flawed.npy", saved(np.ones(9)), local_magic=b"xxxx")
    index = read(zipped(bad, flawed, Entry(b"good.npy", saved(np.ones(3)))))
    assert "DEFLATE stream is damaged" in asset_named(index, "bad").error
    assert "local header" in asset_named(index, "flawed").error
    assert not asset_named(index, "good").error


def test_only_the_start_of_members_is_decoded():
    """Also where the start of a member is empty blocks of DEFLATE, without end."""
    stored = b"\x00\x00\x00\xff\xff" * 200_000
    bad = Entry(b"bad.npy", bytes(9_000), 8, stored=stored)
    source = CountingSource(zipped(bad))
    (asset,) = npz.read(source, Options()).assets
    assert "no npy header" in asset.error
    assert source.reads < 9


def test_headers_far_behind_the_first_bytes():
    """A header of nearly 10,000 bytes is more than is read at first."""
    fields = [(f"field_{n}", "<f4") for n in range(400)]
    array = np.zeros(3, fields)
    for how in WRITERS:
        index = read(written({"a": array}, how))
        assert index.assets[0].dtype == array.dtype


@pytest.mark.parametrize("remote", [False, True])
def test_many_members(remote):
    arrays = {f"a{n}": np.arange(n) for n in range(300)}
    source = CountingSource(written(arrays, "compressed"), remote=remote)
    index = npz.read(source, Options())
    for name in ("a0", "a7", "a299"):
        assert np.array_equal(load(index, asset_named(index, name)), arrays[name])


def test_names_in_other_alphabets():
    assert read(written({"größe_文": np.ones(2)}, "stored")).assets[0].name == "größe_文"


def test_no_zip_file():
    with pytest.raises(FormatError, match=r"a\.npz"):
        read(saved(np.ones(3)))


@pytest.mark.parametrize("seed", range(4))
def test_damaged(seed):
    """Arrays, or a GpuloadError; what NumPy makes of an array, if both make one."""
    rng = random.Random(seed)
    some = {name: ARRAYS[name] for name in ("float", "big fortran", "text")}
    files = [written(some, how) for how in WRITERS]
    for _ in range(150):
        data = mutated(rng, files)
        try:
            index = read(data)
        except GpuloadError:
            continue
        for asset in index.assets:
            try:
                found = load(index, asset)
            except (GpuloadError, DamagedError):
                continue
            _compare(data, asset.name, found)


def _compare(data: bytes, name: str, found: np.ndarray) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            content = archive.read(name + ".npy")
    except Exception:  # noqa: BLE001 (it looks at more than gpuload does in local headers)
        return
    assert found.tobytes() == native(np.load(io.BytesIO(content))).tobytes("C")
