"""Loads whose stages overlap, on a real GPU: right bytes by every way, and damage that is found."""

from __future__ import annotations

import io

import numpy as np
import pytest

import gpuload
from gpuload.errors import GpuloadError

pytestmark = pytest.mark.gpu

MIB = 1 << 20
#: 12 MiB of stored bytes land at a time.
SMALL = {"memory_limit": 80 * MIB}


@pytest.fixture(scope="module")
def raw():
    """Return bytes of which some compress well, some a little, and some not at all."""
    random = np.random.default_rng()
    parts = []
    for size in random.integers(1 << 18, 3 << 20, 40).tolist():
        span = int(random.choice([2, 16, 90, 256]))
        parts.append(random.integers(0, span, size, np.uint8))
    return np.concatenate(parts).tobytes()


@pytest.fixture(scope="module")
def files(raw, tmp_path_factory):
    """Return paths of compressed files by codec."""
    folder, found = tmp_path_factory.mktemp("files"), {}
    for codec in ("lz4", "snappy", "gzip"):
        file = io.BytesIO()
        gpuload.compress(raw, file, codec=codec)
        found[codec] = folder / codec
        found[codec].write_bytes(file.getvalue())
    return found


def options(codec):
    return {"engine": "nvcomp", "trusted": True} if codec == "gzip" else {"engine": "sm"}


@pytest.mark.parametrize("limit", [{}, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("way", ["read", "mapped"])
@pytest.mark.parametrize("codec", ["lz4", "snappy", "gzip"])
def test_right_bytes(files, raw, codec, way, limit):
    load = gpuload.load_async(files[codec], device=0, way=way, **limit, **options(codec))
    assert load.result().to_host().tobytes() == raw
    stats = load.stats
    assert set(stats.ways) == {way}
    assert sum(stats.ways.values()) == files[codec].stat().st_size
    assert len(stats.windows) > 1 or not limit
    assert {"read", "copy", "decode"} <= set(stats.stages)
    with gpuload.open(files[codec], way=way, **limit, **options(codec)) as container:
        assert container.load(device=0).to_host().tobytes() == raw


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_damage_is_found(files, raw, codec, tmp_path):
    data, random = bytearray(files[codec].read_bytes()), np.random.default_rng()
    for place in random.integers(100, len(data) - 100, 20).tolist():
        data[place] ^= 1 << int(random.integers(8))
        (tmp_path / "bad").write_bytes(data)
        data[place] = files[codec].read_bytes()[place]
        try:
            found = gpuload.load(tmp_path / "bad", device=0, engine="sm", **SMALL)
        except GpuloadError:
            continue
        assert found.to_host().tobytes() == raw, f"byte {place}"


def test_many_files(tmp_path):
    random, paths, contents = np.random.default_rng(), [], []
    for number in range(300):
        size = int(random.integers(1, 200_000))
        contents.append(random.integers(0, 9, size, np.uint8).tobytes())
        paths.append(tmp_path / f"{number}.lz4")
        gpuload.compress(contents[-1], paths[-1], codec="lz4")
    arrays = gpuload.load_many(paths, device=0, engine="sm")
    assert [array.to_host().tobytes() for array in arrays] == contents
