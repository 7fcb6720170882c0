"""Host memory for results."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from gpuload.errors import MemoryLimitError
from gpuload.host_memory import allocate, reserve

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory is reserved on Linux only"
)


@pytest.mark.parametrize("size", [0, 1, 4096, 1_000_003])
def test_allocate(size):
    memory = allocate(size, "a.lz4")
    assert memory.dtype == np.uint8
    assert memory.shape == (size,)
    assert memory.flags.c_contiguous
    assert memory.flags.writeable
    memory[:] = 7


@pytest.mark.parametrize("size", [2**60, 2**62, 2**63 - 1, 2**63, 2**64, 2**100])
def test_more_than_there_is(size):
    with pytest.raises(MemoryLimitError) as caught:
        allocate(size, "a.lz4")
    assert str(caught.value).startswith("a.lz4: ")
    assert str(size) in str(caught.value)


@linux
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 1 << 20])
def test_reserve(size):
    memory = reserve(size)
    assert memory.dtype == np.uint8
    assert memory.shape == (size,)
    assert memory.flags.c_contiguous
    assert memory.flags.writeable
    memory[:] = 7
    assert memory.sum() == 7 * size


@linux
def test_reserved_memory_is_taken_where_it_is_written_only():
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("this system counts memory that is reserved")
    before = resident()
    memory = reserve(64 << 30)
    assert memory.size == 64 << 30
    assert memory[:: 8 << 30].tolist() == [0] * 8
    memory[: 8 << 20] = 1
    memory[-1] = 1
    grown = resident() - before
    assert 7 << 20 < grown < 64 << 20


@linux
def test_part_of_it_keeps_the_rest_alive():
    part = reserve(1 << 20)[: 1 << 10]
    gc.collect()
    part[:] = 5
    assert part.sum() == 5 << 10


@linux
def test_reserved_memory_is_given_back():
    before = mapped()
    for _ in range(20):
        reserve(1 << 30)
    gc.collect()
    assert mapped() - before < 2 << 30


@pytest.mark.parametrize("size", [2**62, 2**63, 2**64, 2**100])
def test_reserve_of_more_than_any_address_space(size):
    assert reserve(size) is None


def test_no_reserve_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert reserve(4096) is None


def statm(field):
    import resource

    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


def mapped():
    return statm(0)


def resident():
    return statm(1)
