"""The double of the decompression call: what it refuses, what it decodes, how it goes wrong."""

from __future__ import annotations

import ctypes
import random
import struct
import zlib
from dataclasses import dataclass, field, replace

import cramjam
import lz4.block
import pytest

from tests.double.probe.asking import INDEX_UNTOUCHED, Driver, descriptors
from tests.helpers.fakecuda import Code, Codec
from tests.helpers.fakecuda.codes import SIZE_MAX

MIB = 1 << 20
GRANULARITY = 2 * MIB
TEXT = b"so much depends upon a red wheel barrow glazed with rain water. " * 60
NOISE = random.Random(3).randbytes(3000)


def deflate(data: bytes) -> bytes:
    maker = zlib.compressobj(6, zlib.DEFLATED, -15)
    return maker.compress(data) + maker.flush()


ENCODERS = {
    Codec.DEFLATE: deflate,
    Codec.LZ4: lambda data: lz4.block.compress(data, store_size=False),
    Codec.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)).removeprefix(varint(data)),
}


def varint(data: bytes) -> bytes:
    """The preamble of Snappy, which is not for the engine."""
    number, text = len(data), b""
    while number > 127:
        text, number = text + bytes([number & 127 | 128]), number >> 7
    return text + bytes([number])


@dataclass(frozen=True)
class Operation:
    """A CUmemDecompressParams."""

    source_size: int
    target_size: int
    count: int
    source: int
    target: int
    algorithm: int = Codec.DEFLATE
    padding: bytes = bytes(20)

    def pack(self) -> bytes:
        words = (self.source_size, self.target_size, self.count, self.source, self.target)
        return struct.pack("<QQQQQi20s", *words, self.algorithm, self.padding)


@dataclass
class Engine:
    """A stream, and capable memory that holds sources, counts and guarded targets."""

    driver: Driver
    stream: int = 0
    memory: int = 0
    window: int = 0
    placed: int = field(default=4096)

    def __post_init__(self) -> None:
        self.driver.use_device()
        self.stream = self.driver.value("cuStreamCreate", 1)
        self.memory = self.driver.memory(4 * MIB)
        self.window = self.driver.mapped(GRANULARITY, usage=2)

    def operation(self, data: bytes, algorithm: int = Codec.DEFLATE, slot: int = 0) -> Operation:
        """Place stored bytes; their count goes to word `slot`, their output to a slot of 4 KiB."""
        at, self.placed = self.memory + self.placed, self.placed + len(data) + 64
        self.driver.must("cuMemcpyHtoD", at, data, len(data))
        target = self.window + 4096 * slot
        return Operation(len(data), 4096, self.memory + 4 * slot, at, target, algorithm)

    def submit(
        self, *operations: Operation, flags: int = 0, stream: int | None = None
    ) -> tuple[int, int]:
        """Return the code and the error index of a call."""
        index = ctypes.c_uint64(INDEX_UNTOUCHED)
        params = ctypes.create_string_buffer(b"".join(one.pack() for one in operations))
        where = params if operations else None
        chosen = self.stream if stream is None else stream
        words = (where, len(operations), flags, ctypes.byref(index), chosen)
        code = self.driver("cuMemBatchDecompressAsync", *words, version=12080)
        ctypes.memset(params, 0xFF, len(params))  # the call has read them
        return code, index.value

    def run(self, *operations: Operation) -> int:
        """Submit and wait; return the code of the wait."""
        assert self.submit(*operations) == (0, INDEX_UNTOUCHED)
        return self.driver("cuStreamSynchronize", self.stream)

    def bytes_at(self, address: int, size: int) -> bytes:
        block = ctypes.create_string_buffer(size)
        self.driver.must("cuMemcpyDtoH", block, address, size)
        return block.raw

    def count(self, operation: Operation) -> int:
        return int(struct.unpack("<I", self.bytes_at(operation.count, 4))[0])


@pytest.fixture
def engine(cuda):
    yield Engine(Driver())
    complaints = cuda.complaints()
    cuda.reset()
    assert complaints == []


# --- Decoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"x", TEXT, NOISE, b"\0" * 4000, b"ab" * 1000], ids=len)
@pytest.mark.parametrize("codec", list(Codec))
def test_what_a_reference_tool_encoded_is_decoded(codec, data, engine):
    operation = engine.operation(ENCODERS[codec](data), codec)
    assert engine.run(operation) == 0
    assert engine.count(operation) == len(data)
    assert engine.bytes_at(operation.target, 4096).startswith(data + b"\xcd")


@pytest.mark.parametrize("codec", [Codec.DEFLATE, Codec.LZ4])
def test_no_bytes_are_decoded_to_none(codec, engine):
    operation = engine.operation(ENCODERS[codec](b""), codec)
    assert engine.run(operation) == 0
    assert engine.count(operation) == 0


def test_a_batch_is_decoded_at_synchronisation(cuda, engine):
    chunks = [(codec, TEXT[: 100 + 7 * at]) for at, codec in enumerate(list(Codec) * 20)]
    operations = [
        engine.operation(ENCODERS[codec](data), codec, slot)
        for slot, (codec, data) in enumerate(chunks)
    ]
    assert engine.submit(*operations) == (0, INDEX_UNTOUCHED)
    assert engine.count(operations[0]) == 0xCDCD_CDCD
    engine.driver.must("cuStreamSynchronize", engine.stream)
    for operation, (_, data) in zip(operations, chunks, strict=True):
        assert engine.count(operation) == len(data)
        assert engine.bytes_at(operation.target, len(data)) == data
    assert cuda.batches == [60]


def test_the_expected_size_is_a_hint_and_no_bound(cuda, engine):
    operation = replace(engine.operation(deflate(TEXT)), target_size=100)
    assert engine.run(operation) == 0
    assert engine.count(operation) == len(TEXT)
    assert engine.bytes_at(operation.target, len(TEXT)) == TEXT
    assert len(cuda.overruns) == 1


def test_output_that_leaves_the_mapping_ends_the_context(cuda, engine):
    end = engine.window + GRANULARITY - 1000
    operation = replace(engine.operation(deflate(TEXT)), target=end, target_size=1000)
    assert engine.run(operation) == Code.ILLEGAL_ADDRESS
    assert engine.driver.code_of("cuMemAlloc", 64) == Code.ILLEGAL_ADDRESS


def test_output_may_fill_the_mapping_to_its_last_byte(engine):
    end = engine.window + GRANULARITY - len(TEXT)
    for codec, encode in ENCODERS.items():
        operation = replace(engine.operation(encode(TEXT), codec), target=end, target_size=0)
        assert engine.run(operation) == 0
        assert engine.count(operation) == len(TEXT)


@pytest.mark.parametrize("codec", list(Codec))
def test_no_bytes_make_a_decoder_leave_its_room(codec, engine, cuda):
    cuda.settings.maximum_length = 1 << 20
    dice = random.Random(int(codec))
    good = ENCODERS[codec](TEXT)
    for _ in range(300):
        data = bytearray(good[: dice.randrange(1, len(good))])
        for _ in range(dice.randrange(4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        operation = replace(engine.operation(bytes(data), codec), target_size=0)
        engine.placed = 4096
        assert engine.run(operation) == 0
        assert engine.count(operation) <= GRANULARITY


# --- Refusals -------------------------------------------------------------------------------------


REFUSED = {
    "no source bytes": lambda o, e: replace(o, source_size=0),
    "a null source": lambda o, e: replace(o, source=0),
    "a null destination": lambda o, e: replace(o, target=0),
    "a null count": lambda o, e: replace(o, count=0),
    "aligned": lambda o, e: replace(o, count=o.count + 2),
    "padding": lambda o, e: replace(o, padding=bytes(19) + b"\1"),
    "algorithm 0": lambda o, e: replace(o, algorithm=0),
    "algorithm 3": lambda o, e: replace(o, algorithm=3),
    "algorithm 8": lambda o, e: replace(o, algorithm=8),
    "above the maximum": lambda o, e: replace(o, target_size=4 * MIB + 1),
    "source: 4096 bytes": lambda o, e: replace(o, source=e.memory + 4 * MIB - 8, source_size=4096),
    "destination: 4096 bytes": lambda o, e: replace(o, target=e.window + GRANULARITY - 8),
    "count: 4 bytes": lambda o, e: replace(o, count=e.window + GRANULARITY - 2),
    "source: 0x1000 is unknown": lambda o, e: replace(o, source=0x1000),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_forbidden_operation_is_named_by_its_index(why, cuda, engine):
    operations = [engine.operation(deflate(TEXT), slot=slot) for slot in range(5)]
    operations[3] = REFUSED[why](operations[3], engine)
    refused = engine.submit(*operations)
    if why != "count: 4 bytes":
        assert why in cuda.refusals[0]
    assert refused == (Code.INVALID_VALUE, 3)
    assert engine.driver("cuStreamQuery", engine.stream) == 0


def test_a_source_above_the_maximum_is_refused(cuda, engine):
    cuda.settings.maximum_length = 1000
    operation = replace(engine.operation(NOISE), target_size=1000)
    assert engine.submit(operation) == (Code.INVALID_VALUE, 0)
    assert "above the maximum" in cuda.refusals[0]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_codec_outside_the_mask_is_refused(codec, cuda, engine):
    cuda.settings.algorithm_mask = 7 & ~codec
    operation = engine.operation(ENCODERS[codec](TEXT), codec)
    assert engine.submit(operation) == (Code.INVALID_VALUE, 0)


@pytest.mark.parametrize("role", ["source", "target", "count"])
@pytest.mark.parametrize("kind", ["pinned", "created", "pool", "freed", "read-only", "no access"])
def test_memory_that_the_engine_may_not_use_is_refused(kind, role, cuda, engine):
    driver = engine.driver
    if kind == "pinned":
        address = driver.pinned(4096)
    elif kind == "pool":
        address = driver.value("cuMemAllocFromPoolAsync", 4096, driver.pool(), engine.stream)
    elif kind == "freed":
        address = driver.memory(4096)
        driver.must("cuMemFree", address)
    else:
        address = driver.mapped(GRANULARITY, usage=2 * (kind != "created"), access=False)
        flags = {"read-only": 1, "no access": 0}.get(kind, 3)
        driver.must("cuMemSetAccess", address, GRANULARITY, descriptors((1, 0, flags)), 1)
    operation = replace(engine.operation(deflate(TEXT)), **{role: address})
    allowed = (kind, role) == ("read-only", "source")
    assert engine.submit(operation)[0] == (0 if allowed else Code.INVALID_VALUE)


def test_memory_of_the_hosts_node_needs_access_from_the_device(engine):
    driver, stored = engine.driver, deflate(TEXT)
    host = driver.mapped(GRANULARITY, usage=2, location=(3, 0), access=False)
    driver.must("cuMemSetAccess", host, GRANULARITY, descriptors((3, 0, 3)), 1)
    ctypes.memmove(host, stored, len(stored))
    operation = replace(engine.operation(b"\0"), source=host, source_size=len(stored))
    assert engine.submit(operation) == (Code.INVALID_VALUE, 0)
    driver.must("cuMemSetAccess", host, GRANULARITY, descriptors((1, 0, 3)), 1)
    assert engine.run(operation) == 0
    assert engine.bytes_at(operation.target, len(TEXT)) == TEXT


def test_general_errors_name_no_operation(engine):
    operation = engine.operation(deflate(TEXT))
    assert engine.submit(operation, flags=1) == (Code.INVALID_VALUE, SIZE_MAX)
    assert engine.submit() == (Code.INVALID_VALUE, SIZE_MAX)
    code = engine.driver(
        "cuMemBatchDecompressAsync", operation.pack(), 0, 0, None, engine.stream, version=12080
    )
    assert code == Code.INVALID_VALUE


def test_a_stream_that_is_gone_is_a_general_error(cuda, engine):
    operation = engine.operation(deflate(TEXT))
    assert engine.submit(operation, stream=0x1234) == (Code.INVALID_HANDLE, SIZE_MAX)
    assert "never made" in cuda.recorder.take_violations()[0]


def test_without_an_engine_the_index_is_not_touched(cuda, engine):
    operation = engine.operation(deflate(TEXT))
    cuda.settings.be_h200()
    assert engine.submit(operation) == (Code.NOT_SUPPORTED, INDEX_UNTOUCHED)
    assert engine.submit(operation, flags=1) == (Code.NOT_SUPPORTED, INDEX_UNTOUCHED)


def test_a_driver_that_lacks_the_call_is_not_to_be_called(cuda, engine):
    operation = engine.operation(deflate(TEXT))
    assert engine.submit(operation)[0] == 0
    cuda.settings.driver_version = 12060
    engine.submit(operation)
    assert "lacks it" in cuda.recorder.take_violations()[0]


def test_operations_that_share_their_target_are_a_violation(cuda, engine):
    one = engine.operation(deflate(TEXT), slot=0)
    other = replace(engine.operation(deflate(TEXT), slot=1), target=one.target + 4095)
    assert engine.submit(one, other)[0] == 0
    assert "write the same bytes" in cuda.recorder.take_violations()[0]


# --- Corrupt data ---------------------------------------------------------------------------------


CORRUPT = {
    "deflate, reserved block type": (Codec.DEFLATE, b"\x07"),
    "deflate, cut": (Codec.DEFLATE, deflate(TEXT)[:-3]),
    "deflate, bytes behind it": (Codec.DEFLATE, deflate(TEXT) + b"\0"),
    "lz4, cut": (Codec.LZ4, ENCODERS[Codec.LZ4](TEXT)[:-3]),
    "lz4, offset 0": (Codec.LZ4, b"\x14a\0\0"),
    "lz4, offset before the start": (Codec.LZ4, b"\x14a\2\0"),
    "lz4, no last literals": (Codec.LZ4, b"\x14a\1\0"),
    "snappy, cut": (Codec.SNAPPY, ENCODERS[Codec.SNAPPY](NOISE)[:-3]),
    "snappy, offset 0": (Codec.SNAPPY, b"\0a\x01\0"),
    "snappy, offset before the start": (Codec.SNAPPY, b"\0a\x01\2"),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_data_gives_a_short_count(name, engine):
    codec, data = CORRUPT[name]
    operation = engine.operation(data, codec)
    assert engine.run(operation) == 0
    assert engine.count(operation) < operation.target_size


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_data_overruns_its_slot(name, cuda, engine):
    cuda.settings.corruption, cuda.settings.overrun = "overrun", 100
    codec, data = CORRUPT[name]
    operation = engine.operation(data, codec)
    assert engine.run(operation) == 0
    assert engine.count(operation) == 4196
    assert engine.bytes_at(operation.target + 4096, 101) == b"\xee" * 100 + b"\xcd"


def test_an_overrun_that_leaves_the_mapping_ends_the_context(cuda, engine):
    cuda.settings.corruption = "overrun"
    codec, data = CORRUPT["lz4, cut"]
    operation = replace(engine.operation(data, codec), target=engine.window + GRANULARITY - 4096)
    assert engine.run(operation) == Code.ILLEGAL_ADDRESS
    assert len(cuda.overruns) == 1


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_data_ends_the_context(name, cuda, engine):
    cuda.settings.corruption = "sticky"
    codec, data = CORRUPT[name]
    operation = engine.operation(data, codec)
    assert engine.run(operation) == Code.ILLEGAL_ADDRESS
    assert engine.driver("cuStreamSynchronize", engine.stream) == Code.ILLEGAL_ADDRESS


def test_the_others_of_a_batch_are_decoded_beside_a_corrupt_one(engine):
    operations = [engine.operation(deflate(TEXT), slot=slot) for slot in range(3)]
    operations[1] = engine.operation(b"\x07", slot=1)
    assert engine.run(*operations) == 0
    assert [engine.count(one) for one in operations] == [len(TEXT), 0, len(TEXT)]
