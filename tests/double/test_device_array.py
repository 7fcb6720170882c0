"""Arrays on the double of a device, and how other libraries take them."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import gpuload
from gpuload import driver
from gpuload.arrays import Array
from gpuload.device_array import DeviceArray, allocate, close_pools
from gpuload.errors import DriverError, MemoryLimitError
from gpuload.memory import HostNumaMemory, copy, host_view
from tests.helpers.device_loads import compressed, hang_ends_the_process, read, run_alone, text
from tests.helpers.dlpack_consumer import is_unused, take
from tests.helpers.fakecuda import Code

TEXT = text(100_000)
QUICK = {"memory_limit": 4 << 20, "threads": 1}


@pytest.fixture(autouse=True)
def _clean(cuda):
    with hang_ends_the_process(60):
        yield
    close_pools()


@pytest.fixture
def stream():
    made = new_stream()
    yield made
    made.close()


def new_stream():
    device = driver.device(0)
    device.set_current()
    return device.create_stream()


def loaded(**options):
    return gpuload.load(compressed(TEXT, "snappy"), device=0, **QUICK | options)


class Pending:
    """An array whose bytes are still being copied to it when it is made.

    The double runs nothing before somebody waits, so that a missing wait shows.
    """

    def __init__(self, stream, size=5000):
        self.expected = np.random.default_rng(1).bytes(size)
        self._host = HostNumaMemory(0)
        self._staging = self._host.allocate(size, stream=stream)
        host_view(self._staging)[:] = np.frombuffer(self.expected, np.uint8)
        owner = allocate(size, 0, stream)
        copy(int(owner.handle), int(self._staging.handle), size, stream)
        self.array = DeviceArray(
            int(owner.handle), (size,), np.dtype(np.uint8), device_id=0, stream=stream, owner=owner
        )

    def close(self):
        del self.array
        self._staging.close()
        self._host.close()


@pytest.fixture
def pending(stream):
    made = Pending(stream)
    yield made
    stream.sync()
    made.close()


# --- What it is -----------------------------------------------------------------------------------


def test_what_it_is():
    array = loaded()
    assert isinstance(array, Array)
    assert array.shape == (100_000,)
    assert array.dtype == np.uint8
    assert array.nbytes == len(array) == 100_000
    assert array.device == "cuda:0"
    assert repr(array) == "<gpuload.Array shape=(100000,) dtype=uint8 on cuda:0>"


def test_to_the_host():
    array = loaded()
    host = array.to_host()
    assert isinstance(host, np.ndarray)
    assert (host.shape, host.dtype) == ((100_000,), np.uint8)
    assert host.tobytes() == bytes(array) == TEXT
    host[:] = 0
    assert bytes(array) == TEXT, "it was a copy"


def test_the_host_waits_for_the_bytes(pending):
    assert pending.array.to_host().tobytes() == pending.expected


def test_to_the_host_from_a_thread_that_never_used_the_device():
    array, found = loaded(), []
    thread = threading.Thread(target=lambda: found.append(bytes(array)))
    thread.start()
    thread.join()
    assert found == [TEXT]


def test_no_bytes():
    array = gpuload.load(compressed(b"", "lz4"), device=0, **QUICK)
    assert (array.shape, array.nbytes, len(array)) == ((0,), 0, 0)
    assert bytes(array) == b""
    assert array.__cuda_array_interface__["shape"] == (0,)
    taken = take(array.__dlpack__())
    assert taken.shape == (0,)
    taken.release()


def test_an_array_of_no_axes_has_no_length(stream):
    array = DeviceArray(0, (), np.dtype("f4"), device_id=0, stream=stream, owner=None)
    with pytest.raises(TypeError, match="no length"):
        len(array)
    with pytest.raises(TypeError):
        len(np.zeros(()))


def test_other_element_types(stream):
    owner = allocate(24, 0, stream)
    array = DeviceArray(
        int(owner.handle), (3, 2), np.dtype("<f4"), device_id=0, stream=stream, owner=owner
    )
    assert (array.nbytes, len(array), array.dtype.name) == (24, 3, "float32")
    assert array.to_host().shape == (3, 2)
    assert array.__cuda_array_interface__["typestr"] == "<f4"
    assert array.__cuda_array_interface__["shape"] == (3, 2)


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        np.array,
        lambda array: np.asarray(array, np.float32),
        lambda array: np.add(array, 1),
    ],
    ids=["asarray", "array", "as another type", "in an expression"],
)
def test_no_hidden_copy_to_the_host(convert):
    """NumPy is told what to call."""
    with pytest.raises(TypeError, match=r"the array is on cuda:0; to_host\(\) copies it to NumPy"):
        convert(loaded())


def test_numpy_does_not_take_its_capsule():
    """The capsule that NumPy refuses is destroyed while its exception is on its way."""
    array = loaded()
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(array)
    alive = weakref.ref(array)
    del array
    assert alive() is None


def test_no_memory(cuda):
    cuda.settings.total_memory = 1 << 20
    with pytest.raises(MemoryLimitError, match="no memory for 2000000 bytes"):
        allocate(2_000_000, 0, driver.device(0).default_stream)


def test_a_copy_to_the_host_that_fails(cuda):
    array = loaded()
    cuda.fail_next("cuMemcpyAsync", Code.INVALID_VALUE)
    with pytest.raises(DriverError, match=r"^cuMemcpyAsync failed"):
        array.to_host()
    cuda.fail_next("cuStreamSynchronize", Code.INVALID_VALUE)
    with pytest.raises(DriverError, match=r"^cuStreamSynchronize failed"):
        array.to_host()
    assert bytes(array) == TEXT


# --- The array interface --------------------------------------------------------------------------


def test_array_interface(stream):
    """Version 3 of Numba's CUDA array interface."""
    array = loaded(stream=stream)
    facts = array.__cuda_array_interface__
    assert facts.keys() == {"version", "shape", "typestr", "data", "strides", "stream"}
    assert facts["version"] == 3
    assert facts["shape"] == (100_000,)
    assert facts["typestr"] == "|u1"
    assert facts["strides"] is None
    assert facts["stream"] == int(stream.handle)
    address, read_only = facts["data"]
    assert read_only is False
    assert read(address, 100_000, stream) == TEXT


@pytest.mark.parametrize("stream", [None, 1])
def test_array_interface_of_the_default_stream(stream):
    """0 is not allowed there, since it is ambiguous; 1 is the legacy default stream."""
    assert loaded(stream=stream).__cuda_array_interface__["stream"] == 1


def test_array_interface_of_the_threads_default_stream():
    assert loaded(stream=2).__cuda_array_interface__["stream"] == 2


def test_an_array_of_ours_is_a_destination(stream):
    """Memory that the engine may use, since it comes from a pool that was made for it."""
    out = loaded()
    address = out.__cuda_array_interface__["data"][0]
    assert driver.is_hw_decompress_capable(address)
    assert driver.is_hw_decompress_capable(address + 99_999)
    other = TEXT[::-1]
    gpuload.load(compressed(other, "snappy"), out=out, trusted=True, **QUICK)
    assert bytes(out) == other


# --- DLPack ---------------------------------------------------------------------------------------


def test_device():
    assert loaded().__dlpack_device__() == (2, 0)


def test_capsule(stream):
    array = loaded()
    taken = take(array.__dlpack__())
    assert taken.data == array.__cuda_array_interface__["data"][0]
    assert taken.device == (2, 0)
    assert taken.dtype == (1, 8, 1)
    assert taken.shape == (100_000,)
    assert read(taken.data, 100_000, stream) == TEXT
    taken.release()


def test_a_capsule_keeps_the_memory(cuda, stream):
    array = loaded()
    alive = weakref.ref(array)
    taken = take(array.__dlpack__())
    del array
    gc.collect()
    close_pools()
    assert alive()
    assert read(taken.data, 100_000, stream) == TEXT
    taken.release()
    assert alive() is None
    assert cuda.leaks() == [f"stream {int(stream.handle):#x}"]


def test_a_capsule_that_nobody_took_keeps_nothing(cuda):
    array = loaded()
    alive = weakref.ref(array)
    made = array.__dlpack__()
    assert is_unused(made)
    del array
    assert alive()
    del made
    assert alive() is None


def test_several_capsules_of_an_array():
    array = loaded()
    taken = [take(array.__dlpack__()) for _ in range(3)]
    assert len({one.data for one in taken}) == 1
    for one in taken:
        one.release()
    assert bytes(array) == TEXT


def handle_of(name, consumer):
    """Return what a consumer passes as `stream`, and the stream that it works on."""
    default = driver.device(0).default_stream
    return {
        "a handle": (int(consumer.handle), consumer),
        "the legacy default stream": (1, default),
        "nothing": (None, default),
    }[name]


@pytest.mark.parametrize("name", ["a handle", "the legacy default stream", "nothing"])
def test_the_consumers_stream_waits(pending, name):
    """What a consumer queues after it took the array reads bytes that are complete."""
    consumer = new_stream()
    handle, works_on = handle_of(name, consumer)
    taken = take(pending.array.__dlpack__(stream=handle))
    assert read(taken.data, 5000, works_on) == pending.expected
    taken.release()
    consumer.sync()
    consumer.close()


def test_the_threads_default_stream_waits(pending):
    from cuda.core import Stream

    taken = take(pending.array.__dlpack__(stream=2))
    assert read(taken.data, 5000, Stream.from_handle(2)) == pending.expected
    taken.release()


def test_a_consumer_may_wait_by_itself(cuda, pending):
    """-1 asks for no wait."""
    consumer = new_stream()
    before = cuda.recorder.calls["cuStreamWaitEvent"]
    taken = take(pending.array.__dlpack__(stream=-1))
    assert cuda.recorder.calls["cuStreamWaitEvent"] == before
    assert read(taken.data, 5000, consumer) != pending.expected, "nobody waited"
    assert any("used before" in violation for violation in cuda.recorder.take_violations())
    taken.release()
    consumer.close()


def test_the_host_does_not_wait_for_an_export(cuda, pending):
    before = {n: c for n, c in cuda.recorder.calls.items() if "Synchronize" in n}
    take(pending.array.__dlpack__(stream=1)).release()
    assert {n: c for n, c in cuda.recorder.calls.items() if "Synchronize" in n} == before


def test_the_wait_is_for_the_load_alone(pending, stream):
    """Work that its stream gets later is none of the consumer's business."""
    late = []
    with HostNumaMemory(0) as host:
        other = host.allocate(8, stream=stream)
        host_view(other)[:] = 0
        from cuda.core import Buffer

        Buffer.from_handle(int(other.handle), 8).fill(0x77, stream=stream)
        consumer = new_stream()
        taken = take(pending.array.__dlpack__(stream=int(consumer.handle)))
        assert read(taken.data, 5000, consumer) == pending.expected
        late += host_view(other).tolist()
        taken.release()
        stream.sync()
        consumer.close()
        other.close()
    assert late == [0] * 8


def test_a_wait_that_is_refused(cuda, pending):
    cuda.fail_next("cuStreamWaitEvent", Code.INVALID_VALUE)
    with pytest.raises(DriverError, match=r"^cuStreamWaitEvent failed.*the consumer of an array"):
        pending.array.__dlpack__(stream=1)


def test_from_a_thread_that_never_used_the_device():
    array, found = loaded(), []

    def consume():
        taken = take(array.__dlpack__(stream=1))
        found.append(taken.shape)
        taken.release()

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join()
    assert found == [(100_000,)]


@pytest.mark.parametrize(
    "options",
    [{}, {"max_version": (1, 1)}, {"max_version": None}, {"dl_device": (2, 0)}, {"copy": False}],
)
def test_options_of_the_protocol(options):
    """A producer may answer any version with the unversioned capsule."""
    taken = take(loaded().__dlpack__(stream=None, **options))
    assert taken.shape == (100_000,)
    taken.release()


@pytest.mark.parametrize("options", [{"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}])
def test_what_an_export_does_not_do(options):
    with pytest.raises(BufferError, match="exported where it is, without a copy"):
        loaded().__dlpack__(**options)


def test_arrays_and_capsules_that_outlive_the_interpreter():
    said = run_alone(
        """
        import sys
        import gpuload
        from tests.helpers.device_loads import compressed, text
        from tests.helpers.dlpack_consumer import take
        array = gpuload.load(compressed(text(1000), "snappy"), device=0)
        sys.kept = [array, array.__dlpack__(), take(array.__dlpack__())]
        print(bytes(array) == text(1000))
        """
    )
    assert said == "True"
