"""Checksums against the values that their specifications publish."""

from __future__ import annotations

import random
import sys
import zlib

import google_crc32c
import numpy as np
import pytest

from gpuload import checksums
from gpuload.chunks import Checksum
from tests.helpers.payloads import sample

CHECK = b"123456789"


def compute(kind, data):
    return checksums.compute(kind, np.frombuffer(data, np.uint8))


def masked(crc):
    """Snappy framing format, section 3."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


#: The input of xxHash's own sanity checks: the top bytes of powers of a prime.
def xxhash_input(size):
    value, data = 2654435761, bytearray()
    for _ in range(size):
        data.append(value >> 56)
        value = value * 11400714785074694797 % 2**64
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        # Check value of the CRC catalogue, then the vectors of RFC 3720, appendix B.4.
        (CHECK, 0xE3069283),
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_masked_crc32c(data, crc):
    assert compute(Checksum.CRC32C_MASKED, data) == masked(crc)


def test_masking_of_an_empty_chunk():
    assert compute(Checksum.CRC32C_MASKED, b"") == 0xA282EAD8


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (CHECK, 0xCBF43926),
        (b"", 0),
        (b"a", 0xE8B7BE43),
        (b"The quick brown fox jumps over the lazy dog", 0x414FA339),
    ],
)
def test_crc32(data, crc):
    assert compute(Checksum.CRC32, data) == crc


@pytest.mark.parametrize("kind", [Checksum.XXH32, Checksum.XXH32_STORED])
@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (CHECK, 0x937BAD67),
        (b"Nobody inspects the spammish repetition", 0xE2293B2F),
        # The sanity checks of the reference implementation.
        (xxhash_input(1), 0xCF65B03E),
        (xxhash_input(14), 0x1208E7E2),
        (xxhash_input(222), 0x5BD11DBD),
    ],
)
def test_xxh32(kind, data, digest):
    assert compute(kind, data) == digest


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
        (xxhash_input(1), 0xE934A84ADB052768),
        (xxhash_input(14), 0x8282DCC4994E35C8),
        (xxhash_input(222), 0xB641AE8CB691C174),
    ],
)
def test_low_half_of_xxh64(data, digest):
    assert compute(Checksum.XXH64_LOW, data) == digest & 0xFFFFFFFF


KINDS = [kind for kind in Checksum if kind != Checksum.NONE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 32, 33, 65536, 1_000_001])
def test_any_memory_gives_the_same(kind, size):
    data = sample("noise", size)
    memory = np.frombuffer(b"x" + data + b"y", np.uint8)
    expected = compute(kind, data)
    assert type(expected) is int
    assert 0 <= expected < 2**32
    assert checksums.compute(kind, memory[1:-1]) == expected
    assert checksums.compute(int(kind), memory[1:-1].copy()) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_counts(kind):
    data = bytearray(sample("text", 100))
    found = {compute(kind, data)}
    for bit in range(800):
        data[bit >> 3] ^= 1 << (bit & 7)
        found.add(compute(kind, data))
        data[bit >> 3] ^= 1 << (bit & 7)
    assert len(found) == 801


def test_running():
    data = sample("noise", 100_000)
    hasher = checksums.running(Checksum.XXH32)
    assert hasher.intdigest() == 0x02CC5D05
    for start in range(0, len(data), 7777):
        hasher.update(np.frombuffer(data, np.uint8)[start : start + 7777])
    hasher.update(np.zeros(0, np.uint8))
    assert hasher.intdigest() == compute(Checksum.XXH32, data)


def test_running_hashers_are_apart():
    one, other = checksums.running(Checksum.XXH32), checksums.running(Checksum.XXH32)
    one.update(b"abc")
    assert other.intdigest() == 0x02CC5D05
    assert one.intdigest() == 0x32D153FF


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k not in (Checksum.XXH32, Checksum.XXH64_LOW)]
)
def test_other_kinds_do_not_run(kind):
    with pytest.raises(ValueError, match="is not computed piece by piece"):
        checksums.running(kind)


def test_names_tell_the_kinds_apart():
    names = [checksums.describe(kind) for kind in KINDS]
    assert len(set(names)) == len(KINDS)
    assert "CRC-32C" in checksums.describe(Checksum.CRC32C_MASKED)
    assert checksums.describe(int(Checksum.CRC32)) == checksums.describe(Checksum.CRC32)


@pytest.fixture(params=["as installed", "without isal"])
def crc32(request, monkeypatch):
    """Return the CRC-32 function, of ISA-L if it is installed, and of zlib."""
    if request.param == "without isal":
        monkeypatch.setitem(sys.modules, "isal", None)
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    checksums.crc32.cache_clear()
    yield checksums.crc32()
    monkeypatch.undo()
    checksums.crc32.cache_clear()


def test_crc32_goes_on(crc32):
    data = sample("noise", 100_000)
    assert crc32(CHECK) == 0xCBF43926
    assert crc32(b"", 0) == 0
    so_far = 0
    for start in range(0, len(data), 7777):
        so_far = crc32(data[start : start + 7777], so_far)
    assert so_far == zlib.crc32(data)


# --- Combining ------------------------------------------------------------------------------------


def parts_of(rng, count):
    """Return parts of many sizes, also empty ones."""
    return [rng.randbytes(rng.choice((0, 1, 7, 300, rng.randrange(70_000)))) for _ in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_combined_crc32(count):
    parts = parts_of(random.Random(count), count)
    found = checksums.combine_crc32([zlib.crc32(part) for part in parts], [*map(len, parts)])
    assert found == zlib.crc32(b"".join(parts))


@pytest.mark.parametrize(
    ("kind", "crc"),
    [(Checksum.CRC32, zlib.crc32), (Checksum.CRC32C_MASKED, google_crc32c.value)],
)
def test_combined_crcs_of_many(kind, crc):
    rng = random.Random(1)
    groups = [parts_of(rng, rng.choice((0, 0, 1, 2, 9))) for _ in range(60)]
    parts = [part for group in groups for part in group]
    firsts = np.cumsum([0, *map(len, groups)])[:-1]
    found = checksums.combine_crcs(kind, [*map(crc, parts)], [*map(len, parts)], firsts)
    assert found.tolist() == [crc(b"".join(group)) for group in groups]


def test_combined_crcs_of_nothing():
    assert checksums.combine_crcs(Checksum.CRC32, [], [], []).tolist() == []


def test_combined_crc32_of_very_large_parts():
    """x^(2^32 - 1) is 1 modulo the polynomial, which is primitive: as many bits change nothing."""
    size = 2**32 - 1  # bytes, whose bits are 8 times as many
    assert checksums.combine_crc32([0x12345678, 0x9ABCDEF0], [5, size]) == 0x12345678 ^ 0x9ABCDEF0
    assert checksums.combine_crc32([0x12345678, 0], [5, 2**62]) == checksums.combine_crc32(
        [0x12345678, 0], [5, 2**62 % size]
    )


def test_masking_of_many():
    crcs = np.array([0, 1, 0xE3069283, 0xFFFFFFFF], np.uint32)
    assert checksums.masked(crcs).tolist() == [masked(crc) for crc in crcs.tolist()]
