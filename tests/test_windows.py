"""Windows of any table: all rows, in order, within the limits, and no chain cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.chunks import UNKNOWN, Codec, make_table
from gpuload.windows import plan

#: Farther apart than this, two payloads are read by themselves (64 KiB).
FAR = 64 << 10

sizes = st.one_of(st.integers(0, 200), st.integers(0, 20_000), st.just(0))


@st.composite
def tables(draw):
    """Draw a table as readers make them: payloads in order, chains after a row that is none."""
    count = draw(st.integers(1, 40))

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    stored, raw, prefix = column(sizes), column(sizes), column(st.integers(0, 3))
    gaps = column(st.sampled_from([0, 0, 0, 4, 1000, FAR - 1, FAR, FAR + 1, 10 * FAR]))
    chained = column(st.sampled_from([False, False, False, True]))
    codecs = column(st.sampled_from([Codec.LZ4, Codec.RAW, Codec.ZSTD, Codec.GZIP]))
    chained[0], offsets, position = False, [], 0
    for row in range(count):
        position += gaps[row] + prefix[row]
        offsets.append(position)
        position += stored[row]
        if codecs[row] == Codec.GZIP:
            chained[row] = False
            raw[row] = UNKNOWN
        elif row and codecs[row - 1] == Codec.GZIP:
            chained[row] = False
    return make_table(
        offsets, stored_size=stored, raw_size=raw, prefix_size=prefix, codec=codecs, chained=chained
    )


limits = st.fixed_dictionaries(
    {
        "target": st.sampled_from([1, 100, 5000, 1 << 20]),
        "raw_limit": st.sampled_from([0, 100, 10_000, UNKNOWN]),
        "stored_limit": st.sampled_from([0, 100, 10_000, UNKNOWN]),
    }
)


def rows_of(table, window):
    return table[window.first : window.last]


def check_partition(table, found):
    """Check that windows hold every row once, in order."""
    edges = [(window.first, window.last) for window in found]
    assert [first for first, _ in edges] == [0, *(last for _, last in edges[:-1])]
    assert edges[-1][1] == table.size
    assert all(first < last for first, last in edges)


def check_chains(table, found):
    """Check that no chain is cut, and that each has a window of its own."""
    for window in found:
        chained = rows_of(table, window)["chained"]
        assert not chained[0]
        assert not chained.any() or (window.streamed and chained[1:].all())


def check_streams(table, found, limits):
    """Check that rows are streamed where they must be, and nowhere else."""
    for window in found:
        rows = rows_of(table, window)
        must = rows["chained"] | (rows["codec"] == Codec.GZIP)
        must |= rows["raw_size"] > limits["raw_limit"]
        must |= rows["stored_size"] > limits["stored_limit"]
        assert window.streamed == must.any()
        assert not window.streamed or window.last - window.first == 1 + rows["chained"].sum()


def check_bounds(table, found):
    """Check that bounds hold payloads and prefixes."""
    for window in found:
        rows = rows_of(table, window)
        assert window.start == int(rows["offset"][0]) - int(rows["prefix_size"][0])
        assert window.end == int(rows["offset"][-1]) + int(rows["stored_size"][-1])
        assert window.raw_size == sum(rows["raw_size"].tolist())


def check_size_of_batches(table, found, limits):
    """Check that a batch is no larger than the target and one row."""
    for window in found:
        if not window.streamed:
            rows = rows_of(table, window)[1:]
            begin = (rows["offset"] - rows["prefix_size"]).min(initial=2**63)
            more = window.end - min(int(begin), window.end) + sum(rows["raw_size"].tolist())
            assert more <= limits["target"]


def check_gaps(table, found):
    """Check that batches read over small gaps only."""
    for window in found:
        if not window.streamed:
            rows = rows_of(table, window)
            begin = (rows["offset"] - rows["prefix_size"]).astype(np.int64)
            end = (rows["offset"] + rows["stored_size"]).astype(np.int64)
            assert (begin[1:] - end[:-1] <= FAR).all()


def check_types(found):
    """Check that attributes are plain values."""
    for window in found:
        values = [getattr(window, name) for name in ("first", "last", "start", "end", "raw_size")]
        assert all(type(value) is int for value in values)
        assert type(window.streamed) is bool


@settings(deadline=None, max_examples=400, derandomize=True)
@given(tables(), limits)
def test_any_table(table, limits):
    found = plan(table, **limits)
    check_types(found)
    check_partition(table, found)
    check_chains(table, found)
    check_streams(table, found, limits)
    check_bounds(table, found)
    check_size_of_batches(table, found, limits)
    check_gaps(table, found)


def windows(table, *, target=1 << 20, raw_limit=1 << 20, stored_limit=1 << 20):
    return plan(table, target=target, raw_limit=raw_limit, stored_limit=stored_limit)


def attributes(found):
    return [(w.first, w.last, w.start, w.end, w.raw_size, w.streamed) for w in found]


def test_no_rows():
    assert windows(make_table([])) == []


def test_everything_that_fits_is_one_window():
    table = make_table(range(0, 1000, 10), stored_size=10, raw_size=20, codec=Codec.LZ4)
    assert attributes(windows(table)) == [(0, 100, 0, 1000, 2000, False)]


def test_many_rows_are_cut_about_evenly():
    table = make_table(range(0, 100_000, 10), stored_size=10, raw_size=90, codec=Codec.LZ4)
    counts = [window.last - window.first for window in windows(table, target=10_000)]
    assert sum(counts) == 10_000
    assert set(counts[1:-1]) <= {99, 100, 101}


@pytest.mark.parametrize(("gap", "parts"), [(0, 1), (FAR, 1), (FAR + 1, 2), (-1, 2), (-500, 2)])
def test_gaps(gap, parts):
    table = make_table([1000, 1100 + gap], stored_size=100, raw_size=100, codec=Codec.LZ4)
    assert len(windows(table)) == parts


def test_prefix_narrows_a_gap():
    table = make_table([0, 101 + FAR], stored_size=100, prefix_size=1, raw_size=9)
    table["prefix_size"][0] = 0
    assert len(windows(table)) == 1


def test_sources_are_never_mixed():
    table = make_table([0, 100, 200], stored_size=100, raw_size=100, source=[0, 0, 1])
    assert [(window.first, window.last) for window in windows(table)] == [(0, 2), (2, 3)]


def test_row_at_the_limits_is_no_stream():
    table = make_table([0, 50, 90], stored_size=[50, 40, 41], raw_size=[60, 61, 60])
    streamed = [w.streamed for w in windows(table, raw_limit=60, stored_limit=50)]
    assert streamed == [False, True, False]


def test_chain_with_gaps_between_its_rows():
    far = 10 * FAR
    table = make_table(
        [0, far, 2 * far], stored_size=10, raw_size=10, chained=[False, True, True], codec=Codec.LZ4
    )
    assert attributes(windows(table, target=1)) == [(0, 3, 0, 2 * far + 10, 30, True)]


def test_chains_behind_one_another():
    table = make_table(
        range(0, 60, 10),
        stored_size=10,
        raw_size=10,
        chained=[False, True, False, True, False, False],
    )
    found = [(w.first, w.last, w.streamed) for w in windows(table)]
    assert found == [(0, 2, True), (2, 4, True), (4, 6, False)]


def test_chain_with_one_large_row():
    table = make_table([0, 10], stored_size=10, raw_size=[10, 5000], chained=[False, True])
    found = [(w.first, w.last, w.streamed) for w in windows(table, raw_limit=100)]
    assert found == [(0, 2, True)]


def test_rows_beyond_32_bits():
    offsets = [2**40, 2**40 + 10, 2**41]
    table = make_table(offsets, stored_size=10, raw_size=2**33)
    found = windows(table, raw_limit=2**34, target=2**40)
    assert [(w.start, w.end, w.raw_size) for w in found] == [
        (2**40, 2**40 + 20, 2**34),
        (2**41, 2**41 + 10, 2**33),
    ]


def test_engines_are_never_mixed():
    table = make_table(range(0, 60, 10), stored_size=10, raw_size=10, codec=Codec.LZ4)
    engines = np.array([2, 2, 0, 0, 0, 1], np.uint8)
    found = plan(table, target=1000, raw_limit=1000, stored_limit=1000, engines=engines)
    assert [(w.first, w.last, w.engine) for w in found] == [(0, 2, 2), (2, 5, 0), (5, 6, 1)]


def test_target_of_each_row():
    table = make_table(range(0, 1200, 10), stored_size=10, raw_size=90, codec=Codec.LZ4)
    target = np.repeat([1000, 3000], 60)
    found = plan(table, target=target, raw_limit=1000, stored_limit=1000)
    counts = [w.last - w.first for w in found]
    assert set(counts[1:5]) <= {9, 10, 11}
    assert set(counts[-2:-1]) <= {29, 30, 31}
    assert sum(counts) == 120


def test_million_rows():
    table = make_table(np.arange(1_000_000) * 100, stored_size=100, raw_size=100)
    assert len(windows(table)) == 191
