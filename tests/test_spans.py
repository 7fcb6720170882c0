"""Sizes and checksums that cover several chunks, however the chunks pass by."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.chunks import UNKNOWN, Checksum, make_spans
from gpuload.spans import SpanChecker


@dataclass
class Stream:
    """Rows of decoded bytes, spans over them, and the spans that are wrong."""

    rows: list[bytes] = field(default_factory=list)
    spans: list[tuple] = field(default_factory=list)
    wrong: dict[int, bool] = field(default_factory=dict)  # first row: is it a checksum?
    right: int = 0

    def add(self, rows, *, size="right", checksum="right", offset=0):
        """Add rows, and a span over them unless both its size and checksum are None."""
        data, first = b"".join(rows), len(self.rows)
        stated = {None: UNKNOWN, "right": len(data), "wrong": len(data) + 1}[size]
        digest = xxhash.xxh32_intdigest(data) ^ (checksum == "wrong")
        kind = Checksum.NONE if checksum is None else Checksum.XXH32
        self.rows += rows
        if size or checksum:
            self.spans.append((first, len(rows), stated, offset, digest, kind))
            if "wrong" in (size, checksum):
                self.wrong[len(self.spans) - 1] = size != "wrong"
            self.right += size != "wrong" and checksum == "right"
        return self

    def checker(self, *, verify=True):
        self.reported = []
        return SpanChecker(
            make_spans(self.spans),
            verify=verify,
            report=lambda span, error: self.reported.append((span, error)),
        )

    def feed(self, checker, first, last):
        """Pass some rows as a batch does."""
        rows = self.rows[first:last]
        sizes = np.array([len(row) for row in rows], np.int64)
        checker.feed_rows(first, sizes, as_bytes(b"".join(rows)))

    def verdict(self):
        """Return the spans reported, in order, and whether each is a checksum's."""
        spans = make_spans(self.spans)
        numbers = [
            next(i for i, s in enumerate(spans) if s["offset"] == span["offset"])
            for span, _ in self.reported
        ]
        assert numbers == sorted(numbers)
        return dict(zip(numbers, (error.checksum for _, error in self.reported), strict=True))


def as_bytes(data):
    return np.frombuffer(data, np.uint8)


@st.composite
def streams(draw):
    stream = Stream()
    for number in range(draw(st.integers(0, 8))):
        sizes = draw(st.lists(st.integers(0, 30), max_size=6))
        rows = [random.Random(f"{number} {i}").randbytes(size) for i, size in enumerate(sizes)]
        # Offsets tell spans apart.
        stream.add(
            rows,
            size=draw(st.sampled_from([None, "right", "right", "wrong"])),
            checksum=draw(st.sampled_from([None, "right", "right", "wrong"])),
            offset=number,
        )
    return stream


thorough = settings(deadline=None, max_examples=300, derandomize=True)


@thorough
@given(streams(), st.data())
def test_any_batches_of_rows_give_the_same_verdict(stream, data):
    total = len(stream.rows)
    edges = sorted(data.draw(st.lists(st.integers(0, total), max_size=8)))
    checker = stream.checker()
    for first, last in zip([0, *edges], [*edges, total], strict=True):
        stream.feed(checker, first, last)
    checker.passed(total)
    assert stream.verdict() == stream.wrong
    assert checker.verified.total() == stream.right


@thorough
@given(streams(), st.data())
def test_any_pieces_of_streamed_rows_give_the_same_verdict(stream, data):
    """Rows that are streamed come in pieces, each named by the first row of its window."""
    checker = stream.checker()
    first = 0
    for count in runs(stream):
        if data.draw(st.booleans()):
            content = b"".join(stream.rows[first : first + count])
            for piece in pieces(data, content):
                checker.feed(first, as_bytes(piece))
            checker.passed(first + count)
        else:
            stream.feed(checker, first, first + count)
        first += count
    checker.passed(first)
    assert stream.verdict() == stream.wrong
    assert checker.verified.total() == stream.right


def runs(stream):
    """Return how many rows each span has, and how many are between spans."""
    counts, done = [], 0
    for first, count, *_ in stream.spans:
        counts += [first - done, count] if first > done else [count]
        done = first + count
    return [*counts, len(stream.rows) - done]


def pieces(data, content):
    edges = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4)))
    return [content[a:b] for a, b in zip([0, *edges], [*edges, len(content)], strict=True)]


def test_piece_of_a_later_span_ends_the_one_before():
    stream = Stream().add([b"one", b"two"], offset=1).add([b"three", b"four"], offset=2)
    checker = stream.checker()
    checker.feed(0, as_bytes(b"onetwo"))
    checker.feed(2, as_bytes(b"threefour"))
    checker.passed(4)
    assert stream.reported == []
    assert checker.verified == {Checksum.XXH32: 2}


def test_reports_sizes():
    stream = Stream().add([b"12345", b"678"], size="wrong", checksum=None, offset=77)
    stream.feed(stream.checker(), 0, 2)
    [(span, error)] = stream.reported
    assert span["offset"] == 77
    assert (error.actual, error.checksum) == (8, False)
    assert "8 bytes" in error.reason
    assert "9" in error.reason


def test_reports_checksums():
    stream = Stream().add([b"12345", b"678"], checksum="wrong")
    stream.feed(stream.checker(), 0, 2)
    [(span, error)] = stream.reported
    assert error.checksum
    assert f"{int(span['checksum']):#010x}" in error.reason
    assert f"{int(span['checksum']) ^ 1:#010x}" in error.reason


def test_wrong_size_is_reported_rather_than_its_checksum():
    stream = Stream().add([b"12345"], size="wrong", checksum="wrong")
    stream.feed(stream.checker(), 0, 1)
    assert [error.checksum for _, error in stream.reported] == [False]


def test_unverified_checksums_are_ignored_and_sizes_are_not():
    stream = Stream().add([b"a"], checksum="wrong", offset=1)
    stream.add([b"b"], size="wrong", checksum="wrong", offset=2)
    checker = stream.checker(verify=False)
    stream.feed(checker, 0, 2)
    assert stream.verdict() == {1: False}
    assert not checker.verified.total()


def test_span_is_compared_as_soon_as_its_last_row_has_passed():
    stream = Stream().add([b"a", b"b"], checksum="wrong").add([b"c"])
    checker = stream.checker()
    stream.feed(checker, 0, 1)
    assert not stream.reported
    stream.feed(checker, 1, 2)
    assert len(stream.reported) == 1


@pytest.mark.parametrize("where", ["first", "between", "last"])
def test_spans_of_no_rows(where):
    """A frame without blocks: its content is empty, and so must its size and checksum say."""
    for size, checksum in [("right", "right"), ("wrong", None), (None, "wrong")]:
        stream = Stream()
        if where != "first":
            stream.add([b"some", b"rows"])
        stream.add([], size=size, checksum=checksum, offset=9)
        if where != "last":
            stream.add([b"more", b"rows"])
        checker = stream.checker()
        stream.feed(checker, 0, len(stream.rows))
        checker.passed(len(stream.rows))
        assert len(stream.reported) == ("wrong" in (size, checksum))
        assert checker.verified.total() == stream.right


def test_nothing_but_a_span_of_no_rows():
    stream = Stream().add([], checksum="wrong")
    stream.checker().passed(0)
    assert len(stream.reported) == 1


@pytest.mark.parametrize("spoiled", [[0], [1], [0, 1]])
def test_spoiled_spans_are_not_compared(spoiled):
    stream = Stream().add([b"a", b"b"], size="wrong", offset=1)
    stream.add([b"c"], checksum="wrong", offset=2).add([b"d"], offset=3)
    checker = stream.checker()
    for row in spoiled:
        checker.spoil(row)
    # What a row that failed leaves is no bytes at all.
    checker.feed_rows(0, np.array([0, 0, 1, 1]), as_bytes(b"cd"))
    assert stream.verdict() == {1: True}
    assert checker.verified == {Checksum.XXH32: 1}


def test_rows_without_a_span_pass():
    stream = Stream().add([b"a"], size=None, checksum=None).add([b"b"])
    stream.add([b"c"], size=None, checksum=None)
    checker = stream.checker()
    stream.feed(checker, 0, 3)
    assert stream.reported == []
    assert checker.verified == {Checksum.XXH32: 1}


def test_no_spans():
    checker = Stream().checker()
    checker.feed_rows(0, np.array([3]), as_bytes(b"abc"))
    checker.feed(1, as_bytes(b"abc"))
    checker.passed(2)
    assert not checker.verified.total()
