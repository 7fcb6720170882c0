"""Arrays of all kinds in one load, and loads side by side and one after the other."""

from __future__ import annotations

import io
import random
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest

import gpuload
from gpuload import array_stream, driver, stations
from gpuload.device_array import close_pools
from gpuload.engines import rates
from tests.helpers.device_loads import clean_loads

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")

# The threads that zarr-python makes for itself, before those of loads are counted.
zarr.config.set({"threading.max_workers": 1})
zarr.create_array(store={}, shape=(9,), chunks=(1,), dtype="u1")[...] = 1
RNG = np.random.default_rng(1)
MIB = 1 << 20
KINDS = [
    (numcodecs.LZ4(), (7, 9)),
    (numcodecs.Blosc("lz4", shuffle=1), (50, 64)),
    (None, (30, 64)),
    (numcodecs.Zstd(), (16, 16)),
    (numcodecs.Blosc("zstd", shuffle=2), (64, 10)),
]


@pytest.fixture(autouse=True)
def _clean(cuda, monkeypatch):
    known = replace(driver.capabilities(0), decompress_mask=0, decompress_max_length=0)
    monkeypatch.setattr(driver, "capabilities", lambda _: known)
    cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
    monkeypatch.setattr(rates, "host_seconds", lambda *_: 100.0)
    monkeypatch.setattr(array_stream, "_LARGE", 3000)
    with clean_loads():
        yield
        stations.release()
        close_pools()


def field(shape):
    values = np.add.outer(np.arange(shape[0]), np.arange(shape[1]))
    return (values + RNG.integers(0, 9, shape)).astype(np.float32)


@pytest.fixture
def mixed(tmp_path):
    """Return an NPZ file of members that are copied, decoded piece by piece, and as parts."""
    arrays = {}
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        for number in range(9):
            data, member = field((20 + 13 * number, 40)), io.BytesIO()
            arrays[f"a{number}"] = np.asfortranarray(data) if number % 4 == 3 else data
            np.save(member, arrays[f"a{number}"])
            method = zipfile.ZIP_DEFLATED if number % 3 else zipfile.ZIP_STORED
            archive.writestr(f"a{number}.npy", member.getvalue(), method)
    return tmp_path / "m.npz", arrays


def same(found, arrays, index=...):
    return all((found[name].to_host() == arrays[name][index]).all() for name in found)


@pytest.mark.parametrize("verify", [True, False, "auto"])
def test_all_kinds_in_one_load(mixed, verify):
    path, arrays = mixed
    with gpuload.open(path, memory_limit=24 * MIB, verify=verify) as container:
        for step in (1, -1, 3):
            index = (slice(None), slice(None, None, step))
            assert same(container.load_many(dict.fromkeys(arrays, index), device=0), arrays, index)
        summed = container.report.verified if verify else container.report.unverified
        assert summed == {"crc32": 9}


def test_loads_side_by_side(mixed):
    path, arrays = mixed
    bad = []

    def work(seed):
        for _ in range(4):
            names = random.Random(seed).sample(list(arrays), 3)
            if not same(container.load_many(dict.fromkeys(names, ...), device=0), arrays):
                bad.append(names)

    with gpuload.open(path, memory_limit=8 * MIB) as container:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not bad


def test_loads_of_all_shapes_and_limits(tmp_path):
    files, choice = [], random.Random(0)
    for number, (codec, chunks) in enumerate(KINDS):
        data, path = field((100 + 30 * number, 64)), str(tmp_path / f"{number}.zarr")
        array = zarr.create_array(
            store=path,
            shape=data.shape,
            dtype="f4",
            chunks=chunks,
            zarr_format=2,
            compressors=codec,
        )
        array[...] = data
        files.append((path, data))
    for _ in range(25):
        path, data = choice.choice(files)
        index = slice(choice.randrange(60), None), slice(None, None, choice.choice([1, 2, -3]))
        with gpuload.open(path, memory_limit=choice.choice([16, 24, 30]) * MIB) as container:
            assert (container.load(None, index, device=0).to_host() == data[index]).all()


def test_reads_that_fail(mixed, monkeypatch):
    path, arrays = mixed
    with gpuload.open(path, memory_limit=16 * MIB) as container:
        store = container._index.store
        readinto, calls = store.readinto, []

        def failing(last, *arguments):
            calls.append(arguments[0])
            if len(calls) == last:
                raise OSError(5, "Input/output error", "m.npz")
            readinto(*arguments)

        def load(last):
            calls.clear()
            with monkeypatch.context() as patch:
                patch.setattr(store, "readinto", lambda *given: failing(last, *given))
                return container.load_many(dict.fromkeys(arrays, ...), device=0)

        assert same(load(0), arrays)
        for last in range(1, len(calls) + 1):
            with pytest.raises(OSError, match="Input/output"):
                load(last)
        assert same(load(0), arrays)
