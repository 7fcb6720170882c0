"""Damaged files: right bytes or a GpuloadError, in bounded time and memory.

The reference decoders are asked about every damaged file too. Where they and gpuload disagree on
whether it is a file at all, `explained` has to know why; where both take it, bytes are the same.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import sys
import warnings
from pathlib import Path

import pytest

from gpuload.errors import FormatWarning, GpuloadError
from tests.conftest import corpus_entries, corpus_folder
from tests.helpers import host
from tests.helpers.encoders import ENCODERS
from tests.helpers.fresh import fresh_python
from tests.helpers.handmade import LZ4_LEGACY_MAGIC
from tests.helpers.loading import MIB, NOISE, TEXT
from tests.helpers.mutations import REFERENCES, mutated

FAMILIES = ("lz4", "gzip", "zstd", "snappy")
BATCHES, CASES = 8, 250
#: Far more than a batch takes; a decoder that does not end is stopped with its traceback.
PATIENCE = 300
#: Files to damage: small ones, so that damage hits framing often and many cases take little time.
LARGEST_STORED, LARGEST_RAW = 60_000, 500_000
PARTS = [TEXT[:3_000], b"", NOISE[:500], TEXT[3_000:9_000]]


def corpus_files(family: str) -> list[bytes]:
    """Return small good files of a format."""
    entries = [e for e in corpus_entries("stream") if e["format"] == family and e["expect"] == "ok"]
    files = [
        (corpus_folder() / entry["file"]).read_bytes()
        for entry in entries
        if entry["size"] < LARGEST_RAW
    ]
    return [file for file in files if 0 < len(file) < LARGEST_STORED]


def encoded_files(family: str) -> list[bytes]:
    names = [name for name in ENCODERS if name.replace("bgzf", "gzip").startswith(family)]
    return [ENCODERS[name](PARTS) for name in names]


@pytest.fixture(scope="module")
def files():
    return {family: corpus_files(family) + encoded_files(family) for family in FAMILIES}


@pytest.fixture(autouse=True)
def watchdog():
    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def loaded(data: bytes, **options) -> bytes | GpuloadError:
    """Return the decoded bytes or the error; anything else that happens fails the test."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome: bytes | GpuloadError = bytes(host.load(data, **options))
        except GpuloadError as error:
            outcome = error
    assert {warning.category for warning in caught} <= {FormatWarning}
    return outcome


def referred(family: str, data: bytes) -> bytes | None:
    """Return what the reference decoder makes of a file; None if it refuses it."""
    try:
        return REFERENCES[family](data)
    except Exception:  # noqa: BLE001 (whatever a library raises is its refusal)
        return None


def explained(data: bytes, ours: bytes | GpuloadError) -> bool:
    """Return whether it is known why only one of the two takes a file."""
    if isinstance(ours, bytes):
        # liblz4's frame decoder does not know legacy frames; the lz4 tool does. ISA-L takes code
        # tables that zlib refuses where no symbol uses them, and the CRC-32 is right all the same.
        return LZ4_LEGACY_MAGIC in data or data[:2] == b"\x1f\x8b"
    reason = str(ours)
    return (
        # A file of no bytes is of no format; the libraries decode it to no bytes.
        not data
        # liblz4 takes a match with offset 0, which the block format forbids, and writes zeros.
        or "offset 0" in reason
        # The library does not read seek tables, whose sizes and checksums have to be right as well.
        or data[-4:] == b"\xb1\xea\x92\x8f"
        # libzstd does not compare the content size if the last block is empty.
        or "the frame states" in reason
        or "bytes, the file says" in reason
        # gunzip does not look at the sizes that BGZF blocks state.
        or "BGZF block" in reason
    )


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("family", FAMILIES)
def test_agrees_with_the_reference(family, batch, files):
    for case in range(CASES):
        seed = f"{family}/{batch}/{case}"
        data = mutated(random.Random(seed), files[family])
        ours, theirs = loaded(data, threads=1 + case % 3), referred(family, data)
        if isinstance(ours, bytes) and theirs is not None:
            assert ours == theirs, seed
        elif isinstance(ours, bytes) or theirs is not None:
            assert explained(data, ours), (seed, ours if isinstance(ours, Exception) else len(ours))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_agrees(family, files, tmp_path):
    """Writing, verifying and loading in little memory end as loading does."""
    for case in range(CASES):
        seed = f"ways/{family}/{case}"
        data = mutated(random.Random(seed), files[family])
        wanted = loaded(data)
        found = [
            loaded(data, memory_limit=MIB, threads=2),
            written(data, tmp_path / "out", positional=case % 2 == 0),
        ]
        assert all(same(outcome, wanted) for outcome in found), (seed, wanted, found)
        assert verified(data) == isinstance(wanted, bytes), seed


def same(outcome: bytes | GpuloadError, wanted: bytes | GpuloadError) -> bool:
    """Return whether two outcomes are the same bytes or both errors; a small limit may refuse."""
    if isinstance(outcome, GpuloadError) and "memory_limit" in str(outcome):
        return True
    return outcome == wanted if isinstance(wanted, bytes) else isinstance(outcome, GpuloadError)


def written(data: bytes, path, *, positional: bool) -> bytes | GpuloadError:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        with host.open(data, memory_limit=MIB, threads=3) as container:
            container.write_to(fd, positional=positional)
    except GpuloadError as error:
        return error
    finally:
        os.close(fd)
    return path.read_bytes()


def verified(data: bytes) -> bool:
    """Return whether verifying finds nothing; a file it cannot go on with raises instead."""
    try:
        with host.open(data, threads=2) as container:
            return not container.verify().failures
    except GpuloadError:
        return False


#: Prints the peak of resident memory, in bytes, of a batch that runs in 1.5 GiB of address space.
BATCH = """
import faulthandler, json, os, random, resource, sys, warnings
faulthandler.dump_traceback_later(300, exit=True)
import gpuload
from tests.helpers import host
from tests.helpers.fresh import peak_resident
from tests.helpers.mutations import mutated
from tests.test_fuzz import corpus_files, encoded_files

family, cases = sys.argv[1], int(sys.argv[2])
files = corpus_files(family) + encoded_files(family)
warnings.simplefilter("ignore")
null = os.open(os.devnull, os.O_WRONLY)
resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
decoded = 0
for case in range(cases):
    data = mutated(random.Random(f"memory/{family}/{case}"), files)
    for limit in (1 << 40, None):
        try:
            with host.open(data, max_output=limit, threads=1 + case % 4) as container:
                (container.load, lambda: container.write_to(null), container.verify)[case % 3]()
                decoded += 1
        except gpuload.errors.GpuloadError:
            pass
print(json.dumps({"decoded": decoded, "peak": peak_resident()}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("family", FAMILIES)
def test_memory_is_bounded(family):
    found = json.loads(fresh_python(BATCH, family, 500, timeout=PATIENCE))
    assert found["peak"] < 400 * MIB
    assert found["decoded"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13, 16, 20, 33, 64, 100])
def test_noise_behind_every_magic(size):
    """Headers of nothing but noise."""
    magics = (b"\x04\x22\x4d\x18", LZ4_LEGACY_MAGIC, b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08")
    more = (b"\xff\x06\x00\x00sNaPpY", b"\x50\x2a\x4d\x18", b"\x5e\x2a\x4d\x18\x09\0\0\0", b"")
    for magic in magics + more:
        for case in range(40):
            loaded(magic + random.Random(f"{size}/{case}").randbytes(size))
