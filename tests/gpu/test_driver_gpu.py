"""The driver's real answers."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zlib

import numpy as np
import pytest

from gpuload import driver
from gpuload.batch import DRIVER_CODECS, PARAMS_DTYPE
from gpuload.chunks import Codec
from gpuload.errors import DriverError, MemoryLimitError

pytestmark = pytest.mark.gpu

DEVICE = 0
NOT_SUPPORTED = 801
TEXT = b"The quick brown fox jumps over the lazy dog. " * 400


def run_alone(script: str) -> str:
    """Run a script in a process of its own, and return what it prints."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def deflated(data: bytes) -> bytes:
    """Return raw DEFLATE (RFC 1951), which is what the driver means by DEFLATE."""
    coder = zlib.compressobj(6, zlib.DEFLATED, -15)
    return coder.compress(data) + coder.flush()


class Batch:
    """One DEFLATE operation in memory that the engine may use."""

    def __init__(self, stream):
        from gpuload.memory import DecompressMemory, HostNumaMemory, host_view

        payload = deflated(TEXT)
        self.host = HostNumaMemory(DEVICE)
        self.device = DecompressMemory(DEVICE, guard=1)
        self.source = self.host.allocate(len(payload), stream=stream)
        self.words = self.host.allocate(4, stream=stream)
        self.actual = host_view(self.words).view(np.uint32)
        host_view(self.source)[:] = np.frombuffer(payload, np.uint8)
        self.slot = self.device.allocate(len(TEXT), stream=stream)
        self.params = np.zeros(1, PARAMS_DTYPE)
        self.params[0] = (
            len(payload),
            len(TEXT),
            self.words.handle,
            self.source.handle,
            self.slot.handle,
            DRIVER_CODECS[Codec.DEFLATE],
            0,
        )

    def submit(self, stream, flags=0):
        return driver.mem_batch_decompress_async(
            self.params.ctypes.data, 1, flags, int(stream.handle)
        )

    def output(self, stream):
        from gpuload.memory import host_view

        landing = self.host.allocate(len(TEXT), stream=stream)
        landing.copy_from(self.slot, stream=stream)
        stream.sync()
        return host_view(landing).tobytes()


def test_capabilities():
    known = driver.capabilities(DEVICE)
    assert known.name
    assert known.compute_capability >= (5, 0)
    assert known.driver_version >= (12, 0)
    assert (known.decompress_mask == 0) == (known.decompress_max_length == 0)
    assert known.total_memory == driver.memory_info(DEVICE)[1]


def test_a_device_that_is_not_there():
    with pytest.raises(DriverError, match=r"there is no device 99: this process sees \d+"):
        driver.capabilities(99)


def test_names_of_errors():
    assert driver.error_name(NOT_SUPPORTED) == "CUDA_ERROR_NOT_SUPPORTED"
    assert driver.error_name(123456) == "CUDA error 123456"


def allocations(device):
    """Yield name, memory resource and expected pointer attribute of every kind of allocation."""
    from cuda.core import (
        DeviceMemoryResource,
        DeviceMemoryResourceOptions,
        LegacyPinnedMemoryResource,
        VirtualMemoryResource,
    )

    from gpuload.memory import DecompressMemory, DecompressPool, HostNumaMemory

    known = driver.capabilities(DEVICE)
    yield "cuMemHostAlloc", LegacyPinnedMemoryResource(), False
    if known.virtual_memory:
        yield "cuMemCreate, plain", VirtualMemoryResource(device), False
        yield "cuMemCreate, HW_DECOMPRESS", DecompressMemory(DEVICE), True
        yield "the same with a guard", DecompressMemory(DEVICE, guard=1), True
    if known.host_numa_memory:
        yield "cuMemCreate, host NUMA, HW_DECOMPRESS", HostNumaMemory(DEVICE), True
    if known.memory_pools:
        plain = DeviceMemoryResource(DEVICE, options=DeviceMemoryResourceOptions())
        yield "pool, plain", plain, False
        yield "pool, HW_DECOMPRESS", DecompressPool(DEVICE), True


def test_which_memory_the_engine_may_use(device, stream):
    if driver.capabilities(DEVICE).driver_version < (12, 8):
        pytest.skip("the driver does not know the decompression engine")
    size = 1 << 20
    wrong = {}
    for name, memory, expected in allocations(device):
        buffer = memory.allocate(size, stream=stream)
        stream.sync()
        for offset in (0, 12345, size - 1):
            answer = driver.is_hw_decompress_capable(buffer.handle + offset)
            print(f"{name}, offset {offset}: {answer}")  # noqa: T201
            if answer != expected:
                wrong[name, offset] = answer
        buffer.close(stream)
    assert not wrong


def test_memory_that_cuda_does_not_know(device):
    plain = np.zeros(10, np.uint8)
    assert not driver.is_hw_decompress_capable(plain.ctypes.data)
    assert driver.pointer(plain.ctypes.data) is None


def test_what_a_pointer_is(device, stream):
    from gpuload.memory import DecompressMemory

    with DecompressMemory(DEVICE) as memory:
        buffer = memory.allocate(100, stream=stream)
        found = driver.pointer(buffer.handle + 50)
        assert found is not None
        assert (found.memory_type, found.device_id) == (2, DEVICE)
        assert found.start == buffer.handle


def test_more_memory_than_there_is(device, stream):
    from gpuload.memory import DecompressMemory

    total = driver.memory_info(DEVICE)[1]
    with (
        DecompressMemory(DEVICE) as memory,
        pytest.raises(MemoryLimitError, match=rf"no memory for \d+ .* of the device's {total}"),
    ):
        memory.allocate(2 * total, stream=stream)


def test_a_device_without_an_engine_refuses(device, stream):
    if driver.capabilities(DEVICE).decompress_mask:
        pytest.skip("this device has a decompression engine")
    if driver.decompress_unavailable():
        pytest.skip(driver.decompress_unavailable())
    assert Batch(stream).submit(stream) == (NOT_SUPPORTED, None)


@pytest.mark.hwdecomp
def test_a_device_with_an_engine_decompresses(device, stream):
    if not driver.capabilities(DEVICE).decompress_mask & DRIVER_CODECS[Codec.DEFLATE]:
        pytest.skip("this device has no engine for DEFLATE")
    batch = Batch(stream)
    assert batch.submit(stream) == (0, None)
    stream.sync()
    assert batch.actual[0] == len(TEXT)
    assert batch.output(stream) == TEXT


@pytest.mark.hwdecomp
def test_flags_are_refused(device, stream):
    if not driver.capabilities(DEVICE).decompress_mask:
        pytest.skip("this device has no decompression engine")
    code, _ = Batch(stream).submit(stream, flags=1)
    assert driver.error_name(code) == "CUDA_ERROR_INVALID_VALUE"


def test_a_forked_process_is_told():
    said = run_alone(
        """
        import os, warnings
        from gpuload import driver
        from gpuload.errors import DriverError
        from gpuload.memory import DecompressMemory
        device = driver.device(0)
        device.set_current()
        memory = DecompressMemory(0)
        buffer = memory.allocate(1 << 20, stream=device.create_stream())
        warnings.simplefilter("ignore")
        child = os.fork()
        if not child:
            assert "forked from process" in driver.unavailable()
            try:
                driver.memory_info(0)
            except DriverError as error:
                assert "spawn" in str(error), error
            else:
                os._exit(2)
            del buffer
            memory.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert driver.is_hw_decompress_capable(buffer.handle)
        memory.close()
        print("ok")
        """
    )
    assert said == "ok"


def test_a_write_into_the_guard_is_a_fault_and_named():
    pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    said = run_alone(
        """
        from cuda.core import LaunchConfig, Program, ProgramOptions, launch
        from gpuload import driver
        from gpuload.errors import DriverError
        from gpuload.memory import DecompressMemory
        device = driver.device(0)
        device.set_current()
        stream = device.create_stream()
        source = 'extern "C" __global__ void put(char *at) { *at = 1; }'
        try:
            program = Program(source, "c++", ProgramOptions(arch=f"sm_{device.arch}"))
            kernel = program.compile("cubin").get_kernel("put")
        except Exception as error:
            print("no compiler:", error)
            raise SystemExit
        memory = DecompressMemory(0, guard=1)
        buffer = memory.allocate(memory.granularity, stream=stream)
        config = LaunchConfig(grid=1, block=1)
        launch(stream, config, kernel, buffer.handle + memory.granularity - 1)
        stream.sync()
        launch(stream, config, kernel, buffer.handle + memory.granularity)
        try:
            memory.close()
        except DriverError as error:
            print(error)
        """
    )
    if said.startswith("no compiler"):
        pytest.skip(said)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said
    assert "start a new process" in said
