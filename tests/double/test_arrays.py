"""Files of arrays, loaded to the double of a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gpuload
from gpuload import array_part, box_parts, driver, stations
from gpuload.device_array import close_pools
from gpuload.engines import rates
from gpuload.errors import (
    ChecksumError,
    DecompressError,
    EngineUnavailableError,
    GpuloadError,
    MemoryLimitError,
)
from tests.helpers.device_loads import UserArray, allocate, clean_loads, new_stream, read
from tests.test_array_corpus import ENTRIES, assert_as_promised

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")

DEVICE = {"device": 0}
#: The memory of the double is zeroed for each test.
SMALL = {"memory_limit": 12 * (2 << 20)}
RNG = np.random.default_rng(3)
# The threads that zarr-python makes for itself, before those of loads are counted.
zarr.config.set({"threading.max_workers": 1})
zarr.create_array(store={}, shape=(9,), chunks=(1,), dtype="u1")[...] = 1


@pytest.fixture(autouse=True)
def _clean(cuda, monkeypatch):
    known = replace(driver.capabilities(0), decompress_mask=0, decompress_max_length=0)
    monkeypatch.setattr(driver, "capabilities", lambda _: known)
    cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
    monkeypatch.setattr(rates, "host_seconds", lambda *_: 100.0)
    with clean_loads():
        yield
        stations.release()
        close_pools()


@pytest.fixture(params=["kernels", "host"])
def _decoder(request, monkeypatch):
    if request.param == "host":
        monkeypatch.setattr(rates, "host_seconds", lambda *_: 0.0)


@pytest.mark.usefixtures("_decoder")
@pytest.mark.filterwarnings("ignore::gpuload.errors.FormatWarning")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_corpus(entry):
    assert_as_promised(entry, DEVICE, **SMALL)


def field(shape=(60, 50), dtype=np.float32) -> np.ndarray:
    values = np.add.outer(np.arange(shape[0]), 3 * np.arange(shape[1]))
    return (values + RNG.integers(0, 9, shape)).astype(dtype)


def stored(path, data, chunks=(16, 20), **settings):
    array = zarr.create_array(
        store=str(path), shape=data.shape, dtype=data.dtype, chunks=chunks, **settings
    )
    array[...] = data
    return path


def loaded(path, index=..., **options):
    with gpuload.open(path, **SMALL | options) as container:
        array = container.load(None, index, device=0)
        return array.to_host(), container.report


V2 = [
    pytest.param({"compressors": numcodecs.LZ4()}, id="lz4"),
    pytest.param({"compressors": numcodecs.Blosc("lz4", shuffle=1)}, id="blosc lz4, bytes"),
    pytest.param({"compressors": numcodecs.Blosc("lz4", shuffle=2)}, id="blosc lz4, bits"),
    pytest.param({"compressors": numcodecs.Blosc("lz4", shuffle=0)}, id="blosc lz4, plain"),
    pytest.param({"compressors": numcodecs.Blosc("zstd", shuffle=1)}, id="blosc zstd"),
    pytest.param({"compressors": numcodecs.Blosc("blosclz", shuffle=1)}, id="blosclz"),
    pytest.param({"compressors": numcodecs.GZip()}, id="gzip"),
    pytest.param({"compressors": None}, id="raw"),
    pytest.param({"compressors": numcodecs.LZ4(), "order": "F"}, id="order F"),
    pytest.param({"compressors": numcodecs.LZ4(), "filters": [numcodecs.Shuffle(4)]}, id="shuffle"),
    pytest.param(
        {"compressors": numcodecs.LZ4(), "filters": [numcodecs.Delta("<f4")]}, id="float delta"
    ),
]
INDICES = [
    ...,
    (slice(5, 50, 3), slice(None, None, -2)),
    (7, slice(3, 44)),
    ([3, 50, 3], [1, 2, 3]),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("settings", V2)
def test_selections(tmp_path, settings, index):
    data = field()
    path = stored(tmp_path / "a.zarr", data, zarr_format=2, **settings)
    found, _ = loaded(path, index)
    assert found.dtype == data.dtype
    assert found.shape == data[index].shape
    assert (found == data[index]).all()


def test_integer_filters(tmp_path):
    data = field(dtype=np.int32)
    filters = [numcodecs.Delta("<i4"), numcodecs.FixedScaleOffset(0, 1, "<i4", "<i4")]
    path = stored(
        tmp_path / "a.zarr", data, zarr_format=2, compressors=numcodecs.LZ4(), filters=filters
    )
    assert (loaded(path)[0] == data).all()


def test_who_decoded(tmp_path):
    data = field((64, 64))
    path = stored(tmp_path / "a.zarr", data, zarr_format=2, compressors=numcodecs.LZ4())
    _, report = loaded(path)
    assert report.engine == "sm"
    assert report.windows
    assert report.windows[0].chunks == report.chunks == 16
    zstd = stored(tmp_path / "b.zarr", data, zarr_format=2, compressors=numcodecs.Zstd())
    _, report = loaded(zstd)
    assert report.engine == "host"
    assert "there is no kernel for the codec" in report.passed_over["sm"]
    with pytest.raises(EngineUnavailableError, match="the sm engine cannot decode this"):
        loaded(zstd, engine="sm")


def test_missing_chunks_are_filled(tmp_path):
    path = stored(
        tmp_path / "a.zarr",
        np.full((40, 40), 7, np.int16),
        zarr_format=2,
        compressors=numcodecs.LZ4(),
        fill_value=7,
    )
    assert not [each for each in path.iterdir() if not each.name.startswith(".")]
    found, report = loaded(path)
    assert (found == 7).all()
    assert report.chunks == 0
    with pytest.raises(GpuloadError, match="is missing"):
        loaded(path, missing="error")


def test_several_selections_are_one_load(tmp_path):
    data = field()
    np.savez_compressed(tmp_path / "x.npz", a=data, b=data[::-1], c=np.asfortranarray(data))
    with gpuload.open(tmp_path / "x.npz") as container:
        arrays = container.load_many({"a": ..., "c": (slice(3), 5), "b": 2}, device=0)
    assert (arrays["a"].to_host() == data).all()
    assert (arrays["b"].to_host() == data[::-1][2]).all()
    assert (arrays["c"].to_host() == data[:3, 5]).all()


def test_into_memory_of_the_caller(tmp_path):
    data = field()
    np.save(tmp_path / "x.npy", data)
    stream = new_stream()
    with allocate("cuMemAlloc", data.nbytes, stream) as address:
        out = UserArray(address, data.nbytes)
        out.__cuda_array_interface__ |= {"shape": data.shape, "typestr": "<f4"}
        with gpuload.open(tmp_path / "x.npy") as container:
            container.load(out=out, stream=stream)
            with pytest.raises(ValueError, match=r"out has the shape \(60, 50\)"):
                container.load(None, slice(3), out=out, stream=stream)
        assert read(address, data.nbytes, stream) == data.tobytes()
    stream.close()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_into_an_array_of_a_type_of_ml_dtypes(tmp_path, name):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    first, second = (np.arange(12).astype(getattr(ml_dtypes, name)) * sign for sign in (1, -1))
    whole = np.arange(12, dtype="u2" if name == "bfloat16" else "u1")
    path = tmp_path / "x.safetensors"
    numpy.save_file({"a": first, "b": second, "c": whole}, path)
    with gpuload.open(path, **SMALL) as container:
        out = container.load("a", device=0)
        loaded = container.load("b", out=out)
        assert loaded.dtype == out.dtype == first.dtype
        assert out.to_host().tobytes() == loaded.to_host().tobytes() == second.tobytes()
        for wrong in ("c", "a"):
            other = container.load(wrong, device=0)
            other._dtype = np.dtype(f"V{first.itemsize}") if wrong == "a" else other.dtype
            with pytest.raises(ValueError, match="out has elements of type"):
                container.load("b", out=other)
        with pytest.raises(ValueError, match=r"out has the shape \(12,\)"):
            container.load("b", slice(3), out=out)


def test_millions_of_points(tmp_path, monkeypatch):
    """Their boxes are made part by part."""
    monkeypatch.setattr(box_parts, "_LISTED", 64)
    data = field((300, 300))
    path = stored(tmp_path / "a.zarr", data, (50, 40), zarr_format=2, compressors=numcodecs.LZ4())
    mask = RNG.random(data.shape) < 0.5
    places = tuple(RNG.integers(0, 300, (2, 40_000)))
    for index in (mask, places, (mask[0], slice(None, None, 3)), (slice(9, 2, -1), mask[1])):
        found, _ = loaded(path, index)
        assert (found == data[index]).all()


def damage(path, name):
    """Flip a bit in the middle of a stored chunk."""
    file = path / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(bytes(content))


def test_damage(tmp_path):
    data = np.zeros((64, 64), np.float32) + np.arange(64, dtype=np.float32)
    path = stored(tmp_path / "a.zarr", data, (32, 64), zarr_format=2, compressors=numcodecs.GZip())
    damage(path, "1.0")
    with pytest.raises((ChecksumError, DecompressError), match=r"a\.zarr/1\.0: chunk 1 at byte 0"):
        loaded(path)
    with pytest.warns(gpuload.errors.FormatWarning, match="chunk 1"):
        found, report = loaded(path, on_error="skip")
    assert (found[:32] == data[:32]).all()
    assert (found[32:] == 0).all()
    assert [failure.chunk for failure in report.failures] == [1]


def test_what_the_kernels_fail_on(tmp_path, monkeypatch):
    """The host tries again, or zeros are written, or that is the end."""
    data = field((64, 64))
    path = stored(tmp_path / "a.zarr", data, (32, 64), zarr_format=2, compressors=numcodecs.LZ4())
    submit = array_part.PartWork._decode_on_device

    def failing(self, engine, rows, src, dst):
        rows = rows.copy()
        rows["stored_size"][1] -= 3
        submit(self, engine, rows, src, dst)

    monkeypatch.setattr(array_part.PartWork, "_decode_on_device", failing)
    with pytest.raises(DecompressError, match="chunk 1 at byte 0"):
        loaded(path)
    found, _ = loaded(path, on_error="retry-host")
    assert (found == data).all()
    with pytest.warns(gpuload.errors.FormatWarning, match="chunk 1"):
        found, report = loaded(path, on_error="skip")
    assert (found[32:] == 0).all()
    assert (found[:32] == data[:32]).all()
    assert len(report.failures) == 1


def test_many_small_parts(tmp_path):
    data = field((300, 300))
    path = stored(tmp_path / "a.zarr", data, (20, 20), zarr_format=2, compressors=numcodecs.LZ4())
    found, report = loaded(path)
    assert (found == data).all()
    assert report.peak_device <= SMALL["memory_limit"]


def test_a_chunk_that_is_larger_than_the_limit(tmp_path):
    data = np.zeros((1 << 20,), np.float32)
    np.savez_compressed(tmp_path / "x.npz", a=data)
    with (
        pytest.raises(MemoryLimitError, match="raise it"),
        gpuload.open(tmp_path / "x.npz", memory_limit=4 << 20) as container,
    ):
        container.load("a", device=0)


def tensors(path, arrays):
    from safetensors.numpy import save_file

    save_file(arrays, path)
    return path


def test_what_nothing_compresses_is_copied(tmp_path, cuda):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    arrays = {str(n): field((n, 7), np.int16) for n in (1, 3, 500, 40_000)}
    path = tensors(tmp_path / "x.safetensors", arrays)
    with gpuload.open(path, **SMALL) as container:
        del cuda.launches[:]
        found = container.load_many(dict.fromkeys(arrays, ...), device=0)
        assert not cuda.launches
        assert container.report.engine == "copy"
        assert {name: found[name].to_host().tobytes() for name in arrays} == {
            name: data.tobytes() for name, data in arrays.items()
        }
        some = container.load("500", (slice(10, 400, 3), slice(None, None, -1)), device=0)
        assert (some.to_host() == arrays["500"][10:400:3, ::-1]).all()


def test_pieces_of_what_is_copied(tmp_path, monkeypatch):
    from gpuload import array_copies

    monkeypatch.setattr(array_copies, "_PIECE", 1000)
    data = field((300, 50))
    np.save(tmp_path / "x.npy", data)
    found, report = loaded(tmp_path / "x.npy")
    assert found.tobytes() == data.tobytes()
    assert report.stages["read"].bytes == data.nbytes
    path = stored(tmp_path / "a.zarr", data, (10, 50), zarr_format=2, compressors=None)
    assert loaded(path)[0].tobytes() == data.tobytes()


def test_raw_chunks_with_filters(tmp_path):
    data = field(dtype=np.int32)
    for number, filters in enumerate(
        ([numcodecs.Shuffle(4)], [numcodecs.Delta("<i4"), numcodecs.Shuffle(4)])
    ):
        path = stored(
            tmp_path / f"{number}.zarr", data, zarr_format=2, compressors=None, filters=filters
        )
        for index in INDICES:
            assert (loaded(path, index)[0] == data[index]).all()


def test_the_host_decodes_in_little_memory(tmp_path, monkeypatch):
    from gpuload import array_shape

    monkeypatch.setattr(array_shape, "_DECODED", 5000)
    root = zarr.create_group(store=str(tmp_path / "a.zarr"), zarr_format=2)
    data = field((120, 100))
    for name, codec in (("a", numcodecs.Zstd()), ("b", numcodecs.LZ4())):
        array = root.create_array(
            name, shape=data.shape, dtype=data.dtype, chunks=(16, 20), compressors=codec
        )
        array[...] = data
    with gpuload.open(tmp_path / "a.zarr", **SMALL) as container:
        found = container.load_many({"a": ..., "b": ...}, device=0)
        assert container.report.engine == "host, sm"
    assert all((array.to_host() == data).all() for array in found.values())


def test_stations_are_used_again_where_they_have_room(tmp_path, monkeypatch):
    made = []
    kind = stations.Stations
    monkeypatch.setattr(stations, "Stations", lambda *args: made.append(args) or kind(*args))
    for number, data in enumerate((field((200, 200)), field((50, 60)))):
        path = stored(tmp_path / f"{number}.zarr", data, zarr_format=2, compressors=numcodecs.LZ4())
        assert (loaded(path)[0] == data).all()
    assert len(made) == 1


def test_packed_bits_in_front_of_another_filter(tmp_path):
    data = np.repeat(np.arange(2, dtype=np.uint8), [150, 170])
    filters = [numcodecs.Delta("|u1"), numcodecs.PackBits()]
    path = stored(
        tmp_path / "a.zarr",
        data,
        (80,),
        zarr_format=2,
        compressors=numcodecs.LZ4(),
        filters=filters,
    )
    assert (loaded(path)[0] == data).all()


def test_damage_that_a_filter_finds(tmp_path):
    data = RNG.integers(0, 2, 320).astype(bool)
    path = stored(
        tmp_path / "a.zarr",
        data,
        (80,),
        zarr_format=2,
        compressors=None,
        filters=[numcodecs.PackBits()],
    )
    content = bytearray((path / "2").read_bytes())
    content[0] = 3
    (path / "2").write_bytes(content)
    with pytest.raises(DecompressError, match="first byte says that 3 bits are of no meaning"):
        loaded(path)
    with pytest.warns(gpuload.errors.FormatWarning, match="chunk 2"):
        found, report = loaded(path, on_error="skip")
    assert [failure.chunk for failure in report.failures] == [2]
    data[160:240] = False
    assert (found == data).all()


def test_filters_that_only_the_host_undoes(tmp_path):
    data = field()
    path = stored(
        tmp_path / "a.zarr",
        data,
        zarr_format=2,
        compressors=numcodecs.LZ4(),
        filters=[numcodecs.Delta("<f4")],
    )
    found, report = loaded(path)
    assert (found == data).all()
    assert report.engine == "host"
    assert "running sums" in report.passed_over["sm"]
    with pytest.raises(EngineUnavailableError, match="cannot decode this: running sums"):
        loaded(path, engine="sm")


def test_checksums_of_stored_chunks_count(tmp_path):
    data = field()
    path = stored(tmp_path / "a.zarr", data, compressors=[zarr.codecs.Crc32cCodec()])
    found, report = loaded(path)
    assert (found == data).all()
    assert report.verified == {"crc32c_stored": 12}


@pytest.mark.parametrize("settings", V2)
def test_chunks_of_which_some_go_whole(tmp_path, settings):
    """Those in the middle are contiguous in the result, the first and the last one are cropped."""
    data = field((160, 64))
    path = stored(tmp_path / "a.zarr", data, (30, 64), zarr_format=2, **settings)
    for index in (slice(40, 155), slice(None, 100), ..., (slice(31, None), slice(None, 60))):
        assert (loaded(path, index)[0] == data[index]).all()
    np.save(tmp_path / "x.npy", data)
    assert (loaded(tmp_path / "x.npy", slice(3, 158))[0] == data[3:158]).all()
