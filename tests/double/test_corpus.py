"""Every stream of the corpus, loaded to the double of a device."""

from __future__ import annotations

import gc
import hashlib
import warnings
from collections import Counter

import numpy as np
import pytest

import gpuload
from gpuload.chunks import Checksum, Codec
from gpuload.device_array import close_pools
from gpuload.errors import (
    ChecksumError,
    EngineUnavailableError,
    FormatError,
    FormatWarning,
    GpuloadError,
    UnsupportedCodecError,
)
from tests.conftest import corpus_entries, corpus_folder
from tests.helpers.device_loads import hang_ends_the_process

STREAMS = corpus_entries("stream")
#: Decoding more than this several times takes too long.
LARGE = 64 << 20
#: Small, so that files have several windows and staging memory is quick to make.
MEMORY_LIMIT = 24 << 20
#: Larger slots than an eighth of it are streamed on the host.
LARGEST_SLOT = MEMORY_LIMIT // 8
HARDWARE_CODECS = (Codec.DEFLATE, Codec.SNAPPY, Codec.LZ4)
#: Checksums that can be wrong without a chunk that does not decode.
ANY_CHECKSUM = {kind.name.lower() for kind in Checksum if kind != Checksum.NONE}

every_stream = pytest.mark.parametrize("entry", STREAMS, ids=[entry["file"] for entry in STREAMS])


@pytest.fixture(autouse=True)
def _clean(cuda):
    with hang_ends_the_process(120):
        yield
    gc.collect()
    close_pools()


def path_of(entry):
    return corpus_folder() / entry["file"]


def accepted(entry):
    """Return the outcomes that the manifest allows: "error", or SHA-256 of the bytes."""
    allowed = {entry["expect"], entry.get("also_accept", entry["expect"])}
    digests = {entry["sha256"]} if "sha256" in entry else set()
    digests |= set(entry.get("also_sha256", []))
    return ({"error"} if "error" in allowed else set()) | (digests if "ok" in allowed else set())


def load(entry, **options):
    """Load to the device; return the SHA-256 and the report, or "error" and the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            with gpuload.open(path_of(entry), **options) as container:
                array = container.load(device=0)
                assert array.device == "cuda:0"
                assert container.report.raw_size == array.nbytes
                return hashlib.sha256(array.to_host()).hexdigest(), container.report
        except GpuloadError as error:
            assert entry["file"] in str(error), "the message names the file"
            return "error", error


def only_a_checksum(entry):
    """Return which checksums a load to host memory finds wrong; empty if that is not all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            gpuload.load(path_of(entry), device="cpu")
        except ChecksumError as error:
            failures = error.failures
        except GpuloadError:
            return set()
        else:
            return set()
    with gpuload.open(path_of(entry)) as container:
        kinds = set()
        for failure in failures:
            span = container.spans[container.spans["offset"] == failure.offset]
            row = container.chunks[failure.chunk] if not span.size else span[0]
            kinds.add(Checksum(row["checksum_kind"]).name.lower())
        return kinds


def eligible(chunks):
    """Return which rows an engine of all codecs with chunks of up to 4 MiB takes.

    What the driver's contract says: independent, a codec of the mask, neither side longer than the
    maximum. Uncompressed rows are copies, which need no engine.
    """
    codec = chunks["codec"]
    linked = np.append(chunks["chained"][1:], [False]) | chunks["chained"]
    fits = (chunks["raw_size"] <= LARGEST_SLOT) & (chunks["stored_size"] <= LARGEST_SLOT)
    known = np.isin(codec, HARDWARE_CODECS) & (chunks["stored_size"] > 0) & (chunks["raw_size"] > 0)
    return (known | (codec == Codec.RAW)) & fits & ~linked & ~chunks["dictionary"]


def chunks_of(entry):
    """Return the chunk table of a file; None if it can't be opened."""
    try:
        with gpuload.open(path_of(entry)) as container:
            return container.chunks
    except (FormatError, UnsupportedCodecError):
        return None


def options_of(entry, **more):
    """Return options that keep large files to a load that is quick."""
    large = entry.get("size", 0) > LARGE
    return {"memory_limit": MEMORY_LIMIT, "threads": 2} | ({"engine": "host"} if large else {}) | more


@every_stream
def test_checked_completely(entry):
    outcome, _ = load(entry, **options_of(entry, verify=True))
    assert outcome in accepted(entry)


@every_stream
def test_checked_where_it_is_decoded(cuda, entry):
    """What "auto" does not check it names; nothing but a checksum may pass unseen."""
    if entry.get("size", 0) > LARGE:
        pytest.skip("so many bytes are decoded once only")
    outcome, report = load(entry, **options_of(entry))
    if outcome not in accepted(entry):
        wrong = only_a_checksum(entry)
        assert wrong, "more than a checksum is wrong"
        assert wrong <= set(report.unverified)
        assert outcome != "error"
    if outcome != "error":
        assert not report.failures
        assert_every_checksum_is_accounted_for(entry, report)


def assert_every_checksum_is_accounted_for(entry, report):
    with gpuload.open(path_of(entry)) as container:
        kinds = np.concatenate(
            (container.chunks["checksum_kind"], container.spans["checksum_kind"])
        )
    there = Counter(Checksum(kind).name.lower() for kind in kinds if kind != Checksum.NONE)
    if report.engine == "host" and not report.unverified:
        return  # a serial stream has checksums that no row stands for
    assert Counter(report.verified) + Counter(report.unverified) == there
    assert set(report.unverified) <= ANY_CHECKSUM


@every_stream
def test_who_decodes(cuda, entry):
    """The engine decodes what it can, the host the rest; the report says so."""
    if entry.get("size", 0) > LARGE:
        pytest.skip("so many bytes are decoded once only")
    chunks = chunks_of(entry)
    if chunks is None:
        pytest.skip("it can't be opened")
    rows = eligible(chunks)
    outcome, report = load(entry, **options_of(entry, verify=True))
    if outcome == "error":
        return
    names = [name for name, mask in (("hardware", rows), ("host", ~rows)) if mask.any()]
    assert report.engine == (", ".join(names) or "host")
    submitted = rows & (chunks["codec"] != Codec.RAW)
    assert sum(cuda.batches) == submitted.sum()
    assert bool(report.passed_over) == bool((~rows).any())


@every_stream
def test_asked_for_the_engine_by_name(cuda, entry):
    if entry.get("size", 0) > LARGE:
        pytest.skip("so many bytes are decoded once only")
    chunks = chunks_of(entry)
    if chunks is None:
        pytest.skip("it can't be opened")
    if not chunks.size:
        pytest.skip("there is nothing to decode")
    if eligible(chunks).any():
        outcome, _ = load(entry, **options_of(entry, verify=True, engine="hardware"))
        assert outcome in accepted(entry)
    else:
        with pytest.raises(EngineUnavailableError, match="the hardware engine cannot decode this"):
            gpuload.load(path_of(entry), device=0, **options_of(entry, engine="hardware"))
        assert not cuda.batches


@every_stream
def test_verified_by_the_engine(entry):
    """`verify` decodes with the engine and checks everything on the host."""
    if entry.get("size", 0) > LARGE:
        pytest.skip("so many bytes are decoded once only")
    try:
        with gpuload.open(path_of(entry), device=0, **options_of(entry)) as container:
            report = container.verify()
    except GpuloadError:
        assert "error" in accepted(entry)
        return
    if report.failures:
        assert "error" in accepted(entry)
        assert all(entry["file"] in str(failure) for failure in report.failures)
    else:
        assert accepted(entry) != {"error"}
        assert report.raw_size == entry.get("size", report.raw_size)
