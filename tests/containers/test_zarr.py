"""Zarr stores that zarr-python wrote, and what it makes of them itself."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from gpuload.containers import zarr as reader
from gpuload.errors import FormatError, GpuloadError
from gpuload.options import Options
from tests.conftest import corpus_entries, corpus_folder
from tests.containers.zarr_files import document_2, document_3, written
from tests.containers.zarr_reading import DamagedError, asset_named, digest, load

zarr = pytest.importorskip("zarr", reason="zarr-python is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

STORES = [e for e in corpus_entries("container") if e["format"] == "zarr"]
GOOD = [e for e in STORES if e["expect"] == "ok"]
BAD = [e for e in STORES if e["expect"] == "error"]
OPTIONS = Options()


def each(entries):
    return pytest.mark.parametrize("entry", entries, ids=[entry["file"] for entry in entries])


def read(path, **options):
    return reader.read(path, Options(**options))


def same(path, name=""):
    """Compare an array with what zarr-python reads; return it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = np.asarray(zarr.open_array(str(path), path=name, mode="r")[...])
    found = loaded(path, name)
    native = wanted.astype(wanted.dtype.newbyteorder("="), copy=False)
    assert found.dtype == native.dtype
    assert found.shape == native.shape
    assert found.tobytes() == native.tobytes()
    return found


def loaded(path, name=""):
    with read(path).store as store:
        index = reader.read(store, OPTIONS)
        return load(index, asset_named(index, name))


def make(path, values, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.create_array(str(path), shape=values.shape, dtype=values.dtype, **how)
        array[...] = values
    return path


def ramp(shape, dtype):
    count = int(np.prod(shape))
    return (np.arange(count) % 97).astype(dtype).reshape(shape)


# The corpus


@each(GOOD)
def test_corpus(entry):
    with read(corpus_folder() / entry["file"]).store as store:
        index = reader.read(store, OPTIONS)
        assert sorted(a.name for a in index.assets) == sorted(a["name"] for a in entry["arrays"])
        for array in entry["arrays"]:
            asset = asset_named(index, array["name"])
            assert asset.shape == tuple(array["shape"])
            assert asset.dtype == np.dtype(array["dtype"]).newbyteorder("=")
            wanted = array.get("sha256_native", array["sha256"])
            assert digest(index, array["name"]) == wanted, array["name"]


@each(BAD)
def test_corpus_of_bad_stores(entry):
    path = corpus_folder() / entry["file"]
    with pytest.raises((GpuloadError, DamagedError)) as caught:
        loaded(path)
    if isinstance(caught.value, GpuloadError):
        assert entry["file"] in str(caught.value)


def test_unknown_codecs_are_named(corpus):
    for file, codec in (("v2_unknown_compressor", "nosuch"), ("v3_unknown_codec", "nosuch.codec")):
        (asset,) = read(corpus / f"zarr/bad/{file}.zarr").assets
        assert f"{codec!r}" in asset.error
        assert "on_unsupported='host'" in asset.error
        assert (asset.shape, asset.dtype) == ((40, 40), np.float32)


# Codecs

DTYPES = ["|b1", "|u1", "<i2", ">i4", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16", "|S3", "<U2"]
DTYPES += [">U3", "<M8[ns]", ">m8[s]", "|V5"]
COMPRESSORS_2 = {
    "none": None,
    "zlib": numcodecs.Zlib(),
    "gzip": numcodecs.GZip(),
    "zstd": numcodecs.Zstd(),
    "lz4": numcodecs.LZ4(),
    "blosc": numcodecs.Blosc(cname="zstd", shuffle=2),
}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", COMPRESSORS_2)
def test_compressors_of_version_2(tmp_path, name, order):
    values = ramp((13, 10, 4), "<i4")
    how = {"chunks": (5, 4, 3), "zarr_format": 2, "compressors": COMPRESSORS_2[name]}
    same(make(tmp_path / "a", values, order=order, filters=None, **how))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(tmp_path, dtype, version):
    if dtype == "|V5":
        values = np.frombuffer(bytes(range(70)), "V5").reshape(7, 2)
    else:
        values = ramp((7, 2), dtype)
    path = make(tmp_path / "a", values, chunks=(4, 2), zarr_format=version)
    assert same(path).tobytes() == values.astype(values.dtype.newbyteorder("=")).tobytes()


def test_structures(tmp_path):
    values = np.zeros(5, [("a", "<i4"), ("b", "<f8")])
    values["a"], values["b"] = range(5), 0.5
    same(make(tmp_path / "a", values, chunks=(2,), zarr_format=2))


FILTERS_2 = {
    "delta": ("<i4", [numcodecs.Delta("<i4")]),
    "delta_narrow": ("<i8", [numcodecs.Delta("<i8", astype="<i2")]),
    "delta_big": (">i4", [numcodecs.Delta(">i4", astype=">i2")]),
    "delta_of_the_other_order": (">i4", [numcodecs.Delta(">i4", astype="<i2")]),
    "shuffle": ("<f8", [numcodecs.Shuffle(8)]),
    "shuffle_of_1": ("|u1", [numcodecs.Shuffle(1)]),
    "delta_shuffle": ("<i8", [numcodecs.Delta("<i8"), numcodecs.Shuffle(8)]),
    "scale": ("<f8", [numcodecs.FixedScaleOffset(3, 2, "<f8", "|u1")]),
    "scale_big": (">f4", [numcodecs.FixedScaleOffset(3, 2, ">f4", ">i2")]),
    "scale_delta": (
        "<f4",
        [numcodecs.FixedScaleOffset(0, 2, "<f4", "<i2"), numcodecs.Delta("<i2")],
    ),
    "pack": ("|b1", [numcodecs.PackBits()]),
    "quantize": ("<f4", [numcodecs.Quantize(1, "<f4")]),
    "round": ("<f4", [numcodecs.BitRound(8)]),
    "crc": ("<i4", [numcodecs.Delta("<i4"), numcodecs.CRC32C()]),
    "zlib": ("<i4", [numcodecs.Shuffle(4), numcodecs.Zlib()]),
}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", FILTERS_2)
def test_filters_of_version_2(tmp_path, name, order):
    dtype, filters = FILTERS_2[name]
    how = {"filters": filters, "compressors": numcodecs.Zstd(), "order": order}
    path = make(tmp_path / "a", ramp((12, 9), dtype), chunks=(5, 4), zarr_format=2, **how)
    (asset,) = read(path).assets
    assert asset.codecs[-1] == "zstd"
    assert len(asset.codecs) == len(filters) + 1
    same(path)


def test_swaps_cancel(tmp_path):
    how = {"filters": [numcodecs.Delta(">i4")], "compressors": None}
    path = make(tmp_path / "a", ramp((9,), ">i4"), chunks=(5,), zarr_format=2, **how)
    names = [type(step).__name__ for step in read(path).assets[0].pipeline.steps]
    assert names == ["Swap", "Delta"]


def gzip_3():
    return zarr.codecs.GzipCodec()


CODECS_3 = {
    "gzip": lambda: {"compressors": [gzip_3()]},
    "zstd": lambda: {"compressors": [zarr.codecs.ZstdCodec(checksum=True)]},
    "blosc": lambda: {"compressors": [zarr.codecs.BloscCodec(cname="zlib", shuffle="bitshuffle")]},
    "crc32c": lambda: {"compressors": [gzip_3(), zarr.codecs.Crc32cCodec()]},
    "crc32c_inside": lambda: {"compressors": [zarr.codecs.Crc32cCodec(), gzip_3()]},
    "big": lambda: {"serializer": zarr.codecs.BytesCodec(endian="big"), "compressors": [gzip_3()]},
    "transpose": lambda: {"filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]},
    "transposes": lambda: {
        "filters": [
            zarr.codecs.TransposeCodec(order=(2, 0, 1)),
            zarr.codecs.TransposeCodec(order=(0, 2, 1)),
        ]
    },
    "no_transpose": lambda: {
        "filters": [
            zarr.codecs.TransposeCodec(order=(2, 0, 1)),
            zarr.codecs.TransposeCodec(order=(1, 2, 0)),
        ]
    },
}


@pytest.mark.parametrize("name", CODECS_3)
def test_codecs_of_version_3(tmp_path, name):
    values = ramp((13, 10, 4), "<i4")
    same(make(tmp_path / "a", values, chunks=(5, 4, 3), zarr_format=3, **CODECS_3[name]()))


NUMCODECS_3 = {
    "zlib": ("<i4", {"compressors": [("Zlib", {})]}),
    "lz4": ("<i4", {"compressors": [("LZ4", {})]}),
    "zstd": ("<i4", {"compressors": [("Zstd", {})]}),
    "gzip": ("<i4", {"compressors": [("GZip", {})]}),
    "blosc": ("<i4", {"compressors": [("Blosc", {"cname": "lz4", "shuffle": 1})]}),
    "crc32c": ("<i4", {"compressors": [("CRC32C", {})]}),
    "shuffle": ("<i4", {"compressors": [("Shuffle", {"elementsize": 4}), ("Zlib", {})]}),
    "shuffle_of_the_type": ("<i8", {"compressors": [("Shuffle", {})]}),
    "delta": ("<i4", {"filters": [("Delta", {"dtype": "<i4"})]}),
    "delta_narrow": ("<i4", {"filters": [("Delta", {"dtype": "<i4", "astype": "<i2"})]}),
    "scale": (
        "<f8",
        {
            "filters": [
                ("FixedScaleOffset", {"offset": 1, "scale": 4, "dtype": "<f8", "astype": "<i2"})
            ]
        },
    ),
    "pack": ("|b1", {"filters": [("PackBits", {})]}),
    "round": ("<f4", {"filters": [("BitRound", {"keepbits": 8})]}),
    "quantize": ("<f4", {"filters": [("Quantize", {"digits": 1, "dtype": "<f4"})]}),
}


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("name", NUMCODECS_3)
def test_numcodecs_in_version_3(tmp_path, name, endian):
    from zarr.codecs import numcodecs as wrapped

    dtype, told = NUMCODECS_3[name]
    how = {k: [getattr(wrapped, c)(**given) for c, given in v] for k, v in told.items()}
    how = {"compressors": None} | how | {"serializer": zarr.codecs.BytesCodec(endian=endian)}
    values = ramp((12, 9), dtype)
    path = make(tmp_path / "a", values, chunks=(5, 4), zarr_format=3, **how)
    # What it wrote as big-endian behind a filter, zarr-python 3.1 takes for little-endian.
    found = loaded(path) if endian == "big" else same(path)
    assert found.tobytes() == values.tobytes()


UNSUPPORTED = {
    "bz2": {"filters": [numcodecs.BZ2()]},
    "lzma": {"filters": [numcodecs.LZMA()]},
    "astype": {"filters": [numcodecs.AsType("<i2", "<i4")]},
    "quantize": {"filters": [numcodecs.Quantize(1, "<f4", "<f2")]},
    "crc32": {"filters": [numcodecs.CRC32()]},
    "filters behind": {"filters": [numcodecs.Zlib(), numcodecs.Delta("|u1")]},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_codecs_are_left_to_zarr_python(tmp_path, name):
    values = ramp((9,), "<f4" if name == "quantize" else "<i4")
    path = tmp_path / "g"
    zarr.create_group(str(path), zarr_format=2)
    make(path / "good", values, chunks=(5,), zarr_format=2)
    make(path / "bad", values, chunks=(5,), zarr_format=2, compressors=None, **UNSUPPORTED[name])
    index = read(path)
    bad = asset_named(index, "bad")
    assert name in bad.error
    assert "on_unsupported='host'" in bad.error
    assert (bad.grid, bad.shape, bad.dtype) == (None, (9,), values.dtype)
    assert load(index, asset_named(index, "good")).tolist() == values.tolist()
    assert reader.load_with_zarr(index.store, "bad").tolist() == values.tolist()


@pytest.mark.parametrize("version", [2, 3])
def test_strings_of_any_length(tmp_path, version):
    group = zarr.create_group(str(tmp_path / "g"), zarr_format=version)
    group.create_array("text", shape=(3,), dtype="str")
    group.create_array("good", shape=(3,), dtype="i4")
    index = read(tmp_path / "g")
    assert "objects" in asset_named(index, "text").error
    assert asset_named(index, "good").error == ""
    with pytest.raises(GpuloadError, match="pickles"):
        reader.load_with_zarr(index.store, "text")


@pytest.mark.parametrize("dtype", ["|O", "<i4"])
def test_pickles_are_never_loaded(tmp_path, dtype):
    pickled = {"id": "pickle", "protocol": 4}
    path = written(tmp_path / "a", document_2(dtype, None, filters=[pickled]))
    for key in ("0", "1"):
        (path / key).write_bytes(b"cos\nabort\n(tR.")  # ends the process that loads it
    (asset,) = read(path).assets
    assert "objects" in asset.error or "'pickle'" in asset.error
    with pytest.raises(GpuloadError):
        reader.load_with_zarr(path)


def test_the_size_of_shuffled_elements_that_is_left_out(tmp_path):
    document = document_2("<i8", 0, filters=[{"id": "shuffle"}])
    (asset,) = read(written(tmp_path / "a", document)).assets
    assert asset.codecs == ("shuffle(4)",), "the default of numcodecs"


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_what_zarr_python_cannot_decode(tmp_path, damage):
    how = {"filters": [numcodecs.BZ2()], "compressors": None}
    path = make(tmp_path / "a", ramp((9,), "<i4"), chunks=(5,), zarr_format=2, **how)
    if damage == "cut":
        (path / "0").write_bytes((path / "0").read_bytes()[:20])
    else:
        (path / ".zarray").unlink()
    with pytest.raises((GpuloadError, OSError)):
        reader.load_with_zarr(path)


# Chunks


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("kind", ["v2 of 2", "v2", "default"])
def test_keys(tmp_path, kind, separator):
    version = 2 if kind == "v2 of 2" else 3
    encoding = {"name": kind.split()[0], "separator": separator}
    values = ramp((13, 10), "<i4")
    path = make(
        tmp_path / "a",
        values,
        chunks=(5, 4),
        zarr_format=version,
        chunk_key_encoding=encoding,
    )
    same(path)
    start = "c" + separator if kind == "default" else ""
    assert (path / f"{start}2{separator}1").is_file()


@pytest.mark.parametrize("kind", ["v2 of 2", "v2", "default"])
def test_arrays_of_no_axes(tmp_path, kind):
    version = 2 if kind == "v2 of 2" else 3
    encoding = {"name": kind.split()[0], "separator": "/"}
    how = {"zarr_format": version, "chunk_key_encoding": encoding}
    same(make(tmp_path / "a", np.float32(1.5).reshape(()), chunks=(), **how))


@pytest.mark.parametrize("version", [2, 3])
def test_empty_arrays(tmp_path, version):
    assert (
        same(make(tmp_path / "a", np.zeros((0, 3)), chunks=(4, 2), zarr_format=version)).size == 0
    )


@pytest.mark.parametrize("version", [2, 3])
def test_chunks_larger_than_the_array(tmp_path, version):
    same(make(tmp_path / "a", ramp((3, 2), "<i4"), chunks=(10, 10), zarr_format=version))


@pytest.mark.parametrize("version", [2, 3])
def test_missing_chunks(tmp_path, version):
    array = zarr.create_array(
        str(tmp_path / "a"), shape=(20,), chunks=(3,), dtype="f4", fill_value=7, zarr_format=version
    )
    array[4:11] = 1
    same(tmp_path / "a")
    (asset,) = read(tmp_path / "a").assets
    places = asset.grid.locate(np.arange(7).reshape(-1, 1))
    assert (places.objects < 0).tolist() == [True, False, False, False, True, True, True]


def test_opening_asks_for_no_chunk(tmp_path, monkeypatch):
    make(tmp_path / "a", ramp((20,), "<i4"), chunks=(3,), zarr_format=3)
    store = reader.open_store(tmp_path / "a")
    asked = []
    real = store.sizes
    monkeypatch.setattr(store, "sizes", lambda keys: asked.extend(keys) or real(keys))
    index = reader.read(store, OPTIONS)
    assert set(asked) == {"zarr.json", ".zarray", ".zmetadata", ".zgroup"}
    assert index.stored_size is None


# Fill values


def hexadecimal(text):
    return bytes.fromhex(text)[::-1]  # the host is little-endian wherever CUDA is


FILLS = [
    (3, "float32", "NaN", np.float32("nan").tobytes()),
    (3, "float32", "Infinity", np.float32("inf").tobytes()),
    (3, "float32", "-Infinity", np.float32("-inf").tobytes()),
    (3, "float32", "0x7fc00001", hexadecimal("7fc00001")),
    (3, "float32", "0xff800001", hexadecimal("ff800001")),
    (3, "float16", "0x7e01", hexadecimal("7e01")),
    (3, "float64", "0x7ff0000000000001", hexadecimal("7ff0000000000001")),
    (3, "float64", 1, np.float64(1).tobytes()),
    (3, "complex64", ["NaN", "0x7fc00001"], np.float32("nan").tobytes() + hexadecimal("7fc00001")),
    (3, "complex128", [1.5, -2], np.complex128(1.5 - 2j).tobytes()),
    (3, "uint64", 2**64 - 1, b"\xff" * 8),
    (3, "int8", -1, b"\xff"),
    (3, "bool", True, b"\x01"),
    (3, "r24", [1, 2, 255], b"\x01\x02\xff"),
    (3, "bfloat16", "NaN", b"\xc0\x7f"),
    (3, "bfloat16", 1.5, b"\xc0\x3f"),
    (3, "bfloat16", "0x7fc1", hexadecimal("7fc1")),
    (3, "float8_e4m3fn", 1, b"\x38"),
    (3, "float8_e5m2", "-Infinity", b"\xfc"),
    (2, "bfloat16", 1.5, b"\xc0\x3f"),
    (2, "<f4", "NaN", np.float32("nan").tobytes()),
    (2, ">f4", 1.5, np.float32(1.5).tobytes()),
    (2, "<f8", "-Infinity", np.float64("-inf").tobytes()),
    (2, "<f4", "0x7fc00001", hexadecimal("7fc00001")),
    (2, "<f4", None, bytes(4)),
    (2, "<M8[ns]", None, bytes(8)),
    (2, "<M8[ns]", -(2**63), (2**63).to_bytes(8, "little")),
    (2, ">i4", 258, (258).to_bytes(4, "little")),
    (2, "<i4", 258.0, (258).to_bytes(4, "little")),
    (2, "<u1", 3, b"\x03"),
    (2, "|b1", True, b"\x01"),
    (2, "|b1", False, b"\x00"),
    (2, "|S4", "YWI=", b"ab\0\0"),
    (2, "|S4", "", bytes(4)),
    (2, "|S4", 0, bytes(4)),
    (2, "<U2", "a", b"a\0\0\0\0\0\0\0"),
    (2, "|V3", "AQID", b"\x01\x02\x03"),
    (2, "<c8", [1.0, "NaN"], np.float32(1).tobytes() + np.float32("nan").tobytes()),
    (2, "<c8", 0.0, bytes(8)),
    (2, [["a", "<i2"], ["b", "|u1"]], "AQID", b"\x01\x02\x03"),
    (2, [["a", "<i2"], ["b", "|u1"]], None, bytes(3)),
]


@pytest.mark.parametrize(("version", "dtype", "fill", "wanted"), FILLS)
def test_fill_values(tmp_path, version, dtype, fill, wanted):
    document = (document_2 if version == 2 else document_3)(dtype, fill)
    (asset,) = read(written(tmp_path / "a", document)).assets
    assert asset.error == ""
    assert asset.fill == wanted
    found = load(read(tmp_path / "a"), asset)
    assert found.tobytes() == wanted * 4


BAD_FILLS = [
    (3, "float32", "nan"),
    (3, "float32", "0x7fc0"),
    (3, "float32", "0xzz"),
    (3, "float32", True),
    (3, "float32", [1]),
    (3, "float32", None),
    (3, "float64", 10**400),
    (3, "int8", 300),
    (3, "int8", 0.5),
    (3, "complex64", [1]),
    (3, "complex64", 1),
    (3, "r16", [1]),
    (3, "r16", [1, 256]),
    (3, "r16", 3),
    (2, "|S2", 5),
    (2, "<i4", 2**40),
]


@pytest.mark.parametrize(("version", "dtype", "fill"), BAD_FILLS)
def test_bad_fill_values(tmp_path, version, dtype, fill):
    document = (document_2 if version == 2 else document_3)(dtype, fill)
    with pytest.raises(FormatError, match=r"a/(zarr\.json|\.zarray): .*fill_value"):
        read(written(tmp_path / "a", document))
