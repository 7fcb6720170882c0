"""NPY files, which NumPy writes; some by hand (NumPy's NEP 1)."""

from __future__ import annotations

import io
import random
import struct
import warnings

import numpy as np
import pytest

from gpuload.array_codecs import Swap, Transpose
from gpuload.containers import npy
from gpuload.errors import FormatError, GpuloadError, UnsupportedCodecError
from gpuload.options import Options
from gpuload.sources import BytesSource
from tests.containers.array_reading import load
from tests.helpers.mutations import mutated

RNG = np.random.default_rng(1)
STRUCTURED = np.dtype([("a", "<f4"), ("b", "<u2", (3,)), ("ä", "S5")])
ARRAYS = {
    "float": RNG.random((20, 31), np.float32),
    "fortran": np.asfortranarray(RNG.random((5, 6, 7))),
    "big": RNG.random((9, 8)).astype(">f8"),
    "big fortran": np.asfortranarray(RNG.integers(0, 999, (9, 8))).astype(">i2", order="F"),
    "complex": (RNG.random(60) + 1j * RNG.random(60)).astype(">c8"),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 4), np.int16),
    "bool": RNG.random(99) > 0.5,
    "text": np.array([["ab", "日本語"], ["", "x"]]),
    "big text": np.array(["ab", "日本語"]).astype(">U3"),
    "bytes": np.array([b"abc", b"d"]),
    "time": np.array(["2020-01-01", "NaT"], ">M8[s]"),
    "void": np.array([b"abcde", b"vwxyz"]).view("V5"),
    "structured": np.frombuffer(RNG.bytes(15 * 6), STRUCTURED),
}


def saved(array: np.ndarray, **options) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of versions that old NumPys cannot read
        np.save(buffer, array, **options)
    return buffer.getvalue()


def handmade(text: str, data: bytes = b"", version: int = 1, minor: int = 0) -> bytes:
    encoded = text.encode("utf-8" if version == 3 else "latin-1")
    length = struct.pack("<H" if version == 1 else "<I", len(encoded))
    return b"\x93NUMPY" + bytes([version, minor]) + length + encoded + data


def described(descr: str, shape: str = "(2,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


def read(data: bytes, **options):
    return npy.read(BytesSource(data, "a.npy"), Options(**options))


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name):
    index = read(saved(ARRAYS[name]))
    (asset,) = index.assets
    found, expected = load(index, asset), ARRAYS[name]
    assert (index.format, asset.name) == ("npy", "")
    assert asset.dtype.isnative
    assert asset.shape == expected.shape
    assert found.dtype == expected.dtype.newbyteorder("=")
    assert found.tobytes() == expected.astype(expected.dtype.newbyteorder("=")).tobytes("C")


@pytest.mark.parametrize("name", ["float", "fortran", "big", "big fortran", "bool"])
def test_cut_into_chunks(name, monkeypatch):
    monkeypatch.setattr(npy.raw_asset, "__kwdefaults__", {"piece": 60, "checksum": -1})
    index = read(saved(ARRAYS[name]))
    (asset,) = index.assets
    assert asset.chunk_shape != asset.shape
    expected = ARRAYS[name]
    assert load(index, asset).tobytes() == expected.astype(
        expected.dtype.newbyteorder("=")
    ).tobytes("C")


def test_filters():
    assert read(saved(ARRAYS["float"])).assets[0].pipeline.steps == ()
    assert read(saved(ARRAYS["big"])).assets[0].pipeline.steps == (Swap(8),)
    assert read(saved(ARRAYS["complex"])).assets[0].pipeline.steps == (Swap(4),)
    assert read(saved(ARRAYS["big text"])).assets[0].pipeline.steps == (Swap(4),)
    steps = read(saved(ARRAYS["fortran"])).assets[0].pipeline.steps
    assert steps == (Transpose((2, 1, 0), 8),)


def test_large_arrays_are_chunks_of_4_mib():
    array = np.zeros((5_000, 1_024), np.float32)
    (asset,) = read(saved(array)).assets
    assert asset.chunk_shape == (1_024, 1_024)
    assert asset.clipped
    places = asset.grid.locate(np.array([[4, 0]]))
    assert places.sizes.tolist() == [904 * 4_096]
    assert places.offsets.tolist() == [128 + 4_096 * 4_096]


def test_names_of_fields_in_version_3():
    dtype = np.dtype([("日本", "<f4"), ("x", "<i4")])
    data = saved(np.ones(3, dtype))
    assert data[6] == 3
    assert read(data).assets[0].dtype == dtype


def test_long_headers_of_version_2():
    text = described("'<f4'").rstrip() + " " * 5_000 + "\n"
    data = handmade(text, np.float32([1, 2]).tobytes(), 2)
    index = read(data)
    assert load(index, index.assets[0]).tolist() == [1, 2]


def test_headers_of_python_2():
    data = handmade("{'descr': '<f4', 'fortran_order': False, 'shape': (2L,)}\n", bytes(8))
    assert read(data).assets[0].shape == (2,)


def test_objects_are_never_unpickled():
    data = saved(np.array([{"a": 1}, None], object), allow_pickle=True)
    with pytest.raises(UnsupportedCodecError, match=r"a.npy: byte 0: .*pickle.*never"):
        read(data)
    within = handmade(described("[('a', '|O'), ('b', '<f4')]"), bytes(100))
    with pytest.raises(UnsupportedCodecError, match="pickle"):
        read(within)


def test_structured_types_in_the_other_byte_order():
    data = saved(np.zeros(3, [("a", ">f4"), ("b", "<i2")]))
    with pytest.raises(UnsupportedCodecError, match=r"structured.*>f4"):
        read(data)


@pytest.mark.parametrize("descr", ["'<U0'", "'|V0'", "('<f4', (2,))"])
def test_types_that_are_none(descr):
    with pytest.raises(GpuloadError, match=r"a\.npy"):
        read(handmade(described(descr), bytes(16)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no npy header"),
        (b"\x93NUMPX\x01\x00", "no npy header"),
        (b"\x93NUMPY", "version"),
        (handmade(described("'<f4'"), bytes(8), 4), r"version 4\.0"),
        (handmade(described("'<f4'"), bytes(8), 1, 1), r"version 1\.1"),
        (handmade(described("'<f4'"))[:40], "cut short"),
        (handmade(described("'<f4'"), bytes(7)), "ends at"),
        (handmade(described("'<f4'", "(2**9,)"), bytes(8)), "broken"),
        (handmade(described("'<f4'", "(-2,)"), bytes(8)), "negative"),
        (handmade(described("'<f4'", "(2, 10000000000000000000)"), bytes(8)), "more than 2"),
        (handmade(described("'<f4'", "(2.0,)"), bytes(8)), "broken"),
        (handmade(described("'<q9'"), bytes(8)), "broken"),
        (handmade(described("['<f4']"), bytes(8)), "broken"),
        (handmade("{'descr': '<f4'}\n", bytes(8)), "broken"),
        (handmade("[" * 9_000, bytes(8)), "broken"),
        (handmade("-" * 9_000 + "1", bytes(8)), "broken"),
        (handmade("(" * 90 + ")" * 90, bytes(8)), "broken"),
        (handmade("'\\x", bytes(8)), "broken"),
        (handmade(described("'<f4'") + " " * 20_000, bytes(8)), "broken"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(99), "limit"),
        (b"\x93NUMPY\x03\x00\x04\x00\x00\x00\xff\xff\xff\xff", "UTF-8"),
    ],
)
def test_broken_files(data, message):
    with pytest.raises(GpuloadError, match=rf"(?s)a\.npy: byte \d+: .*{message}"):
        read(data)


def test_bytes_behind_the_array():
    """As of several arrays in one file, of which NumPy reads the first."""
    data = saved(ARRAYS["float"]) * 2
    index = read(data)
    assert load(index, index.assets[0]).tobytes() == ARRAYS["float"].tobytes()
    assert "behind the array" in index.warnings[0]
    with pytest.raises(FormatError, match="behind the array"):
        read(data, strict=True)


@pytest.mark.parametrize("seed", range(4))
def test_damaged(seed):
    """An array, or a GpuloadError; and the array that NumPy makes of it, if it makes one."""
    rng = random.Random(seed)
    files = [saved(array) for array in ARRAYS.values()]
    for _ in range(250):
        data = mutated(rng, files)
        try:
            index = read(data)
        except GpuloadError:
            continue
        found = load(index, index.assets[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = np.load(io.BytesIO(data))
        expected = expected.astype(expected.dtype.newbyteorder("="))
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes("C")
