"""Corrupt chunks and refused batches in a load to the double of a device.

Nobody here has seen a real engine meet corrupt data. The double does it in three ways, "short",
"overrun" and "sticky"; whichever it is, the chunk is named and the others are right.
"""

from __future__ import annotations

import ctypes
import warnings

import numpy as np
import pytest

import gpuload
from gpuload import driver
from gpuload.chunks import Codec
from gpuload.errors import DecompressError, DriverError, EngineUnavailableError, FormatWarning
from tests.helpers import lz4_blocks
from tests.helpers.device_loads import (
    BUILDERS,
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
from tests.helpers.fakecuda import Code, api_decompress, decompress
from tests.helpers.handmade import (
    CONTENT_SUM,
    INDEPENDENT,
    SIZE,
    SNAPPY_IDENTIFIER,
    V1,
    lz4_block,
    lz4_frame,
    snappy_data,
)

MIB = 1 << 20
CHUNKS, CHUNK = 10_000, 1024
#: LZ4 takes a frame for each chunk, and the host has to find the size of each.
FRAMES = 1_000
#: Not at an edge of anything.
BAD = 789

LOST = "ended this process's CUDA context: start a new process"

every_format = pytest.mark.parametrize("name", BUILDERS)
short_or_overrun = pytest.mark.parametrize("corruption", ["short", "overrun"])


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield


@pytest.fixture(scope="module")
def files():
    """Return files of 10,000 chunks (LZ4: 1,000 frames) by the name of their format."""
    raw = text(CHUNKS * CHUNK + CHUNK)
    parts = [raw[at : at + CHUNK] for at in range(0, CHUNKS * CHUNK, CHUNK)]
    counts = {"lz4": FRAMES}
    return {name: build(parts[: counts.get(name)]) for name, build in BUILDERS.items()}


def failures_of(data, **options):
    """Return what a load reports before it raises."""
    with pytest.raises(DecompressError) as caught:
        gpuload.load(data, device=0, **options)
    return caught.value.failures


def load_quietly(data, **options):
    """Load without complaints about skipped chunks; return the bytes and the report."""
    with warnings.catch_warnings(), gpuload.open(data, **options) as container:
        warnings.simplefilter("ignore", FormatWarning)
        return bytes(container.load(device=0)), container.report


# --- One corrupt chunk among 10,000 ---------------------------------------------------------------


@every_format
def test_a_corrupt_chunk_on_the_host(cuda, files, name):
    file = files[name]
    [failure] = failures_of(file.spoilt(BAD), engine="host")
    assert_names_the_chunk(failure, file)
    assert (failure.driver_code, failure.blame) == (None, "")
    assert not cuda.batches


def assert_names_the_chunk(failure, file):
    offset, size = file.places[BAD]
    assert (failure.source, failure.asset, failure.chunk) == ("<bytes>", "", BAD)
    assert (failure.offset, failure.stored_size) == (offset, size)
    # An LZ4 frame states the size of all its blocks, not of each.
    assert failure.expected_size == (None if file.codec == Codec.LZ4 else CHUNK)
    assert not failure.checksum
    assert failure.reason


@short_or_overrun
@every_format
def test_a_corrupt_chunk_on_the_engine(cuda, files, name, corruption):
    """The window is tainted and was decoded again: no other chunk is reported."""
    cuda.settings.corruption = corruption
    file = files[name]
    [failure] = failures_of(file.spoilt(BAD), engine="hardware")
    assert_names_the_chunk(failure, file)
    assert (failure.driver_code, failure.blame) == (None, "size")
    # The double stops before the first byte, or writes 4,096 bytes behind the slot.
    slot = slot_of(file)
    said = 0 if corruption == "short" else slot + cuda.settings.overrun
    assert failure.actual_size == said
    assert f"the engine reports {said} bytes" in failure.reason
    assert cuda.batches
    assert bool(cuda.overruns) == (corruption == "overrun")


def slot_of(file):
    """Return the bytes that the corrupt chunk may take, at most (LZ4: 255 times its payload)."""
    return 255 * file.places[BAD][1] if file.codec == Codec.LZ4 else CHUNK


@short_or_overrun
@pytest.mark.parametrize("name", ["snappy", "bgzf"])
def test_a_corrupt_chunk_is_skipped(cuda, files, name, corruption):
    cuda.settings.corruption = corruption
    file = files[name]
    with gpuload.open(file.spoilt(BAD), on_error="skip", **QUICK) as container:
        with pytest.warns(FormatWarning, match=f"^<bytes>: chunk {BAD} at byte ") as told:
            array = container.load(device=0)
        assert len(told) == 1
        assert bytes(array) == file.with_zeros(BAD)
        [failure] = container.report.failures
        assert_names_the_chunk(failure, file)
        assert failure.blame == "size"
        assert container.report.engine == "hardware"


@short_or_overrun
def test_a_chunk_of_unknown_size_cannot_be_skipped(cuda, files, corruption):
    """Nobody knows how many zeros it would take."""
    cuda.settings.corruption = corruption
    [failure] = failures_of(files["lz4"].spoilt(BAD), on_error="skip", **QUICK)
    assert_names_the_chunk(failure, files["lz4"])
    assert "cannot be skipped" in failure.reason


@pytest.mark.parametrize("verify", [True, False])
@short_or_overrun
def test_several_corrupt_chunks_in_several_windows(cuda, files, corruption, verify):
    cuda.settings.corruption = corruption
    file, bad = files["bgzf"], [0, 1, 4_000, 4_001, 9_999]
    data, report = load_quietly(file.spoilt(*bad), on_error="skip", verify=verify, **QUICK)
    assert data == file.with_zeros(*bad)
    assert [failure.chunk for failure in report.failures] == bad
    assert {failure.blame for failure in report.failures} == {"size"}
    assert len(cuda.batches) > 2


@short_or_overrun
@every_format
def test_what_the_host_cannot_decode_either_is_no_success_of_a_retry(cuda, files, name, corruption):
    cuda.settings.corruption = corruption
    file = files[name]
    [failure] = failures_of(file.spoilt(BAD), on_error="retry-host", **QUICK)
    assert_names_the_chunk(failure, file)


@every_format
def test_failures_are_collected_by_verify(files, name):
    file = files[name]
    with gpuload.open(file.spoilt(5, BAD), device=0, engine="hardware", **QUICK) as container:
        report = container.verify()
    assert [failure.chunk for failure in report.failures] == [5, BAD]


@pytest.mark.parametrize("on_error", ["raise", "skip", "retry-host"])
@every_format
def test_a_corrupt_chunk_that_ends_the_context(cuda, files, name, on_error):
    cuda.settings.corruption = "sticky"
    options = QUICK | {"threads": 1}
    with pytest.raises(DriverError, match=LOST):
        gpuload.load(files[name].spoilt(BAD), device=0, on_error=on_error, **options)
    with pytest.raises(DriverError, match=LOST):
        gpuload.load(files[name].data, device=0, **options)
    assert bytes(gpuload.load(files[name].data, device="cpu")) == files[name].raw


@pytest.mark.parametrize(
    "call",
    [
        lambda device, stream: stream.record(),
        lambda device, stream: stream.sync(),
        lambda device, stream: device.create_event(),
        lambda device, stream: device.create_stream(),
    ],
    ids=["record", "sync", "create_event", "create_stream"],
)
def test_a_lost_context_is_named_by_whatever_call_is_next(cuda, call):
    """With several threads, any call may be the first to hear of a fault."""
    device, stream = driver.device(0), new_stream()
    for context in cuda.contexts.values():
        context.fault = Code.ILLEGAL_ADDRESS
    with pytest.raises(DriverError, match=LOST), driver.calling("a call", "a test"):
        call(device, stream)


def test_an_overrun_past_the_window_is_a_fault_and_no_damage(cuda, files):
    """Behind the window are addresses without memory."""
    cuda.settings.corruption, cuda.settings.overrun = "overrun", 32 * MIB
    with pytest.raises(DriverError, match=LOST):
        gpuload.load(files["snappy"].spoilt(BAD), device=0, **QUICK | {"threads": 1})
    assert cuda.overruns


def test_the_destination_of_a_user_is_no_neighbour_of_corrupt_chunks(cuda, files):
    """Without trust the engine writes to windows of ours, whatever memory it is given."""
    cuda.settings.corruption = "overrun"
    file = files["lz4"]
    stream = new_stream()
    size = len(file.raw)
    with allocate("DecompressMemory", size + MIB, stream) as address:
        write(address + size, b"\xa5" * MIB, stream)
        failures_of(file.spoilt(FRAMES - 1), out=UserArray(address, size), **QUICK)
        assert read(address + size, MIB, stream) == b"\xa5" * MIB
    stream.close()


def test_an_engine_that_decodes_to_wrong_bytes(files, wrong_byte):
    """The size is right, and only a checksum shows it: it is the engine that failed."""
    file = files["bgzf"]
    [failure] = failures_of(file.data, verify=True, **QUICK)
    assert failure.checksum
    wrong_byte.clear()
    with gpuload.open(file.data, verify=True, on_error="retry-host", **QUICK) as container:
        assert bytes(container.load(device=0)) == file.raw
        assert container.report.failures == []
    assert wrong_byte, "it did decode to a wrong byte"


@pytest.fixture
def wrong_byte(monkeypatch):
    """Let the engine get a byte wrong; the list tells that it did, and clearing it repeats it."""
    right, done = decompress.decode, []

    def decode(cuda, stream, chunk):
        right(cuda, stream, chunk)
        if not done:
            done.append(chunk)
            at = cuda.memory.host_address(chunk.target)
            ctypes.c_uint8.from_address(at).value ^= 1

    monkeypatch.setattr(api_decompress, "decode", decode)
    return done


# --- What the driver refuses ----------------------------------------------------------------------


SMALL = text(300_000)


@pytest.fixture(scope="module")
def small():
    """Return a file of five chunks, one of them a copy."""
    noise = np.random.default_rng(1).bytes(65_536)
    raw = SMALL[:131_072] + noise + SMALL[131_072 : 2 * 131_072]
    return compressed(raw, "snappy"), raw


def test_a_refused_chunk_is_named(cuda, small):
    """The longest compressed chunk comes first in the batch; here all but the last are as long."""
    data, _ = small
    lower_the_maximum(cuda, 60_000)
    [failure] = failures_of(data, **QUICK)
    assert (failure.chunk, failure.blame, failure.driver_code) == (0, "index", Code.INVALID_VALUE)
    assert "CUDA_ERROR_INVALID_VALUE (1)" in failure.reason
    assert "retry-host" in failure.reason, "what to do next"
    assert failure.expected_size == 65_536


def lower_the_maximum(cuda, length):
    """Let the driver refuse what it said it would take."""
    driver.capabilities(0)  # read, and remembered by cuda.core
    cuda.settings.maximum_length = length


@pytest.mark.parametrize("code", [Code.INVALID_VALUE, Code.NOT_PERMITTED])
def test_a_refusal_that_names_no_chunk(cuda, small, code):
    data, _ = small
    cuda.fail_next("cuMemBatchDecompressAsync", code)
    failures = failures_of(data, **QUICK)
    assert [failure.chunk for failure in failures] == list(range(5))
    assert {failure.blame for failure in failures} == {"none"}
    assert {failure.driver_code for failure in failures} == {code}


@pytest.mark.parametrize("verify", [True, "auto"])
def test_refused_chunks_are_decoded_again_if_asked_for(cuda, small, verify):
    data, raw = small
    lower_the_maximum(cuda, 60_000)
    with gpuload.open(data, on_error="retry-host", verify=verify, **QUICK) as container:
        assert bytes(container.load(device=0)) == raw
        assert container.report.failures == []
    assert cuda.refusals


def test_refused_chunks_are_skipped_if_asked_for(cuda, small):
    data, raw = small
    lower_the_maximum(cuda, 60_000)
    loaded, report = load_quietly(data, on_error="skip", **QUICK)
    [failure] = report.failures
    assert loaded == bytes(65_536) + raw[65_536:]
    assert (failure.chunk, failure.blame) == (0, "index")


def test_a_driver_that_does_not_support_it_after_all(cuda, small):
    """The next engine takes over, with the reason."""
    data, raw = small
    driver.capabilities(0)
    cuda.settings.algorithm_mask = 0
    with gpuload.open(data, **QUICK) as container:
        assert bytes(container.load(device=0)) == raw
        assert container.report.engine == "host"
        assert "CUDA_ERROR_NOT_SUPPORTED (801)" in container.report.passed_over["hardware"]


def test_a_driver_that_does_not_support_what_was_asked_for_by_name(cuda, small):
    data, raw = small
    driver.capabilities(0)
    cuda.settings.algorithm_mask = 0
    with pytest.raises(EngineUnavailableError, match=r"CUDA_ERROR_NOT_SUPPORTED \(801\)"):
        gpuload.load(data, device=0, engine="hardware", **QUICK)
    loaded = gpuload.load(data, device=0, engine="hardware", on_error="retry-host", **QUICK)
    assert bytes(loaded) == raw


def test_damage_that_no_checksum_shows_any_more_is_still_found(cuda):
    """Where a device keeps the bytes, the host's LZ4 decoder may not count on a content checksum.

    LZ4 block format: a match offset of 0 is invalid; what it would copy nobody has written.
    """
    literals = lz4_blocks.Sequence(b"abcdefgh", 0, 4096 - 8 - 5)
    bad = lz4_blocks.write(literals, lz4_blocks.Sequence(b"12345"))
    frame = lz4_frame(
        lz4_block(bad), flags=V1 | INDEPENDENT | SIZE | CONTENT_SUM, size=4096, content=b"other"
    )
    lower_the_maximum(cuda, 1)
    for on_error in ("raise", "retry-host"):
        failures = failures_of(frame, on_error=on_error, **QUICK)
        assert [failure.chunk for failure in failures] == [0]
        cuda.settings.maximum_length = 1


def test_a_chunk_that_says_that_it_is_more_than_nothing():
    """Five bytes are promised and none are stored, right where the memory of a window ends."""
    # Payloads of 65,536 bytes with 8 bytes of framing before each but the first, the preamble of
    # the last one included, end at exactly 2 MiB.
    raw = text(31 * 65_536 + 65_279)
    parts = [raw[at : at + 65_536] for at in range(0, len(raw), 65_536)]
    hollow = snappy_data(b"12345", elements=b"", checksum=0)
    chunks = [snappy_data(part, checksum=0) for part in parts]
    data = SNAPPY_IDENTIFIER + b"".join(chunks) + hollow
    for engine in ("host", "hardware"):
        [failure] = failures_of(data, engine=engine, verify=False, **QUICK)
        assert failure.chunk == 32
        assert failure.expected_size == 5
