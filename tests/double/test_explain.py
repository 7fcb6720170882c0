"""What explain() says before a load, and the report after it, on the double of a device."""

from __future__ import annotations

from dataclasses import replace

import lz4.frame
import pytest
import zstandard

import gpuload
from gpuload import driver
from gpuload.device_array import close_pools
from gpuload.engines import rates
from tests.helpers.device_loads import compressed, hang_ends_the_process, text
from tests.helpers.handmade import gzip_member

TEXT = text(300_000)
QUICK = {"memory_limit": 16 << 20, "threads": 2}
BIT = "the codec's bit is missing in the device's algorithm mask"

LINKED = lz4.frame.compress(TEXT, block_linked=True, block_size=4)
INDEPENDENT = compressed(TEXT, "lz4")
ZSTD = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
BGZF = compressed(TEXT, "gzip")

UNSURE = "it may be given valid input only, and nobody says that this is (trusted=True)"
NO_KERNEL = "there is no kernel for the codec"


def passed(hardware, sm, nvcomp=UNSURE):
    """Return why engines on the device do not decode something."""
    return {"hardware": hardware, "sm": sm, "nvcomp": nvcomp}


#: File, the engine that decodes it, and why the engines on the device do not, or not all of it.
FILES = {
    "LZ4": (INDEPENDENT, "hardware", {}),
    "Snappy": (compressed(TEXT, "snappy"), "hardware", {}),
    "BGZF": (BGZF, "hardware", {}),
    "gzip": (gzip_member(TEXT), "host", passed(*["one serial stream"] * 2)),
    "Zstandard": (ZSTD, "host", passed(f"{BIT} (0x7)", NO_KERNEL)),
    "linked LZ4": (LINKED, "host", passed(*["linked to other chunks"] * 2)),
    "LZ4 of both kinds": (
        INDEPENDENT + LINKED,
        "hardware, host",
        passed(*["linked to other chunks (5 of 10 chunks)"] * 2),
    ),
    "long LZ4": (
        lz4.frame.compress(TEXT, block_linked=False, block_size=7) + INDEPENDENT,
        "hardware",
        {},
    ),
    "nothing": (lz4.frame.compress(b""), "host", {"nvcomp": UNSURE}),
}


@pytest.fixture(autouse=True)
def _clean(cuda):
    with hang_ends_the_process(60):
        yield
    close_pools()


@pytest.fixture
def device_with(monkeypatch, cuda):
    """Return a function that changes what the device and its driver say they can do."""

    def change(**capabilities):
        known = replace(driver.capabilities(0), **capabilities)
        monkeypatch.setattr(driver, "capabilities", lambda device_id: known)
        cuda.settings.algorithm_mask = known.decompress_mask
        cuda.settings.maximum_length = known.decompress_max_length

    return change


def explained(data, **options):
    """Return what is said before a load; the report of the load must say the same."""
    with gpuload.open(data, **QUICK | {"device": 0} | options) as container:
        [before] = container.explain()
        container.load()
        assert container.report.engine == before.engine
        assert container.report.passed_over == before.passed_over
        return before


@pytest.mark.parametrize("name", FILES)
def test_files(name):
    data, engine, reasons = FILES[name]
    said = explained(data)
    assert said.asset == ""
    assert said.engine == engine
    assert said.passed_over == reasons


def test_a_maximum(device_with):
    device_with(decompress_max_length=65_536)
    said = explained(FILES["long LZ4"][0])
    assert said.engine == "hardware, host"
    reason = "longer than the device's maximum of 65536 bytes (1 of 6 chunks)"
    few = "1 chunk is too few to pay for the start (12 ms against 0.81 ms on the host)"
    assert said.passed_over == passed(reason, few)


@pytest.mark.parametrize("mask", [1, 2, 4])
def test_a_mask(device_with, mask):
    device_with(decompress_mask=mask)
    bits = {"BGZF": 1, "Snappy": 2, "LZ4": 4}
    for name, bit in bits.items():
        said = explained(FILES[name][0])
        assert said.engine == ("hardware" if bit == mask else "host")
        if bit == mask:
            assert said.passed_over == {}
            continue
        assert said.passed_over["hardware"] == f"{BIT} ({mask:#x})"
        few = "5 chunks are too few to pay for the start (6.5 ms against 0."
        assert said.passed_over["sm"].startswith(NO_KERNEL if name == "BGZF" else few)


def test_no_engine(device_with):
    device_with(decompress_mask=0, decompress_max_length=0)
    said = explained(BGZF)
    assert said.engine == "host"
    reason = "Double of a GPU 0 has no decompression engine (its algorithm mask is 0)"
    assert said.passed_over == passed(reason, NO_KERNEL)


ASKED_FOR = "the host engine was asked for"
NOT_TRUSTED = "it has no bounds of its own, and the input is not trusted"
NOT_WANTED = "the bytes are wanted in host memory, and no device was named"


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({"engine": "host"}, passed(*[ASKED_FOR] * 3)),
        ({"trusted": False}, passed(NOT_TRUSTED, NO_KERNEL, NOT_TRUSTED)),
        ({"device": "cpu"}, passed(*[NOT_WANTED] * 3)),
    ],
)
def test_options(options, reasons):
    said = explained(BGZF, **options)
    assert said.engine == "host"
    assert said.passed_over == reasons


def test_the_kernels_where_they_are_faster(device_with, monkeypatch):
    """Chunks enough to pay for the start, on a device without a decompression engine."""
    device_with(decompress_mask=0, decompress_max_length=0)
    monkeypatch.setattr(rates, "START", 0.1e-3)
    said = explained(compressed(text(6_000_000), "lz4"))
    assert said.engine == "sm"
    assert list(said.passed_over) == ["hardware"]
    assert said.reason.startswith(
        "92 independent chunks in batches; about: sm 0.67 ms, host 4.3 ms"
    )


def test_the_kernels_by_name():
    said = explained(INDEPENDENT + LINKED, engine="sm")
    assert said.engine == "sm, host"
    asked_for = "the sm engine was asked for"
    assert said.passed_over == passed(
        asked_for, "linked to other chunks (5 of 10 chunks)", asked_for
    )


def test_the_current_device_is_meant_if_none_is_named():
    assert explained(BGZF, device=None).engine == "hardware"


def test_who_waits_for_whom():
    """Batches for the engine; threads for the host; one thread for what is serial."""
    assert "5 independent chunks" in explained(INDEPENDENT).reason
    assert "threads" not in explained(INDEPENDENT).reason
    assert "5 independent chunks on up to 2 threads" in explained(INDEPENDENT, engine="host").reason
    serial = explained(LINKED).reason
    assert serial.startswith("one thread decodes")
    assert "linked blocks" in serial


@pytest.mark.parametrize(
    ("verify", "said"), [(True, "not checked"), ("auto", "not checked"), (False, "not checked")]
)
def test_checksums_that_will_not_be_checked_are_named(verify, said):
    """What a load leaves unchecked, `explain` says before and the report after it."""
    with gpuload.open(BGZF, device=0, verify=verify, **QUICK) as container:
        [before] = container.explain()
        container.load()
        assert (said in before.checksums) == bool(container.report.unverified)


def test_explaining_starts_nothing(cuda):
    with gpuload.open(BGZF, device=0, **QUICK) as container:
        before = cuda.recorder.calls.copy()
        container.explain()
        made = {name for name in cuda.recorder.calls - before if "Mem" in name}
    assert made <= {"cuDeviceTotalMem"}
    assert not cuda.leaks()
