"""Chunks of arrays that are contiguous in a file."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from gpuload.containers.raw_chunks import RawGrid, chunk_shape, shape_error
from tests.containers.array_reading import all_chunks

PIECE = 1_000
SHAPES = [
    (),
    (1,),
    (10_000,),
    (0,),
    (7, 0, 5),
    (100, 25),
    (3, 7, 11, 13),
    (1, 10_000),
    (1, 1, 1_009),
    (2, 3, 4_001),
    (5, 2, 1_000, 3),
    (1_009, 1),
    (101, 3, 30),
]


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("itemsize", [1, 2, 8, 3_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_element_is_in_the_chunk_that_it_belongs_to(shape, itemsize, fortran):
    stored = shape[::-1] if fortran else shape
    chunks = chunk_shape(stored, itemsize, PIECE, clipped=not fortran)
    chunks = chunks[::-1] if fortran else chunks
    grid = RawGrid(80, shape, chunks, itemsize, fortran=fortran)
    places = grid.locate(all_chunks(shape, chunks))
    elements = np.arange(prod(shape)).reshape(shape, order="F" if fortran else "C")
    for number, chunk in enumerate(all_chunks(shape, chunks)):
        box = tuple(slice(n * c, (n + 1) * c) for n, c in zip(chunk, chunks, strict=True))
        inside = np.asarray(elements[box]).reshape(-1, order="F" if fortran else "C")
        assert places.offsets[number] == 80 + inside[0] * itemsize
        assert places.sizes[number] == inside.size * itemsize
        assert np.array_equal(inside, np.arange(inside[0], inside[0] + inside.size))
    assert places.sizes.sum() == prod(shape) * itemsize
    assert set(places.objects.tolist()) <= {0}
    assert np.array_equal(places.raw_sizes, places.sizes)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((10_000,), (1_000,)),
        ((100, 25), (40, 25)),
        ((100, 1_000), (1, 1_000)),
        ((3, 10_000), (1, 1_000)),
        ((3, 9, 999), (1, 1, 999)),
        ((1, 1_009), (1, 1_009)),
        ((1, 100_003), (1, 100_003)),
        ((1, 2 * 100_003), (1, 100_003)),
        ((5,), (5,)),
        ((), ()),
        ((0, 9), (1, 9)),
    ],
)
def test_shapes_of_chunks(shape, expected):
    """Of about 1,000 bytes; along other axes than the first, only divisors of the length do."""
    assert chunk_shape(shape, 1, PIECE) == expected


def test_elements_larger_than_a_piece():
    assert chunk_shape((9, 2), 5_000, PIECE) == (1, 1)


def test_only_arrays_of_one_chunk_have_a_checksum():
    one = RawGrid(0, (5,), (5,), 4, checksum=77).locate(np.zeros((1, 1), np.int64))
    assert one.checksums.tolist() == [77]
    assert RawGrid(0, (5,), (3,), 4, checksum=77).locate(np.zeros((1, 1), np.int64)).checksums is (
        None
    )


@pytest.mark.parametrize("shape", [(), (0,), (5, 6), (2**40, 0), (1,) * 30])
def test_shapes_that_arrays_have(shape):
    np.lib.stride_tricks.as_strided(np.zeros(1), shape, (0,) * len(shape))
    assert not shape_error(shape, 8)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((-1, 2), "negative"),
        ((2**60, 2**60), "more than 2"),
        ((2**62, 0, 2**62), "more than 2"),
        ((10**3_000,), "more than 2"),
        ((1,) * 99, "99 axes"),
    ],
)
def test_shapes_that_no_array_has(shape, message):
    assert message in shape_error(shape, 8)
