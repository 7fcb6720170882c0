"""The double of loading and launching kernels: what it refuses, and what a launch does and when."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from gpuload.batch import ALGORITHMS, PARAMS_DTYPE
from gpuload.chunks import Codec
from gpuload.kernels import compiler
from tests.double.probe.asking import Driver, descriptors
from tests.helpers.fakecuda import Access, Code, launches
from tests.helpers.payloads import encode, sample

MIB = 1 << 20
TWO = 2 * MIB
UNTOUCHED = 0x5A5A5A5A
NAMES = {Codec.LZ4: "lz4", Codec.SNAPPY: "snappy", Codec.RAW: "raw"}
DAMAGED = {
    Codec.SNAPPY: b"\x01\x01",  # a copy from before the first byte
    Codec.LZ4: b"\x00\x01\x00\x10a",  # a match from before the first byte
}
BLOCK = 128
#: Bytes that are memory still, where a place is at the end of some.
LEFT = 8


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


def machine_code(codec="raw", arch="sm_100"):
    """Return a cubin of gpuload's kernels; the double is of compute capability 10.0."""
    return bytes(compiler.compile_codec(codec, arch).code.code)


def load(driver, code):
    """Return the code of cuLibraryLoadData and the library, without options."""
    library = ctypes.c_uint64()
    nothing = (None, None, 0) * 2
    return driver("cuLibraryLoadData", ctypes.byref(library), code, *nothing), library.value


@pytest.fixture
def library(driver):
    code, handle = load(driver, machine_code())
    assert code == Code.SUCCESS
    return handle


@pytest.fixture
def kernel(driver, library):
    return driver.value("cuLibraryGetKernel", library, b"raw_32")


@dataclass
class Batch:
    """Operations in pinned memory, their sources and slots in device memory.

    Attributes
    ----------
    rows : ndarray of PARAMS_DTYPE
        The operations, where the device reads them.
    words, statuses : ndarray of uint32
        Decoded sizes and statuses, where the device writes them.
    sources, slots : list of int
        Addresses on the device.
    """

    driver: Driver
    payloads: list
    rows: np.ndarray = field(init=False)
    words: np.ndarray = field(init=False)
    statuses: np.ndarray = field(init=False)
    sources: list = field(init=False)
    slots: list = field(init=False)

    def __post_init__(self):
        count = len(self.payloads)
        self.rows = self._pinned(64 * count).view(PARAMS_DTYPE)
        self.words = self._pinned(4 * count).view(np.uint32)
        self.statuses = self._pinned(4 * count).view(np.uint32)
        self.words[:] = self.statuses[:] = UNTOUCHED
        self.sources, self.slots = self._sources(), self._slots()
        self.rows[:] = np.zeros(1, PARAMS_DTYPE)
        self.rows["src_num_bytes"] = [len(one.stored) for one in self.payloads]
        self.rows["dst_num_bytes"] = [one.raw_size for one in self.payloads]
        self.rows["dst_act_bytes"] = self.words.ctypes.data + 4 * np.arange(count)
        self.rows["src"], self.rows["dst"] = self.sources, self.slots
        self.rows["algo"] = [ALGORITHMS[one.codec] for one in self.payloads]

    def _pinned(self, size):
        address = self.driver.pinned(size)
        return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)

    def _sources(self):
        stored = b"".join(one.stored + b"?" for one in self.payloads)
        start = self.driver.memory(len(stored))
        self.driver.must("cuMemcpyHtoD", start, stored, len(stored))
        return (start + self._starts([len(one.stored) for one in self.payloads])).tolist()

    def _slots(self):
        sizes = [one.raw_size for one in self.payloads]
        return (self.driver.memory(sum(sizes) + len(sizes)) + self._starts(sizes)).tolist()

    def _starts(self, sizes):
        return np.cumsum([0, *(size + 1 for size in sizes[:-1])])

    @property
    def arguments(self):
        return self.rows.ctypes.data, len(self.payloads), self.statuses.ctypes.data

    def decoded(self):
        """Return what is in the slots."""
        found = []
        for at, one in zip(self.slots, self.payloads, strict=True):
            block = ctypes.create_string_buffer(max(1, one.raw_size))
            self.driver.must("cuMemcpyDtoH", block, at, one.raw_size)
            found.append(block.raw[: one.raw_size])
        return found

    def check(self):
        assert self.statuses.tolist() == [0] * len(self.payloads)
        assert self.words.tolist() == [len(one.raw) for one in self.payloads]
        assert self.decoded() == [one.raw for one in self.payloads]


def launch(driver, kernel, stream, arguments, **other):
    """Call cuLaunchKernel with gpuload's parameters and return its code."""
    params, count, status = arguments
    grid = other.get("grid", (-(-count * 32 // BLOCK), 1, 1))
    values = ctypes.c_uint64(params), ctypes.c_uint32(count), ctypes.c_uint64(status)
    pointers = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
    block, shared = other.get("block", (BLOCK, 1, 1)), other.get("shared", 0)
    code = driver("cuLaunchKernel", kernel, *grid, *block, shared, stream, pointers, None)
    for value in values:
        value.value = 0  # copied at the call
    return code


def launch_by_core(kernel, stream, arguments):
    from cuda.core import LaunchConfig, Stream
    from cuda.core import launch as core_launch

    params, count, status = arguments
    config = LaunchConfig(grid=-(-count * 32 // BLOCK), block=BLOCK)
    core_launch(Stream.from_handle(stream), config, kernel, params, np.uint32(count), status)


def copies(*sizes):
    return [encode(Codec.RAW, sample("noise", size)) for size in sizes]


# --- Unmodified cuda.core -------------------------------------------------------------------------


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("kind", ["text", "noise", "zeros", "periodic 3"])
def test_decodes(cuda, driver, stream, codec, kind):
    sizes = [0, 1, 15, 16, 17, 100, 1000, 4096, 20_000, 65_536, 200_000]
    batch = Batch(driver, [encode(codec, sample(kind, size)) for size in sizes])
    launch_by_core(compiler.kernel(0, NAMES[codec], 32), stream, batch.arguments)
    assert cuda.launches == [(f"{NAMES[codec]}_32", len(sizes))]
    driver.must("cuStreamSynchronize", stream)
    batch.check()


@pytest.mark.parametrize("codec", NAMES)
def test_warps_and_single_lanes_do_the_same(driver, stream, codec, monkeypatch):
    kernel = compiler.kernel(0, NAMES[codec], 32)
    payloads = [encode(codec, sample(kind, 9000)) for kind in ("text", "floats", "periodic 47")]
    for limit in (0, 1 << 20):
        monkeypatch.setattr(launches, "LARGE", limit)
        batch = Batch(driver, payloads)
        launch_by_core(kernel, stream, batch.arguments)
        driver.must("cuStreamSynchronize", stream)
        batch.check()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("codec", DAMAGED)
def test_damage_is_a_status_of_its_operation(driver, stream, codec, large, monkeypatch):
    monkeypatch.setattr(launches, "LARGE", 0 if large else MIB)
    payloads = [encode(codec, sample("text", 500 + n)) for n in range(3)]
    batch = Batch(driver, payloads)
    driver.must("cuMemcpyHtoD", batch.sources[1], DAMAGED[codec], len(DAMAGED[codec]))
    launch_by_core(compiler.kernel(0, NAMES[codec], 32), stream, batch.arguments)
    driver.must("cuStreamSynchronize", stream)
    assert [status > 0 for status in batch.statuses] == [False, True, False]
    assert batch.words.tolist() == [500, 0, 502]
    decoded = batch.decoded()
    assert [decoded[0], decoded[2]] == [payloads[0].raw, payloads[2].raw]


def test_a_kernel_leaves_other_codecs_alone(driver, stream):
    codecs = [Codec.LZ4, Codec.SNAPPY, Codec.RAW] * 3
    batch = Batch(driver, [encode(codec, sample("text", 300)) for codec in codecs])
    for done, (codec, name) in enumerate(NAMES.items(), 1):
        launch_by_core(compiler.kernel(0, name, 32), stream, batch.arguments)
        driver.must("cuStreamSynchronize", stream)
        assert batch.statuses.tolist().count(UNTOUCHED) == 9 - 3 * done
        mine = [one == codec for one in codecs]
        assert batch.statuses[mine].tolist() == [0, 0, 0]
    batch.check()


def test_questions_about_a_kernel(cuda, driver):
    found = compiler.kernel(0, "lz4", 32)
    attributes = found.attributes
    assert attributes.max_threads_per_block == BLOCK
    assert attributes.binary_version == 100
    assert 0 < attributes.num_regs <= 255
    assert attributes.shared_size_bytes > 0
    assert [(one.offset, one.size) for one in found.arguments_info] == [(0, 8), (8, 4), (16, 8)]
    # Registers are given to warps in units of 256, and each of four schedulers has 16384.
    warps = min(64, 16384 // (-(-attributes.num_regs // 8) * 256) * 4)
    for threads, warps_of_block in ((64, 2), (BLOCK, 4), (BLOCK + 1, 5), (1024, 32)):
        blocks = found.occupancy.max_active_blocks_per_multiprocessor(threads, 0)
        assert blocks == warps // warps_of_block


def test_every_kernel_of_an_image(driver, stream):
    for codec, name in NAMES.items():
        code, library = load(driver, machine_code(name))
        assert code == Code.SUCCESS
        count = driver.value("cuLibraryGetKernelCount", library, version=12040)
        kernels = (ctypes.c_uint64 * count)()
        driver.must("cuLibraryEnumerateKernels", kernels, count, library, version=12040)
        for kernel in kernels:
            batch = Batch(driver, [encode(codec, sample("text", n)) for n in (10, 3000, 20_000)])
            assert launch(driver, kernel, stream, batch.arguments, grid=(3, 1, 1)) == Code.SUCCESS
            driver.must("cuStreamSynchronize", stream)
            batch.check()
        driver.must("cuLibraryUnload", library)


def test_kernels_survive_a_reset(cuda, driver, stream):
    """As they survive every test: gpuload loads them once a process."""
    kernel = compiler.kernel(0, "raw", 32)
    cuda.reset()
    driver.use_device()
    batch = Batch(driver, copies(10))
    stream = driver.value("cuStreamCreate", 1)
    launch_by_core(kernel, stream, batch.arguments)
    driver.must("cuStreamSynchronize", stream)
    batch.check()


# --- When it runs ---------------------------------------------------------------------------------


def test_nothing_runs_before_somebody_waits(driver, stream, kernel):
    batch = Batch(driver, copies(100))
    assert launch(driver, kernel, stream, batch.arguments) == Code.SUCCESS
    assert batch.statuses.tolist() == [UNTOUCHED]
    driver.must("cuStreamSynchronize", stream)
    batch.check()


def test_a_launch_runs_after_the_copies_before_it(driver, stream, kernel):
    batch = Batch(driver, copies(100))
    new = driver.pinned(100)
    ctypes.memset(new, 7, 100)
    driver.must("cuMemcpyHtoDAsync", batch.sources[0], new, 100, stream)
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuStreamSynchronize", stream)
    assert batch.decoded() == [b"\7" * 100]


def test_a_copy_runs_after_the_launches_before_it(driver, stream, kernel):
    batch = Batch(driver, copies(100))
    landing = driver.pinned(100)
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuMemcpyDtoHAsync", landing, batch.slots[0], 100, stream)
    driver.must("cuStreamSynchronize", stream)
    assert ctypes.string_at(landing, 100) == batch.payloads[0].raw


def test_events_are_after_the_launches_before_them(driver, stream, kernel):
    batch = Batch(driver, copies(100))
    event = driver.value("cuEventCreate", 2)
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuEventRecord", event, stream)
    assert driver("cuEventQuery", event) == Code.NOT_READY
    driver.must("cuEventSynchronize", event)
    batch.check()


@pytest.mark.parametrize("waits", [False, True])
def test_streams_are_ordered_by_events_only(driver, stream, kernel, waits):
    batch = Batch(driver, copies(100))
    other, event = driver.value("cuStreamCreate", 1), driver.value("cuEventCreate", 2)
    new = driver.pinned(100)
    ctypes.memset(new, 7, 100)
    driver.must("cuMemcpyHtoDAsync", batch.sources[0], new, 100, other)
    driver.must("cuEventRecord", event, other)
    if waits:
        driver.must("cuStreamWaitEvent", stream, event, 0)
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuStreamSynchronize", stream)
    assert batch.decoded() == [b"\7" * 100 if waits else batch.payloads[0].raw]


def test_operations_are_read_when_the_work_runs(driver, stream, kernel):
    batch = Batch(driver, copies(100, 100))
    launch(driver, kernel, stream, batch.arguments)
    batch.rows["src"] = batch.rows["src"][::-1].copy()
    driver.must("cuStreamSynchronize", stream)
    assert batch.decoded() == [one.raw for one in reversed(batch.payloads)]


def test_a_grid_that_is_too_small_leaves_operations_undone(driver, stream, kernel):
    batch = Batch(driver, copies(*range(1, 10)))
    launch(driver, kernel, stream, batch.arguments, grid=(2, 1, 1))
    driver.must("cuStreamSynchronize", stream)
    assert batch.statuses.tolist() == [0] * 8 + [UNTOUCHED]


def test_no_operations(driver, stream, kernel):
    assert launch(driver, kernel, stream, (0, 0, 0), grid=(1, 1, 1)) == Code.SUCCESS
    driver.must("cuStreamSynchronize", stream)


# --- Loading --------------------------------------------------------------------------------------


def test_names_that_an_image_does_not_have(driver, library):
    for name in (b"raw_16", b"raw_1", b"", b"raw_32 ", b"lz4_32", b"\xff"):
        assert driver.code_of("cuLibraryGetKernel", library, name) == Code.NOT_FOUND


def test_cuda_core_says_that_a_name_is_not_found(driver):
    from gpuload.errors import DriverError

    with pytest.raises(DriverError, match="CUDA_ERROR_NOT_FOUND"):
        compiler.kernel(0, "raw", 7)


def test_a_kernel_has_one_handle(driver, library, kernel):
    assert driver.value("cuLibraryGetKernel", library, b"raw_32") == kernel
    function = driver.value("cuKernelGetFunction", kernel)
    assert driver.value("cuKernelGetFunction", kernel) == function != kernel
    assert driver.value("cuKernelGetLibrary", kernel, version=12050) == library
    for handle in (kernel, function):
        assert ctypes.string_at(driver.value("cuKernelGetName", handle, version=12030)) == b"raw_32"


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_machine_code_of_another_architecture(driver, arch):
    """It is refused when somebody asks for a kernel, and not before."""
    code, library = load(driver, machine_code(arch=arch))
    assert code == Code.SUCCESS
    for name in (b"raw_32", b"raw_16"):
        assert driver.code_of("cuLibraryGetKernel", library, name) == Code.NO_BINARY_FOR_GPU
    driver.must("cuLibraryUnload", library)


@pytest.mark.parametrize(
    ("device", "arch", "code"),
    [
        ((8, 6), "sm_80", Code.SUCCESS),
        ((8, 0), "sm_86", Code.NO_BINARY_FOR_GPU),
        ((9, 0), "sm_90", Code.SUCCESS),
    ],
)
def test_a_device_runs_code_of_its_major_version(cuda, driver, device, arch, code):
    """CUDA C++ programming guide, "Binary Compatibility": from one minor version to a later one."""
    cuda.settings.compute_capability = device
    library = load(driver, machine_code(arch=arch))[1]
    assert driver.code_of("cuLibraryGetKernel", library, b"raw_32") == code
    driver.must("cuLibraryUnload", library)


def test_a_kernel_of_another_device(cuda, driver, stream, kernel):
    cuda.settings.be_h200()
    batch = Batch(driver, copies(10))
    assert launch(driver, kernel, stream, batch.arguments) == Code.NO_BINARY_FOR_GPU


def test_damaged_machine_code(driver):
    code = machine_code()
    no_sections = code[:40] + (1 << 40).to_bytes(8, "little") + code[48:]
    for bad in (no_sections, code[:64] + bytes(4 * MIB), code[: len(code) // 2] + bytes(4 * MIB)):
        assert load(driver, bad)[0] == Code.INVALID_IMAGE
    assert load(driver, None)[0] == Code.INVALID_VALUE


def test_what_is_no_machine_code(cuda, driver):
    """It loads; what a driver says of its kernels was never asked."""
    code = machine_code()
    elf_of_x86 = code[:18] + b"\x3e\0" + code[20:]
    for bad in (bytes(4096), b"not a kernel" * 99, elf_of_x86):
        code, library = load(driver, bad)
        assert code == Code.SUCCESS
        assert driver.code_of("cuLibraryGetKernel", library, b"raw_32") == Code.NOT_SUPPORTED
        assert cuda.complaints() == ["not modelled: kernels of what is no machine code"]
        cuda.recorder.clear()
        driver.must("cuLibraryUnload", library)


def test_libraries_outlive_a_fault(cuda, driver, stream, library, kernel):
    """Contexts do not own them; functions are of a context."""
    function = driver.value("cuKernelGetFunction", kernel)
    cuda.queue_fault(stream)
    assert driver("cuStreamSynchronize", stream) == Code.ILLEGAL_ADDRESS
    assert driver.value("cuLibraryGetKernel", library, b"raw_32") == kernel
    assert driver.value("cuKernelGetAttribute", 0, kernel, 0) == BLOCK
    assert driver.code_of("cuFuncGetAttribute", 0, function) == Code.ILLEGAL_ADDRESS
    assert driver.code_of("cuKernelGetFunction", kernel) == Code.ILLEGAL_ADDRESS
    driver.must("cuLibraryUnload", library)


def test_attributes_of_functions_are_not_asked_of_kernels(driver, kernel):
    function = driver.value("cuKernelGetFunction", kernel)
    assert driver.value("cuFuncGetAttribute", 0, function) == BLOCK
    assert driver.code_of("cuFuncGetAttribute", 0, kernel) == Code.INVALID_HANDLE


@pytest.mark.parametrize("code", [b"//\n.version 9.0", b".version 9.0", b"\x50\xed\x55\xba"])
def test_forms_that_are_not_modelled(cuda, driver, code):
    assert load(driver, code)[0] == Code.NOT_SUPPORTED
    assert "not modelled" in cuda.complaints()[0]
    cuda.recorder.clear()


def test_loading_needs_no_context(cuda):
    driver = Driver()
    code, library = load(driver, machine_code())
    assert code == Code.SUCCESS
    kernel = driver.value("cuLibraryGetKernel", library, b"raw_32")
    assert driver.code_of("cuKernelGetFunction", kernel) == Code.INVALID_CONTEXT
    driver.must("cuLibraryUnload", library)


def test_handles_that_are_none(cuda, driver, library, kernel, stream):
    function = driver.value("cuKernelGetFunction", kernel)
    batch = Batch(driver, copies(10))
    driver.must("cuLibraryUnload", library)
    for handle, fate in ((kernel, "unloaded"), (function, "unloaded"), (0x1234, "never made")):
        assert launch(driver, handle, stream, batch.arguments) == Code.INVALID_HANDLE
        assert driver.code_of("cuFuncGetAttribute", 0, handle) == Code.INVALID_HANDLE
        assert all(fate in text for text in cuda.recorder.take_violations())
    for handle in (library, 0x1234):
        assert driver("cuLibraryUnload", handle) == Code.INVALID_HANDLE
        assert driver.code_of("cuLibraryGetKernel", handle, b"raw_32") == Code.INVALID_HANDLE
        assert len(cuda.recorder.take_violations()) == 2
    assert launch(driver, 0, stream, batch.arguments) == Code.INVALID_HANDLE
    assert driver("cuLibraryUnload", 0) == Code.INVALID_HANDLE


# --- Launching ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"grid": (0, 1, 1)},
        {"grid": (1, 0, 1)},
        {"grid": (1, 1, 0)},
        {"grid": (1 << 31, 1, 1)},
        {"grid": (1, 65536, 1)},
        {"block": (0, 1, 1)},
        {"block": (BLOCK, 0, 1)},
        {"block": (BLOCK + 1, 1, 1)},
        {"block": (64, 3, 1)},
        {"block": (1025, 1, 1)},
        {"block": (1, 1, 65)},
        {"shared": (48 << 10) + 1},
    ],
    ids=repr,
)
def test_shapes_that_are_refused(cuda, driver, stream, kernel, wrong):
    batch = Batch(driver, copies(10))
    assert launch(driver, kernel, stream, batch.arguments, **wrong) == Code.INVALID_VALUE
    assert cuda.launches == []


def test_parameters_that_are_missing(driver, stream, kernel):
    shape = (1, 1, 1, BLOCK, 1, 1, 0)
    assert driver("cuLaunchKernel", kernel, *shape, stream, None, None) == Code.INVALID_VALUE
    none = (ctypes.c_void_p * 3)()
    assert driver("cuLaunchKernel", kernel, *shape, stream, none, None) == Code.INVALID_VALUE


def test_functions_of_a_context_that_is_gone(cuda, driver, kernel):
    function = driver.value("cuKernelGetFunction", kernel)
    driver.must("cuDevicePrimaryCtxReset", 0)
    driver.use_device()
    assert driver.code_of("cuFuncGetAttribute", 0, function) == Code.INVALID_HANDLE
    assert "destroyed with its context" in cuda.recorder.take_violations()[0]
    stream, batch = driver.value("cuStreamCreate", 1), Batch(driver, copies(10))
    assert launch(driver, kernel, stream, batch.arguments) == Code.SUCCESS
    driver.must("cuStreamSynchronize", stream)
    batch.check()


def test_streams_that_are_none(cuda, driver, stream, kernel):
    batch = Batch(driver, copies(10))
    driver.must("cuStreamDestroy", stream)
    assert launch(driver, kernel, stream, batch.arguments) == Code.INVALID_HANDLE
    assert "was destroyed" in cuda.recorder.take_violations()[0]


def test_the_context_is_the_streams(driver, stream, kernel):
    batch, codes = Batch(driver, copies(10)), []

    def run():
        codes.extend(launch(driver, kernel, one, batch.arguments) for one in (stream, 0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert codes == [Code.SUCCESS, Code.INVALID_CONTEXT]
    driver.must("cuStreamSynchronize", stream)
    batch.check()


def test_a_forked_child_launches_nothing(cuda, driver, stream, kernel):
    arguments = Batch(driver, copies(10)).arguments
    code = machine_code()
    child = os.fork()
    if child == 0:
        codes = [load(driver, code)[0], launch(driver, kernel, stream, arguments)]
        os._exit(0 if codes == [Code.NOT_INITIALIZED] * 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cuda.forked.names() == ["cuLibraryLoadData", "cuLaunchKernel"]
    assert cuda.launches == []


def test_kernels_that_are_not_gpuloads(cuda, driver, stream):
    from cuda.core import Program, ProgramOptions

    source = 'extern "C" __global__ void lz4_32(int* x) { *x = 1; }'
    program = Program(source, "c++", ProgramOptions(arch="sm_100"))
    code, library = load(driver, bytes(program.compile("cubin").code))
    assert code == Code.SUCCESS
    kernel = driver.value("cuLibraryGetKernel", library, b"lz4_32")
    batch = Batch(driver, copies(10))
    assert launch(driver, kernel, stream, batch.arguments) == Code.NOT_SUPPORTED
    assert cuda.complaints() == ["not modelled: this launch of lz4_32"]
    cuda.recorder.clear()
    driver.must("cuLibraryUnload", library)


# --- Memory ---------------------------------------------------------------------------------------


def place(driver, name):
    """Return an address from which on a kernel must not touch 64 bytes."""
    if name == "pageable":
        return ctypes.addressof(ctypes.create_string_buffer(64))
    if name == "null":
        return 0
    if name == "freed":
        address = driver.memory(64)
        driver.must("cuMemFree", address)
        return address
    reserved = driver.value("cuMemAddressReserve", 4 * MIB, 0, 0, 0)
    if name == "reserved":
        return reserved
    if name == "no access":
        return driver.mapped(TWO, access=False)
    if name == "past the end":
        return driver.memory(4096) + 4096 - LEFT
    mapped = driver.mapped(TWO)
    if name == "unmapped":
        driver.must("cuMemUnmap", mapped, TWO)
        return mapped
    return mapped + TWO - LEFT  # a guard is behind it


PLACES = ["pageable", "null", "freed", "reserved", "no access", "past the end", "unmapped", "guard"]


def expect_fault(cuda, driver, stream, code=Code.ILLEGAL_ADDRESS):
    """The work in a stream ends the context, which stays so."""
    assert driver("cuStreamSynchronize", stream) == code
    assert driver("cuStreamQuery", stream) == code
    assert driver.code_of("cuMemAlloc", 4096) == code
    return cuda.recorder.take_violations()


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("column", ["src", "dst", "dst_act_bytes"])
def test_operations_outside_of_memory(cuda, driver, stream, kernel, column, name):
    batch = Batch(driver, copies(64, 64, 64))
    address = place(driver, name)
    word_at_an_end = column == "dst_act_bytes" and name in ("past the end", "guard")
    batch.rows[column][1] = address + (LEFT if word_at_an_end else 0)
    assert launch(driver, kernel, stream, batch.arguments) == Code.SUCCESS
    (violation,) = expect_fault(cuda, driver, stream)
    assert violation.startswith("raw_32: ")


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("which", ["params", "statuses"])
def test_arrays_outside_of_memory(cuda, driver, stream, kernel, which, name):
    batch = Batch(driver, copies(*[4] * 16))
    params, count, statuses = batch.arguments
    address = place(driver, name)
    arguments = (address, count, statuses) if which == "params" else (params, count, address)
    assert launch(driver, kernel, stream, arguments) == Code.SUCCESS
    assert len(expect_fault(cuda, driver, stream)) == 1


def test_slots_that_may_only_be_read(cuda, driver, stream, kernel):
    batch = Batch(driver, copies(64))
    mapped = driver.mapped(TWO)
    driver.must("cuMemSetAccess", mapped, TWO, descriptors((1, 0, Access.READ)), 1)
    batch.rows["src"][0] = mapped
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuStreamSynchronize", stream)
    batch.rows["dst"][0] = mapped
    launch(driver, kernel, stream, batch.arguments)
    assert "wrote 64 bytes" in expect_fault(cuda, driver, stream)[0]


@pytest.mark.parametrize("what", ["params", "statuses", "word"])
def test_words_that_are_not_aligned(cuda, driver, stream, kernel, what):
    batch = Batch(driver, copies(4, 4, 4))
    params, count, statuses = batch.arguments
    batch.rows["dst_act_bytes"][1] += 2 * (what == "word")
    arguments = params + 4 * (what == "params"), count - 1, statuses + 2 * (what == "statuses")
    launch(driver, kernel, stream, arguments)
    assert len(expect_fault(cuda, driver, stream, Code.MISALIGNED_ADDRESS)) == 1


def test_empty_sources_and_slots_are_nowhere(driver, stream, kernel):
    batch = Batch(driver, copies(0))
    batch.rows["src"] = batch.rows["dst"] = 0
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuStreamSynchronize", stream)
    assert batch.statuses.tolist() == [0]


def test_slots_across_two_mappings(driver, stream, kernel):
    base = driver.value("cuMemAddressReserve", 8 * MIB, 0, 0, 0)
    for index in range(2):
        handle = driver.created(TWO)
        driver.must("cuMemMap", base + index * TWO, TWO, 0, handle, 0)
        driver.must("cuMemRelease", handle)
    driver.must("cuMemSetAccess", base, 2 * TWO, descriptors((1, 0, Access.READ_WRITE)), 1)
    batch = Batch(driver, copies(10_000))
    batch.rows["dst"] = batch.slots[0] = base + TWO - 5000
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuStreamSynchronize", stream)
    batch.check()


@pytest.mark.parametrize("column", ["dst", "dst_act_bytes"])
def test_operations_that_write_the_same_bytes(cuda, driver, stream, kernel, column):
    batch = Batch(driver, copies(64, 64))
    batch.rows[column][1] = batch.rows[column][0] + (63 if column == "dst" else 0)
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuStreamSynchronize", stream)
    (violation,) = cuda.recorder.take_violations()
    assert "two operations of raw_32 write to" in violation


def test_memory_that_is_freed_before_the_launch_runs(cuda, driver, stream, kernel):
    batch = Batch(driver, copies(64))
    slot = driver.value("cuMemAllocAsync", 64, stream)
    batch.rows["dst"] = slot
    driver.must("cuMemFreeAsync", slot, stream)
    launch(driver, kernel, stream, batch.arguments)
    assert "which is freed" in expect_fault(cuda, driver, stream)[0]


def test_memory_that_is_freed_behind_the_launch(driver, stream, kernel):
    batch = Batch(driver, copies(64))
    batch.rows["dst"] = slot = driver.value("cuMemAllocAsync", 64, stream)
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuMemFreeAsync", slot, stream)
    driver.must("cuStreamSynchronize", stream)
    assert batch.statuses.tolist() == [0]


def test_arrays_that_are_being_freed_at_the_call(cuda, driver, stream, kernel):
    batch = Batch(driver, copies(64))
    params, count, _ = batch.arguments
    other = driver.value("cuStreamCreate", 1)
    statuses = driver.value("cuMemAllocAsync", 64, other)
    driver.must("cuStreamSynchronize", other)
    driver.must("cuMemFreeAsync", statuses, other)
    launch(driver, kernel, stream, (params, count, statuses))
    driver.must("cuStreamSynchronize", stream)
    assert "launched after a free" in cuda.recorder.take_violations()[0]


def test_memory_of_another_stream(cuda, driver, stream, kernel):
    batch = Batch(driver, copies(64))
    other = driver.value("cuStreamCreate", 1)
    batch.rows["dst"] = driver.value("cuMemAllocAsync", 64, other)
    launch(driver, kernel, stream, batch.arguments)
    driver.must("cuStreamSynchronize", stream)
    assert "before its stream allocated it" in cuda.recorder.take_violations()[0]
