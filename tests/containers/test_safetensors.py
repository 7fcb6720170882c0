"""safetensors files: by hand, as the format's README says, and judged as the library does."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import sys

import numpy as np
import pytest

from gpuload.containers import safetensors
from gpuload.errors import FormatError, GpuloadError, MemoryLimitError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.containers.array_reading import DamagedError, asset_named, load
from tests.helpers.mutations import mutated

FLOATS = np.arange(12, dtype="<f4").reshape(3, 4)


def handmade(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(start: int, end: int, shape: list, dtype: str = "U8", **more) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end], **more}


def read(data: bytes, **options):
    return safetensors.read(BytesSource(data, "a.safetensors"), Options(**options))


def library(data: bytes) -> dict[str, np.ndarray]:
    numpy = pytest.importorskip("safetensors.numpy")
    return numpy.load(data)


class TestFiles:
    def test_tensors(self):
        data = FLOATS.tobytes() + b"\x05\x00\x00\x00" + b"\x01\x00"
        header = {
            "mask": entry(52, 54, [2], "BOOL"),
            "größe.文": entry(0, 48, [3, 4], "F32"),
            "__metadata__": {"made": "by hand"},
            "scalar": entry(48, 52, [], "I32"),
            "none": entry(54, 54, [5, 0], "F64"),
        }
        index = read(handmade(header, data))
        assert [asset.name for asset in index.assets] == ["größe.文", "scalar", "mask", "none"]
        assert np.array_equal(load(index, index.assets[0]), FLOATS)
        assert load(index, index.assets[1])[()] == 5
        assert load(index, index.assets[2]).tolist() == [True, False]
        assert load(index, index.assets[3]).shape == (5, 0)
        assert index.details["__metadata__"] == {"made": "by hand"}
        assert index.format == "safetensors"

    def test_written_by_the_library(self):
        numpy = pytest.importorskip("safetensors.numpy")
        types = "?bhilBHILefdF"
        arrays = {t: np.arange(10).astype(t).reshape(2, 5) for t in types}
        index = read(numpy.save(arrays, {"format": "np"}))
        for name, array in arrays.items():
            found = load(index, asset_named(index, name))
            assert found.dtype == array.dtype
            assert np.array_equal(found, array)

    @pytest.mark.parametrize(
        ("dtype", "stored", "value"),
        [
            ("BF16", b"\xc0\x3f", 1.5),
            ("F8_E4M3", b"\x3c", 1.5),
            ("F8_E5M2", b"\x3e", 1.5),
            ("F8_E8M0", b"\x80", 2.0),
        ],
    )
    def test_short_floats(self, dtype, stored, value):
        pytest.importorskip("ml_dtypes")
        index = read(handmade({"a": entry(0, len(stored), [1], dtype)}, stored))
        assert load(index, index.assets[0]).astype(float).tolist() == [value]

    def test_short_floats_without_ml_dtypes(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        header = {"a": entry(0, 2, [1], "BF16"), "b": entry(2, 4, [1], "F16")}
        short, half = read(handmade(header, bytes(4))).assets
        assert re.search(r"type BF16 needs ml_dtypes: pip install 'gpuload\[arrays\]'", short.error)
        assert (half.error, half.shape) == ("", (1,))

    @pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2"])
    def test_elements_that_share_bytes(self, dtype):
        size = 8 if dtype == "F4" else 12
        header = {"a": entry(0, size, [16], dtype), "b": entry(size, size + 1, [1])}
        index = read(handmade(header, bytes(size + 1)))
        assert f"type {dtype} share bytes" in index.assets[0].error
        assert load(index, index.assets[1]).tolist() == [0]

    def test_types_that_are_not_known(self):
        header = {"a": entry(0, 3, [4], "F128"), "b": entry(3, 4, [1])}
        index = read(handmade(header, bytes(4)))
        assert "'F128'" in index.assets[0].error
        assert not index.assets[1].error

    def test_large_tensors_are_chunks_of_4_mib(self):
        size = 5 << 20
        index = read(handmade({"a": entry(0, size, [size // 4], "F32")}, bytes(size)))
        assert index.assets[0].chunk_shape == (1 << 20,)
        places = index.assets[0].grid.locate(np.array([[0], [1]]))
        assert places.sizes.tolist() == [4 << 20, 1 << 20]

    def test_no_tensors(self):
        assert read(handmade({})).assets == []
        assert read(handmade(b"{}      ")).assets == []


BROKEN = {
    "empty": (b"", "ends here"),
    "no header": (b"\x10\x00\x00\x00\x00\x00\x00\x00{}", "ends here"),
    "length": (handmade({}, length=2**62), "the limit"),
    "start": (handmade(b" {}"), "starts with"),
    "no JSON": (handmade(b'{"a": }'), "no JSON"),
    "no UTF-8": (handmade(b'{"\xff": {}}'), "no UTF-8"),
    "surrogate": (handmade(b'{"\\ud800": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "no"),
    "nesting": (handmade(b'{"a":' + b"[" * 100_000), "nests too deeply"),
    "NaN": (handmade(b'{"a": NaN}'), "NaN"),
    "digits": (handmade(b'{"a": ' + b"9" * 5_000 + b"}"), "no JSON"),
    "twice": (
        handmade(
            b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
            b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
        ),
        "'a' is there twice",
    ),
    "metadata": (handmade({"__metadata__": {"a": 1}}), "strings"),
    "metadata list": (handmade({"__metadata__": []}), "strings"),
    "entry": (handmade({"a": 1}), "'a'"),
    "no dtype": (handmade({"a": {"shape": [], "data_offsets": [0, 0]}}), "dtype"),
    "no shape": (handmade({"a": {"dtype": "U8", "data_offsets": [0, 0]}}), "shape"),
    "negative": (handmade({"a": entry(0, 1, [-1])}, b"x"), "sizes"),
    "bool": (handmade({"a": entry(0, 1, [True])}, b"x"), "sizes"),
    "float": (handmade({"a": entry(0, 1, [1.0])}, b"x"), "sizes"),
    "three offsets": (
        handmade({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, b"x"),
        "data_offsets",
    ),
    "size": (handmade({"a": entry(0, 8, [3], "F32")}, bytes(8)), "takes 12 bytes.*8 apart"),
    "bits": (handmade({"a": entry(0, 2, [3], "F4")}, bytes(2)), r"takes 1\.5 bytes"),
    "huge": (handmade({"a": entry(0, 8, [2**40, 2**40])}, bytes(8)), "more than 2"),
    "backwards": (handmade({"a": entry(2, 1, [1])}, bytes(2)), "takes 1 bytes"),
    "backwards, unknown": (handmade({"a": entry(0, 0, [1], "X"), "b": entry(2, 1, [1], "X")}), "b"),
    "overlap": (handmade({"a": entry(0, 2, [2]), "b": entry(1, 3, [2])}, bytes(3)), "overlaps"),
    "hole": (handmade({"a": entry(0, 2, [2]), "b": entry(3, 4, [1])}, bytes(4)), "holes"),
    "first hole": (handmade({"a": entry(1, 2, [1])}, bytes(2)), "holes"),
    "cut": (handmade({"a": entry(0, 2, [2])}, bytes(1)), "ends here, 1 bytes too early"),
    "behind": (handmade({"a": entry(0, 2, [2])}, bytes(3)), "1 bytes behind"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(name):
    data, message = BROKEN[name]
    with pytest.raises(FormatError, match=rf"(?s)a\.safetensors: byte \d+: .*{message}"):
        read(data)


@pytest.mark.parametrize("name", sorted(set(BROKEN) - {"twice", "digits", "start"}))
def test_the_library_refuses_them_too(name):
    error = pytest.importorskip("safetensors").SafetensorError
    with pytest.raises((error, ValueError)):
        library(BROKEN[name][0])


def test_headers_beyond_the_memory_limit():
    data = handmade(b"{" + b" " * 200_000 + b"}")
    with pytest.raises(MemoryLimitError, match=r"memory_limit.*--memory-limit"):
        read(data, memory_limit=1 << 20)
    assert read(data, memory_limit=2 << 20).assets == []


@pytest.mark.parametrize("seed", range(4))
def test_damaged(seed):
    """Tensors, or a GpuloadError; those that the library sees, if it takes the file."""
    rng = random.Random(seed)
    header = {"a": entry(0, 48, [3, 4], "F32"), "b": entry(48, 50, [2]), "c": entry(50, 50, [0])}
    files = [
        handmade(header, FLOATS.tobytes() + b"xy"),
        handmade({"__metadata__": {"a": "b"}, "n": entry(0, 16, [2], "I64")}, bytes(16)),
    ]
    for _ in range(500):
        data = mutated(rng, files)
        try:
            index = read(data)
        except GpuloadError:
            continue
        good = [asset for asset in index.assets if not asset.error]
        found = {asset.name: load(index, asset) for asset in good}
        if len(good) == len(index.assets):
            expected = library(data)
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[n], expected[n], equal_nan=True) for n in found)


class TestSeveralFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        one = {"a": entry(0, 48, [3, 4], "F32"), "b": entry(48, 50, [2])}
        (tmp_path / "1.safetensors").write_bytes(handmade(one, FLOATS.tobytes() + b"xy"))
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "2.safetensors").write_bytes(handmade({"ü": entry(0, 1, [])}, b"z"))
        return tmp_path

    def index(self, folder, weight_map, **more):
        path = folder / "model.safetensors.index.json"
        text = weight_map if isinstance(weight_map, str) else None
        path.write_text(text or json.dumps({"weight_map": weight_map, **more}))
        return safetensors.read_many(path, Options())

    def test_tensors(self, folder):
        names = {"ü": "sub/2.safetensors", "b": "1.safetensors", "a": "1.safetensors"}
        with self.index(folder, names, metadata={"total_size": 51}).store as store:
            index = self.index(folder, names, metadata={"total_size": 51})
            assert [asset.name for asset in index.assets] == ["ü", "b", "a"]
            assert load(index, index.assets[0])[()] == ord("z")
            assert load(index, index.assets[1]).tobytes() == b"xy"
            assert np.array_equal(load(index, index.assets[2]), FLOATS)
            assert index.details["metadata"] == {"total_size": 51}
            assert index.details["files"] == ["sub/2.safetensors", "1.safetensors"]
            assert index.warnings == []
            assert store.sizes(["1.safetensors", "3"]).tolist()[1] == -1
            index.store.close()

    def test_in_the_working_directory(self, folder, monkeypatch):
        self.index(folder, {"b": "1.safetensors"})
        monkeypatch.chdir(folder)
        index = safetensors.read_many("model.safetensors.index.json", Options())
        assert load(index, index.assets[0]).tobytes() == b"xy"
        index.store.close()

    def test_tensors_that_the_index_leaves_out(self, folder):
        index = self.index(folder, {"b": "1.safetensors"})
        assert [asset.name for asset in index.assets] == ["b"]
        assert "1 tensors of 1.safetensors" in index.warnings[0]

    @pytest.mark.parametrize(
        "name",
        [
            "../1",
            "/etc/passwd",
            "sub/../../1",
            "",
            "a\0b",
            "..\\1",
            "C:1",
            "sub//1",
            ".",
            "\ud800",
            None,
            5,
        ],
    )
    def test_names_outside_of_the_folder(self, folder, name):
        with pytest.raises(FormatError, match=r"index\.json.*'a' is in.*same folder"):
            self.index(folder, {"a": name})

    @pytest.mark.parametrize("name", ["../" * 2_000, "b\0" * 2_000, "\ud800" * 2_000])
    def test_long_names_outside_of_the_folder(self, folder, name):
        with pytest.raises(FormatError, match="same folder") as caught:
            self.index(folder, {"a": name})
        assert len(f"{caught.value}") < 500

    def test_what_is_missing_does_not_keep_the_others(self, folder):
        (folder / "bad.safetensors").write_bytes(b"123")
        os.mkfifo(folder / "fifo")
        (folder / "zeros").symlink_to("/dev/zero")
        (folder / "circle").symlink_to("circle")
        names = {
            "a": "1.safetensors",
            "other": "1.safetensors",
            "gone": "3.safetensors",
            "bad": "bad.safetensors",
            "folder": "sub",
            "fifo": "fifo",
            "long": "x" * 5000,
            "device": "zeros",
            "circle": "circle",
        }
        index = self.index(folder, names)
        assert "1.safetensors, which lacks it" in asset_named(index, "other").error
        assert "3.safetensors cannot be read: No such file" in asset_named(index, "gone").error
        assert "bad.safetensors: byte 3" in asset_named(index, "bad").error
        assert "sub cannot be read" in asset_named(index, "folder").error
        assert "fifo cannot be read: is no regular file" in asset_named(index, "fifo").error
        assert "zeros cannot be read: is no regular" in asset_named(index, "device").error
        assert "circle cannot be read: Too many" in asset_named(index, "circle").error
        assert "x... cannot be read: File name too long" in asset_named(index, "long").error
        assert len(asset_named(index, "long").error) < 300
        assert index.stored_size == 3 + (folder / "1.safetensors").stat().st_size
        assert np.array_equal(load(index, asset_named(index, "a")), FLOATS)
        with pytest.raises(DamagedError):
            load(index, asset_named(index, "gone"))
        index.store.close()

    @pytest.mark.parametrize(
        "text", ["", "[]", "{}", '{"weight_map": []}', "{", '{"weight_map": {"a": "b", "a": "c"}}']
    )
    def test_broken_indexes(self, folder, text):
        with pytest.raises(FormatError, match=r"index\.json: byte 0"):
            self.index(folder, text or "\n")

    def test_no_index(self, folder):
        with pytest.raises(FileNotFoundError):
            safetensors.read_many(folder / "none", Options())
