"""Every stream of the corpus, loaded to the double of a device."""

from __future__ import annotations

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
    FormatWarning,
    GpuloadError,
)
from tests.conftest import corpus_entries, corpus_folder
from tests.helpers.device_loads import hang_ends_the_process

#: More decoded bytes take too long on the double.
LARGE = 128 << 20
#: Small, so that files have several windows and staging memory is quick to make.
MEMORY_LIMIT = 24 << 20
#: Larger slots than an eighth of the memory limit are decoded as streams.
LARGEST_SLOT = MEMORY_LIMIT // 8
#: Of the double, as of a B200.
MAXIMUM_LENGTH = 4 << 20
CODECS = {
    "hardware": (Codec.DEFLATE, Codec.SNAPPY, Codec.LZ4, Codec.RAW),
    "sm": (Codec.SNAPPY, Codec.LZ4, Codec.RAW),
}


def chunks_of(entry):
    """Return the chunk table of a file; an empty one if it can't be opened."""
    try:
        with gpuload.open(corpus_folder() / entry["file"]) as container:
            return container.chunks
    except GpuloadError:
        return None


def eligible(chunks, engine="hardware"):
    """Return which rows an engine takes.

    The decompression engine, by the driver's contract: independent, of a codec in the mask, neither
    side longer than the maximum. Uncompressed ones are only copied. The kernels have no maximum
    that a file here comes near.
    """
    codec = chunks["codec"]
    linked = np.append(chunks["chained"][1:], [False])[: chunks.size] | chunks["chained"]
    known = np.isin(codec, CODECS[engine])
    long = np.maximum(chunks["raw_size"], chunks["stored_size"]) > MAXIMUM_LENGTH
    long &= (codec != Codec.RAW) & (engine == "hardware")
    return known & ~long & ~linked & ~chunks["dictionary"]


STREAMS = [entry for entry in corpus_entries("stream") if entry.get("size", 0) < LARGE]
TABLES = {entry["file"]: chunks_of(entry) for entry in STREAMS}
OPENED = [entry for entry in STREAMS if TABLES[entry["file"]] is not None]
TAKEN = [
    (entry, engine)
    for entry in OPENED
    for engine in CODECS
    if eligible(TABLES[entry["file"]], engine).any()
]
LEFT = [
    (entry, engine)
    for entry in OPENED
    for engine in CODECS
    if (entry, engine) not in TAKEN and TABLES[entry["file"]].size
]


def each(entries):
    return pytest.mark.parametrize("entry", entries, ids=[entry["file"] for entry in entries])


def by_each_engine(pairs):
    ids = [f"{engine} {entry['file']}" for entry, engine in pairs]
    return pytest.mark.parametrize(("entry", "engine"), pairs, ids=ids)


@pytest.fixture(autouse=True)
def _clean(cuda):
    with hang_ends_the_process(120):
        yield
    close_pools()


def accepted(entry):
    """Return the outcomes that the manifest allows: "error", or SHA-256 of the bytes."""
    allowed = {entry["expect"], entry.get("also_accept", entry["expect"])}
    digests = {entry["sha256"]} if "sha256" in entry else set()
    digests |= set(entry.get("also_sha256", []))
    return ({"error"} if "error" in allowed else set()) | (digests if "ok" in allowed else set())


def opened(entry, **options):
    table = TABLES[entry["file"]]
    largest = 0 if table is None else table["raw_size"].max(initial=0)
    limit = {"memory_limit": MEMORY_LIMIT} if largest <= LARGEST_SLOT else {}
    return gpuload.open(corpus_folder() / entry["file"], threads=2, **limit, **options)


def load(entry, **options):
    """Load to the device; return the SHA-256 and the report, or "error" and the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            with opened(entry, **options) as container:
                array = container.load(device=0)
                assert array.device == "cuda:0"
                assert container.report.raw_size == array.nbytes
                return hashlib.sha256(array.to_host()).hexdigest(), container.report
        except EngineUnavailableError as error:
            return "error", error
        except GpuloadError as error:
            named = entry["file"] in str(error)
            return "error" if named else "an error that does not name the file", error


def wrong_checksums(entry):
    """Return which kinds of checksums a load to host memory finds wrong, if that is all."""
    with warnings.catch_warnings(), opened(entry) as container:
        warnings.simplefilter("ignore", FormatWarning)
        with pytest.raises(ChecksumError) as caught:
            container.load(device="cpu")
        kinds = set()
        for failure in caught.value.failures:
            spans = container.spans[container.spans["offset"] == failure.offset]
            row = spans[0] if spans.size else container.chunks[failure.chunk]
            kinds.add(Checksum(row["checksum_kind"]).name.lower())
        return kinds


def checksums_of(entry):
    """Return how many checksums of each kind a file has, as far as its table shows them."""
    with opened(entry) as container:
        columns = (container.chunks["checksum_kind"], container.spans["checksum_kind"])
    kinds = np.concatenate(columns)
    return Counter(Checksum(kind).name.lower() for kind in kinds[kinds != Checksum.NONE])


@each(STREAMS)
def test_checked_completely(cuda, entry):
    """The engine decodes what it can, the host the rest; the report says so."""
    outcome, report = load(entry, verify=True)
    assert outcome in accepted(entry)
    if outcome == "error":
        return
    chunks = TABLES[entry["file"]]
    rows = eligible(chunks)
    names = [name for name, mask in (("hardware", rows), ("host", ~rows)) if mask.any()]
    assert report.engine == (", ".join(names) or "host")
    submitted = rows & (chunks["codec"] != Codec.RAW) & (chunks["raw_size"] > 0)
    assert sum(cuda.batches) == submitted.sum()
    assert ("hardware" in report.passed_over) == (~rows).any()
    assert report.unverified == {}


@each(STREAMS)
def test_checked_where_it_is_decoded(entry):
    """What "auto" does not check it names; nothing but a checksum may be wrong and unseen."""
    outcome, report = load(entry, verify="auto")
    if outcome not in accepted(entry):
        assert outcome != "error"
        assert wrong_checksums(entry) <= set(report.unverified)
    if outcome != "error":
        assert not report.failures
    if outcome != "error" and "hardware" in report.engine:
        assert Counter(report.verified) + Counter(report.unverified) == checksums_of(entry)


@pytest.mark.parametrize("verify", [True, "auto"])
@by_each_engine(TAKEN)
def test_asked_for_the_engine_by_name(entry, engine, verify):
    """Nothing but a checksum that is not looked at may be wrong and unseen."""
    outcome, report = load(entry, verify=verify, engine=engine)
    if verify is True or outcome == "error":
        assert outcome in accepted(entry)
    elif outcome not in accepted(entry):
        assert wrong_checksums(entry) <= set(report.unverified)
    assert outcome == "error" or engine in report.engine


@by_each_engine(LEFT)
def test_an_engine_that_takes_nothing_of_it(cuda, entry, engine):
    outcome, error = load(entry, engine=engine)
    assert outcome == "error"
    refused = isinstance(error, EngineUnavailableError)
    assert refused or "error" in accepted(entry)
    if refused:
        assert f"the {engine} engine cannot decode this: " in str(error)
    assert not cuda.batches
    assert not cuda.recorder.calls["cuLaunchKernelEx"]


@by_each_engine(TAKEN)
def test_verified_by_the_engine(cuda, entry, engine):
    """`verify` decodes with the engine and checks everything on the host."""
    with opened(entry, device=0, engine=engine) as container:
        report = container.verify()
    if report.failures:
        assert "error" in accepted(entry)
        assert all(entry["file"] in str(failure) for failure in report.failures)
    else:
        assert accepted(entry) != {"error"}
        assert report.raw_size == entry.get("size", report.raw_size)
        assert engine in report.engine
