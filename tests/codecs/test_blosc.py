"""Whole Blosc chunks on the host, and the blocks of those that are decoded by their streams."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from gpuload.codecs import blosc
from gpuload.codecs.base import CorruptChunkError
from gpuload.errors import MissingDependencyError
from tests.helpers.expanding import unshuffle

library = pytest.importorskip("numcodecs.blosc", reason="numcodecs makes the chunks")

SIZE = 12_000
RAW = np.arange(SIZE // 4, dtype="<i4").tobytes()


def compressed(raw=RAW, cname=b"blosclz", element_size=4, shuffle=1):
    return bytearray(library.compress(raw, cname, 5, shuffle, typesize=element_size))


def decoded(chunk, size=SIZE):
    slot = np.full(size, 0xA5, np.uint8)
    found = blosc.decode(np.frombuffer(bytes(chunk), np.uint8), slot)
    return slot[:found].tobytes()


@pytest.mark.parametrize("cname", library.list_compressors())
@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_decoded(cname, shuffle):
    chunk = compressed(cname=cname.encode(), shuffle=shuffle)
    assert decoded(chunk) == RAW
    assert decoded(chunk, len(RAW) + 9) == RAW, "the caller compares sizes"


def test_nothing():
    assert decoded(compressed(b""), 0) == b""


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, 1, "version 1"),
        (0, 3, "version 3"),
        (3, 0, "elements of 0"),
        (4, len(RAW) + 1, "there is room for 12000"),
        (4, 2**32 - 1, "4294967295 bytes"),
        (8, 0, "blocks of 0"),
        (8, len(RAW) + 1, "blocks of 12001"),
        (12, 2**31, "tells of 2147483648 bytes"),
        (12, 0, "tells of 0 bytes"),
        (16, 2**31 - 1, "damaged"),
        (4, 4, "blocks of 12000"),
    ],
)
def test_damaged_headers(place, value, reason):
    chunk = compressed()
    width = 1 if place < 4 else 4
    chunk[place : place + width] = value.to_bytes(width, "little")
    with pytest.raises(CorruptChunkError, match=reason):
        decoded(chunk)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 100])
def test_cut(size):
    with pytest.raises(CorruptChunkError, match=r"bytes"):
        decoded(compressed()[:size])


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "numcodecs.blosc", None)
    blosc._library.cache_clear()
    try:
        with pytest.raises(MissingDependencyError, match=r"numcodecs: pip install 'gpuload\[zarr"):
            decoded(compressed())
    finally:
        blosc._library.cache_clear()


@pytest.mark.parametrize(
    ("element", "size"), list(product([1, 2, 3, 4, 8, 17], [0, 1, 16, 17, 136, 139]))
)
def test_unshuffled(element, size):
    block = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    expected = unshuffle(block, element, bit=False)
    assert blosc.unshuffle(block, element, bit=False).tobytes() == expected.tobytes()
    if size // element % 8 == 0 and size >= element:
        expected = unshuffle(block, element, bit=True)
        assert blosc.unshuffle(block, element, bit=True).tobytes() == expected.tobytes()


_FUZZ = """
import random, sys
import numpy as np
from numcodecs.blosc import compress
from gpuload.codecs.base import CorruptChunkError
from gpuload.codecs.blosc import decode

rng, outcomes = random.Random(3), set()
raw = np.arange(3000, dtype="<i4").tobytes()
for number in range(6000):
    cname = rng.choice([b"blosclz", b"lz4", b"zlib", b"zstd"])
    made = compress(raw, cname, 5, rng.randrange(3), rng.choice([0, 1024]), typesize=4)
    chunk = bytearray(made)
    for _ in range(rng.choice([1, 1, 3])):
        place = rng.randrange(len(chunk) if rng.random() < 0.5 else 60)
        width = rng.choice([1, 4])
        value = rng.choice([0, 1, 2**31 - 1, 2**32 - 1, len(chunk), rng.randrange(2**32)])
        chunk[place : place + width] = (value % 256**width).to_bytes(width, "little")
    if rng.random() < 0.5:
        chunk = chunk[: rng.randrange(len(chunk))]
    if len(chunk) >= 16 and rng.random() < 0.8:
        chunk[12:16] = len(chunk).to_bytes(4, "little")
    memory = np.full(len(raw) + 64, 0xA5, np.uint8)
    try:
        outcomes.add(decode(np.frombuffer(bytes(chunk), np.uint8), memory[: len(raw)]))
    except CorruptChunkError:
        outcomes.add("error")
    assert (memory[len(raw) :] == 0xA5).all()
assert {"error", len(raw)} <= outcomes
print("done")
"""


def test_no_bytes_crash_the_library():
    command = [sys.executable, "-X", "faulthandler", "-c", _FUZZ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
