"""What the parts of a load of arrays to a device take, and what is read for them."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload
from gpuload.array_places import groups_of, runs_of, starts_of
from gpuload.array_plan import ArrayPlan
from gpuload.array_shape import Limits, Shape, parts_of, shape_of
from gpuload.errors import MemoryLimitError
from gpuload.selection import Selection

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")

MIB = 1 << 20
LZ4 = {"compressors": numcodecs.LZ4()}
BLOSC = {"compressors": numcodecs.Blosc("lz4", shuffle=1)}
RAW = {"compressors": None}


@pytest.fixture
def planned(tmp_path):
    """Return a function that returns the plan for a selection of a new array."""
    opened = []

    def make(shape, chunks, settings, index=..., *, empty=False) -> ArrayPlan:
        path = str(tmp_path / f"{len(opened)}.zarr")
        array = zarr.create_array(
            store=path, shape=shape, chunks=chunks, dtype="i4", zarr_format=2, **settings
        )
        if not empty:
            array[...] = np.arange(np.prod(shape)).reshape(shape) % 999
        opened.append(gpuload.open(path))
        (asset,) = opened[-1].assets
        return ArrayPlan(asset, opened[-1]._index.store, Selection(index, shape))

    yield make
    for container in opened:
        container.close()


def totals(plan):
    return [int(each.sum()) for each in plan.memory]


@pytest.mark.parametrize(
    ("settings", "chunks", "pieces"),
    [
        (RAW, (64, 100), (1, 0, 0)),  # copied as they are, from where they land
        (RAW, (64, 64), (1, 0, 0)),
        (LZ4, (64, 64), (1, 1, 0)),
        (BLOSC, (64, 64), (1, 1, 1)),
        (BLOSC, (64, 128), (1, 1, 0)),  # unshuffled to where they belong
        (LZ4 | {"filters": [numcodecs.Shuffle(4)]}, (64, 128), (1, 1, 1)),
        (RAW | {"filters": [numcodecs.Delta("<i4")]}, (64, 128), (1, 1, 0)),
    ],
)
def test_memory_of_a_plan(planned, settings, chunks, pieces):
    plan = planned((256, 128), chunks, settings)
    assert [bool(size) for size in totals(plan)] == [bool(each) for each in pieces]


def test_parts_stay_within_their_shape(planned):
    plan = planned((512, 256), (16, 48), BLOSC)
    shape = Shape(2, 30_000, 0, 30_000, 20_000, 10_000, 0)
    parts = parts_of(plan, shape)
    assert [part.first for part in parts[1:]] == [part.last for part in parts[:-1]]
    assert (parts[0].first, parts[-1].last) == (0, plan.raw_sizes.size)
    most = (30_000, 20_000, 10_000)
    for part in parts:
        sums = [each[part.first : part.last].sum() for each in plan.memory]
        assert all(one <= limit for one, limit in zip(sums, most, strict=True))
    for part in parts[:-1]:
        more = [each[part.first : part.last + 1].sum() for each in plan.memory]
        assert any(one > limit for one, limit in zip(more, most, strict=True))


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("scratch", [0.0, 3.4])
@pytest.mark.parametrize("limit", [24 * MIB, 64 * MIB, 384 * MIB])
@pytest.mark.parametrize("settings", [RAW, LZ4, BLOSC], ids=["raw", "lz4", "blosc"])
def test_limits_are_kept(planned, settings, limit, scratch, on_host):
    plan = planned((1024, 1024), (256, 300), settings)
    shape = shape_of([plan], Limits(limit, limit, on_host, scratch))
    assert shape.on_host <= limit
    assert shape.on_device <= limit
    assert parts_of(plan, shape)[-1].last == plan.raw_sizes.size
    for largest, room in zip(plan.memory, (shape.stored, shape.first, shape.second), strict=True):
        assert largest.max() <= room
    assert shape.decoded >= plan.aligned_sizes.max()


def test_a_chunk_that_is_too_large(planned):
    plan = planned((2048, 1024), (2048, 1024), LZ4)
    with pytest.raises(MemoryLimitError, match=f"a chunk of {8 * MIB} bytes needs .* raise it"):
        shape_of([plan], Limits(9 * MIB, 9 * MIB))


def test_missing_chunks_take_nothing_but_come_in_parts(planned):
    settings = LZ4 | {"fill_value": 7}
    plan = planned((400, 300), (1, 1), settings, (slice(300), slice(300)), empty=True)
    assert totals(plan) == [0, 0, 0]
    parts = parts_of(plan, Shape(1, 1, 1, 1, 1, 1, 0))
    assert len(parts) == 2
    assert parts[-1].last == 300 * 300


def test_reads_cover_what_is_stored(planned, monkeypatch):
    from gpuload import array_plan

    monkeypatch.setattr(array_plan, "_READ", 700)
    plan = planned((64, 64), (16, 16), RAW)
    chunks = np.array([0, 1, 5, 6, 7, 15])
    starts, size = plan.layout(chunks)
    lists = plan.reads(chunks, starts)
    assert all(0 < read[3] <= 700 for reads in lists for read in reads)
    buffer = np.zeros(size, np.uint8)
    for reads in lists:
        plan.bring(reads, buffer)
    expected = np.zeros(size, np.uint8)
    for chunk, start in zip(chunks.tolist(), starts.tolist(), strict=True):
        key = plan.places.keys[plan.places.objects[chunk]]
        plan.store.readinto(key, 0, memoryview(expected)[start : start + 1024])
    assert (buffer == expected).all()
    assert plan.reads(chunks[:0], starts[:0]) == []


def test_runs_and_groups():
    sizes = np.array([4, 4, 8, 2, 0, 6])
    of = starts_of(sizes)
    assert of.tolist() == [0, 4, 8, 16, 18, 18]
    to = np.array([100, 104, 200, 208, 210, 210])
    assert runs_of(of, to, sizes) == [(0, 100, 8), (8, 200, 16)]
    assert runs_of(of[:0], to[:0], sizes[:0]) == []
    assert groups_of(sizes, 8) == [(0, 2), (2, 3), (3, 6)]
    assert groups_of(sizes, 10**6) == [(0, 6)]
    assert groups_of(sizes[:0], 8) == []
