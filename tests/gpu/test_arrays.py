"""Files of arrays, loaded to a real GPU by every engine that is there."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import gpuload
from gpuload.array_engines import passed_over
from gpuload.engines import rates
from gpuload.errors import DecompressError
from gpuload.options import Options
from tests.test_array_corpus import ENTRIES, allowed, assert_as_promised

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")

pytestmark = pytest.mark.gpu

DEVICE = {"device": 0}
#: What each test loads with: which engine may decode, and as if the host were how fast.
DECODERS = {
    "sm": ({}, 100.0),
    "nvcomp": ({"trusted": True}, 100.0),
    "hardware": ({"engine": "hardware", "trusted": True}, 100.0),
    "host": ({}, 0.0),
}


@pytest.fixture(params=DECODERS)
def decoder(request, monkeypatch):
    """Return options with which one engine, and for what it does not take the host, decodes."""
    options, host_seconds = DECODERS[request.param]
    reasons = passed_over(Options(**options), 0)
    if request.param in reasons:
        pytest.skip(f"{request.param}: {reasons[request.param]}")
    monkeypatch.setattr(rates, "host_seconds", lambda *_: host_seconds)
    return options


@pytest.mark.filterwarnings("ignore::gpuload.errors.FormatWarning")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_corpus(entry, decoder):
    if decoder and allowed(entry) != {"ok"}:
        pytest.skip("engines that are told to trust a file must not be given a damaged one")
    assert_as_promised(entry, DEVICE, **decoder)


#: Codecs of Zarr 2, and types that they are tried with.
COMPRESSORS = [
    numcodecs.LZ4(),
    numcodecs.Blosc("lz4", shuffle=1),
    numcodecs.Blosc("lz4", shuffle=2, blocksize=1 << 14),
    numcodecs.Blosc("lz4hc", shuffle=0),
    numcodecs.Blosc("zstd", shuffle=1),
    numcodecs.Blosc("zlib", shuffle=2),
    numcodecs.Blosc("blosclz", shuffle=1),
    numcodecs.Zstd(3),
    numcodecs.GZip(1),
    numcodecs.Zlib(1),
    None,
]
TYPES = ["<f4", "<f8", "<i2", "|u1", ">i4"]


def field(random, shape, dtype):
    values = np.add.outer(np.arange(shape[0]), 3 * np.arange(shape[1]))[:, :, None]
    return (values + random.integers(0, 9, shape)).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_selections(tmp_path, compressor, dtype, decoder):
    random = np.random.default_rng()
    shape, chunks = (90, 150, 40), tuple(random.integers(15, 60, 3).tolist())
    order = str(random.choice(["C", "F"]))
    data = field(random, shape, dtype)
    made = zarr.create_array(
        store=str(tmp_path / "a.zarr"),
        shape=shape,
        dtype=data.dtype,
        chunks=chunks,
        zarr_format=2,
        compressors=compressor,
        order=order,
    )
    made[...] = data
    with gpuload.open(tmp_path / "a.zarr", **decoder) as container:
        for index in (..., *selections(random, shape)):
            found = container.load(None, index, device=0).to_host()
            assert found.shape == data[index].shape
            assert (found == data[index]).all(), index


def selections(random, shape):
    """Yield a few random indices of three axes."""
    for _ in range(4):
        index = []
        for length in shape:
            a, b = sorted(random.integers(0, length + 1, 2).tolist())
            step = int(random.choice([-3, -1, 1, 1, 2]))
            index.append(slice(a, b, step) if step > 0 else slice(b - 1, a or None, step))
        yield tuple(index)
    yield int(random.integers(shape[0])), slice(None), slice(3, 30)
    yield random.integers(0, shape[0], 50), random.integers(0, shape[1], 50)


@pytest.mark.parametrize("inner", [(8, 16, 40), (7, 13, 11)])
def test_shards(tmp_path, inner, decoder):
    random = np.random.default_rng()
    shards = tuple(each * 3 for each in inner)
    shape = (50, 100, 70)
    data = field(random, shape, "<f4")
    made = zarr.create_array(
        store=str(tmp_path / "a.zarr"),
        shape=shape,
        dtype="f4",
        chunks=inner,
        shards=shards,
        compressors=zarr.codecs.ZstdCodec(level=3),
    )
    made[...] = data
    with gpuload.open(tmp_path / "a.zarr", **decoder) as container:
        for index in (..., *selections(random, shape)):
            assert (container.load(None, index, device=0).to_host() == data[index]).all(), index


def test_many_parts(tmp_path, decoder):
    """More than passes the stations at once, again and again at the same places."""
    random = np.random.default_rng()
    data = field(random, (512, 600, 64), "<f4")
    made = zarr.create_array(
        store=str(tmp_path / "a.zarr"),
        shape=data.shape,
        dtype="f4",
        chunks=(16, 200, 64),
        zarr_format=2,
        compressors=numcodecs.Blosc("lz4", shuffle=1),
    )
    made[...] = data
    with gpuload.open(tmp_path / "a.zarr", memory_limit=64 << 20, **decoder) as container:
        for _ in range(3):
            found = container.load(device=0)
            assert found.to_host().tobytes() == data.tobytes()
            del found
    assert prod(data.shape) == data.size


def test_damage_is_found(tmp_path, decoder):
    if decoder:
        pytest.skip("engines that are told to trust a file must not be given a damaged one")
    random = np.random.default_rng()
    data = field(random, (64, 64, 16), "<f4")
    made = zarr.create_array(
        store=str(tmp_path / "a.zarr"),
        shape=data.shape,
        dtype="f4",
        chunks=(16, 16, 16),
        zarr_format=2,
        compressors=numcodecs.Zlib(1),
    )
    made[...] = data
    path = tmp_path / "a.zarr" / "1.2.0"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)
    with (
        gpuload.open(tmp_path / "a.zarr", **decoder) as container,
        pytest.raises(DecompressError, match="chunk 6"),
    ):
        container.load(device=0)
    with gpuload.open(tmp_path / "a.zarr", on_error="skip", **decoder) as container:
        with pytest.warns(gpuload.errors.FormatWarning):
            found = container.load(device=0).to_host()
        assert [failure.chunk for failure in container.report.failures] == [6]
    data[16:32, 32:48] = 0
    assert (found == data).all()


def test_arrays_into_memory_of_others(tmp_path):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    data = np.random.default_rng().integers(0, 9, (300, 40)).astype(np.float32)
    np.savez_compressed(tmp_path / "x.npz", a=data)
    out = cupy.full((300, 40), 7, cupy.float32)
    with gpuload.open(tmp_path / "x.npz") as container:
        container.load("a", out=out)
    assert (cupy.asnumpy(out) == data).all()
