"""The arrays that go to a device with a batch: the kernel's for copies, and nvCOMP's."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed")

from gpuload.batch import PARAMS_DTYPE
from gpuload.engines import copies as engine_copies
from gpuload.engines.copies import WORD_SIZE, Copies
from gpuload.engines.nvcomp_arrays import NO_SIZE, NO_STATUS, Layout
from gpuload.engines.nvcomp_plan import Plan

KERNEL = object()
RAW = 256  # `algo` of copies in gpuload/kernels/batch.cuh
START = 0x7000_0000


def group(*sizes, start=0):
    """Return copies of some sizes, between addresses that nothing else has."""
    at = 10_000_000 * np.arange(1, len(sizes) + 1) + start
    return at + 1, at + 5_000_000, np.array(sizes, np.int64)


def filled(copies, words=0x1000):
    params = np.full(copies.launched, 0xAB, PARAMS_DTYPE)
    copies.fill(params, words)
    return params


def test_parameters_of_the_kernel():
    first, second = group(5, 6, 7, 8), group(1, 2, 3, 4, 5, start=500)
    copies = Copies(KERNEL, [first, second])
    assert copies.launched == 9
    params = filled(copies)
    for name, column in (("dst", 0), ("src", 1), ("src_num_bytes", 2), ("dst_num_bytes", 2)):
        assert params[name].tolist() == [*first[column].tolist(), *second[column].tolist()]
    assert params["dst_act_bytes"].tolist() == [0x1000 + 4 * n for n in range(9)]
    assert set(params["algo"].tolist()) == {RAW}
    assert not params["padding"].any()


@pytest.mark.parametrize(
    ("sizes", "launched"),
    [
        ((), 0),
        ((5, 5, 5), 0),
        ((5, 5, 5, 5), 4),
        ((5, 5, 5, 1 << 20), 4),
        ((5, 5, 5, (1 << 20) + 1), 0),
        ((5, 5, 5, 5, 1 << 40), 4),
    ],
)
def test_small_copies_are_launched_if_there_are_some(sizes, launched):
    assert Copies(KERNEL, [group(*sizes)]).launched == launched


def test_nothing_is_launched_without_a_kernel():
    copies = Copies(None, [group(*range(100))])
    assert copies.launched == 0
    assert filled(copies).size == 0


def test_no_groups_have_nothing_to_fill():
    assert filled(Copies(KERNEL, [group(), group()])).size == 0


def test_launches_of_groups(monkeypatch):
    """Each has its own parameters and statuses, behind those of the groups before."""
    launches = []

    def launch(kernel, variant, stream, *, params, count, statuses, what):
        assert (kernel, variant.name, what) == (KERNEL, "raw_32", "copies")
        launches.append((params, count, statuses, stream))

    monkeypatch.setattr(engine_copies, "launch", launch)
    copies = Copies(KERNEL, [group(*[1] * 10), group(), group(*[2] * 20)])
    for number in (0, 1, 2):
        copies.run(number, 0x10000, 0x90000, "stream")
    assert launches == [
        (0x10000, 10, 0x90000 + 4 * 30, "stream"),
        (0x10000 + 64 * 10, 20, 0x90000 + 4 * 40, "stream"),
    ]


def plan(chunks):
    columns = (1000 * (n + 1) + np.arange(chunks) for n in range(4))
    places = np.where(np.arange(chunks) % 3 == 0, 16 * np.arange(chunks), -1)
    return Plan(np.arange(chunks), *columns, places, [])


def block(layout):
    """Return memory that starts where pinned memory does: at a page."""
    memory = np.full(layout.size + 8192, 0xCD, np.uint8)
    start = -memory.ctypes.data % 4096
    return memory[start : start + layout.size]


@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 1000])
@pytest.mark.parametrize("copies", [0, 1, 7])
def test_arrays_of_nvcomp(chunks, copies):
    """What stands at the addresses that nvCOMP is given."""
    layout, made = Layout(chunks, copies), plan(chunks)
    memory = block(layout)
    layout.params(memory)["algo"] = 7
    layout.fill(memory, made, 1 << 40)
    arrays = layout.arrays(START)

    def at(address, kind):
        assert address % np.dtype(kind).itemsize == 0
        return memory[address - START :][: np.dtype(kind).itemsize * chunks].view(kind)

    moved = made.places >= 0
    sources = at(arrays.sources, "u8")
    assert sources[~moved].tolist() == made.sources[~moved].tolist()
    assert sources[moved].tolist() == (made.places[moved] + (1 << 40)).tolist()
    assert at(arrays.source_sizes, "u8").tolist() == made.source_sizes.tolist()
    assert at(arrays.capacities, "u8").tolist() == made.capacities.tolist()
    assert at(arrays.targets, "u8").tolist() == made.targets.tolist()
    assert at(arrays.sizes, "u8").tolist() == [NO_SIZE] * chunks
    assert at(arrays.statuses, "i4").tolist() == [NO_STATUS] * chunks
    assert (layout.params(memory)["algo"] == 7).all(), "nothing lies on anything else"
    assert (memory[layout.sent :] == 0xCD).all(), "what is not sent is not written"


@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 1000])
@pytest.mark.parametrize("copies", [0, 1, 7])
def test_what_comes_back(chunks, copies):
    layout = Layout(chunks, copies)
    memory, arrays = block(layout), layout.arrays(START)
    sizes = layout.sizes(memory)
    sizes[:], layout.statuses(memory)[:] = range(chunks), range(chunks)
    assert layout.written == slice(arrays.sizes - START, arrays.statuses - START + 4 * chunks)
    assert layout.written.stop - layout.written.start == 12 * chunks
    assert layout.written.stop <= layout.sent == layout.words
    assert layout.size == layout.words + WORD_SIZE * copies
    assert layout.words % 8 == 0
    assert memory[arrays.sizes - START :][: 8 * chunks].view("u8").tolist() == sizes.tolist()
