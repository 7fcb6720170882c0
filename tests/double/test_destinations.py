"""Where loads to the double of a device go to, and what they come after: arrays and streams."""

from __future__ import annotations

import lz4.frame
import pytest

import gpuload
from gpuload.memory import copy
from tests.helpers.device_loads import (
    QUICK,
    UserArray,
    allocate,
    clean_loads,
    compressed,
    new_stream,
    read,
    text,
    write,
)

MIB = 1 << 20
TEXT = text(3 * MIB)


def each_way(*names):
    """Run a test with options that lead down different paths."""
    return pytest.mark.parametrize("options", [WAYS[name] for name in names], ids=names)


WAYS = {
    "engine": {},
    "checked": {"verify": True},
    "trusted": {"trusted": True},
    "host": {"engine": "host"},
}


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield


@pytest.fixture(scope="module")
def files():
    """Return compressed text by codec."""
    return {"gzip": compressed(TEXT, "gzip")}


@pytest.fixture
def stream():
    made = new_stream()
    yield made
    made.close()


# --- Streams --------------------------------------------------------------------------------------


class TorchStream:
    def __init__(self, stream):
        self.cuda_stream = int(stream.handle)


class CupyStream:
    def __init__(self, stream):
        self.ptr = int(stream.handle)


class OtherStream:
    def __init__(self, stream):
        self._stream = stream

    def __cuda_stream__(self):
        return 0, int(self._stream.handle)


STREAMS = {
    "cuda.core": lambda stream: stream,
    "handle": lambda stream: int(stream.handle),
    "torch": TorchStream,
    "CuPy": CupyStream,
    "protocol": OtherStream,
}


@each_way(*WAYS)
@pytest.mark.parametrize("maker", STREAMS)
def test_a_load_comes_after_the_work_of_its_stream(files, stream, maker, options):
    """A fill of the destination is still queued when the load begins, and must not win."""
    with allocate("DecompressMemory", len(TEXT), stream) as address:
        fill(address, len(TEXT), stream)
        out = UserArray(address, len(TEXT))
        array = gpuload.load(
            files["gzip"], out=out, stream=STREAMS[maker](stream), **QUICK | options
        )
        stream.sync()
        assert read(address, len(TEXT), stream) == TEXT
        assert bytes(array) == TEXT


def fill(address, size, stream):
    from cuda.core import Buffer

    Buffer.from_handle(address, size).fill(0xEE, stream=stream)


@each_way(*WAYS)
def test_a_load_comes_after_the_work_of_its_destination(files, stream, options):
    """An array names the stream that it is still being written on (its interface, version 3)."""
    other = new_stream()
    with allocate("DecompressMemory", len(TEXT), stream) as address:
        fill(address, len(TEXT), other)
        out = UserArray(address, len(TEXT), stream=int(other.handle))
        gpuload.load(files["gzip"], out=out, stream=stream, **QUICK | options)
        other.sync()
        assert read(address, len(TEXT), stream) == TEXT
    other.close()


@each_way("engine", "trusted", "host")
def test_work_on_the_stream_sees_the_bytes(files, stream, options):
    """A copy that is queued after the load reads what was loaded."""
    array = gpuload.load(files["gzip"], device=0, stream=stream, **QUICK | options)
    address = array.__cuda_array_interface__["data"][0]
    with allocate("DecompressMemory", len(TEXT), stream) as target:
        copy(target, address, len(TEXT), stream)
        assert read(target, len(TEXT), stream) == TEXT


def test_what_is_no_stream(files):
    with pytest.raises(TypeError, match="stream must be a CUDA stream or its handle, not 'mine'"):
        gpuload.load(files["gzip"], device=0, stream="mine", **QUICK)


# --- Destinations of users ------------------------------------------------------------------------


KINDS = {
    "cuMemAlloc": True,
    "cuMemHostAlloc": False,
    "pool": False,
    "DecompressPool": True,
    "DecompressMemory": True,
    "HostNumaMemory": True,
}


@each_way(*WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_every_kind_is_a_destination(cuda, files, stream, kind, options):
    with allocate(kind, len(TEXT), stream) as address:
        out = UserArray(address, len(TEXT))
        array = gpuload.load(files["gzip"], out=out, stream=stream, **QUICK | options)
        assert array.__cuda_array_interface__["data"][0] == address
        assert read(address, len(TEXT), stream) == TEXT
    assert cuda.refusals == []
    assert cuda.overruns == []


@pytest.mark.parametrize("verify", [True, "auto"])
@pytest.mark.parametrize("trusted", [None, True])
@pytest.mark.parametrize("kind", KINDS)
def test_only_trusted_input_is_decoded_where_it_belongs(
    cuda, files, stream, kind, trusted, verify, written
):
    """And only into memory that the engine can reach."""
    with allocate(kind, len(TEXT), stream) as address:
        out = UserArray(address, len(TEXT))
        gpuload.load(files["gzip"], out=out, stream=stream, trusted=trusted, verify=verify, **QUICK)
    inside = [address <= target < address + len(TEXT) for target in written]
    assert len(inside) == sum(cuda.batches) > 0
    assert set(inside) == {bool(trusted) and KINDS[kind]}


@pytest.fixture
def written(cuda, monkeypatch):
    """Return where the engine writes, in the order of its work."""
    from tests.helpers.fakecuda import api_decompress

    decode, targets = api_decompress.decode, []

    def noted(cuda, stream, chunk):
        targets.append(chunk.target)
        return decode(cuda, stream, chunk)

    monkeypatch.setattr(api_decompress, "decode", noted)
    return targets


@pytest.mark.parametrize("engine", ["hardware", "host"])
@pytest.mark.parametrize("difference", [-1, 1, -(1 << 20), 1 << 20])
def test_memory_of_another_size(files, stream, engine, difference):
    size = len(TEXT) + difference
    said = f"out holds {size} bytes, .* decodes to {len(TEXT)}"
    with (
        allocate("DecompressMemory", size, stream) as address,
        pytest.raises(ValueError, match=said),
    ):
        gpuload.load(files["gzip"], out=UserArray(address, size), engine=engine, **QUICK)


@each_way("engine", "checked", "host")
@pytest.mark.parametrize("size", [0, 1, 100_000, 199_999, 200_001, 300_000])
def test_memory_of_another_size_for_a_file_that_does_not_state_its_own(stream, options, size):
    """Not a byte behind the array is written, also if the file turns out to be longer."""
    raw = TEXT[:200_000]
    data = lz4.frame.compress(raw, block_linked=False, block_size=4, store_size=False)
    room = MIB
    with allocate("DecompressMemory", room, stream) as address:
        write(address, b"\xa5" * room, stream)
        with pytest.raises(ValueError, match=f"out holds {size} bytes, .* decodes to "):
            gpuload.load(data, out=UserArray(address, size), stream=stream, **QUICK | options)
        assert read(address + size, room - size, stream) == b"\xa5" * (room - size)


def test_memory_of_the_right_size_for_a_file_that_does_not_state_its_own(stream):
    raw = TEXT[:200_000]
    data = lz4.frame.compress(raw, block_linked=False, block_size=4, store_size=False)
    for options in WAYS.values():
        with allocate("cuMemAlloc", len(raw), stream) as address:
            gpuload.load(data, out=UserArray(address, len(raw)), **QUICK | options)
            assert read(address, len(raw), stream) == raw


WRONG = {
    "element type": ({"typestr": "<i2"}, r"out has elements of type int16, the asset has uint8"),
    "byte order": ({"typestr": ">u4"}, r"out has elements of type >u4"),
    "read-only": ({"read_only": True}, "out is read-only; give a writable array"),
    "every other byte": ({"strides": (2,)}, "out is not contiguous; give a C-contiguous array"),
    "backwards": ({"strides": (-1,)}, "out is not contiguous"),
    "column by column": ({"shape": (3, MIB), "strides": (1, 3)}, "out is not contiguous"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_are_no_destination(cuda, files, stream, name):
    changes, said = WRONG[name]
    changes = dict(changes)
    with allocate("DecompressMemory", 2 * len(TEXT), stream) as address:
        changes["data"] = (address, changes.pop("read_only", False))
        with pytest.raises(ValueError, match=said):
            gpuload.load(files["gzip"], out=UserArray(address, len(TEXT), **changes), **QUICK)
    assert not cuda.batches


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (3, 1024, 1024)},
        {"shape": (3, 1024, 1024), "strides": (MIB, 1024, 1)},
        {"shape": (1, len(TEXT)), "strides": (99, 1)},
        {"typestr": "|u1", "strides": (1,)},
    ],
)
def test_shapes_of_a_destination(files, stream, changes):
    with allocate("DecompressMemory", len(TEXT), stream) as address:
        gpuload.load(files["gzip"], out=UserArray(address, len(TEXT), **changes), **QUICK)
        assert read(address, len(TEXT), stream) == TEXT


def test_a_destination_without_bytes(stream):
    array = gpuload.load(lz4.frame.compress(b""), out=UserArray(0, 0), **QUICK)
    assert bytes(array) == b""
