"""The chunk table and the span table."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.chunks import (
    CHUNK_DTYPE,
    SPAN_DTYPE,
    UNKNOWN,
    Checksum,
    Codec,
    make_spans,
    make_table,
    place,
)


@pytest.mark.parametrize("dtype", [CHUNK_DTYPE, SPAN_DTYPE])
def test_columns_are_aligned(dtype):
    assert dtype.isalignedstruct
    assert dtype.itemsize % 8 == 0
    for name in dtype.names:
        assert dtype.fields[name][1] % dtype[name].alignment == 0


def test_columns_hold_every_codec_and_checksum():
    for column, kinds in (("codec", Codec), ("checksum_kind", Checksum)):
        most = np.iinfo(CHUNK_DTYPE[column]).max
        assert all(0 <= kind <= most for kind in kinds)


def test_table_of_columns_and_scalars():
    table = make_table([5, 9], raw_size=[10, 20], codec=Codec.LZ4, exact=True)
    assert table.dtype == CHUNK_DTYPE
    assert table["offset"].tolist() == [5, 9]
    assert table["raw_size"].tolist() == [10, 20]
    assert table["codec"].tolist() == [Codec.LZ4, Codec.LZ4]
    assert table["exact"].tolist() == [True, True]


def test_columns_left_out_are_zero():
    table = make_table([1, 2, 3])
    given = {"offset", "padding"}
    assert all(not table[name].any() for name in CHUNK_DTYPE.names if name not in given)


def test_table_without_rows():
    table = make_table([], raw_size=[], codec=Codec.RAW)
    assert table.dtype == CHUNK_DTYPE
    assert table.shape == (0,)


def test_any_integers_make_offsets():
    wide = 2**64 - 1
    assert make_table(range(3))["offset"].tolist() == [0, 1, 2]
    assert make_table(np.array([7], np.int32))["offset"].tolist() == [7]
    assert make_table(np.array([wide], np.uint64))["offset"].tolist() == [wide]


def test_rows_follow_one_another():
    table = make_table(range(4), raw_size=[10, 0, 5, 7])
    assert table["dst_offset"].tolist() == [0, 10, 10, 15]


def test_places_that_are_given_stay():
    table = make_table(range(2), raw_size=[10, 10], dst_offset=[100, 50])
    assert table["dst_offset"].tolist() == [100, 50]


def test_place_again():
    table = make_table(range(3), raw_size=[1, 2, 3], dst_offset=[9, 9, 9])
    place(table)
    assert table["dst_offset"].tolist() == [0, 1, 3]


@pytest.mark.parametrize("rows", [0, 1])
def test_place_few(rows):
    table = make_table(range(rows), raw_size=7, dst_offset=9)
    place(table)
    assert table["dst_offset"].tolist() == [0] * rows


def test_place_beyond_32_bits():
    table = make_table(range(3), raw_size=[2**40, 2**41, 1])
    assert table["dst_offset"].tolist() == [0, 2**40, 2**40 + 2**41]


def test_unknown_column():
    with pytest.raises(ValueError, match="no field of name colour"):
        make_table([1], colour=3)


def test_columns_of_other_lengths():
    with pytest.raises(ValueError, match="broadcast"):
        make_table([1, 2], raw_size=[1, 2, 3])


def test_spans():
    spans = make_spans([(0, 3, 100, 55, 0xABCD, Checksum.XXH32), (3, 0, UNKNOWN, 99, 1, 0)])
    assert spans.dtype == SPAN_DTYPE
    assert spans["first"].tolist() == [0, 3]
    assert spans["count"].tolist() == [3, 0]
    assert spans["raw_size"].tolist() == [100, UNKNOWN]
    assert spans["offset"].tolist() == [55, 99]
    assert spans["checksum"].tolist() == [0xABCD, 1]
    assert spans["checksum_kind"].tolist() == [Checksum.XXH32, Checksum.NONE]


def test_no_spans():
    assert make_spans([]).shape == (0,)
    assert make_spans([]).dtype == SPAN_DTYPE


def test_unknown_is_what_the_column_can_hold():
    assert np.uint64(UNKNOWN) == np.iinfo(SPAN_DTYPE["raw_size"]).max
