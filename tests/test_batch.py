from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.batch import ALGORITHMS, DRIVER_CODECS, PARAMS_DTYPE, build
from gpuload.chunks import Codec, make_table


def test_layout_is_the_drivers():
    driver = pytest.importorskip("cuda.bindings._v2.driver", exc_type=ImportError)
    assert driver.mem_decompress_params_dtype == PARAMS_DTYPE
    assert PARAMS_DTYPE.itemsize == 64


def test_codes_are_the_drivers_and_our_own_start_at_256():
    driver = pytest.importorskip("cuda.bindings.driver", exc_type=ImportError)
    names = driver.CUmemDecompressAlgorithm
    assert {c.name: code for c, code in DRIVER_CODECS.items()} == {
        "DEFLATE": names.CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE,
        "SNAPPY": names.CU_MEM_DECOMPRESS_ALGORITHM_SNAPPY,
        "LZ4": names.CU_MEM_DECOMPRESS_ALGORITHM_LZ4,
    }
    assert all(ALGORITHMS[codec] >= 256 for codec in ALGORITHMS.keys() - DRIVER_CODECS.keys())
    assert len(set(ALGORITHMS.values())) == len(ALGORITHMS)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**40),
            st.integers(0, 2**32),
            st.integers(0, 2**22),
            st.sampled_from([codec for codec in Codec if codec not in (Codec.GZIP, Codec.BLOSC)]),
        )
    )
)
def test_every_operation_is_the_one_of_its_row(columns):
    offset, stored, raw, codec = map(list, zip(*columns, strict=True)) if columns else ([],) * 4
    rows = make_table(offset, stored_size=stored, raw_size=raw, codec=codec)
    src = rows["offset"].astype(np.int64) + 7
    dst = rows["dst_offset"].astype(np.int64) + 11
    params, order = build(rows, src=src, dst=dst, actual=4096 + 4 * np.arange(rows.size))
    assert sorted(order.tolist()) == list(range(len(columns)))
    assert (np.diff(params["dst_num_bytes"].astype(np.int64)) <= 0).all()
    for operation, row in zip(params, order.tolist(), strict=True):
        assert operation["src_num_bytes"] == stored[row]
        assert operation["dst_num_bytes"] == raw[row]
        assert operation["src"] == src[row]
        assert operation["dst"] == dst[row]
        assert operation["dst_act_bytes"] == 4096 + 4 * row
        assert operation["algo"] == ALGORITHMS[codec[row]]
    assert not params["padding"].any()
