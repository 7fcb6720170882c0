"""Loads to the double of a device: what comes out, and which engine decodes what."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace

import lz4.block
import lz4.frame
import numpy as np
import pytest
import zstandard

import gpuload
from gpuload import driver
from gpuload.engines import rates
from gpuload.errors import DriverError, FormatWarning
from tests.helpers.device_loads import (
    BUILDERS,
    QUICK,
    clean_loads,
    compressed,
    run_alone,
    text,
)
from tests.helpers.handmade import (
    INDEPENDENT,
    SNAPPY_IDENTIFIER,
    V1,
    gzip_member,
    lz4_block,
    lz4_frame,
    snappy_chunk,
    snappy_data,
    snappy_literal,
)

MIB = 1 << 20
TEXT = text(3 * MIB)
NOISE = np.random.default_rng(3).bytes(200_000)
CODECS = ["lz4", "snappy", "gzip"]

every_codec = pytest.mark.parametrize("codec", CODECS)


@pytest.fixture(autouse=True)
def _clean(cuda):
    with clean_loads():
        yield


@pytest.fixture(scope="module")
def files():
    """Return compressed text by codec."""
    return {codec: compressed(TEXT, codec) for codec in CODECS}


def loaded(data, **options):
    """Load to the device; return the bytes and the report."""
    with gpuload.open(data, **QUICK | options) as container:
        return bytes(container.load(device=0)), container.report


# --- What comes out -------------------------------------------------------------------------------


@every_codec
@pytest.mark.parametrize("verify", [True, "auto", False])
@pytest.mark.parametrize("trusted", [None, True])
def test_loaded_by_the_engine(cuda, files, codec, verify, trusted):
    data, report = loaded(files[codec], verify=verify, trusted=trusted)
    assert data == TEXT
    assert report.engine == "hardware"
    assert report.passed_over == {}
    assert report.raw_size == len(TEXT)
    assert report.stored_size == len(files[codec])
    assert cuda.batches


@pytest.mark.parametrize("device", [0, "cuda", "cuda:0", None])
def test_ways_to_name_the_device(files, device):
    array = gpuload.load(files["lz4"], device=device, **QUICK)
    assert array.device == "cuda:0"
    assert bytes(array) == TEXT


def test_host_memory_is_asked_for_by_name(cuda, files):
    array = gpuload.load(files["lz4"], device="cpu", **QUICK)
    assert array.device == "cpu"
    assert not cuda.batches


def test_no_such_device(files):
    with pytest.raises(DriverError, match="there is no device 7"):
        gpuload.load(files["lz4"], device=7)


@every_codec
def test_the_engine_decodes_to_host_memory(cuda, files, codec, tmp_path):
    """A load to memory of the host, a file and `verify` go through the engine if it is named."""
    options = QUICK | {"engine": "hardware", "device": 0}
    out = bytearray(len(TEXT))
    with gpuload.open(files[codec], **options) as container:
        container.load(out=out)
        assert bytes(out) == TEXT
        assert bytes(container.load(device="cpu")) == TEXT
        fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
        try:
            report = container.write_to(fd, positional=True)
        finally:
            os.close(fd)
        assert (tmp_path / "out").read_bytes() == TEXT
        assert report.engine == "hardware"
        assert report.unverified == {}
        before = len(cuda.batches)
        assert container.verify().failures == []
        assert len(cuda.batches) > before


SHAPES = {
    "no frame's bytes": (lz4.frame.compress(b""), b""),
    "empty blocks": (lz4.frame.compress(b"") * 3 + lz4.frame.compress(b"abc"), b"abc"),
    "one byte": (lz4.frame.compress(b"a"), b"a"),
    "empty chunks": (
        SNAPPY_IDENTIFIER
        + snappy_data(b"abc", elements=snappy_literal(b"abc"))
        + snappy_data(b"", elements=b"")
        + snappy_data(b"")
        + snappy_data(b"xyz", elements=snappy_literal(b"xyz")),
        b"abcxyz",
    ),
    "empty chunks only": (SNAPPY_IDENTIFIER + 5 * snappy_data(b"", elements=b""), b""),
    "skippable chunks": (
        SNAPPY_IDENTIFIER + snappy_chunk(0xFE, bytes(99)) + snappy_data(b"xyz"),
        b"xyz",
    ),
    # The end block of BGZF is empty, and starts where the memory of the window ends.
    "as large as what the driver maps": (
        compressed(TEXT[: 2 * MIB], "gzip", chunk_size=32 << 10),
        TEXT[: 2 * MIB],
    ),
    "one more than what the driver maps": (
        compressed(TEXT[: 2 * MIB + 1], "snappy"),
        TEXT[: 2 * MIB + 1],
    ),
    "stored as it is": (compressed(NOISE, "lz4"), NOISE),
    "1 KiB chunks": (compressed(TEXT[:300_000], "snappy", chunk_size=1024), TEXT[:300_000]),
}


@pytest.mark.parametrize("trusted", [None, True])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_files(name, trusted):
    data, expected = SHAPES[name]
    for verify in (True, "auto"):
        assert loaded(data, verify=verify, trusted=trusted)[0] == expected


@pytest.mark.parametrize("trusted", [None, True])
def test_blocks_of_unknown_size_are_closed_up(cuda, trusted):
    """LZ4 frame format: a block may hold less than the maximum, also in the middle."""
    parts = [TEXT[:65_536], TEXT[:1000], TEXT[5000:70_536], b"x" * 65_535, TEXT[9:10], TEXT[:300]]
    blocks = [lz4_block(lz4.block.compress(part, store_size=False)) for part in parts]
    blocks.insert(3, lz4_block(NOISE[:777], raw=True))
    parts.insert(3, NOISE[:777])
    data = lz4_frame(*blocks, flags=V1 | INDEPENDENT) * 2
    for verify in (True, "auto"):
        bytes_, report = loaded(data, verify=verify, trusted=trusted)
        assert bytes_ == b"".join(parts) * 2
        assert report.engine == "hardware"
        assert report.raw_size == len(bytes_)
    assert sum(cuda.batches) == 2 * 12


def test_warnings_name_the_caller(files):
    """Skipped chunks warn, and point to the line that loads."""
    file = BUILDERS["snappy"]([TEXT[:1000], TEXT[:2000]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gpuload.load(file.spoilt(1), device=0, on_error="skip", **QUICK)
    assert [warning.category for warning in caught] == [FormatWarning]
    assert caught[0].filename == __file__


def test_a_guarded_window_is_not_the_destination(cuda, files):
    """The default is a window with addresses without memory behind it."""
    sizes = []
    reserve = driver.mem_address_reserve

    def noted(size, alignment):
        sizes.append(size)
        return reserve(size, alignment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "mem_address_reserve", noted)
        loaded(files["gzip"])
    assert max(sizes) >= 256 * MIB


# --- Engines side by side -------------------------------------------------------------------------


@pytest.fixture
def device_with(monkeypatch, cuda):
    """Return a function that changes what the device and its driver say they can do."""

    def change(**capabilities):
        known = replace(driver.capabilities(0), **capabilities)
        monkeypatch.setattr(driver, "capabilities", lambda device_id: known)
        cuda.settings.algorithm_mask = known.decompress_mask
        cuda.settings.maximum_length = known.decompress_max_length

    return change


@pytest.mark.parametrize("verify", [True, "auto"])
def test_chunks_that_are_too_long_go_to_the_host(cuda, device_with, verify):
    """Frames with long and short blocks, compressed or not, decode side by side."""
    device_with(decompress_max_length=65_536)
    short, long = compressed(TEXT, "lz4"), compressed(TEXT, "lz4", chunk_size=1 << 20)
    data = short + compressed(NOISE, "lz4", chunk_size=256 << 10) + long + short
    expected = TEXT + NOISE + TEXT + TEXT
    found, report = loaded(data, verify=verify)
    assert found == expected
    assert report.engine == "hardware, host"
    reason = "longer than the device's maximum of 65536 bytes (3 of 100 chunks)"
    assert report.passed_over["hardware"] == reason
    assert "3 chunks are too few to pay for the start" in report.passed_over["sm"]
    assert sum(cuda.batches) == 96


def test_files_that_are_too_long_go_elsewhere_whole(cuda, device_with, monkeypatch):
    device_with(decompress_max_length=65_535)
    for engine in ("host", "sm"):
        for cost in ("LAUNCH", "START"):
            monkeypatch.setattr(rates, cost, 1 if engine == "host" else 0)
        found, report = loaded(compressed(TEXT, "lz4"))
        assert found == TEXT
        assert report.engine == engine
        reason = "longer than the device's maximum of 65535 bytes"
        assert report.passed_over["hardware"] == reason
    assert not cuda.batches


HOST_ONLY = {
    "linked blocks": (lz4.frame.compress(TEXT, block_linked=True, block_size=4), "linked to"),
    "linked blocks with a checksum": (
        lz4.frame.compress(TEXT, block_linked=True, block_size=4, content_checksum=True),
        "linked to",
    ),
    "plain gzip": (gzip_member(TEXT), "one serial stream"),
    "Zstandard": (
        zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
        "the codec's bit is missing in the device's algorithm mask (0x7)",
    ),
}


@pytest.mark.parametrize("verify", [True, "auto"])
@pytest.mark.parametrize("name", HOST_ONLY)
def test_what_the_engine_does_not_decode(cuda, name, verify):
    """The reason is in the report and in explain(), and every checksum is checked."""
    data, reason = HOST_ONLY[name]
    with gpuload.open(data, device=0, verify=verify, **QUICK) as container:
        assert bytes(container.load(device=0)) == TEXT
        assert container.report.engine == "host"
        assert container.report.passed_over["hardware"].startswith(reason)
        assert container.report.unverified == {}
        [explained] = container.explain()
    assert explained.engine == "host"
    assert explained.passed_over["hardware"].startswith(reason)
    assert not cuda.batches


def test_untrusted_input_never_goes_to_the_engine(cuda, files):
    for engine in ("auto", "sm", "host"):
        found, report = loaded(files["snappy"], trusted=False, engine=engine)
        assert found == TEXT
        assert report.engine != "hardware"
    assert "not trusted" in loaded(files["snappy"], trusted=False)[1].passed_over["hardware"]
    with pytest.raises(DriverError, match="input is not trusted"):
        loaded(files["snappy"], trusted=False, engine="hardware")
    assert "cuMemBatchDecompressAsync" not in cuda.recorder.calls


def test_a_device_without_an_engine(cuda, files, device_with):
    device_with(decompress_mask=0, decompress_max_length=0)
    found, report = loaded(files["gzip"])
    assert found == TEXT
    assert report.engine == "host"
    assert report.unverified == {}
    assert "has no decompression engine (its algorithm mask is 0)" in report.passed_over["hardware"]
    with pytest.raises(DriverError, match="its algorithm mask is 0"):
        loaded(files["gzip"], engine="hardware")
    assert "cuMemBatchDecompressAsync" not in cuda.recorder.calls


def test_a_device_without_host_numa_memory(device_with, files):
    """Windows (WSL) and older drivers have none; the host's bytes come another way."""
    device_with(host_numa_memory=False)
    found, report = loaded(files["gzip"])
    assert found == TEXT
    assert report.engine == "host"
    assert "cannot map memory of the host" in report.passed_over["hardware"]


def test_an_older_driver():
    """It has no decompression call; loads go through the host, with that reason."""
    said = run_alone(
        """
        import gpuload
        from gpuload.device_array import close_pools
        from tests.helpers.device_loads import compressed, text
        raw = text(300_000)
        with gpuload.open(compressed(raw, "lz4"), device=0) as container:
            print(bytes(container.load()) == raw)
            print(container.report.engine)
            print(container.report.passed_over["hardware"])
            print(container.explain()[0].passed_over["hardware"])
            try:
                gpuload.load(compressed(raw, "lz4"), engine="hardware")
            except gpuload.errors.EngineUnavailableError as error:
                print(error)
        """,
        GPULOAD_FAKE_CUDA_VERSION="12060",
        CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING="1",
    )
    reason = "the driver supports CUDA 12.6; decompression in hardware came with CUDA 12.8"
    assert said.splitlines() == [
        "True",
        "host",
        reason,
        reason,
        f"the hardware engine cannot decode this: {reason}",
    ]


def test_the_report_names_who_decoded_slots_that_are_too_large_for_windows(cuda):
    """They are decoded as streams, by the host, whatever engine could take them."""
    data = compressed(TEXT, "lz4", chunk_size=4 << 20)
    found, report = loaded(data, verify=True, memory_limit=12 * MIB)
    assert found == TEXT
    assert not cuda.batches
    assert report.engine == "host"
