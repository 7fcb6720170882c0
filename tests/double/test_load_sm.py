"""Loads to the double of a device by the SM engine, which runs the kernels' own sources there."""

from __future__ import annotations

import warnings
from dataclasses import replace

import lz4.frame
import numpy as np
import pytest

import gpuload
from gpuload import driver
from gpuload.engines import rates, sm
from gpuload.engines.base import Status
from gpuload.engines.host import HostEngine
from gpuload.errors import (
    ChecksumError,
    DecompressError,
    DriverError,
    EngineUnavailableError,
    FormatWarning,
)
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
from tests.helpers.fakecuda import Code

MIB = 1 << 20
#: Chunks enough for several windows of the least size.
CHUNKS, CHUNK = 1500, 2048
BAD = 789
RAW = text(CHUNKS * CHUNK + CHUNK)
NAMES = ["lz4", "snappy"]

every_format = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield


@pytest.fixture(scope="module")
def files():
    parts = [RAW[at : at + CHUNK] for at in range(0, CHUNKS * CHUNK, CHUNK)]
    return {name: BUILDERS[name](parts) for name in NAMES}


@pytest.fixture
def host_decodes(monkeypatch):
    """Return how many rows each batch had that the host decoded."""
    right, counts = HostEngine.decode, []

    def decode(self, batch):
        counts.append(batch.rows.size)
        return right(self, batch)

    monkeypatch.setattr(HostEngine, "decode", decode)
    return counts


def loaded(data, **options):
    """Load to the device; return the bytes and the report."""
    with (
        warnings.catch_warnings(),
        gpuload.open(data, **QUICK | {"device": 0, "engine": "sm"} | options) as container,
    ):
        warnings.simplefilter("ignore", FormatWarning)
        return bytes(container.load()), container.report


def failures_of(data, **options):
    with pytest.raises(DecompressError) as caught:
        loaded(data, **options)
    return caught.value.failures


# --- What decodes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [True, False, "auto"])
@every_format
def test_a_file(cuda, files, host_decodes, name, verify):
    found, report = loaded(files[name].data, verify=verify)
    assert found == files[name].raw
    assert report.engine == "sm"
    assert host_decodes == []
    assert cuda.recorder.calls["cuLaunchKernelEx"] >= 2
    assert "cuMemBatchDecompressAsync" not in cuda.recorder.calls
    # The LZ4 frames here have no checksums.
    sums = {"crc32c_masked": CHUNKS} if name == "snappy" else {}
    assert (report.verified, report.unverified) == ((sums, {}) if verify else ({}, sums))


@every_format
def test_nothing_is_trusted(cuda, files, name):
    assert loaded(files[name].data, trusted=False)[0] == files[name].raw


@every_format
def test_uncompressed_chunks(name):
    raw = text(300_000) + np.random.default_rng(3).bytes(200_000) + text(100_000)
    found, report = loaded(compressed(raw, name))
    assert found == raw
    assert report.engine == "sm"


@pytest.mark.parametrize("name", ["lz4", "snappy"])
def test_checksums_that_disagree(files, name):
    """They are seen where they are checked, and the bytes are the engine's."""
    data = bytearray(compressed(text(500_000), name))
    with gpuload.open(bytes(data)) as container:
        row = container.chunks[3]
    place = int(row["offset"] + row["stored_size"]) if name == "lz4" else int(row["offset"]) - 7
    data[place] ^= 1
    if name == "snappy":
        with pytest.raises(ChecksumError) as caught:
            loaded(bytes(data), verify=True)
        assert [failure.chunk for failure in caught.value.failures] == [3]
    assert loaded(bytes(data), verify=False)[0] == text(500_000)


@every_format
def test_into_memory_of_the_host(files, name):
    file = files[name]
    with gpuload.open(file.data, engine="sm", **QUICK) as container:
        assert np.asarray(container.load(device="cpu")).tobytes() == file.raw
        assert container.report.engine == "sm"
        report = container.verify()
        assert (report.engine, report.raw_size, report.unverified) == ("sm", len(file.raw), {})


def test_rows_with_a_place_are_written_there_at_once(cuda, files):
    """Snappy states the size of each chunk, so no window on the device is in between."""
    stream = new_stream()
    raw = files["snappy"].raw
    with allocate("DecompressMemory", len(raw) + MIB, stream) as address:
        write(address + len(raw), b"\xa5" * MIB, stream)
        loaded(files["snappy"].data)  # compiles
        before = cuda.recorder.calls.copy()
        with gpuload.open(files["snappy"].data, engine="sm", device=0, **QUICK) as container:
            container.load(out=UserArray(address, len(raw)))
        calls = cuda.recorder.calls - before
        assert read(address, len(raw), stream) == raw
        assert read(address + len(raw), MIB, stream) == b"\xa5" * MIB
    stream.close()
    # A launch decodes a window, and another computes its checksums.
    copies, launches = calls["cuMemcpyAsync"], calls["cuLaunchKernelEx"]
    assert copies == launches // 2, "one copy of stored bytes each"


@pytest.mark.parametrize("changes", [{"host_numa_memory": False}, {"virtual_memory": False}])
@every_format
def test_other_kinds_of_memory(monkeypatch, files, name, changes):
    known = replace(driver.capabilities(0), **{"host_numa_memory": False} | changes)
    monkeypatch.setattr(driver, "capabilities", lambda device_id: known)
    assert loaded(files[name].data)[0] == files[name].raw
    assert loaded(files[name].data, verify=True)[0] == files[name].raw


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_files_of_which_it_decodes_nothing(codec):
    with pytest.raises(EngineUnavailableError, match="there is no kernel for the codec"):
        loaded(compressed(text(100_000), codec))


def test_files_of_which_it_decodes_a_part():
    raw = text(300_000)
    linked = lz4.frame.compress(raw, block_linked=True, block_size=4)
    found, report = loaded(compressed(raw, "lz4") + linked + compressed(raw, "lz4"))
    assert found == raw * 3
    assert report.engine == "sm, host"
    assert report.passed_over["sm"] == "linked to other chunks (5 of 15 chunks)"


# --- Corrupt chunks -------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [True, False, "auto"])
@every_format
def test_a_corrupt_chunk(files, host_decodes, name, verify):
    file = files[name]
    [failure] = failures_of(file.spoilt(BAD), verify=verify)
    offset, size = file.places[BAD]
    assert (failure.chunk, failure.offset, failure.stored_size) == (BAD, offset, size)
    assert failure.expected_size == (None if name == "lz4" else CHUNK)
    assert failure.reason == "a match starts before the first decoded byte"
    assert (failure.blame, failure.driver_code, failure.checksum) == ("index", None, False)
    assert host_decodes == [], "nobody has to confirm what a bounded engine says"


@every_format
def test_all_corrupt_chunks_of_a_window_are_named(files, name):
    failures = failures_of(files[name].spoilt(2, 3, 5, 8))
    assert [failure.chunk for failure in failures] == [2, 3, 5, 8]


@pytest.mark.parametrize("verify", [True, False, "auto"])
@every_format
def test_decoded_again_on_the_host(files, host_decodes, name, verify, monkeypatch):
    """The host cannot decode damage either; let the kernel fail on what is right."""
    file = files[name]
    wrong = let_the_kernel_fail_on(monkeypatch, file, (BAD, 5))
    found, report = loaded(file.data, on_error="retry-host", verify=verify)
    assert found == file.raw
    assert report.failures == []
    assert sum(host_decodes) == len(wrong) == 2


def let_the_kernel_fail_on(monkeypatch, file, chunks):
    """Let the outcome of some chunks be a failure; return a list of those that it was."""
    right, places, wrong = sm._outcome, {file.places[chunk][1] for chunk in chunks}, []
    offsets = {file.places[chunk][0] for chunk in chunks}

    def outcome(batch, slot, order):
        found = right(batch, slot, order)
        for row in range(batch.rows.size):
            if int(batch.rows["offset"][row]) in offsets:
                assert int(batch.rows["stored_size"][row]) in places
                found.fail(row, Status.CORRUPT, "the test says so")
                found.actual[row] = 0
                wrong.append(row)
        return found

    monkeypatch.setattr(sm, "_outcome", outcome)
    return wrong


@every_format
def test_what_the_host_cannot_decode_either(files, host_decodes, name):
    [failure] = failures_of(files[name].spoilt(BAD), on_error="retry-host")
    assert failure.chunk == BAD
    assert sum(host_decodes) == 1


@pytest.mark.parametrize("verify", [True, False, "auto"])
def test_skipped(files, host_decodes, verify):
    file = files["snappy"]
    bad = (0, BAD, CHUNKS - 1)
    found, report = loaded(file.spoilt(*bad), on_error="skip", verify=verify)
    assert found == file.with_zeros(*bad)
    assert [failure.chunk for failure in report.failures] == list(bad)
    assert {failure.reason for failure in report.failures} == {
        "a match starts before the first decoded byte"
    }
    assert host_decodes == []


def test_sizes_that_are_not_stated_cannot_be_skipped(files):
    [failure] = failures_of(files["lz4"].spoilt(BAD), on_error="skip")
    assert failure.reason.endswith("the file does not state its size, so that it cannot be skipped")


@every_format
def test_verify_lists_them(files, name):
    with gpuload.open(files[name].spoilt(5, BAD), engine="sm", **QUICK) as container:
        report = container.verify()
    assert report.engine == "sm"
    assert [failure.chunk for failure in report.failures] == [5, BAD]


@every_format
def test_neighbours_of_corrupt_chunks_keep_their_bytes(files, name):
    """Also those of the user: no guard is needed."""
    file, size, stream = files[name], len(files[name].raw), new_stream()
    with allocate("DecompressMemory", size + MIB, stream) as address:
        write(address + size, b"\xa5" * MIB, stream)
        with (
            pytest.raises(DecompressError),
            gpuload.open(file.spoilt(CHUNKS - 1), engine="sm", device=0, **QUICK) as container,
        ):
            container.load(out=UserArray(address, size))
        assert read(address + size, MIB, stream) == b"\xa5" * MIB
    stream.close()


# --- By itself ------------------------------------------------------------------------------------


@pytest.fixture
def quick_launches(monkeypatch):
    """Let launches be worth while for few chunks."""
    for cost in ("LAUNCH", "START"):
        monkeypatch.setattr(rates, cost, 0)
    always = {codec: rates.Rate(1e15, 0.0) for codec in rates.DEVICE_RATES["sm"]}
    monkeypatch.setitem(rates.DEVICE_RATES, "sm", always)


@every_format
def test_taken_where_it_is_the_fastest(cuda, files, name, quick_launches):
    cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
    found, report = loaded(files[name].data, engine="auto")
    assert found == files[name].raw
    assert report.engine == "sm"
    assert list(report.passed_over) == ["hardware"]


@every_format
def test_takes_over_where_the_driver_refuses_after_all(cuda, files, name, quick_launches):
    """The mask says that there is an engine, and the driver's answer is NOT_SUPPORTED."""
    driver.capabilities(0)  # read, and remembered by cuda.core
    cuda.settings.algorithm_mask = 0
    found, report = loaded(files[name].data, engine="auto")
    assert found == files[name].raw
    assert report.engine == "sm"
    assert list(report.passed_over) == ["hardware"]
    assert "CUDA_ERROR_NOT_SUPPORTED (801)" in report.passed_over["hardware"]


def test_takes_over_nothing_that_the_host_does_faster(cuda, files):
    driver.capabilities(0)
    cuda.settings.algorithm_mask = 0
    found, report = loaded(compressed(RAW[:100_000], "lz4"), engine="auto")
    assert found == RAW[:100_000]
    assert report.engine == "host"
    assert "too few to pay for the start" in report.passed_over["sm"]


def test_side_by_side_with_the_hardware(cuda, monkeypatch, quick_launches):
    """Some chunks are longer than the decompression engine takes."""
    known = replace(driver.capabilities(0), decompress_max_length=64 << 10)
    monkeypatch.setattr(driver, "capabilities", lambda device_id: known)
    raw = text(3 * MIB)
    data = compressed(raw, "lz4") + compressed(raw, "lz4", chunk_size=1 << 20)
    found, report = loaded(data, engine="auto")
    assert found == raw + raw
    assert report.engine == "hardware, sm"
    assert list(report.passed_over) == ["hardware"]


def test_waiting_that_fails_is_what_is_reported(cuda, files):
    """Not that memory is gone which the batch nobody has waited for lies in."""
    cuda.fail_next("cuEventSynchronize", Code.INVALID_VALUE)
    with pytest.raises(DriverError, match="cuEventSynchronize failed"):
        loaded(files["lz4"].data, engine="sm")
    assert loaded(files["lz4"].data, engine="sm")[0] == files["lz4"].raw
