"""Many LZ4 files side by side: the same rows as one by one, or none."""

from __future__ import annotations

import itertools
from itertools import pairwise

import lz4.frame
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.containers import lz4 as reader
from gpuload.containers.lz4_many import list_alike
from gpuload.errors import GpuloadError
from gpuload.options import Options

OPTIONS = Options()
START = 1000
SIZES = [1, 100, 65536, 65537, 200_000, 70_000, 131_072, 5, 30_000, 99_999, 100_000, 65_535]


def content(number: int, size: int) -> bytes:
    words = np.random.default_rng(number).integers(0, 1 << 6, size // 2 + 1, np.uint8)
    return words.repeat(2).tobytes()[:size]


def made(sizes=SIZES, **settings) -> list[bytes]:
    settings = {"block_size": lz4.frame.BLOCKSIZE_MAX64KB} | settings
    return [lz4.frame.compress(content(n, size), **settings) for n, size in enumerate(sizes)]


def edges_of(files: list[bytes]) -> list[int]:
    return [START, *(START + np.cumsum([len(file) for file in files])).tolist()]


def alike(files: list[bytes], options: Options = OPTIONS):
    return list_alike(memoryview(b"".join(files)), edges_of(files), options)


def one_by_one(files: list[bytes]):
    joined, edges = memoryview(b"".join(files)), edges_of(files)
    parts = [joined[first - START : last - START] for first, last in pairwise(edges)]
    return reader.list_many(parts, edges, OPTIONS)


def assert_same(found, expected) -> None:
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert one.dtype == other.dtype
        for name in one.dtype.names:
            if name != "padding":
                assert one[name].tolist() == other[name].tolist(), name
    assert found[2] == expected[2]


@pytest.mark.parametrize(
    ("linked", "block_sum", "content_sum", "size"), list(itertools.product((False, True), repeat=4))
)
def test_every_kind_of_frame(linked, block_sum, content_sum, size):
    # The encoder makes frames of a single block independent.
    sizes = [65536 + each for each in SIZES] if linked else SIZES
    files = made(
        sizes,
        block_linked=linked,
        block_checksum=block_sum,
        content_checksum=content_sum,
        store_size=size,
    )
    found = alike(files)
    assert found is not None
    assert_same(found, one_by_one(files))
    assert found[2] == [-(-size // 65536) for size in sizes]


def test_files_without_blocks_among_others():
    files = made([0, 10, 0, 0, 70_000, 1, 2, 3, 0], store_size=False, block_linked=False)
    found = alike(files)
    assert found is not None
    assert_same(found, one_by_one(files))
    assert found[2] == [0, 1, 0, 0, 2, 1, 1, 1, 0]


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(made(SIZES[:7]), id="few"),
        pytest.param(made([0] * 9), id="all empty"),
        pytest.param([*made(), *made(block_checksum=True)], id="other flags"),
        pytest.param([*made(), *made(block_size=lz4.frame.BLOCKSIZE_MAX1MB)], id="other blocks"),
        pytest.param([*made(), made()[0] * 2], id="two frames"),
        pytest.param([*made(), made()[0] + b"\x50\x2a\x4d\x18\0\0\0\0"], id="a skippable frame"),
        pytest.param([*made(), b""], id="an empty file"),
        pytest.param([*made(), made([17 * 65536])[0]], id="many blocks"),
        pytest.param([b"no frame" * 20, *made()], id="no frame"),
    ],
)
def test_others_are_left_to_the_walk(files):
    assert alike(files) is None


def test_a_dictionary_is_left_to_the_walk():
    assert alike(made(), Options(dictionary=b"words")) is None


@given(st.integers(0, len(SIZES) - 1), st.integers(0, 1 << 30), st.integers(0, 255), st.booleans())
def test_damage_is_never_overlooked(file, place, value, cut):
    """What the walk refuses is refused, and what it takes is taken as it is, or left to it."""
    files = made(block_checksum=True, content_checksum=True, store_size=True)
    damaged = bytearray(files[file])
    # Mostly where the framing is.
    place = place % len(damaged) if place % 3 else place // 3 % min(25, len(damaged))
    if cut:
        del damaged[place:]
    else:
        damaged[place] = value
    files[file] = bytes(damaged)
    found = alike(files)
    try:
        expected = one_by_one(files)
    except GpuloadError:
        assert found is None
        return
    if found is not None:
        assert_same(found, expected)
