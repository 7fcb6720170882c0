"""The driver package on the double: every call, every refusal, and every reason it states."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import subprocess
import sys
import textwrap
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from gpuload import driver
from gpuload.batch import DRIVER_CODECS, PARAMS_DTYPE
from gpuload.chunks import Codec
from gpuload.driver import bindings, devices, library, pools, virtual
from gpuload.driver.bindings import Bindings
from gpuload.errors import DriverError, MemoryLimitError
from tests.helpers.fakecuda import Code

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
GRANULARITY = 2 * MIB
PLACE = driver.Location.device(0)
TEXT = b"to be or not to be, that is the question. " * 100


@pytest.fixture
def stream():
    device = driver.device(0)
    device.set_current()
    made = device.create_stream()
    yield made
    made.close()


@pytest.fixture
def fresh(monkeypatch):
    """`unavailable` looks again, instead of remembering what it found."""
    monkeypatch.setattr(devices, "_unavailable", devices._unavailable.__wrapped__)


@pytest.fixture
def memory(stream):
    """Memory resources of both places, closed after the test."""
    from gpuload.memory import DecompressMemory, HostNumaMemory

    with DecompressMemory(0) as on_device, HostNumaMemory(0) as on_host:
        yield on_device, on_host


def run_alone(script, **variables):
    """Run a script in a process of its own that has a double, and return what it prints."""
    prelude = "from tests.helpers import fakecuda\ncuda = fakecuda.load()\n"
    command = [sys.executable, "-W", "error", "-c", prelude + textwrap.dedent(script)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **variables},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- What is used of cuda-python ------------------------------------------------------------------


NAMES = sorted({*Bindings.__annotations__, *(n for n in vars(Bindings) if not n.startswith("_"))})


@pytest.mark.parametrize("name", NAMES)
def test_the_private_bindings_have_every_name_that_is_used(name):
    assert hasattr(bindings.api(), name)


def test_the_list_of_names_is_not_empty():
    assert {"mem_create", "mem_pool_create", "pointer_get_attribute"} <= set(NAMES)


def test_only_one_module_imports_the_bindings():
    imports = re.compile(r"^\s*(from|import) cuda\.bindings", re.MULTILINE)
    files = [f for folder in ("gpuload", "cli") for f in (ROOT / folder).rglob("*.py")]
    found = [str(f.relative_to(ROOT)) for f in files if imports.search(f.read_text())]
    assert found == ["gpuload/driver/bindings.py"]


def test_importing_the_driver_imports_no_cuda():
    script = "import sys, gpuload.driver; print([m for m in sys.modules if m.startswith('cuda')])"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_numbers_are_those_of_the_bindings():
    v2 = importlib.import_module("cuda.bindings._v2.driver")

    assert virtual.HW_DECOMPRESS == v2.MemCreateUsage.HW_DECOMPRESS
    assert virtual.HW_DECOMPRESS == v2.MemPoolCreateUsage.HW_DECOMPRESS
    assert virtual.PINNED == v2.MemAllocationType.PINNED
    assert virtual.READ_WRITE == v2.MemAccessFlags.READWRITE
    assert virtual._MINIMUM == v2.MemAllocationGranularityFlags.MINIMUM
    assert driver.Location.device(3) == (v2.MemLocationType.DEVICE, 3)
    assert driver.Location.host_numa(1) == (v2.MemLocationType.HOST_NUMA, 1)
    assert pools._RELEASE_THRESHOLD == v2.MemPoolAttribute.RELEASE_THRESHOLD


def test_sizes_of_structures_are_those_of_the_headers():
    api = bindings.api()
    assert api.mem_allocation_prop_v1_dtype.itemsize == 32
    assert api.mem_access_desc_v1_dtype.itemsize == 12
    assert api.mem_pool_props_v1_dtype.itemsize == 88


# --- Is there CUDA --------------------------------------------------------------------------------


def test_available(fresh):
    assert driver.unavailable() == ""


def test_finding_out_does_not_import_cuda_python_or_make_a_context():
    said = run_alone(
        """
        import sys
        from gpuload import driver
        assert not driver.unavailable()
        print(sorted(m for m in sys.modules if m.startswith("cuda.core") or ".driver" in m
                     and m.startswith("cuda")))
        print(sorted(cuda.recorder.calls))
        """
    )
    assert said.splitlines() == ["[]", "['cuDeviceGetCount', 'cuInit']"]


def test_no_library(fresh, monkeypatch):
    monkeypatch.setattr(library, "load", lambda: None)
    assert driver.unavailable() == (
        f"there is no CUDA driver ({library.LIBRARY} was not found); install NVIDIA's driver"
    )


def test_a_library_that_can_not_be_loaded_is_none(monkeypatch):
    monkeypatch.setattr(library, "LIBRARY", "libsuchthing.so.1")
    assert library.load.__wrapped__() is None


def test_a_library_from_before_cuda_12(fresh, monkeypatch):
    monkeypatch.setattr(library, "load", object)
    assert "older than CUDA 12.0" in driver.unavailable()
    assert library.function("cuInit", 2000, ctypes.c_uint) is None
    assert library.driver_version() == (0, 0)
    assert library.device_count() == 0
    assert library.error_name(801) == "CUDA error 801"
    assert library.initialise() == Code.NOT_INITIALIZED


@pytest.mark.parametrize("module", ["nosuchpackage.driver", "json.nosuchmodule"])
def test_cuda_python_not_installed(fresh, monkeypatch, module):
    monkeypatch.setattr(devices, "_PACKAGES", {module: "cuda-thing>=1"})
    assert driver.unavailable() == ("cuda-thing>=1 is not installed: pip install 'cuda-thing>=1'")


def test_no_device(fresh, cuda, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cuda.settings.device_count = 0
    assert driver.unavailable() == "the CUDA driver sees no device"


def test_devices_are_hidden(fresh, cuda, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cuda.settings.device_count = 0
    assert driver.unavailable().endswith("no device (CUDA_VISIBLE_DEVICES is '')")


def test_a_driver_that_does_not_start(fresh, cuda):
    cuda.fail_next("cuInit", Code.UNKNOWN)
    assert driver.unavailable() == (
        "the CUDA driver does not start: cuInit failed with CUDA_ERROR_UNKNOWN"
    )


def test_a_process_that_others_forked_after_they_had_used_cuda(fresh, cuda):
    cuda.fail_next("cuInit", Code.NOT_INITIALIZED)
    assert driver.unavailable().endswith(
        "cuInit failed with CUDA_ERROR_NOT_INITIALIZED; had CUDA been used before this process was "
        "forked?"
    )


def test_a_device_can_not_be_had_where_there_is_no_cuda(fresh, cuda):
    cuda.fail_next("cuInit", Code.UNKNOWN)
    with pytest.raises(DriverError, match=r"device 0 can't be used: the CUDA driver does not"):
        driver.device(0)


@pytest.mark.parametrize("number", [1, 99, -1])
def test_no_such_device(number):
    with pytest.raises(DriverError, match=rf"no device {number}: this process sees 1, numbered"):
        driver.device(number)


# --- Forked processes -----------------------------------------------------------------------------


def test_a_forked_process_is_told_and_leaves_the_parents_memory_alone():
    said = run_alone(
        """
        import gc, os, warnings
        from gpuload import driver
        from gpuload.errors import DriverError
        from gpuload.memory import DecompressMemory, DecompressPool, HostNumaMemory, StagingRing

        driver.device(0).set_current()
        stream = driver.device(0).create_stream()
        memory, pool, host = DecompressMemory(0), DecompressPool(0), HostNumaMemory(0)
        buffers = [m.allocate(100, stream=stream) for m in (memory, pool, host)]
        ring = StagingRing(host, 1, 100)
        slot = ring.acquire()
        warnings.simplefilter("ignore")
        child = os.fork()
        if not child:
            called = []
            cuda.call = lambda entry, arguments: called.append(entry.name) or 3
            assert f"forked from process {os.getppid()}" in driver.unavailable()
            refused = 0
            for call in (lambda: driver.memory_info(0), lambda: driver.capabilities(0),
                         lambda: memory.allocate(1, stream=stream), ring.acquire,
                         lambda: driver.mem_batch_decompress_async(0, 0, 0, 0)):
                try:
                    call()
                except DriverError as error:
                    refused += "spawn" in str(error)
            for one in (*buffers, ring, memory, pool, host):
                one.close()
            del memory, pool, host, buffers, ring, slot
            gc.collect()
            assert not any(name.startswith("cuMem") for name in called), called
            os._exit(refused)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        slot.release(stream)
        for one in (ring, memory, host, *buffers, pool, stream):
            one.close()
        print(cuda.complaints() + cuda.leaks())
        """
    )
    assert said.splitlines() == ["5", "[]"]


def test_a_process_that_was_forked_before_any_use_may_use_cuda(monkeypatch):
    monkeypatch.setattr(library, "_owner", None)
    assert driver.forked() == ""
    driver.claim()
    assert library._owner == os.getpid()


def test_a_forked_process_names_both(monkeypatch):
    monkeypatch.setattr(library, "_owner", 12345)
    assert driver.unavailable().startswith(
        f"process {os.getpid()} was forked from process 12345 after that had used CUDA"
    )
    with pytest.raises(DriverError, match="'spawn' or 'forkserver'"):
        driver.claim()


# --- Devices --------------------------------------------------------------------------------------


def test_capabilities(cuda):
    assert driver.capabilities(0) == driver.Capabilities(
        name="Double of a GPU 0",
        compute_capability=(10, 0),
        driver_version=(13, 0),
        decompress_mask=7,
        decompress_max_length=4 * MIB,
        sparse_arrays=True,
        memory_pools=True,
        virtual_memory=True,
        host_numa_memory=True,
        host_numa_id=0,
        total_memory=cuda.settings.total_memory,
        multiprocessors=132,
    )


#: cuda-bindings warns of the older driver, once a process.
OLDER_DRIVER = {
    "GPULOAD_FAKE_CUDA_VERSION": "12060",
    "CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1",
}


def test_an_older_driver_can_not_be_asked_to_decompress():
    said = run_alone(
        """
        from gpuload import driver
        from gpuload.errors import DriverError
        print(driver.capabilities(0).driver_version)
        print(driver.decompress_unavailable())
        try:
            driver.mem_batch_decompress_async(0, 0, 0, 0)
        except DriverError as error:
            print(error)
        """,
        **OLDER_DRIVER,
    )
    reason = "the driver supports CUDA 12.6; decompression in hardware came with CUDA 12.8"
    assert said.splitlines() == ["(12, 6)", reason, reason]


def test_memory_of_an_older_driver_is_made_without_the_flag_that_it_does_not_know():
    said = run_alone(
        """
        from gpuload import driver
        from gpuload.memory import DecompressMemory, DecompressPool
        device = driver.device(0)
        device.set_current()
        stream = device.create_stream()
        with DecompressMemory(0) as memory, DecompressPool(0) as pool:
            for one in (memory, pool):
                buffer = one.allocate(100, stream=stream)
                print(driver.is_hw_decompress_capable(buffer.handle))
                buffer.close()
        """,
        **OLDER_DRIVER,
    )
    assert said.split() == ["False", "False"]


def test_attributes_that_a_driver_does_not_know_are_0():
    known = run_alone(
        """
        cuda.fail_next("cuDeviceGetAttribute", 1, times=100)
        from gpuload import driver
        known = driver.capabilities(0)
        print(known.decompress_mask, known.decompress_max_length, known.host_numa_memory)
        """
    )
    assert known == "0 0 False"


def test_memory_info(cuda, stream):
    total = cuda.settings.total_memory
    assert driver.memory_info(0) == (total, total)
    handle = driver.mem_create(GRANULARITY, PLACE)
    assert driver.memory_info(0) == (total - GRANULARITY, total)
    driver.mem_release(handle)


def test_a_thread_without_a_device_gets_one(cuda):
    found = []

    def work():
        with driver.on_device(0):
            found.append(cuda.current.ordinal)
        found.append(cuda.current.ordinal)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [0, 0]


def test_the_device_that_was_current_is_again():
    said = run_alone(
        """
        cuda.settings.device_count = 2
        from gpuload import driver
        driver.device(1).set_current()
        with driver.on_device(0):
            print(cuda.current.ordinal)
        print(cuda.current.ordinal)
        try:
            with driver.on_device(0):
                raise KeyError
        except KeyError:
            print(cuda.current.ordinal)
        """
    )
    assert said.split() == ["0", "1", "1"]


# --- Virtual memory -------------------------------------------------------------------------------


def test_granularity():
    assert driver.mem_granularity(PLACE) == GRANULARITY
    assert driver.mem_granularity(driver.Location.host_numa(0)) == GRANULARITY


@pytest.mark.parametrize(("place", "memory_type"), [(PLACE, 2), (driver.Location.host_numa(0), 1)])
def test_every_step_of_mapped_memory(cuda, stream, place, memory_type):
    handle = driver.mem_create(GRANULARITY, place)
    address = driver.mem_address_reserve(2 * GRANULARITY, 0)
    driver.mem_map(address, GRANULARITY, handle)
    driver.mem_release(handle)
    driver.mem_set_access(address, GRANULARITY, list({PLACE, place}))
    assert driver.is_hw_decompress_capable(address)
    assert driver.is_hw_decompress_capable(address + GRANULARITY - 1)
    assert not driver.is_hw_decompress_capable(address + GRANULARITY)
    assert driver.pointer(address + 5).memory_type == memory_type
    driver.mem_unmap(address, GRANULARITY)
    driver.mem_address_free(address, 2 * GRANULARITY)


def test_a_host_without_numa_has_node_0():
    assert driver.Location.host_numa(-1) == driver.Location.host_numa(0)
    assert str(driver.Location.host_numa(-1)) == "host NUMA node 0"


CALLS = {
    "cuMemGetAllocationGranularity": lambda: driver.mem_granularity(PLACE),
    "cuMemCreate": lambda: driver.mem_create(GRANULARITY, PLACE),
    "cuMemAddressReserve": lambda: driver.mem_address_reserve(GRANULARITY, 0),
    "cuMemMap": lambda: driver.mem_map(GRANULARITY, GRANULARITY, 1),
    "cuMemSetAccess": lambda: driver.mem_set_access(GRANULARITY, GRANULARITY, [PLACE]),
    "cuMemUnmap": lambda: driver.mem_unmap(GRANULARITY, GRANULARITY),
    "cuMemRelease": lambda: driver.mem_release(1),
    "cuMemAddressFree": lambda: driver.mem_address_free(GRANULARITY, GRANULARITY),
    "cuMemPoolCreate": lambda: driver.pool_create(0),
    "cuMemPoolSetAttribute": lambda: driver.pool_keep(1, 1),
    "cuMemAllocFromPoolAsync": lambda: driver.pool_allocate(1, 1, 1),
    "cuMemFreeAsync": lambda: driver.pool_free(GRANULARITY, 1),
    "cuMemPoolDestroy": lambda: driver.pool_destroy(1),
    "cuMemGetInfo": lambda: driver.memory_info(0),
    "cuPointerGetAttribute": lambda: driver.pointer(GRANULARITY),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_refused_call_is_named_with_the_error(cuda, stream, name):
    cuda.fail_next(name, Code.NOT_SUPPORTED)
    with pytest.raises(DriverError) as caught:
        CALLS[name]()
    assert str(caught.value).startswith(f"{name} failed: CUDA_ERROR_NOT_SUPPORTED (801), for ")
    assert str(caught.value).endswith(
        "; neither device nor driver can; `gpuload doctor` shows them"
    )
    assert not cuda.recorder.pending_injections()


@pytest.mark.parametrize("name", ["cuMemCreate", "cuMemAllocFromPoolAsync"])
def test_no_memory(cuda, stream, name):
    cuda.fail_next(name, Code.OUT_OF_MEMORY)
    with pytest.raises(MemoryLimitError) as caught:
        CALLS[name]()
    total = cuda.settings.total_memory
    assert re.match(r"no memory for \d+ bytes of (device 0|a memory pool): ", str(caught.value))
    assert f"{total} of the device's {total} bytes free" in str(caught.value)
    assert "lower memory_limit" in str(caught.value)


def test_no_memory_and_no_number_of_free_bytes(cuda, stream):
    cuda.fail_next("cuMemCreate", Code.OUT_OF_MEMORY)
    cuda.fail_next("cuMemGetInfo", Code.UNKNOWN)
    with pytest.raises(MemoryLimitError) as caught:
        driver.mem_create(GRANULARITY, PLACE)
    assert str(caught.value) == (
        f"no memory for {GRANULARITY} bytes of device 0: cuMemCreate failed: "
        "CUDA_ERROR_OUT_OF_MEMORY (2); lower memory_limit, or free some"
    )


@pytest.mark.parametrize("code", [Code.ILLEGAL_ADDRESS, Code.ECC_UNCORRECTABLE, Code.LAUNCH_FAILED])
def test_an_error_that_ends_the_context_says_so(cuda, stream, code):
    cuda.fail_next("cuMemCreate", code)
    with pytest.raises(DriverError, match=r"ended this process's CUDA context: start a new proc"):
        driver.mem_create(GRANULARITY, PLACE)


def test_an_error_without_advice(cuda, stream):
    cuda.fail_next("cuMemCreate", Code.INVALID_VALUE)
    with pytest.raises(DriverError) as caught:
        driver.mem_create(GRANULARITY, PLACE)
    assert str(caught.value) == (
        f"cuMemCreate failed: CUDA_ERROR_INVALID_VALUE (1), for {GRANULARITY} bytes of device 0"
    )


def test_a_code_that_the_driver_has_no_name_for(cuda, stream):
    cuda.fail_next("cuMemCreate", 54321)
    with pytest.raises(DriverError, match=r"^cuMemCreate failed: CUDA error 54321 \(54321\)"):
        driver.mem_create(GRANULARITY, PLACE)


def test_errors_of_cuda_core_become_ours(cuda, stream):
    cuda.fail_next("cuStreamSynchronize", Code.LAUNCH_FAILED)
    with pytest.raises(DriverError) as caught, driver.calling("cuStreamSynchronize", "a test"):
        stream.sync()
    said = str(caught.value)
    assert said.startswith("cuStreamSynchronize failed: CUDA_ERROR_LAUNCH_FAILED, for a test;")


def test_other_errors_pass():
    with pytest.raises(KeyError), driver.calling("cuMemCreate", "a test"):
        raise KeyError


# --- Pools ----------------------------------------------------------------------------------------


def test_every_step_of_a_pool(cuda, stream):
    pool = driver.pool_create(0)
    driver.pool_keep(pool, 2**64 - 1)
    address = driver.pool_allocate(pool, 100, int(stream.handle))
    assert driver.is_hw_decompress_capable(address + 99)
    driver.pool_free(address, int(stream.handle))
    stream.sync()
    assert driver.memory_info(0)[0] < cuda.settings.total_memory
    driver.pool_destroy(pool)
    assert driver.memory_info(0)[0] == cuda.settings.total_memory


# --- Pointers -------------------------------------------------------------------------------------


def test_a_pointer_that_cuda_does_not_know(stream):
    plain = np.zeros(8, np.uint8)
    assert not driver.is_hw_decompress_capable(plain.ctypes.data)
    assert driver.pointer(plain.ctypes.data) is None


def test_a_pointer_into_a_buffer(memory, stream):
    on_device, _ = memory
    buffer = on_device.allocate(100, stream=stream)
    found = driver.pointer(buffer.handle + 50)
    assert found.start == buffer.handle
    assert found.size >= 100
    assert (found.memory_type, found.device_id) == (2, 0)


# --- The call -------------------------------------------------------------------------------------


class Batch:
    """`count` DEFLATE operations whose pieces may be spoilt before they are submitted."""

    def __init__(self, memory, stream, count=3):
        from gpuload.memory import host_view

        on_device, on_host = memory
        coder = zlib.compressobj(6, zlib.DEFLATED, -15)
        payload = coder.compress(TEXT) + coder.flush()
        self.source = on_host.allocate(len(payload), stream=stream)
        host_view(self.source)[:] = np.frombuffer(payload, np.uint8)
        self.words = on_host.allocate(4 * count, stream=stream)
        self.actual = host_view(self.words).view(np.uint32)
        self.slots = on_device.allocate(len(TEXT) * count, stream=stream)
        self.params = np.zeros(count, PARAMS_DTYPE)
        self.params["src_num_bytes"] = len(payload)
        self.params["dst_num_bytes"] = len(TEXT)
        self.params["dst_act_bytes"] = self.words.handle + 4 * np.arange(count)
        self.params["src"] = self.source.handle
        self.params["dst"] = self.slots.handle + len(TEXT) * np.arange(count)
        self.params["algo"] = DRIVER_CODECS[Codec.DEFLATE]

    def submit(self, stream, flags=0):
        return driver.mem_batch_decompress_async(
            self.params.ctypes.data, len(self.params), flags, int(stream.handle)
        )


def test_the_function_is_there():
    assert driver.decompress_unavailable() == ""


def test_a_batch(cuda, memory, stream):
    from gpuload.memory import host_view

    batch = Batch(memory, stream)
    assert batch.submit(stream) == (0, None)
    back = memory[1].allocate(batch.slots.size, stream=stream)
    back.copy_from(batch.slots, stream=stream)
    stream.sync()
    assert batch.actual.tolist() == [len(TEXT)] * 3
    assert host_view(back).tobytes() == TEXT * 3
    assert cuda.batches == [3]


@pytest.mark.parametrize(
    ("field", "value"), [("algo", 8), ("src", 0), ("padding", 1), ("src_num_bytes", 5 * MIB)]
)
def test_the_operation_that_was_refused_is_named(memory, stream, field, value):
    batch = Batch(memory, stream)
    batch.params[field][1] = value
    assert batch.submit(stream) == (Code.INVALID_VALUE, 1)


def test_the_first_operation_is_not_taken_for_none(memory, stream):
    batch = Batch(memory, stream)
    batch.params["algo"][0] = 8
    assert batch.submit(stream) == (Code.INVALID_VALUE, 0)


def test_an_error_of_the_whole_batch_names_no_operation(memory, stream):
    assert Batch(memory, stream).submit(stream, flags=1) == (Code.INVALID_VALUE, None)


def test_an_index_that_the_driver_did_not_write_is_none(cuda, memory, stream):
    cuda.settings.algorithm_mask = 0
    assert Batch(memory, stream).submit(stream) == (Code.NOT_SUPPORTED, None)
    assert driver.error_name(Code.NOT_SUPPORTED) == "CUDA_ERROR_NOT_SUPPORTED"
