"""The kernels of checksums on the CPU, under sanitizers, against the libraries that the host uses.

Rows of the CRC kernels are 128 bytes and blocks of rows 4 KiB; vectors of the xxHash kernels are 64
and 128 bytes for a group of lanes: what is special about sizes and alignments repeats with these.
"""

from __future__ import annotations

import random
import zlib
from functools import cache

import google_crc32c
import numpy as np
import pytest
import xxhash

from gpuload.batch import ALGORITHMS, PARAMS_DTYPE, SUMS
from gpuload.chunks import Checksum
from tests.helpers.lanes import build, sums
from tests.helpers.lanes.sums import Case

UNTOUCHED = 0xCDCDCDCD
#: Of each kind the kernel, its lanes, and what it computes.
KERNELS = {
    Checksum.CRC32: ("crc32", 32, zlib.crc32),
    Checksum.CRC32C_MASKED: ("crc32c", 32, google_crc32c.value),
    Checksum.XXH32_STORED: ("xxh32", 4, xxhash.xxh32_intdigest),
    Checksum.XXH64_LOW: ("xxh64", 4, lambda data: xxhash.xxh64_intdigest(data) & 0xFFFFFFFF),
}
#: Check values of the CRC catalogue, and xxHashes of its input by the reference's tool (xxhsum).
CHECKS = {
    Checksum.CRC32: 0xCBF43926,
    Checksum.CRC32C_MASKED: 0xE3069283,
    Checksum.XXH32_STORED: 0x937BAD67,
    Checksum.XXH64_LOW: 0x8CB841DB40E6AE83 & 0xFFFFFFFF,
}
ROW, BLOCK = 128, 4096

pytestmark = pytest.mark.parametrize("kind", KERNELS, ids=lambda kind: KERNELS[kind][0])


@pytest.fixture(autouse=True, scope="module")
def _sanitizers():
    skip_without(build.WARPS)


@pytest.fixture(scope="module")
def _exact():
    skip_without(build.EXACT)


@pytest.fixture(scope="module")
def _races():
    skip_without(build.RACES)


def skip_without(way: build.Build) -> None:
    if reason := build.missing(way):
        pytest.skip(reason)


def verify(kind: Checksum, cases: list[Case], lanes: int | None = None, **options) -> None:
    name, usual, compute = KERNELS[kind]
    found = sums.run_parallel(f"{name}_{lanes or usual}", cases, **options)
    for case, word in zip(cases, found, strict=True):
        assert word == compute(summed(case)), (len(case.data), case.at, case.actual, case.before)


def summed(case: Case) -> bytes:
    """Return the bytes that a case is about."""
    if case.actual is None:
        return case.data
    return case.data[: max(0, case.actual - case.before)]


@cache
def noise() -> bytes:
    return random.Random(1).randbytes(1 << 20)


def part(rng: random.Random, size: int) -> bytes:
    start = rng.randrange(len(noise()) - size)
    return noise()[start : start + size]


def mixture(seed: str, count: int) -> list[tuple[bytes, int]]:
    """Return bytes of many sizes, and places of their first."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        near = rng.choice((ROW, BLOCK, 2 * BLOCK, 3 * BLOCK)) + rng.randrange(-ROW, ROW + 1)
        size = rng.choice((near, rng.randrange(300), rng.randrange(20_000)))
        found.append((part(rng, size), rng.randrange(ROW)))
    return found


def test_check_value(kind):
    name, lanes, compute = KERNELS[kind]
    assert compute(b"123456789") == CHECKS[kind]
    assert sums.run(f"{name}_{lanes}", [Case(kind, b"123456789")]) == [CHECKS[kind]]


def test_small_sizes(kind):
    rng = random.Random(2)
    verify(kind, [Case(kind, part(rng, size), rng.randrange(ROW)) for size in range(301)])


@pytest.mark.usefixtures("_exact")
def test_small_sizes_at_every_alignment(kind):
    """The first bytes and the last ones in any place of a row, with nothing allowed around them."""
    rng = random.Random(3)
    sizes = (0, 1, 3, 4, 5, 16, 31, 33, 64, 100, ROW, ROW + 3, 300)
    asked = [Case(kind, part(rng, size), at) for size in sizes for at in range(ROW)]
    verify(kind, asked, build=build.EXACT)


@pytest.mark.usefixtures("_exact")
def test_rows_and_blocks_that_are_almost_full(kind):
    rng = random.Random(4)
    ends = [BLOCK * blocks + rest for blocks in (1, 2) for rest in (-ROW, -1, 0, 1, ROW, ROW + 1)]
    asked = [
        Case(kind, part(rng, end - at), at) for end in ends for at in (0, 1, 4, 16, 64, 125, 127)
    ]
    verify(kind, asked, build=build.EXACT)


def test_large_sizes(kind):
    rng = random.Random(5)
    sizes = [65_535, 65_536, 65_537, 100_000, 300_001]
    asked = [Case(kind, part(rng, size), rng.randrange(ROW)) for size in sizes]
    verify(kind, asked, batch=4)
    verify(kind, asked, 1, build=build.ALONE)


def test_runs(kind):
    """Zeros in front count, and so do ones."""
    asked = [
        Case(kind, bytes([byte]) * size, size % ROW)
        for size in (1, 4, 63, 500, 5000)
        for byte in (0, 255)
    ]
    verify(kind, asked)


def test_sizes_that_only_the_device_knows(kind):
    rng = random.Random(6)
    asked = []
    for data, at in mixture("sizes", 60):
        before = rng.choice((0, 0, rng.randrange(1 << 20), 1 << 31))
        near = max(0, before + len(data) + rng.randrange(-200, 20))
        actual = rng.choice((0, before, near, near, 0xFFFFFFFF))
        asked.append(Case(kind, data, at, actual, before))
    verify(kind, asked)


@pytest.mark.usefixtures("_exact")
def test_bounds_to_the_byte(kind):
    asked = [Case(kind, data, at) for data, at in mixture("bounds", 60)]
    for lanes in (1, KERNELS[kind][1]):
        verify(kind, asked, lanes, build=build.EXACT)


def test_every_order_of_lanes(kind):
    asked = [Case(kind, data, at) for data, at in mixture("orders", 30)]
    for order in ("ascending", "descending", "random"):
        verify(kind, asked, order=order, batch=7)


@pytest.mark.usefixtures("_races")
def test_no_data_races(kind):
    verify(kind, [Case(kind, data, at) for data, at in mixture("races", 30)], build=build.RACES)


@pytest.mark.parametrize("lanes", [1, None])
def test_operations_of_others_are_left_alone(kind, lanes):
    name, usual, compute = KERNELS[kind]
    asked = [Case(other, b"abc") for other in (*KERNELS, *KERNELS)]
    way = build.ALONE if lanes else build.WARPS
    found = sums.run(f"{name}_{lanes or usual}", asked, build=way)
    assert found == [compute(b"abc") if case.kind == kind else UNTOUCHED for case in asked]


def test_operations_of_decoders_are_left_alone(kind):
    """Nothing is read: the addresses are not mapped."""
    name, lanes, _ = KERNELS[kind]
    algorithms = list(ALGORITHMS.values())
    assert not {*algorithms} & {*SUMS.values()}
    params = np.zeros(len(algorithms), PARAMS_DTYPE)
    params["src_num_bytes"], params["src"], params["dst_act_bytes"] = 9, 64, 64
    params["algo"] = algorithms
    words = np.full(params.size, UNTOUCHED, np.uint32)
    kernel = f"{name}_{lanes}".encode()
    arrays = params.ctypes.data, params.size, words.ctypes.data
    assert build.shared_library().lanes_launch(kernel, *arrays) == 0
    assert (words == UNTOUCHED).all()
