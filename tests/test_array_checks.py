"""What is refused before anything is read of arrays, and what is not."""

from __future__ import annotations

import array
import tracemalloc

import numpy as np
import pytest

import gpuload
from gpuload import array_checks
from gpuload.arrays import Array
from gpuload.errors import MemoryLimitError
from gpuload.options import DEFAULT_MEMORY_LIMIT
from gpuload.selection import Selection

HOST = {"device": "cpu"}
RNG = np.random.default_rng(11)
DATA = np.arange(60 * 50, dtype=np.float32).reshape(60, 50)
MANY = 10_000_000


@pytest.fixture
def npz(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=DATA, b=DATA.astype("u1"), c=DATA[:0])
    return tmp_path / "x.npz"


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A file of an array of many elements."""
    path = tmp_path_factory.mktemp("many") / "x.npz"
    np.savez(path, x=np.arange(MANY, dtype=np.uint32))
    return path


POINTS = {
    "a mask of every other": lambda: np.arange(MANY) % 2 == 0,
    "a mask of a half": lambda: np.arange(MANY) < MANY // 2,
    "a mask of any": lambda: RNG.random(MANY) < 0.5,
    "integers": lambda: RNG.integers(-MANY, MANY, MANY // 2),
    "integers in two axes": lambda: RNG.integers(0, MANY, (5, MANY // 10)),
}


@pytest.mark.parametrize("name", POINTS)
def test_millions_of_points(many, name):
    index = POINTS[name]()
    with gpuload.open(many, **HOST) as container:
        found = np.asarray(container["x"][index])
    assert (found == np.arange(MANY, dtype=np.uint32)[index]).all()


@pytest.mark.parametrize("axes", [1, 3])
def test_what_the_list_of_points_takes(axes):
    count = 500_000
    index = tuple(RNG.integers(0, 100, (axes, count)))
    tracemalloc.start()
    try:
        boxes = Selection(index, (100,) * axes).boxes((30,) * axes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert int(boxes.of_chunks()[1][-1]) <= count
    assert peak <= count * array_checks._BYTES_A_RUN + (40 << 20)
    assert 5_000_000 * array_checks._BYTES_A_RUN <= DEFAULT_MEMORY_LIMIT


def test_more_points_than_there_is_memory_for(many, monkeypatch):
    monkeypatch.setattr(array_checks, "available", lambda: 60 << 20)
    scattered, joined = np.arange(0, MANY, 2), np.arange(MANY // 2)
    with gpuload.open(many, memory_limit=100 << 20, **HOST) as container:
        with pytest.raises(MemoryLimitError, match=r"list of the points .* takes over \d+ bytes"):
            container["x"][scattered]
        assert np.asarray(container["x"][joined]).size == MANY // 2, "it is of runs"


@pytest.mark.parametrize("there", [1 << 30, None])
def test_indices_that_broadcast_to_more_than_there_is(tmp_path, monkeypatch, there):
    """They are looked at before anything of their size is made."""
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((9, 9)))
    monkeypatch.setattr(array_checks, "available", lambda: there)
    one, other = np.zeros((1 << 20, 1), int), np.zeros((1, 1 << 20), int)
    size = 8 << 40
    options = {} if there else {"max_output": 1 << 20}
    tracemalloc.start()
    try:
        with (
            gpuload.open(tmp_path / "x.npz", **HOST, **options) as container,
            pytest.raises(MemoryLimitError, match=rf"x: {size} bytes are selected"),
        ):
            container["x"][one, other]
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_several_together(npz, monkeypatch):
    wanted = {"a": ..., "b": slice(30), "c": ...}
    size = DATA.nbytes + 30 * 50
    with gpuload.open(npz, max_output=size, **HOST) as container:
        assert list(container.load_many(wanted)) == list(wanted)
        assert container.load_many({}) == {}
    with gpuload.open(npz, max_output=size - 1, **HOST) as container:
        with pytest.raises(
            MemoryLimitError, match=rf"3 selections together: {size} bytes .* limit of {size - 1}"
        ):
            container.load_many(wanted)
        container.load("a")
    monkeypatch.setattr(array_checks, "available", lambda: size - 1)
    with gpuload.open(npz, **HOST) as container:
        with pytest.raises(MemoryLimitError, match=f"there are {size - 1} bytes of memory"):
            container.load_many(wanted)
        container.load("a")


class Convertible:
    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.zeros((2, 50), np.float32)


@pytest.mark.parametrize(
    "out",
    [DATA[:2].tolist(), Convertible(), "text", object(), np.float32(1).item()],
    ids=lambda out: type(out).__name__,
)
def test_what_numpy_would_copy_is_no_memory(npz, out):
    with (
        gpuload.open(npz, **HOST) as container,
        pytest.raises(TypeError, match="out must be a NumPy array or a writable buffer"),
    ):
        container.load("a", slice(2), out=out)


def test_a_scalar_is_no_memory(npz):
    with gpuload.open(npz) as container, pytest.raises(ValueError, match="writable"):
        container.load("a", (0, 0), out=np.float32(0))


def test_buffers_are_memory(npz):
    row = DATA[3].astype("u1")
    flat = bytearray(50)
    view = memoryview(bytearray(50)).cast("B", (1, 50))
    ours, typed = Array(np.empty(50, "u1")), array.array("B", bytes(50))
    with gpuload.open(npz) as container:
        for out, index in ((flat, 3), (view, slice(3, 4)), (ours, 3), (typed, 3)):
            loaded = container.load("b", index, out=out)
            assert np.asarray(loaded).tobytes() == np.asarray(out).tobytes() == row.tobytes()
        with pytest.raises(ValueError, match="writable"):
            container.load("b", 3, out=bytes(50))


def test_memory_is_checked_before_anything_is_read(npz, monkeypatch):
    def read(*_):
        raise AssertionError("something is read")

    with gpuload.open(npz) as container:
        monkeypatch.setattr(type(container._index.store), "readinto", read)
        for name, bad in (("a", np.empty(3)), ("a", [1]), ("b", np.empty((60, 50)))):
            with pytest.raises((ValueError, TypeError), match="out "):
                container.load(name, out=bad)
