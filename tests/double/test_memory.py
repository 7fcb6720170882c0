"""Our memory resources and the staging ring on the double."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cuda.core import Buffer, LegacyPinnedMemoryResource  # noqa: TID253 (the double is loaded)

from gpuload import driver
from gpuload.errors import DriverError, MemoryLimitError
from gpuload.memory import (
    DecompressMemory,
    DecompressPool,
    HostNumaMemory,
    StagingRing,
    free_memory,
    host_view,
)
from gpuload.memory.undo import Undo, run_all
from tests.helpers.fakecuda import Code

MIB = 1 << 20
GRANULARITY = 2 * MIB
CYCLES = 1000
ROOT = Path(__file__).parents[2]

every_resource = pytest.mark.parametrize("kind", [DecompressMemory, HostNumaMemory, DecompressPool])
mapped_resources = pytest.mark.parametrize("kind", [DecompressMemory, HostNumaMemory])


@pytest.fixture
def stream():
    device = driver.device(0)
    device.set_current()
    made = device.create_stream()
    yield made
    made.close()


@pytest.fixture
def host(stream):
    with HostNumaMemory(0) as memory:
        yield memory


def calls(cuda, *names):
    """Return the order of the calls so far that are among `names`."""
    return [name for name, _, _ in cuda.recorder.log if name in names]


def part(address, size):
    """Return a buffer of cuda.core that owns nothing."""
    return Buffer.from_handle(address, size)


def read(buffer, host, stream):
    """Return the bytes of a buffer, in stream order."""
    with host.allocate(buffer.size, stream=stream) as landing:
        landing.copy_from(buffer, stream=stream)
        stream.sync()
        return host_view(landing).tobytes()


# --- Undo -----------------------------------------------------------------------------------------


def failing(message):
    raise DriverError(message)


def do_and_fail(steps, error):
    with Undo() as undo:
        for step in steps:
            undo.add(step)
        raise error


def test_a_block_that_succeeds_undoes_nothing():
    undone = []
    with Undo() as undo:
        undo.add(undone.append, 1)
    assert undone == []


@pytest.mark.parametrize("error", [KeyError, DriverError, KeyboardInterrupt])
def test_a_block_that_fails_is_undone_in_reverse(error):
    undone = []
    steps = [partial(undone.append, 1), partial(undone.append, 2)]
    with pytest.raises(error):
        do_and_fail(steps, error)
    assert undone == [2, 1]


def test_what_can_not_be_undone_is_a_note_and_keeps_what_it_is_built_on():
    undone = []
    steps = [partial(undone.append, 1), partial(failing, "stuck"), partial(undone.append, 3)]
    with pytest.raises(KeyError) as caught:
        do_and_fail(steps, KeyError)
    assert undone == [3]
    assert caught.value.__notes__ == ["taking back what was done before failed too: stuck"]


def test_all_steps_run_and_the_first_failure_is_raised():
    done = []
    steps = [partial(failing, "one"), partial(done.append, 2), partial(failing, "three")]
    with pytest.raises(DriverError, match="one") as caught:
        run_all(steps)
    assert done == [2]
    assert caught.value.__notes__ == ["three"]
    run_all([])


# --- Every resource -------------------------------------------------------------------------------


@every_resource
def test_a_buffer(cuda, stream, kind):
    with kind(0) as memory:
        buffer = memory.allocate(1000, stream=stream)
        assert buffer.size == 1000
        assert buffer.memory_resource is memory
        assert buffer.device_id == 0
        assert buffer.is_device_accessible
        assert buffer.is_host_accessible == (kind is HostNumaMemory)
        assert not buffer.is_managed
        assert driver.is_hw_decompress_capable(buffer.handle)
        assert driver.is_hw_decompress_capable(buffer.handle + 999)
        buffer.close()
        assert buffer.is_closed


@every_resource
def test_bytes_go_there_and_back(stream, host, kind):
    expected = np.random.default_rng(1).integers(0, 256, 5000, np.uint8)
    with kind(0) as memory, host.allocate(5000, stream=stream) as there:
        host_view(there)[:] = expected
        buffer = memory.allocate(5000, stream=stream)
        buffer.copy_from(there, stream=stream)
        assert read(buffer, host, stream) == expected.tobytes()
        buffer.close()


@every_resource
def test_an_empty_buffer_takes_nothing(cuda, stream, kind):
    with kind(0) as memory:
        before = cuda.recorder.calls.copy()
        empty = [memory.allocate(0, stream=stream) for _ in range(2)]
        assert [b.size for b in empty] == [0, 0]
        empty[0].close()
        del empty
        assert not {n for n in cuda.recorder.calls - before if n.startswith("cuMem")}


@every_resource
def test_a_negative_size(stream, kind):
    with kind(0) as memory, pytest.raises(ValueError, match="must not be negative, but is -1"):
        memory.allocate(-1, stream=stream)


@every_resource
def test_a_closed_resource_gives_nothing(stream, kind):
    memory = kind(0)
    memory.close()
    memory.close()
    with pytest.raises(DriverError, match=f"{kind.__name__} is closed and gives no more buffers"):
        memory.allocate(1, stream=stream)


@every_resource
def test_garbage_is_freed(cuda, stream, kind):
    with kind(0) as memory:
        memory.allocate(1000, stream=stream)
        gc.collect()
        stream.sync()
        assert list(cuda.memory.allocations.values()) == []


@every_resource
def test_a_thousand_cycles_leave_no_leak(cuda, stream, kind):
    with kind(0) as memory:
        memory.allocate(MIB, stream=stream).close()
        stream.sync()
        before = free_memory(0)
        for _ in range(CYCLES):
            memory.allocate(MIB, stream=stream).close()
            stream.sync()  # the double frees a pool's memory only then
        assert free_memory(0) == before
    assert cuda.leaks() == [f"stream {int(stream.handle):#x}"]
    assert free_memory(0) == cuda.settings.total_memory


@every_resource
def test_what_is_no_stream(cuda, stream, kind):
    with kind(0) as memory, pytest.raises((TypeError, AttributeError)):
        memory.allocate(100, stream="stream")


@every_resource
def test_a_device_that_is_not_there(kind):
    with pytest.raises(DriverError, match="there is no device 5"):
        kind(5)


@every_resource
def test_more_than_there_is(cuda, stream, kind):
    cuda.settings.total_memory = 8 * MIB
    with kind(0) as memory:
        if kind is HostNumaMemory:
            cuda.fail_next("cuMemCreate", Code.OUT_OF_MEMORY)
        with pytest.raises(MemoryLimitError, match=r"no memory for 16777216 bytes of "):
            memory.allocate(16 * MIB, stream=stream)


@every_resource
def test_threads_that_never_made_a_device_current(cuda, stream, kind):
    def work(number):
        for size in range(1, 20):
            with memory.allocate(1000 * size + number, stream=stream) as buffer:
                assert driver.pointer(buffer.handle).start == buffer.handle

    with kind(0) as memory, ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


@every_resource
def test_the_default_stream(stream, kind):
    with kind(0) as memory:
        buffer = memory.allocate(10, stream=driver.device(0).default_stream)
        thread = threading.Thread(target=buffer.close)
        thread.start()
        thread.join()


def test_buffers_that_outlive_the_interpreter():
    script = """
from tests.helpers import fakecuda
fakecuda.load()
from gpuload import driver
from gpuload.memory import DecompressMemory, DecompressPool, HostNumaMemory, StagingRing
driver.device(0).set_current()
stream = driver.device(0).create_stream()
kept = [m.allocate(9, stream=stream)
        for m in (DecompressMemory(0), DecompressPool(0), HostNumaMemory(0))]
ring = StagingRing(HostNumaMemory(0), 2, 9)
held = ring.acquire()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- Memory that is mapped ------------------------------------------------------------------------


MAPPING_STEPS = ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemSetAccess"]


@mapped_resources
@pytest.mark.parametrize("name", MAPPING_STEPS)
def test_a_step_that_fails_takes_the_others_back(cuda, stream, kind, name):
    with kind(0) as memory:
        cuda.fail_next(name, Code.NOT_SUPPORTED)
        with pytest.raises(DriverError, match=f"^{name} failed"):
            memory.allocate(100, stream=stream)
        assert not cuda.memory.reservations
        assert not list(cuda.memory.mappings())
        if name != "cuMemRelease":  # the handle that can't be released keeps its memory
            assert not cuda.memory.allocations
            memory.allocate(100, stream=stream).close()
        cuda.memory.handles.clear()
        for left in list(cuda.memory.allocations.values()):
            left.handles = 0
            cuda.memory.drop_if_unused(left)


def test_no_memory_takes_everything_back(cuda, stream):
    with DecompressMemory(0, guard=1) as memory:
        cuda.fail_next("cuMemCreate", Code.OUT_OF_MEMORY)
        with pytest.raises(MemoryLimitError):
            memory.allocate(100, stream=stream)
        assert cuda.leaks() == [f"stream {int(stream.handle):#x}"]


def test_what_can_not_be_taken_back_is_a_note(cuda, stream):
    with DecompressMemory(0) as memory:
        cuda.fail_next("cuMemSetAccess", Code.NOT_SUPPORTED)
        cuda.fail_next("cuMemUnmap", Code.INVALID_VALUE)
        with pytest.raises(DriverError, match=r"^cuMemSetAccess failed") as caught:
            memory.allocate(100, stream=stream)
        assert "cuMemUnmap failed: CUDA_ERROR_INVALID_VALUE" in caught.value.__notes__[0]
    cuda.reset()


@mapped_resources
def test_the_handle_is_released_at_once(cuda, stream, kind):
    with kind(0) as memory:
        buffer = memory.allocate(100, stream=stream)
        assert not cuda.memory.handles
        steps = calls(cuda, "cuMemMap", "cuMemRelease", "cuMemSetAccess")
        assert steps == ["cuMemMap", "cuMemRelease", "cuMemSetAccess"]
        buffer.close()


@pytest.mark.parametrize("guard", [0, 1, GRANULARITY, GRANULARITY + 1])
def test_the_guard(cuda, stream, guard):
    with DecompressMemory(0, guard=guard) as memory:
        assert memory.granularity == GRANULARITY
        buffer = memory.allocate(GRANULARITY + 1, stream=stream)
        guarded = -(-guard // GRANULARITY) * GRANULARITY
        assert cuda.memory.reservations == {buffer.handle: 2 * GRANULARITY + guarded}
        end = buffer.handle + 2 * GRANULARITY
        assert driver.pointer(end - 1).start == buffer.handle
        assert driver.pointer(end) is None
        buffer.close()


def test_a_negative_guard():
    with pytest.raises(ValueError, match="a guard must not be negative"):
        DecompressMemory(0, guard=-1)


@mapped_resources
def test_memory_is_unmapped_after_the_work_of_its_stream(cuda, stream, host, kind):
    with kind(0) as memory, DecompressPool(0) as pool:
        target = pool.allocate(100, stream=stream)
        buffer = memory.allocate(100, stream=stream)
        buffer.fill(7, stream=stream)
        target.copy_from(buffer, stream=stream)
        buffer.close()
        steps = calls(cuda, "cuMemcpyAsync", "cuStreamSynchronize", "cuMemUnmap")
        assert steps == ["cuMemcpyAsync", "cuStreamSynchronize", "cuMemUnmap"]
        assert read(target, host, stream) == bytes([7]) * 100
        target.close()


@mapped_resources
def test_closing_frees_what_is_left_and_closes_its_buffers(cuda, stream, kind):
    memory = kind(0)
    buffers = [memory.allocate(100, stream=stream) for _ in range(3)]
    buffers[0].fill(1, stream=stream)
    memory.close()
    assert all(buffer.is_closed for buffer in buffers)
    assert not cuda.memory.allocations
    assert not cuda.memory.reservations


@mapped_resources
def test_a_failure_to_free_is_raised_by_close(cuda, stream, kind):
    memory = kind(0)
    first, second, third = (memory.allocate(100, stream=stream) for _ in range(3))
    cuda.fail_next("cuMemUnmap", Code.INVALID_VALUE, times=2)
    first.close()
    second.close()
    with pytest.raises(DriverError, match=r"^cuMemUnmap failed: .* bytes at 0x") as caught:
        memory.close()
    assert len(caught.value.__notes__) == 1
    assert third.is_closed
    assert len(cuda.memory.allocations) == 2
    cuda.reset()


def test_failures_that_repeat_are_not_kept_for_ever(cuda, stream):
    memory = DecompressMemory(0)
    buffers = [memory.allocate(1, stream=stream) for _ in range(30)]
    cuda.fail_next("cuMemUnmap", Code.INVALID_VALUE, times=30)
    for buffer in buffers:
        buffer.close()
    with pytest.raises(DriverError) as caught:
        memory.close()
    assert len(caught.value.__notes__) == 8
    cuda.reset()


def test_memory_is_unmapped_even_if_the_work_of_its_stream_failed(cuda, stream):
    memory = DecompressMemory(0)
    buffer = memory.allocate(100, stream=stream)
    cuda.fail_next("cuStreamSynchronize", Code.LAUNCH_FAILED)
    buffer.close()
    assert not cuda.memory.allocations
    with pytest.raises(DriverError, match="CUDA_ERROR_LAUNCH_FAILED, for the last use of the mem"):
        memory.close()


@pytest.mark.parametrize(
    ("kind", "lacks", "said"),
    [
        (DecompressMemory, "virtual_memory", r"has no virtual memory management \(cuMemCreate\)"),
        (HostNumaMemory, "host_numa_memory", "can't map memory of host NUMA nodes"),
        (DecompressPool, "memory_pools", r"has no memory pools \(cuMemPoolCreate\)"),
    ],
)
def test_what_a_device_lacks(monkeypatch, kind, lacks, said):
    known = replace(driver.capabilities(0), **{lacks: False})
    monkeypatch.setattr(driver, "capabilities", lambda number: known)
    with pytest.raises(DriverError, match=f"^device 0 {said}"):
        kind(0)


# --- Host memory ----------------------------------------------------------------------------------


def test_a_view_of_host_memory(host, stream):
    buffer = host.allocate(1000, stream=stream)
    view = host_view(buffer)
    assert (view.dtype, view.shape, view.ctypes.data) == (np.uint8, (1000,), buffer.handle)
    view[:] = 9
    assert (host_view(buffer) == 9).all()
    buffer.close()


def test_a_view_keeps_its_buffer(cuda, host, stream):
    view = host_view(host.allocate(1000, stream=stream))[10:20]
    gc.collect()
    view[:] = 1
    assert len(cuda.memory.allocations) == 1
    del view
    gc.collect()
    assert not cuda.memory.allocations


def test_a_view_of_no_bytes(host, stream):
    assert host_view(host.allocate(0, stream=stream)).shape == (0,)


def test_a_view_of_other_pinned_memory(stream):
    buffer = LegacyPinnedMemoryResource().allocate(10, stream=stream)
    host_view(buffer)[:] = 3
    assert bytes(host_view(buffer)) == bytes([3]) * 10
    buffer.close()


def test_no_view_of_device_memory(stream):
    with DecompressMemory(0) as memory:
        buffer = memory.allocate(10, stream=stream)
        with pytest.raises(ValueError, match="in device memory"):
            host_view(buffer)


# --- The pool -------------------------------------------------------------------------------------


def test_a_pool_keeps_its_memory_until_it_is_closed(cuda, stream):
    total = free_memory(0)
    with DecompressPool(0) as pool:
        pool.allocate(5 * MIB, stream=stream).close()
        stream.sync()
        assert free_memory(0) <= total - 5 * MIB
    assert free_memory(0) == total


def test_a_pool_frees_in_stream_order(cuda, stream, host):
    with DecompressPool(0) as pool:
        first = pool.allocate(10, stream=stream)
        second = pool.allocate(10, stream=stream)
        first.fill(4, stream=stream)
        second.copy_from(first, stream=stream)
        first.close()
        assert "cuStreamSynchronize" not in cuda.recorder.calls
        assert read(second, host, stream) == bytes([4]) * 10
        second.close()


def test_a_buffer_outlives_its_pool(cuda, stream, host):
    pool = DecompressPool(0)
    buffer = pool.allocate(10, stream=stream)
    pool.close()
    buffer.fill(6, stream=stream)
    assert read(buffer, host, stream) == bytes([6]) * 10
    buffer.close()


def test_a_pool_that_can_not_be_set_up_is_destroyed(cuda, stream):
    cuda.fail_next("cuMemPoolSetAttribute", Code.INVALID_VALUE)
    with pytest.raises(DriverError, match="the release threshold of a memory pool"):
        DecompressPool(0)
    assert [p for p in cuda.pools.values() if not p.default] == []


def test_a_forgotten_pool_is_destroyed(cuda, stream):
    DecompressPool(0).allocate(10, stream=stream)
    gc.collect()
    stream.sync()
    assert [p for p in cuda.pools.values() if not p.default] == []


def test_a_pool_that_can_not_be_destroyed(cuda, stream):
    pool = DecompressPool(0)
    cuda.fail_next("cuMemPoolDestroy", Code.INVALID_VALUE)
    with pytest.raises(DriverError, match=r"^cuMemPoolDestroy failed"):
        pool.close()
    cuda.reset()


def test_a_failure_to_free_is_raised_when_the_pool_is_closed(cuda, stream):
    pool = DecompressPool(0)
    buffer = pool.allocate(10, stream=stream)
    cuda.fail_next("cuMemFreeAsync", Code.INVALID_VALUE)
    buffer.close()
    with pytest.raises(DriverError, match=r"^cuMemFreeAsync failed"):
        pool.close()
    cuda.reset()


# --- The ring -------------------------------------------------------------------------------------


def test_slots(host, stream):
    with StagingRing(host, 3, 5000) as ring:
        slots = [ring.acquire() for _ in range(3)]
        addresses = sorted(slot.address for slot in slots)
        assert all(address % 4096 == 0 for address in addresses)
        assert np.diff(addresses).min() >= 5000
        for number, slot in enumerate(slots):
            assert slot.view.ctypes.data == slot.address
            assert slot.view.size == 5000
            slot.view[:] = number
        assert [int(slot.view[-1]) for slot in slots] == [0, 1, 2]
        for slot in slots:
            slot.release()


@pytest.mark.parametrize(("slots", "size"), [(0, 1), (1, 0), (-1, 1)])
def test_a_ring_of_nothing(host, slots, size):
    with pytest.raises(ValueError, match="holds nothing"):
        StagingRing(host, slots, size)


def test_a_slot_is_not_filled_again_before_its_copy_is_done(host, stream):
    with DecompressMemory(0) as memory, StagingRing(host, 2, 100) as ring:
        target = memory.allocate(1000, stream=stream)
        for number in range(10):
            slot = ring.acquire()
            slot.view[:] = number
            copy = part(target.handle + 100 * number, 100)
            copy.copy_from(part(slot.address, 100), stream=stream)
            slot.release(stream)
        expected = np.repeat(np.arange(10, dtype=np.uint8), 100)
        assert read(target, host, stream) == expected.tobytes()


def test_slots_are_taken_in_the_order_of_their_release(host, stream):
    with StagingRing(host, 2, 1) as ring:
        first, second = ring.acquire(), ring.acquire()
        second.release()
        first.release()
        assert [ring.acquire(), ring.acquire()] == [second, first]
        first.release()
        second.release()


def test_nothing_is_allocated_after_construction(cuda, host, stream):
    with StagingRing(host, 2, 100) as ring:
        before = cuda.recorder.calls.copy()
        for _ in range(10):
            slot = ring.acquire()
            slot.release(stream)
        used = set(cuda.recorder.calls - before)
        assert not {name for name in used if name.startswith("cuMem") or "Create" in name}


def test_acquire_waits_for_a_release(host, stream):
    with StagingRing(host, 1, 1) as ring, ThreadPoolExecutor(1) as threads:
        slot = ring.acquire()
        other = threads.submit(ring.acquire)
        assert not other.done()
        slot.release(stream)
        assert other.result(timeout=60) is slot
        slot.release()


def test_threads_share_a_ring(cuda, host, stream):
    cuda.schedule = "eager"

    def work(number):
        for _ in range(20):
            with ring.acquire() as slot:
                slot.view[:] = number
                assert (slot.view == number).all()
                slot.release(stream)

    with StagingRing(host, 2, 500) as ring, ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_a_block_releases_its_slot(host, stream):
    with StagingRing(host, 1, 1) as ring:
        with pytest.raises(KeyError), ring.acquire():
            raise KeyError
        with ring.acquire() as slot:
            slot.release(stream)
        with ring.acquire() as again:
            assert again is slot


def test_a_slot_is_released_once(host, stream):
    with StagingRing(host, 1, 1) as ring:
        slot = ring.acquire()
        slot.release()
        with pytest.raises(ValueError, match="released before"):
            slot.release()


def test_a_closing_ring_waits_for_its_copies(cuda, host, stream):
    with DecompressMemory(0) as memory:
        target = memory.allocate(100, stream=stream)
        ring = StagingRing(host, 1, 100)
        slot = ring.acquire()
        slot.view[:] = 5
        target.copy_from(part(slot.address, 100), stream=stream)
        slot.release(stream)
        ring.close()
        assert read(target, host, stream) == bytes([5]) * 100


def test_a_forgotten_ring_waits_for_its_copies(cuda, host, stream):
    with DecompressMemory(0) as memory:
        target = memory.allocate(100, stream=stream)
        ring = StagingRing(host, 1, 100)
        slot = ring.acquire()
        slot.view[:] = 5
        target.copy_from(part(slot.address, 100), stream=stream)
        slot.release(stream)
        del ring, slot
        gc.collect()
        assert read(target, host, stream) == bytes([5]) * 100


def test_closing_wakes_who_waits(host, stream):
    ring = StagingRing(host, 1, 1)
    slot = ring.acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ring.acquire)
        ring.close()
        ring.close()
        with pytest.raises(DriverError, match="the staging ring is closed"):
            waiting.result(timeout=60)
    slot.release()
    with pytest.raises(DriverError, match="the staging ring is closed"):
        ring.acquire()


def test_a_slot_that_is_held_keeps_the_memory(cuda, host, stream):
    ring = StagingRing(host, 2, 100)
    slot = ring.acquire()
    ring.close()
    slot.view[:] = 1
    assert len(cuda.memory.allocations) == 1
    slot.release(stream)
    assert not cuda.memory.allocations


@pytest.mark.parametrize(
    ("name", "after", "error"),
    [
        ("cuStreamCreateWithPriority", 0, MemoryLimitError),
        ("cuMemCreate", 0, MemoryLimitError),
        ("cuEventCreate", 0, DriverError),  # cuda.core does not say why
        ("cuEventCreate", 2, DriverError),
    ],
)
def test_a_ring_that_can_not_be_made_leaves_nothing(cuda, host, stream, name, after, error):
    cuda.fail_next(name, Code.OUT_OF_MEMORY, after=after)
    with pytest.raises(error, match=f"{name} failed"):
        StagingRing(host, 3, 100)
    assert not cuda.memory.allocations
    assert not cuda.recorder.pending_injections()


def test_work_that_failed_is_raised_by_the_next_to_wait(cuda, host, stream):
    ring = StagingRing(host, 1, 100)
    ring.acquire().release(stream)
    cuda.fail_next("cuEventSynchronize", Code.ILLEGAL_ADDRESS, times=2)
    with pytest.raises(DriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS, for the last use of a st"):
        ring.acquire()
    with pytest.raises(DriverError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS"):
        ring.close()
    assert not cuda.memory.allocations


def test_a_use_that_can_not_be_recorded_is_waited_for(cuda, host, stream):
    with StagingRing(host, 1, 100) as ring, DecompressMemory(0) as memory:
        target = memory.allocate(100, stream=stream)
        slot = ring.acquire()
        slot.view[:] = 8
        target.copy_from(part(slot.address, 100), stream=stream)
        cuda.fail_next("cuEventRecord", Code.INVALID_HANDLE)
        with pytest.raises(DriverError, match=r"^cuEventRecord failed: CUDA_ERROR_INVALID_HAN"):
            slot.release(stream)
        ring.acquire().view[:] = 9
        slot.release()
        assert read(target, host, stream) == bytes([8]) * 100
