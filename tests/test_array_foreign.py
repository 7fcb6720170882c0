"""Arrays that zarr-python decodes: the same checks, and the same selections, as of others."""

from __future__ import annotations

import json
from concurrent.futures import CancelledError

import numpy as np
import pytest

import gpuload
from gpuload import array_checks
from gpuload.containers import zarr_host
from gpuload.errors import FormatError, GpuloadError, MemoryLimitError, UnsupportedCodecError

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")

DATA = np.arange(60 * 50, dtype=np.float32).reshape(60, 50)
HOST = {"device": "cpu", "on_unsupported": "host"}


def make(path, name, data=DATA, codec=None, chunks=(16, 20)):
    array = zarr.open_group(str(path), mode="a", zarr_format=2).create_array(
        name, shape=data.shape, dtype=data.dtype, chunks=chunks, compressors=codec
    )
    array[...] = data


@pytest.fixture
def group(tmp_path):
    path = tmp_path / "g.zarr"
    make(path, "known", codec=numcodecs.Zstd())
    make(path, "other", codec=numcodecs.LZMA())
    make(path, "swapped", DATA.astype(">i4"), numcodecs.LZMA())
    make(path, "empty", np.zeros(0, "u1"), numcodecs.LZMA(), chunks=(1,))
    make(path, "single", np.array(7.5), numcodecs.LZMA(), chunks=())
    return path


INDICES = [
    ...,
    (),
    3,
    (slice(50, 10, -3), -1),
    ([0, 59, 0], [1, 2, 49]),
    ([[1], [40]], slice(None, None, -7)),
    DATA % 7 == 0,
    (None, DATA[:, 0] > 99, 5),
    (slice(5, 5), 0),
]


@pytest.mark.parametrize("index", INDICES, ids=lambda index: str(index)[:30])
def test_selections_are_those_of_numpy(group, index):
    with gpuload.open(group, **HOST) as container:
        found = np.asarray(container["other"][index])
        assert (found.dtype, found.shape) == (DATA.dtype, DATA[index].shape)
        assert (found == DATA[index]).all()
        out = np.empty_like(found)
        container.load("other", index, out=out)
        assert (out == DATA[index]).all()
        assert container.report.engine == "zarr-python"
        assert container.report.raw_size == found.nbytes


def test_only_chunks_that_are_needed_are_decoded(group):
    with gpuload.open(group, **HOST) as container:
        container["other"][0, 0:20]
        assert container.report.chunks == 1
        container["other"][::16, 0]
        assert container.report.chunks == 4


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_shards(tmp_path):
    codecs = pytest.importorskip("zarr.codecs.numcodecs", reason="this zarr has no such codecs")
    path = tmp_path / "a.zarr"
    layout = {"shape": DATA.shape, "shards": (32, 40), "chunks": (16, 20), "dtype": "f4"}
    array = zarr.create_array(str(path), compressors=codecs.LZMA(), **layout)
    array[...] = DATA
    with gpuload.open(path, **HOST) as container:
        assert (np.asarray(container[""][40:2:-3, [3, 49]]) == DATA[40:2:-3, [3, 49]]).all()
        assert (container.report.engine, container.report.chunks) == ("zarr-python", 4)


@pytest.mark.parametrize("name", ["swapped", "empty", "single"])
def test_other_elements_and_shapes(group, name):
    expected = {"swapped": DATA.astype("i4"), "empty": np.zeros(0, "u1"), "single": np.array(7.5)}
    with gpuload.open(group, **HOST) as container:
        found = np.asarray(container.load(name))
    assert found.dtype.isnative
    assert (found.shape, found.tolist()) == (expected[name].shape, expected[name].tolist())


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.empty((2, 50)), ValueError, "out has elements of type float64"),
        (np.empty((50, 2), np.float32), ValueError, r"out has the shape \(50, 2\)"),
        (np.empty((2, 100), np.float32)[:, ::2], ValueError, "C-contiguous"),
        (np.empty((1, 50), np.float32), ValueError, r"out has the shape \(1, 50\)"),
        (np.broadcast_to(np.float32(0), (2, 50)), ValueError, "writable"),
        (DATA[:2].tolist(), TypeError, "out must be a NumPy array"),
    ],
    ids=["type", "shape", "strides", "too small", "read-only", "list"],
)
def test_memory_of_the_caller(group, out, error, message):
    with gpuload.open(group, **HOST) as container, pytest.raises(error, match=message):
        container.load("other", slice(2), out=out)


def test_limits(group, monkeypatch):
    with gpuload.open(group, max_output=DATA.nbytes - 1, **HOST) as container:
        with pytest.raises(MemoryLimitError, match=f"other: {DATA.nbytes} bytes are selected"):
            container.load("other")
        with pytest.raises(MemoryLimitError, match="2 selections together"):
            container.load_many({"known": slice(30), "other": slice(30)})
        assert not container.verify().unchecked
    make(group, "large", codec=numcodecs.LZMA(), chunks=(60, 50))
    with gpuload.open(group, memory_limit=5000, **HOST) as container:
        with pytest.raises(MemoryLimitError, match="a chunk decodes to 12000 bytes, memory_limit"):
            container.load("large")
        assert "memory_limit" in container.verify().unchecked["large"]
    monkeypatch.setattr(array_checks, "available", lambda: 11_999)
    with (
        gpuload.open(group, **HOST) as container,
        pytest.raises(MemoryLimitError, match="there are 11999 bytes of memory"),
    ):
        container.load("other")


def test_verify_keeps_nothing(tmp_path, monkeypatch):
    """An array may be larger than memory."""
    make(tmp_path / "g", "other", codec=numcodecs.LZMA())
    monkeypatch.setattr(array_checks, "available", lambda: 5000)
    with gpuload.open(tmp_path / "g", memory_limit=5000, **HOST) as container:
        report = container.verify()
    assert (report.failures, report.unchecked) == ([], {})
    assert (report.raw_size, report.chunks) == (DATA.nbytes, 12)


def test_with_others_in_one_load(group):
    with gpuload.open(group, **HOST) as container:
        found = container.load_many({"other": 3, "known": ..., "swapped": (..., 1)})
        assert (np.asarray(found["other"]) == DATA[3]).all()
        assert (np.asarray(found["known"]) == DATA).all()
        assert (np.asarray(found["swapped"]) == DATA[..., 1]).all()
        assert container.report.engine == "host, zarr-python"


BREAKS = {
    "a shape that is none": {"shape": [-3, 4]},
    "another number of axes": {"chunks": [16]},
    "an order that is none": {"order": "K"},
    "no type": {"dtype": 5},
}


@pytest.mark.parametrize("what", BREAKS)
def test_broken_metadata_is_not_left_to_others(group, monkeypatch, what):
    """Also where zarr-python makes something of it."""
    (group / ".zmetadata").unlink(missing_ok=True)
    file = group / "other" / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | BREAKS[what]))
    with gpuload.open(group, on_unsupported="host", device="cpu") as container:
        error = container.assets[list(container).index("other")].error
        assert error
        sound = zarr_host.zarr_array(container._index.store, "known")
        monkeypatch.setattr(zarr_host, "zarr_array", lambda *_: sound)
        with pytest.raises(UnsupportedCodecError) as raised:
            container.load("other")
        assert error in str(raised.value)
        assert container.verify().unchecked["other"] == error
        assert next(each for each in container.explain() if each.asset == "other").engine == "none"


def test_chunks_that_do_not_decode(group):
    (group / "other" / "1.1").write_bytes(b"no LZMA")
    with gpuload.open(group, **HOST) as container:
        with pytest.raises(FormatError, match="zarr-python"):
            container.load("other")
        assert (np.asarray(container["other"][:16]) == DATA[:16]).all()
        assert [failure.asset for failure in container.verify().failures] == ["other"]


def test_a_load_that_is_cancelled(group, monkeypatch):
    original = zarr_host._chunk
    loads = []

    def slow(*given):
        loads[0].cancel()
        return original(*given)

    monkeypatch.setattr(zarr_host, "_chunk", slow)
    with gpuload.open(group, threads=1, **HOST) as container:
        from gpuload.watch import Watch

        loads.append(Watch())
        with pytest.raises(CancelledError):
            container._load("other", ..., None, None, None, loads[0])


def test_pickles_are_never_loaded(tmp_path):
    zarr.open_group(str(tmp_path / "g"), mode="w", zarr_format=2).create_array(
        "text", shape=(3,), dtype="str"
    )
    with gpuload.open(tmp_path / "g", **HOST) as container, pytest.raises(GpuloadError):
        container.load("text")


def test_stored_chunks_are_not_asked_of_others(group):
    with gpuload.open(group, **HOST) as container:
        assert container.stored("known")[1:] == (12, 0)
        with pytest.raises(UnsupportedCodecError, match="lzma"):
            container.stored("other")


def test_more_chunks_than_there_is_memory_for(tmp_path):
    path = tmp_path / "a.zarr"
    settings = {"shape": (1 << 40,), "chunks": (1,), "dtype": "u1", "zarr_format": 2}
    zarr.create_array(str(path), compressors=numcodecs.LZMA(), **settings)
    with gpuload.open(path, **HOST) as container:
        with pytest.raises(MemoryLimitError, match=f"list of the {1 << 22} chunks"):
            container[""][: 1 << 22]
        assert "list of the" in container.verify().unchecked[""]
        assert not np.asarray(container[""][7:9]).any()
