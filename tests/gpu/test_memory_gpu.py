"""Our memory resources and the staging ring on a real device."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpuload import driver

pytestmark = pytest.mark.gpu

DEVICE = 0
SIZE = 5 << 20
CYCLES = 1000
#: What other processes may do to the device's free memory while a test runs.
SLACK = 64 << 20


def resources():
    """Return the names of the memory resources that this device can have."""
    known = driver.capabilities(DEVICE)
    names = {
        "DecompressMemory": known.virtual_memory,
        "HostNumaMemory": known.host_numa_memory,
        "DecompressPool": known.memory_pools,
    }
    return [name for name, there in names.items() if there]


def make(name):
    from gpuload import memory

    if name not in resources():
        pytest.skip(f"the device can't have {name}")
    return getattr(memory, name)(DEVICE)


every_resource = pytest.mark.parametrize(
    "name", ["DecompressMemory", "HostNumaMemory", "DecompressPool"]
)


def part(address, size):
    """Return a buffer of cuda.core that owns nothing."""
    from cuda.core import Buffer

    return Buffer.from_handle(address, size)


def pattern(size, seed):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@every_resource
def test_bytes_go_there_and_back(name, device, stream):
    from gpuload.memory import HostNumaMemory, host_view

    expected = pattern(SIZE, 1)
    with make(name) as memory, HostNumaMemory(DEVICE) as host:
        buffer = memory.allocate(SIZE, stream=stream)
        there, back = (host.allocate(SIZE, stream=stream) for _ in range(2))
        host_view(there)[:] = expected
        buffer.copy_from(there, stream=stream)
        back.copy_from(buffer, stream=stream)
        stream.sync()
        assert (host_view(back) == expected).all()


@every_resource
def test_many_cycles_leave_no_leak(name, device, stream):
    from gpuload.memory import free_memory

    with make(name) as memory:
        memory.allocate(SIZE, stream=stream).close()
        stream.sync()
        before = free_memory(DEVICE)
        for _ in range(CYCLES):
            buffer = memory.allocate(SIZE, stream=stream)
            buffer.fill(7, stream=stream)
            buffer.close()
        stream.sync()
        assert before - free_memory(DEVICE) < SLACK


def test_guards_leave_no_leak(device, stream):
    from gpuload.memory import DecompressMemory, free_memory

    before = free_memory(DEVICE)
    for _ in range(CYCLES):
        with DecompressMemory(DEVICE, guard=SIZE) as memory:
            memory.allocate(SIZE, stream=stream)
    assert before - free_memory(DEVICE) < SLACK


def test_a_closed_pool_returns_its_memory(device, stream):
    from gpuload.memory import free_memory

    size = 1 << 30
    before = free_memory(DEVICE)
    with make("DecompressPool") as pool:
        pool.allocate(size, stream=stream).close()
        stream.sync()
        assert before - free_memory(DEVICE) >= size
    stream.sync()
    assert before - free_memory(DEVICE) < SLACK


@every_resource
def test_empty_buffers(name, device, stream):
    with make(name) as memory:
        assert memory.allocate(0, stream=stream).size == 0


@every_resource
def test_threads_that_never_made_a_device_current(name, device, stream):
    from gpuload.memory import HostNumaMemory, StagingRing

    failures = []

    def work(ring, memory, seed):
        try:
            for turn in range(20):
                exchange(ring, memory, stream, pattern(4096, 100 * seed + turn))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    with make(name) as memory, HostNumaMemory(DEVICE) as host, StagingRing(host, 3, 4096) as ring:
        threads = [threading.Thread(target=work, args=(ring, memory, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stream.sync()
    assert failures == []


def exchange(ring, memory, stream, expected):
    """Send bytes to the device through one slot, and get them back in the same one."""
    with ring.acquire() as slot:
        slot.view[:] = expected
        staged = part(slot.address, slot.view.size)
        with memory.allocate(slot.view.size, stream=stream) as buffer:
            buffer.copy_from(staged, stream=stream)
            stream.sync()
            slot.view[:] = 0
            staged.copy_from(buffer, stream=stream)
            stream.sync()
        assert (slot.view == expected).all()
        slot.release(stream)


def test_slots_are_not_filled_again_before_their_copies_are_done(device):
    from gpuload.memory import DecompressMemory, HostNumaMemory, StagingRing, host_view

    slot_size, pieces = 8 << 20, 64
    streams = [device.create_stream() for _ in range(2)]
    data = pattern(slot_size, 3)
    with (
        DecompressMemory(DEVICE) as memory,
        HostNumaMemory(DEVICE) as host,
        StagingRing(host, 3, slot_size) as ring,
    ):
        whole = memory.allocate(slot_size * pieces, stream=streams[0])
        for number in range(pieces):
            slot = ring.acquire()
            slot.view[:] = data
            slot.view[:8] = number
            stream = streams[number % 2]
            target = part(whole.handle + number * slot_size, slot_size)
            target.copy_from(part(slot.address, slot_size), stream=stream)
            slot.release(stream)
        for stream in streams:
            stream.sync()
        back = host.allocate(slot_size * pieces, stream=streams[0])
        back.copy_from(whole, stream=streams[0])
        streams[0].sync()
        rows = host_view(back).reshape(pieces, slot_size)
        assert rows[:, 0].tolist() == list(range(pieces))
        assert (rows[:, 8:] == data[8:]).all()
        del rows


def test_a_closing_ring_waits_for_its_copies(device, stream):
    from gpuload.memory import DecompressMemory, HostNumaMemory, StagingRing, host_view

    size = 256 << 20
    with DecompressMemory(DEVICE) as memory, HostNumaMemory(DEVICE) as host:
        target = memory.allocate(size, stream=stream)
        ring = StagingRing(host, 1, size)
        slot = ring.acquire()
        slot.view[:] = 5
        target.copy_from(part(slot.address, size), stream=stream)
        slot.release(stream)
        ring.close()
        back = host.allocate(size, stream=stream)
        back.copy_from(target, stream=stream)
        stream.sync()
        assert (host_view(back) == 5).all()


def test_buffers_that_are_in_use_are_freed_after_their_stream(device, stream):
    from gpuload.memory import DecompressMemory

    with DecompressMemory(DEVICE) as memory:
        for _ in range(20):
            buffers = [memory.allocate(256 << 20, stream=stream) for _ in range(2)]
            for _ in range(10):
                buffers[0].copy_to(buffers[1], stream=stream)
            for buffer in buffers:
                buffer.close()
