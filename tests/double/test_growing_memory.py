"""Device memory that grows, on the double of the driver."""

from __future__ import annotations

import gc

import pytest

from gpuload import driver
from gpuload.errors import DriverError, MemoryLimitError
from gpuload.memory import GrowingMemory, copy, growing
from tests.helpers.device_loads import new_stream, read, write
from tests.helpers.fakecuda import Code

MIB = 1 << 20
#: What the double maps memory in.
UNIT = 2 * MIB


@pytest.fixture
def stream():
    made = new_stream()
    yield made
    made.close()


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(growing, "_STEP", 2 * UNIT)
    with GrowingMemory(0) as made:
        yield made


def created(cuda):
    return sum(each.size for each in cuda.memory.allocations.values() if each.kind == "created")


def test_addresses_first(cuda, memory, stream):
    buffer = memory.allocate(1 << 34, stream=stream)
    assert (buffer.size, memory.size, created(cuda)) == (1 << 34, 0, 0)
    buffer.close()


def test_grows_by_steps(cuda, memory, stream):
    buffer = memory.allocate(64 * MIB, stream=stream)
    sizes = [memory.grow(size) for size in (0, 1, UNIT, 2 * UNIT, 2 * UNIT + 1, 9 * UNIT, 5)]
    assert sizes == [size * UNIT for size in (0, 2, 2, 2, 4, 9, 9)]
    assert memory.size == created(cuda) == 9 * UNIT
    buffer.close()
    assert created(cuda) == 0


def test_what_is_there_stays(memory, stream):
    buffer = memory.allocate(64 * MIB, stream=stream)
    address, data = int(buffer.handle), bytes(range(256)) * 4096
    memory.grow(1)
    write(address, data, stream)
    memory.grow(20 * MIB)
    write(address + 20 * MIB - 5, b"hello", stream)
    assert read(address, len(data), stream) == data
    assert read(address + 20 * MIB - 5, 5, stream) == b"hello"
    assert driver.is_hw_decompress_capable(address)
    buffer.close()


def test_the_whole_buffer(memory, stream):
    buffer = memory.allocate(5 * UNIT - 3, stream=stream)
    assert memory.grow(5 * UNIT - 3) == 5 * UNIT
    with pytest.raises(MemoryLimitError, match="addresses for at most"):
        memory.grow(5 * UNIT + 1)
    assert memory.size == 5 * UNIT
    buffer.close()


def test_one_buffer_only(memory, stream):
    buffer = memory.allocate(MIB, stream=stream)
    with pytest.raises(DriverError, match="one buffer"):
        memory.allocate(MIB, stream=stream)
    buffer.close()


def test_freed_behind_the_work_of_its_stream(cuda, memory, stream):
    buffer = memory.allocate(64 * MIB, stream=stream)
    memory.grow(4 * MIB)
    copy(int(buffer.handle), int(buffer.handle) + 2 * MIB, 1000, stream)
    buffer.close()
    assert cuda.complaints() == []


def test_the_buffer_keeps_it(cuda, stream):
    memory = GrowingMemory(0)
    buffer = memory.allocate(64 * MIB, stream=stream)
    memory.grow(1)
    del memory
    gc.collect()
    write(int(buffer.handle), b"abc", stream)
    assert read(int(buffer.handle), 3, stream) == b"abc"
    del buffer
    gc.collect()
    assert cuda.leaks() == [f"stream {int(stream.handle):#x}"] or created(cuda) == 0


def test_a_device_that_is_nearly_full(cuda, memory, stream):
    """What is needed is enough where there is no room for a step."""
    buffer = memory.allocate(64 * MIB, stream=stream)
    cuda.settings.total_memory = 3 * UNIT
    assert memory.grow(1) == 2 * UNIT
    assert memory.grow(2 * UNIT + 1) == 3 * UNIT
    with pytest.raises(MemoryLimitError):
        memory.grow(3 * UNIT + 1)
    assert memory.size == 3 * UNIT
    buffer.close()
    assert created(cuda) == 0


@pytest.mark.parametrize("name", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
@pytest.mark.parametrize("after", [0, 1])
def test_growing_may_fail(cuda, memory, stream, name, after):
    buffer = memory.allocate(64 * MIB, stream=stream)
    if after:
        memory.grow(1)
    size = memory.size
    cuda.fail_next(name, Code.INVALID_VALUE)
    with pytest.raises(DriverError, match=name):
        memory.grow(size + 1)
    assert memory.size == created(cuda) == size
    assert memory.grow(size + 1) == size + 2 * UNIT
    buffer.close()
    assert created(cuda) == 0


def test_no_addresses(cuda, memory, stream):
    cuda.fail_next("cuMemAddressReserve", Code.OUT_OF_MEMORY)
    with pytest.raises(MemoryLimitError):
        memory.allocate(64 * MIB, stream=stream)
    memory.allocate(64 * MIB, stream=stream).close()


def test_giving_back_may_fail(cuda, stream):
    """Addresses with memory behind them are not freed."""
    memory = GrowingMemory(0)
    buffer = memory.allocate(64 * MIB, stream=stream)
    memory.grow(1)
    cuda.fail_next("cuMemUnmap", Code.INVALID_VALUE)
    buffer.close()
    assert cuda.complaints() == []
    with pytest.raises(DriverError, match="cuMemUnmap"):
        memory.close()
    cuda.reset()


def test_a_device_without_virtual_memory(monkeypatch):
    from dataclasses import replace

    known = replace(driver.capabilities(0), virtual_memory=False)
    monkeypatch.setattr(driver, "capabilities", lambda device_id: known)
    with pytest.raises(DriverError, match="virtual memory"):
        GrowingMemory(0)
