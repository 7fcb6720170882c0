"""Files of arrays as users open them: on the host."""

from __future__ import annotations

import threading
import zipfile
from concurrent.futures import CancelledError

import numpy as np
import pytest

import gpuload
from gpuload.errors import (
    DecompressError,
    FormatError,
    MemoryLimitError,
    UnsupportedCodecError,
)

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")

DATA = np.arange(60 * 50, dtype=np.float32).reshape(60, 50)
HOST = {"device": "cpu"}


@pytest.fixture
def group(tmp_path):
    """A group of two arrays, one of which has a codec that gpuload does not know."""
    root = zarr.open_group(str(tmp_path / "g.zarr"), mode="w", zarr_format=2)
    for name, codec in (("known", numcodecs.Zstd()), ("other", numcodecs.LZMA())):
        array = root.create_array(
            name, shape=DATA.shape, dtype=DATA.dtype, chunks=(16, 20), compressors=codec
        )
        array[...] = DATA
    return tmp_path / "g.zarr"


@pytest.fixture
def npz(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=DATA, b=np.asfortranarray(DATA), c=DATA.astype(">f8"))
    return tmp_path / "x.npz"


def test_a_mapping_of_arrays(group):
    with gpuload.open(group, **HOST) as container:
        assert isinstance(container, gpuload.ArrayContainer)
        assert container.format == "zarr"
        assert list(container) == list(container.keys()) == ["known", "other"]
        assert [lazy.name for lazy in container.values()] == ["known", "other"]
        assert len(container) == 2
        assert "known" in container
        lazy = container["known"]
        assert (lazy.shape, lazy.dtype, lazy.chunk_shape) == ((60, 50), np.float32, (16, 20))
        assert (lazy.nbytes, lazy.ndim, len(lazy)) == (DATA.nbytes, 2, 60)
        with pytest.raises(KeyError, match=r"no array 'temp'; it has 'known', 'other'"):
            container["temp"]


@pytest.mark.parametrize(
    "index", [..., (slice(10, 20), slice(None, None, 2)), 3, (..., -1), ([0, 59], [1, 2]), DATA > 9]
)
def test_selections(group, index):
    with gpuload.open(group, **HOST) as container:
        found = np.asarray(container["known"][index])
        assert found.shape == DATA[index].shape
        assert (found == DATA[index]).all()
        assert container.report.raw_size == found.nbytes


def test_only_chunks_that_are_needed_are_read(group):
    with gpuload.open(group, **HOST) as container:
        container["known"][0, 0:20]
        assert container.report.chunks == 1
        container["known"][::16, 0]
        assert container.report.chunks == 4


def test_an_unknown_codec(group):
    with gpuload.open(group, **HOST) as container:
        with pytest.raises(UnsupportedCodecError, match=r"lzma.*on_unsupported"):
            container.load("other")
        assert (np.asarray(container.load("known")) == DATA).all()
    with gpuload.open(group, on_unsupported="host", **HOST) as container:
        assert (np.asarray(container["other"][3:5]) == DATA[3:5]).all()
        assert container.report.engine == "zarr-python"
        assert container.explain()[1].reason == "zarr-python decodes it"
        report = container.verify()
        assert not report.failures
        assert not report.unchecked
    (group / "other" / "0.0").unlink()
    with (
        gpuload.open(group, on_unsupported="host", missing="error", **HOST) as container,
        pytest.raises(FormatError, match="1 chunks are missing"),
    ):
        container.load("other")


def test_a_chunk_that_is_missing(group):
    (group / "known" / "1.1").unlink()
    expected = DATA.copy()
    expected[16:32, 20:40] = 0
    with gpuload.open(group, **HOST) as container:
        assert (np.asarray(container.load("known")) == expected).all()
    with gpuload.open(group, missing="error", **HOST) as container:
        with pytest.raises(FormatError, match=r"chunk \(1, 1\) is missing"):
            container.load("known")
        assert (np.asarray(container["known"][:16]) == DATA[:16]).all()


def test_damage(group):
    file = group / "known" / "1.1"
    file.write_bytes(file.read_bytes()[:-9])
    with gpuload.open(group, **HOST) as container:
        with pytest.raises(
            DecompressError, match=r"known/1\.1: known: chunk 4 at byte 0: "
        ) as error:
            container.load("known")
        assert [failure.chunk for failure in error.value.failures] == [4]
        assert (np.asarray(container["known"][32:]) == DATA[32:]).all()
        report = container.verify()
        assert list(report.unchecked) == ["other"]
        assert [(each.asset, each.chunk) for each in report.failures] == [("known", 4)]
    with gpuload.open(group, on_error="skip", **HOST) as container:
        with pytest.warns(gpuload.errors.FormatWarning, match="chunk 4"):
            found = np.asarray(container.load("known"))
        assert (found[16:32, 20:40] == 0).all()
        assert (found[:16] == DATA[:16]).all()


LOADS = {
    "load": lambda container: container.load("known"),
    "load_many": lambda container: container.load_many({"known": ...}),
    "array[...]": lambda container: container["known"][...],
    "array.load": lambda container: container["known"].load(),
}


@pytest.mark.parametrize("name", LOADS)
def test_warnings_are_of_the_callers_line(group, name):
    file = group / "known" / "1.1"
    file.write_bytes(file.read_bytes()[:-9])
    with gpuload.open(group, on_error="skip", **HOST) as container:
        with pytest.warns(gpuload.errors.FormatWarning, match="chunk 4") as record:
            LOADS[name](container)
        (line,) = {warning.lineno for warning in record}
        assert (record[0].filename, line) == (__file__, LOADS[name].__code__.co_firstlineno)


def test_several_at_once(npz):
    with gpuload.open(npz, **HOST) as container:
        found = container.load_many({"c": (0, ...), "a": slice(2, 4), "b": ...})
        assert list(found) == ["c", "a", "b"]
        assert np.asarray(found["c"]).dtype == np.dtype("f8")
        for name, index in (("c", (0, ...)), ("a", slice(2, 4)), ("b", ...)):
            assert (np.asarray(found[name]) == DATA[index]).all()
        assert container.report.chunks == 3


def test_by_name_in_one_call(npz):
    assert (np.asarray(gpuload.load(npz, "b", **HOST)) == DATA).all()
    assert (np.asarray(gpuload.load(npz, "a", index=(3, slice(5)), **HOST)) == DATA[3, :5]).all()
    load = gpuload.load_async(npz, "a", index=4, **HOST)
    assert (np.asarray(load.result()) == DATA[4]).all()
    assert load.stats.raw_size == DATA[4].nbytes
    with pytest.raises(KeyError, match="has several arrays, name one of 'a', 'b', 'c'"):
        gpuload.load(npz, **HOST)
    with pytest.raises(IndexError, match="index 60 is out of bounds for axis 0 with size 60"):
        gpuload.load(npz, "a", index=60, **HOST)


def test_memory_of_the_caller(npz):
    out = np.empty((2, 50), np.float32)
    with gpuload.open(npz) as container:
        assert (np.asarray(container.load("a", slice(2), out=out)) == out).all()
        assert (out == DATA[:2]).all()
        for bad, message in (
            (np.empty((2, 50)), "out has elements of type float64"),
            (np.empty((50, 2), np.float32), r"out has the shape \(50, 2\)"),
            (np.empty((2, 100), np.float32)[:, ::2], "C-contiguous"),
        ):
            with pytest.raises(ValueError, match=message):
                container.load("a", slice(2), out=bad)


def test_limits(npz):
    with pytest.raises(MemoryLimitError, match="over the limit of 100; raise max_output"):
        gpuload.load(npz, "a", max_output=100, **HOST)
    with pytest.raises(MemoryLimitError, match=r"a chunk needs .* bytes to decode, memory_limit"):
        gpuload.load(npz, "c", memory_limit=10_000, **HOST)


def test_arrays_larger_than_memory(tmp_path):
    path = tmp_path / "a.zarr"
    zarr.create_array(store=str(path), shape=(1 << 50,), dtype="f8", chunks=(1 << 20,))
    with gpuload.open(path, **HOST) as container:
        with pytest.raises(MemoryLimitError, match=rf"{8 << 50} bytes are selected"):
            container.load()
        with pytest.raises(MemoryLimitError, match=r"the list of the \d+ chunks that are needed"):
            container[""][:: 1 << 27]
        assert "the list of the" in container.verify().unchecked[""]
        assert np.asarray(container[""][1 << 49]) == 0


def test_closed(npz):
    container = gpuload.open(npz)
    container.close()
    with pytest.raises(ValueError, match="closed"):
        container.load("a", device="cpu")


def test_streams_have_no_index():
    stream = gpuload.compress
    assert stream is not None
    with pytest.raises(IndexError, match="holds a stream of bytes"):
        gpuload.load(b"\x04\x22\x4d\x18\x60\x40\x82" + bytes(4), index=3, **HOST)


def test_members_of_a_zip_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/text", b"words " * 1000)
        archive.writestr("empty", b"")
    with gpuload.open(tmp_path / "x.zip", **HOST) as container:
        assert bytes(container.load("folder/text")) == b"words " * 1000
        assert bytes(container["folder/text"][6:12]) == b"words "
        assert bytes(container.load("empty")) == b""


def test_threads_share_a_container(group):
    results: list[bool] = []

    def work(container):
        rows = range(0, 60, 7)
        results.extend((np.asarray(container["known"][row:]) == DATA[row:]).all() for row in rows)

    with gpuload.open(group, **HOST) as container:
        threads = [threading.Thread(target=work, args=(container,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 36
    assert all(results)


def test_a_load_that_is_cancelled(group, monkeypatch):
    from gpuload.sources.folder_store import FolderStore

    reached, go_on = threading.Event(), threading.Event()
    original = FolderStore.readinto

    def slow(self, key, offset, view):
        reached.set()
        go_on.wait(30)
        original(self, key, offset, view)

    monkeypatch.setattr(FolderStore, "readinto", slow)
    load = gpuload.load_async(group, "known", **HOST)
    assert reached.wait(30)
    load.cancel()
    go_on.set()
    with pytest.raises(CancelledError):
        load.result(30)


def test_what_is_shown(group):
    with gpuload.open(group, **HOST) as container:
        known, other = container.explain()
        assert (known.asset, known.engine) == ("known", "host")
        assert other.engine == "none"
        assert "lzma" in other.reason
        assert container.stored("known")[1:] == (12, 0)


def test_chunks_of_absurd_sizes(tmp_path):
    """They are told before anything is made for them; missing ones take nothing."""
    path = tmp_path / "a.zarr"
    size = 1 << 62
    zarr.create_array(store=str(path), shape=(size,), chunks=(size,), dtype="u1", fill_value=7)
    with gpuload.open(path, **HOST) as container:
        assert np.asarray(container[""][5:9]).tolist() == [7] * 4
    (path / "c").mkdir()
    (path / "c" / "0").write_bytes(b"anything")
    with gpuload.open(path, **HOST) as container:
        with pytest.raises(MemoryLimitError, match=f"a chunk decodes to {size} bytes"):
            container[""][5:9]
        assert "decodes to" in container.verify().unchecked[""]


def test_verify_keeps_to_its_memory(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1 << 20), b=np.zeros(10))
    with gpuload.open(tmp_path / "x.npz", memory_limit=1 << 20, **HOST) as container:
        report = container.verify()
    assert list(report.unchecked) == ["a"]
    assert "memory_limit" in report.unchecked["a"]
    assert report.chunks == 1


def test_many_missing_chunks(tmp_path):
    path = tmp_path / "a.zarr"
    made = zarr.create_array(
        store=str(path), shape=(5000, 8), chunks=(2, 4), dtype="i2", zarr_format=2, fill_value=-3
    )
    made[100:107, 2:7] = 5
    expected = np.full((5000, 8), -3, np.int16)
    expected[100:107, 2:7] = 5
    with gpuload.open(path) as container:
        assert (container.load(device="cpu").to_host() == expected).all()
        assert (
            container.load(None, (slice(None, None, -1), 3)).to_host() == expected[::-1, 3]
        ).all()
