"""The double of the driver: unmodified cuda-python on it, and what it notices."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from tests.double.probe.asking import Driver, descriptors
from tests.helpers.fakecuda import Code

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
GRANULARITY = 2 * MIB
UNWRITTEN = b"\xcd"


@pytest.fixture
def driver(cuda):
    """The C ABI, with device 0 in use; what a test leaves behind is forgotten."""
    made = Driver()
    made.use_device()
    yield made
    complaints = cuda.complaints()
    cuda.reset()
    assert complaints == []


@pytest.fixture
def stream(driver):
    return driver.value("cuStreamCreate", 1)


def run_alone(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own that has a double."""
    prelude = "from tests.helpers import fakecuda\ncuda = fakecuda.load()\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(script)]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=120
    )


def read(driver: Driver, address: int, size: int) -> bytes:
    """Copy device memory here, which waits for what blocks the default stream alone."""
    block = ctypes.create_string_buffer(size)
    driver.must("cuMemcpyDtoH", block, address, size)
    return block.raw


# --- Unmodified cuda-python -----------------------------------------------------------------------


def test_cuda_core_copies_through_a_device(cuda):
    from cuda.core import Device, EventOptions, LegacyPinnedMemoryResource

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    source, target = (LegacyPinnedMemoryResource().allocate(64) for _ in range(2))
    memory = device.allocate(64, stream=stream)
    ctypes.memset(int(source.handle), 7, 64)
    memory.copy_from(source, stream=stream)
    memory.copy_to(target, stream=stream)
    event = stream.record(options=EventOptions(timing_enabled=True))
    assert not event.is_done
    assert ctypes.string_at(int(target.handle), 64) == UNWRITTEN * 64
    event.sync()
    assert event.is_done
    assert ctypes.string_at(int(target.handle), 64) == b"\7" * 64
    for one in (source, target, memory, event, stream):
        one.close()


def test_cuda_core_reads_attributes(cuda):
    from cuda.core import Device

    device = Device(0)
    assert tuple(device.compute_capability) == (10, 0)
    assert device.properties.multiprocessor_count == 132
    assert device.name == "Double of a GPU 0"


def test_both_bindings_call_it(cuda):
    from cuda.bindings import driver as old  # noqa: TID251 - the double is for their sake
    from cuda.bindings._v2 import driver as new  # noqa: TID251

    assert old.cuDriverGetVersion() == (old.CUresult.CUDA_SUCCESS, 13000)
    assert new.driver_get_version() == 13000
    with pytest.raises(new.InvalidValueError):
        new.mem_address_reserve(0, 0, 0, 0)
    assert old.cuGetErrorName(old.CUresult(713))[1] == b"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"


def test_the_library_exports_what_ctypes_calls_by_name():
    library = ctypes.CDLL("libcuda.so.1")
    assert library.cuMemBatchDecompressAsync(None, ctypes.c_size_t(0), 0, None, None) == 201
    version = ctypes.c_int()
    assert library.cuDriverGetVersion(ctypes.byref(version)) == 0
    assert version.value == 13000


def test_an_older_library_lacks_the_decompression_call():
    script = """
        import ctypes
        assert not hasattr(ctypes.CDLL("libcuda.so.1"), "cuMemBatchDecompressAsync")
        from cuda.bindings import driver
        assert driver.cuDriverGetVersion()[1] == 12060
        for name, found in ((b"cuMemBatchDecompressAsync", False), (b"cuMemCreate", True)):
            code, address, status = driver.cuGetProcAddress(name, 12060, 0)
            assert (code, bool(address)) == (0, found), (name, code, address, status)
    """
    done = run_alone(script, GPULOAD_FAKE_CUDA_VERSION="12060")
    assert (done.returncode, done.stderr) == (0, "")


def test_handles_that_outlive_python_do_not_crash():
    script = """
        from cuda.core import Device
        Device(0).set_current()
        import builtins
        stream = Device(0).create_stream()
        builtins.kept = [stream, Device(0).allocate(64, stream=stream)]
    """
    done = run_alone(script)
    assert (done.returncode, done.stderr) == (0, "")


# --- What a test chooses --------------------------------------------------------------------------


def test_a_call_without_a_model_is_refused_and_reported(cuda, driver):
    assert driver.code_of("cuModuleLoadData", b"\0") == Code.NOT_SUPPORTED
    assert cuda.complaints() == ["not modelled: cuModuleLoadData"]
    cuda.recorder.unmodelled.clear()


def test_an_older_driver_does_not_know_newer_calls(cuda, driver):
    cuda.settings.driver_version = 12060
    with pytest.raises(LookupError, match="status 2"):
        driver.address("cuMemBatchDecompressAsync")
    with pytest.raises(LookupError, match="code 1"):
        driver.address("cuMemcpyBatchAsync", 12080)


def test_an_exception_in_the_double_is_kept(cuda, driver):
    cuda.settings.total_memory = None
    assert driver.code_of("cuMemAlloc", 64) == Code.UNKNOWN
    assert "TypeError" in cuda.complaints()[0]
    cuda.recorder.internal.clear()


def test_a_destructor_may_call_while_an_exception_is_on_its_way(cuda):
    from cuda.core import Device

    cuda.fail_next("cuEventRecord", Code.INVALID_CONTEXT)
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    with pytest.raises(Exception, match="CUDA_ERROR_INVALID_CONTEXT"):
        stream.record()
    assert cuda.recorder.calls["cuEventDestroy"] == 1
    stream.close()


def test_settings_are_the_devices_attributes(cuda, driver):
    cuda.settings.device_count = 2
    cuda.settings.algorithm_mask = 5
    cuda.settings.attributes[112] = 0
    answers = {}
    for number in (112, 134, 136, 137):
        answers[number] = driver.value("cuDeviceGetAttribute", number, 1) & 0xFFFF_FFFF
    assert answers == {112: 0, 134: 0, 136: 5, 137: 4 * MIB}
    assert driver.code_of("cuDeviceGetAttribute", 136, 2) == Code.INVALID_DEVICE


def test_an_injected_fault_comes_once_after_some_calls(cuda, driver):
    cuda.fail_next("cuMemAlloc", Code.ECC_UNCORRECTABLE, after=2)
    codes = [driver.code_of("cuMemAlloc", 64) for _ in range(4)]
    assert codes == [0, 0, Code.ECC_UNCORRECTABLE, 0]
    assert cuda.recorder.pending_injections() == []


@pytest.mark.parametrize("kind", ["plain", "created", "pool"])
def test_a_full_device_is_out_of_memory(kind, cuda, driver, stream):
    cuda.settings.total_memory = 8 * MIB
    pool = driver.pool()
    allocate = {
        "plain": lambda: driver.code_of("cuMemAlloc", 3 * MIB),
        "created": lambda: _create(driver, 4 * MIB),
        "pool": lambda: driver.code_of("cuMemAllocFromPoolAsync", 3 * MIB, pool, stream),
    }[kind]
    assert [allocate() for _ in range(3)] == [0, 0, Code.OUT_OF_MEMORY]


def _create(driver: Driver, size: int) -> int:
    try:
        driver.created(size)
    except RuntimeError as error:
        return int(str(error).rsplit(maxsplit=1)[-1])
    return 0


def test_a_pool_keeps_what_its_threshold_says(cuda, driver, stream):
    pool = driver.pool()
    memory = driver.value("cuMemAllocFromPoolAsync", MIB, pool, stream)
    driver.must("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(16 * MIB)))
    driver.must("cuMemFreeAsync", memory, stream)
    driver.must("cuStreamSynchronize", stream)
    assert cuda.pools[pool].reserved == 16 * MIB
    driver.must("cuMemPoolTrimTo", pool, 0)
    assert cuda.pools[pool].reserved == 0


# --- Streams --------------------------------------------------------------------------------------


class Copying:
    """Device memory, pinned memory of ones, and a second buffer."""

    def __init__(self, driver: Driver) -> None:
        self.memory = driver.memory(64)
        self.ones, self.other = driver.pinned(64), driver.pinned(64)
        ctypes.memset(self.ones, 1, 64)

    def other_bytes(self) -> bytes:
        return ctypes.string_at(self.other, 1)


@pytest.fixture
def copying(driver):
    return Copying(driver)


def test_a_missing_wait_shows(driver, stream, copying):
    second = driver.value("cuStreamCreate", 1)
    driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, stream)
    driver.must("cuMemcpyDtoHAsync", copying.other, copying.memory, 64, second)
    driver.must("cuStreamSynchronize", second)
    assert copying.other_bytes() == UNWRITTEN


def test_a_wait_orders_two_streams(driver, stream, copying):
    second, event = driver.value("cuStreamCreate", 1), driver.value("cuEventCreate", 2)
    driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, stream)
    driver.must("cuEventRecord", event, stream)
    driver.must("cuStreamWaitEvent", second, event, 0)
    driver.must("cuMemcpyDtoHAsync", copying.other, copying.memory, 64, second)
    driver.must("cuStreamSynchronize", second)
    assert copying.other_bytes() == b"\1"


def test_a_wait_is_for_what_was_recorded_before_it(driver, stream, copying):
    second, event = driver.value("cuStreamCreate", 1), driver.value("cuEventCreate", 2)
    driver.must("cuStreamWaitEvent", second, event, 0)
    driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, stream)
    driver.must("cuEventRecord", event, stream)
    driver.must("cuMemcpyDtoHAsync", copying.other, copying.memory, 64, second)
    driver.must("cuStreamSynchronize", second)
    assert copying.other_bytes() == UNWRITTEN


def test_a_chain_of_waits_may_be_long(driver, stream, copying):
    second, event = driver.value("cuStreamCreate", 1), driver.value("cuEventCreate", 2)
    driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, stream)
    for one, other in ((stream, second), (second, stream)) * 2000:
        driver.must("cuEventRecord", event, one)
        driver.must("cuStreamWaitEvent", other, event, 0)
    driver.must("cuMemcpyDtoHAsync", copying.other, copying.memory, 64, stream)
    driver.must("cuStreamSynchronize", stream)
    assert copying.other_bytes() == b"\1"


@pytest.mark.parametrize(("flags", "seen"), [(0, b"\1"), (1, UNWRITTEN)])
def test_only_blocking_streams_wait_for_the_default_stream(flags, seen, driver, copying):
    blocking = driver.value("cuStreamCreate", flags)
    driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, 0)
    driver.must("cuMemcpyDtoHAsync", copying.other, copying.memory, 64, blocking)
    driver.must("cuStreamSynchronize", blocking)
    assert copying.other_bytes() == seen


@pytest.mark.parametrize(("flags", "seen"), [(0, b"\1"), (1, UNWRITTEN)])
def test_the_default_stream_waits_for_blocking_streams(flags, seen, driver, copying):
    blocking = driver.value("cuStreamCreate", flags)
    driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, blocking)
    assert read(driver, copying.memory, 1) == seen


def test_a_query_lets_the_device_go_on(driver, stream, copying):
    for _ in range(3):
        driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, stream)
    codes = [driver("cuStreamQuery", stream) for _ in range(4)]
    assert codes == [Code.NOT_READY] * 3 + [0]


def test_the_host_sees_its_own_late_write_only_if_it_waits(cuda, driver, stream, copying):
    for schedule, seen in (("lazy", b"\2"), ("eager", b"\1")):
        cuda.schedule = schedule
        ctypes.memset(copying.ones, 1, 64)
        driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, stream)
        ctypes.memset(copying.ones, 2, 64)
        driver.must("cuStreamSynchronize", stream)
        assert read(driver, copying.memory, 1) == seen


def test_work_of_a_destroyed_stream_is_still_done(driver, stream, copying):
    driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, stream)
    driver.must("cuStreamDestroy", stream)
    driver.must("cuCtxSynchronize")
    assert read(driver, copying.memory, 1) == b"\1"


def test_host_functions_run_in_stream_order(driver, stream, copying):
    seen = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(copying.other_bytes()))
    driver.must("cuLaunchHostFunc", stream, function, 0)
    driver.must("cuMemcpyDtoHAsync", copying.other, copying.memory, 64, stream)
    driver.must("cuMemsetD8Async", copying.memory, 3, 64, stream)
    driver.must("cuMemcpyDtoHAsync", copying.other, copying.memory, 64, stream)
    driver.must("cuLaunchHostFunc", stream, function, 0)
    assert seen == []
    driver.must("cuStreamSynchronize", stream)
    assert seen == [UNWRITTEN, b"\3"]


def test_a_copy_of_pageable_memory_is_counted(cuda, driver, stream, copying):
    block = ctypes.create_string_buffer(b"\5" * 64)
    driver.must("cuMemcpyHtoDAsync", copying.memory, ctypes.addressof(block), 64, stream)
    assert read(driver, copying.memory, 1) == b"\5"
    assert len(cuda.pageable_copies) == 2


def test_a_source_may_be_read_during_the_call(driver, stream, copying):
    def batch(order: int) -> None:
        words = [(ctypes.c_uint64 * 1)(value) for value in (copying.memory, copying.ones, 64, 0)]
        attributes = (ctypes.c_int32 * 6)(order)
        to, source, size, first = words
        driver.must(
            "cuMemcpyBatchAsync", to, source, size, 1, attributes, first, 1, stream, version=13000
        )

    for order, seen in ((1, b"\2"), (2, b"\1")):
        ctypes.memset(copying.ones, 1, 64)
        batch(order)
        ctypes.memset(copying.ones, 2, 64)
        driver.must("cuStreamSynchronize", stream)
        assert read(driver, copying.memory, 1) == seen


# --- Memory ---------------------------------------------------------------------------------------


def test_addresses_are_never_used_twice(driver):
    seen = set()
    for _ in range(50):
        address = driver.memory(64)
        driver.must("cuMemFree", address)
        seen.add(address)
    assert len(seen) == 50


def test_created_memory_keeps_its_bytes_when_mapped_elsewhere(driver):
    handle = driver.created(GRANULARITY)
    seen = []
    for value in (9, None):
        address = driver.value("cuMemAddressReserve", GRANULARITY, 0, 0, 0)
        driver.must("cuMemMap", address, GRANULARITY, 0, handle, 0)
        driver.must("cuMemSetAccess", address, GRANULARITY, descriptors((1, 0, 3)), 1)
        if value is not None:
            driver.must("cuMemsetD8", address, value, 64)
        seen.append(read(driver, address, 1))
        driver.must("cuMemUnmap", address, GRANULARITY)
    assert seen == [b"\x09", b"\x09"]


@pytest.mark.parametrize("kind", ["device", "created", "freed host"])
def test_the_host_dies_of_memory_that_is_not_its_own(kind):
    script = f"""
        import ctypes
        from tests.double.probe.asking import Driver
        driver = Driver()
        driver.use_device()
        address = {{
            "device": lambda: driver.memory(64),
            "created": lambda: driver.mapped(2 << 20),
            "freed host": lambda: driver.pinned(64),
        }}[{kind!r}]()
        if {kind!r} == "freed host":
            driver.must("cuMemFreeHost", address)
        print("alive", flush=True)
        ctypes.string_at(address, 1)
    """
    done = run_alone(script)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "alive\n")


def test_stream_ordered_memory_used_by_another_stream_too_early(cuda, driver, stream, copying):
    memory = driver.value("cuMemAllocFromPoolAsync", 64, driver.pool(), stream)
    second = driver.value("cuStreamCreate", 1)
    driver.must("cuMemcpyHtoDAsync", memory, copying.ones, 64, second)
    driver.must("cuStreamSynchronize", second)
    (violation,) = cuda.recorder.take_violations()
    assert "used before its stream allocated it" in violation


def test_memory_used_after_its_free_was_queued(cuda, driver, stream, copying):
    memory = driver.value("cuMemAllocFromPoolAsync", 64, driver.pool(), stream)
    driver.must("cuMemFreeAsync", memory, stream)
    driver.must("cuMemcpyHtoDAsync", memory, copying.ones, 64, stream)
    (violation,) = cuda.recorder.take_violations()
    assert "submitted after its free" in violation
    assert driver("cuStreamSynchronize", stream) == Code.ILLEGAL_ADDRESS
    assert "which is freed" in cuda.recorder.take_violations()[0]


def test_memory_unmapped_under_queued_work_ends_the_context(cuda, driver, stream, copying):
    memory = driver.mapped(GRANULARITY)
    driver.must("cuMemcpyHtoDAsync", memory, copying.ones, 64, stream)
    driver.must("cuMemUnmap", memory, GRANULARITY)
    assert driver("cuStreamSynchronize", stream) == Code.ILLEGAL_ADDRESS
    assert driver.code_of("cuMemAlloc", 64) == Code.ILLEGAL_ADDRESS
    assert driver("cuMemAddressFree", memory, GRANULARITY) == 0
    (violation,) = cuda.recorder.take_violations()
    assert "work ran on memory that is gone" in violation


def test_freeing_waits_for_queued_work(driver, stream, copying):
    driver.must("cuMemcpyHtoDAsync", copying.memory, copying.ones, 64, stream)
    driver.must("cuMemFree", copying.memory)
    driver.must("cuStreamSynchronize", stream)


@pytest.mark.parametrize("name", ["cuMemFree", "cuMemFreeHost"])
def test_a_second_free_is_a_violation(name, cuda, driver):
    address = driver.memory(64) if name == "cuMemFree" else driver.pinned(64)
    driver.must(name, address)
    assert driver(name, address) == Code.INVALID_VALUE
    assert "freed twice" in cuda.recorder.take_violations()[0]


def test_what_is_from_before_a_reset_may_be_given_back(cuda, driver, stream):
    memory, handle = driver.memory(64), driver.created(GRANULARITY)
    cuda.reset()
    driver.use_device()
    assert driver("cuMemFree", memory) == Code.INVALID_VALUE
    assert driver("cuMemRelease", handle) == Code.INVALID_VALUE
    assert driver("cuStreamDestroy", stream) == Code.INVALID_HANDLE
    assert cuda.complaints() == []


def test_everything_left_behind_is_a_leak(cuda, driver, stream):
    assert len(cuda.leaks()) == 1
    driver.memory(64)
    driver.pinned(64)
    driver.created(GRANULARITY)
    driver.value("cuMemAddressReserve", GRANULARITY, 0, 0, 0)
    driver.value("cuMemAllocFromPoolAsync", 64, driver.pool(), stream)
    driver.value("cuEventCreate", 0)
    kinds = sorted(text.split()[0] for text in cuda.leaks())
    assert kinds == ["allocation"] * 4 + ["event", "pool", "reservation", "stream"]


def test_after_a_fault_only_what_can_be_given_back_is_a_leak(cuda, driver, stream):
    driver.memory(64)
    driver.created(GRANULARITY)
    cuda.queue_fault(stream)
    assert driver("cuStreamSynchronize", stream) == Code.ILLEGAL_ADDRESS
    assert [text.split("(")[1][:7] for text in cuda.leaks()] == ["created"]


# --- Threads and processes ------------------------------------------------------------------------


def test_a_new_thread_has_no_context(driver):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(driver.code_of("cuMemAlloc", 64)))
    thread.start()
    thread.join()
    assert codes == [Code.INVALID_CONTEXT]


def test_many_threads_submit_at_once(cuda, driver):
    def work() -> None:
        driver.use_device()
        stream, memory = driver.value("cuStreamCreate", 1), driver.memory(4096)
        for value in range(50):
            driver.must("cuMemsetD8Async", memory, value, 4096, stream)
            driver.must("cuStreamSynchronize", stream)
        results.append(read(driver, memory, 4096))

    results: list[bytes] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"\x31" * 4096] * 4


def test_calls_of_a_forked_child_are_seen(cuda, driver, stream):
    child = os.fork()
    if child == 0:
        codes = [driver("cuCtxSynchronize"), driver("cuStreamDestroy", stream)]
        os._exit(codes != [Code.NOT_INITIALIZED] * 2)
    assert os.waitpid(child, 0)[1] == 0
    assert cuda.forked.names() == ["cuCtxSynchronize", "cuStreamDestroy"]
    assert cuda.complaints() == ["cuStreamDestroy in a forked child hangs"]
    cuda.forked.clear()
