"""Ranges and rows of files, as loads that overlap take them."""

from __future__ import annotations

import threading

import lz4.frame
import numpy as np
import pytest

from gpuload.chunks import SPAN_DTYPE, UNKNOWN, Codec, make_spans, make_table
from gpuload.containers import read_index
from gpuload.containers.base import Index
from gpuload.feeds import ListedFeed, Placing, WalkedFeed
from gpuload.irregular import IrregularError
from gpuload.options import Options
from gpuload.sources import BytesSource
from gpuload.stages import Stages
from tests.helpers.handmade import SNAPPY_IDENTIFIER, snappy_data

NONE = np.zeros(0, SPAN_DTYPE)
FULL = 65_536
#: Seconds after which a test has hung.
TIMEOUT = 30


def rows(*sizes, exact=False, **columns):
    """Return rows that decode to at most so many bytes, 100 stored bytes each."""
    offsets = columns.pop("offset", [10 + 104 * number for number in range(len(sizes))])
    return make_table(
        offsets,
        **{"stored_size": 100, "raw_size": sizes, "codec": Codec.LZ4, "exact": exact} | columns,
    )


def span(first, count, size=UNKNOWN):
    return (first, count, size, 0, 0, 0)


# --- Places ---------------------------------------------------------------------------------------


class TestPlacing:
    def test_rows_follow_one_another(self):
        placing, first, second = Placing(), rows(5, 7), rows(1, 2, 3)
        placing.place(first, NONE)
        placing.place(second, NONE)
        assert first["dst_offset"].tolist() == [0, 5]
        assert second["dst_offset"].tolist() == [12, 13, 15]
        assert (placing.count, placing.size) == (5, 18)

    def test_nothing(self):
        placing = Placing()
        placing.place(rows(), NONE)
        placing.place(rows(5), NONE)
        placing.place(rows(), NONE)
        assert (placing.count, placing.size) == (1, 5)

    @pytest.mark.parametrize("missing", [1, 100, FULL])
    def test_the_last_block_is_what_is_missing(self, missing):
        placing, table = Placing(), rows(FULL, FULL, FULL, 9)
        placing.place(table, make_spans([span(0, 3, 2 * FULL + missing)]))
        assert table["raw_size"].tolist() == [FULL, FULL, missing, 9]
        assert table["dst_offset"].tolist() == [0, FULL, 2 * FULL, 2 * FULL + missing]

    @pytest.mark.parametrize("missing", [0, -1, FULL + 1, 1 << 40])
    def test_a_size_that_cannot_be(self, missing):
        with pytest.raises(IrregularError):
            Placing().place(rows(FULL, FULL), make_spans([span(0, 2, FULL + missing)]))

    def test_a_stated_size_counts(self):
        table = rows(FULL, 9, exact=[False, True])
        Placing().place(table, make_spans([span(0, 2, FULL + 9)]))
        with pytest.raises(IrregularError):
            Placing().place(rows(FULL, 9, exact=[False, True]), make_spans([span(0, 2, FULL + 8)]))

    def test_several_frames(self):
        table = rows(FULL, FULL, FULL, FULL)
        spans = [span(0, 1, 5), span(1, 2), span(3, 1, 7), span(4, 0, 0)]
        Placing().place(table, make_spans(spans))
        assert table["raw_size"].tolist() == [5, FULL, FULL, 7]

    def test_a_frame_over_several_batches(self):
        placing, tables = Placing(), [rows(FULL, FULL), rows(FULL), rows(), rows(FULL, FULL, FULL)]
        for table in tables[:-1]:
            placing.place(table, NONE)
        # The first row is of a frame before.
        size = 4 * FULL + 77
        placing.place(tables[-1], make_spans([span(1, 4, 3 * FULL + 77), span(5, 1, 3)]))
        assert tables[-1]["raw_size"].tolist() == [FULL, 77, 3]
        assert tables[-1]["dst_offset"].tolist() == [3 * FULL, 4 * FULL, size]
        assert placing.size == size + 3


# --- Files that are listed ------------------------------------------------------------------------


def listed(table, size, spans=NONE):
    return ListedFeed(Index("lz4", BytesSource(bytes(1 << 20)), table, spans), size)


def given(feed):
    """Return the rows that a feed gives for its ranges, and check that they lie in them."""
    tables = []
    ranges = list(feed.ranges())
    for number, (start, end) in enumerate(ranges):
        table, last = feed.rows(number)
        assert last == (number == len(ranges) - 1)
        assert (table["offset"] - table["prefix_size"] >= start).all()
        assert (table["offset"] + table["stored_size"] <= end).all()
        tables.append(table)
    return tables


class TestListed:
    @pytest.mark.parametrize("size", [100, 103, 104, 204, 208, 1000, 1 << 20])
    def test_ranges(self, size):
        table = rows(*[FULL] * 20)
        feed = listed(table, size)
        found = np.concatenate(given(feed))
        assert np.array_equal(found, table)
        assert all(end - start <= size for start, end in feed.ranges())
        # As few as there can be: two neighbours would not fit in one.
        starts, ends = zip(*feed.ranges(), strict=True)
        assert all(b - a > size for a, b in zip(starts, ends[1:], strict=False))

    def test_prefixes_come_along(self):
        feed = listed(rows(5, 5, prefix_size=3), 1000)
        assert list(feed.ranges()) == [(7, 214)]

    def test_wide_gaps_are_left_out(self):
        table = rows(5, 5, 5, offset=[0, 100 + (64 << 10), 300 + (128 << 10)])
        assert list(listed(table, 1 << 20).ranges()) == [
            (0, 200 + (64 << 10)),
            (300 + (128 << 10), 400 + (128 << 10)),
        ]

    def test_empty_chunks(self):
        table = rows(5, 0, 5, stored_size=[100, 0, 100], offset=[10, 110, 110])
        assert np.array_equal(np.concatenate(given(listed(table, 100))), table)

    def test_a_chunk_that_is_too_long(self):
        with pytest.raises(IrregularError):
            listed(rows(5, 5, stored_size=[100, 101], offset=[0, 200]), 100)

    def test_chunks_out_of_order(self):
        with pytest.raises(IrregularError):
            listed(rows(5, 5, offset=[200, 0]), 1000)
        with pytest.raises(IrregularError):
            listed(rows(5, 5, offset=[0, 99]), 1000)

    def test_the_index_stays_as_it_is(self):
        table = rows(FULL, FULL)
        before = table.copy()
        feed = listed(table, 1000, make_spans([span(0, 2, FULL + 5)]))
        assert given(feed)[0]["raw_size"].tolist() == [FULL, 5]
        assert feed.placing.size == FULL + 5
        assert np.array_equal(feed.index().chunks, before)

    def test_pieces(self):
        feed = listed(rows(5), 1000)
        assert list(feed.pieces(10, 35, 10)) == [(10, 20), (20, 30), (30, 35)]
        assert list(feed.pieces(10, 30, 10)) == [(10, 20), (20, 30)]

    def test_what_is_published_is_released(self):
        released = []
        listed(rows(5), 1000).publish(0, np.zeros(5, np.uint8), lambda: released.append(1))
        assert released == [1]

    @pytest.mark.parametrize(
        ("actual", "complete", "right"),
        [
            ([FULL, FULL, FULL], False, True),
            ([FULL, FULL, FULL], True, True),
            ([FULL, FULL, 5], True, True),
            ([FULL, FULL, 5], False, False),
            ([FULL, 5, FULL], True, False),
            ([5, FULL, FULL], False, False),
        ],
    )
    def test_only_the_last_block_may_be_short(self, actual, complete, right):
        table = rows(FULL, FULL, FULL)
        feed = listed(table, 1000)
        sizes = np.array(actual)
        if right:
            feed.check_sizes(table, sizes, complete=complete)
        else:
            with pytest.raises(IrregularError):
                feed.check_sizes(table, sizes, complete=complete)


# --- Files that are walked ------------------------------------------------------------------------

PARTS = [bytes([number]) * (number * 37 % 900) for number in range(60)]
SNAPPY = SNAPPY_IDENTIFIER + b"".join(map(snappy_data, PARTS))
LZ4 = lz4.frame.compress(b"".join(PARTS) * 20, block_size=4, block_linked=False)


def walked(data, size=1000, piece=250, **options):
    return WalkedFeed(BytesSource(data), Options(**options), size, piece, Stages())


def publish(feed, data, piece):
    """Publish all pieces; return a list that grows by the offset of each that is released."""
    released, view = [], np.frombuffer(data, np.uint8)
    for start in range(0, len(data), piece):
        part = view[start : start + piece]
        feed.publish(start, part, lambda start=start: released.append(start))
    return released


@pytest.fixture
def stopped():
    """Stop the feeds of a test at its end."""
    feeds = []
    yield lambda feed: feeds.append(feed) or feed
    for feed in feeds:
        feed.stop()
    assert not [each.name for each in threading.enumerate() if each.name == "gpuload-index"]


class TestWalked:
    @pytest.mark.parametrize(("size", "piece"), [(1000, 250), (1000, 0), (97, 97), (1 << 20, 1000)])
    @pytest.mark.parametrize("data", [SNAPPY, LZ4], ids=["snappy", "lz4"])
    def test_a_file(self, stopped, data, size, piece):
        feed = stopped(walked(data, size, piece))
        feed.start()
        released = publish(feed, data, piece) if piece else []
        ranges = list(feed.ranges())
        assert ranges[0][0] == 0
        assert ranges[-1][1] == len(data)
        tables, ended = [], []
        for number, (_, end) in enumerate(ranges):
            table, last = feed.rows(number)
            assert (table["offset"] + table["stored_size"] <= end).all()
            tables.append(table)
            ended.append(last)
        assert ended == sorted(ended)
        assert ended[-1]
        wanted = read_index(BytesSource(data), Options())
        found = np.concatenate(tables)
        for name in ("offset", "stored_size", "codec", "checksum", "prefix_size"):
            assert np.array_equal(found[name], wanted.chunks[name])
        assert np.array_equal(feed.index().chunks["offset"], wanted.chunks["offset"])
        assert feed.index().source is feed.source
        assert feed.placing.size == 20 * len(b"".join(PARTS)) or data is SNAPPY
        assert sorted(released) == list(range(0, len(data), piece)) if piece else not released

    def test_rows_are_there_before_the_file_is(self, stopped):
        feed = stopped(walked(SNAPPY))
        feed.start()
        view = np.frombuffer(SNAPPY, np.uint8)
        for start in range(0, 2000, 250):
            feed.publish(start, view[start : start + 250], lambda: None)
        table, last = feed.rows(0)
        assert table.size
        assert not last

    def test_stop_ends_the_wait(self, stopped):
        feed = stopped(walked(SNAPPY))
        feed.start()
        errors = []

        def wait():
            try:
                feed.rows(3)
            except IrregularError as error:
                errors.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        feed.stop()
        thread.join(TIMEOUT)
        assert len(errors) == 1
        feed.stop()

    def test_a_broken_file(self, stopped):
        data = SNAPPY[:-30]
        feed = stopped(walked(data))
        feed.start()
        publish(feed, data, 250)
        with pytest.raises(IrregularError) as caught:
            [feed.rows(number) for number in range(len(data) // 1000 + 1)]
        assert "ends here" in str(caught.value.__cause__)
        with pytest.raises(IrregularError):
            feed.index()

    def test_sizes_that_cannot_be(self, stopped):
        data = lz4.frame.compress(bytes(100_000), block_size=4, block_linked=False)
        data = data[:6] + (1 << 40).to_bytes(8, "little") + data[14:]
        feed = stopped(walked(data, piece=0))
        feed.start()
        with pytest.raises(IrregularError):
            feed.rows(0)

    def test_never_started(self):
        walked(SNAPPY).stop()
