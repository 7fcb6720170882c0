"""Decoded sizes that a device reports, against what rows allow."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.chunks import Codec, make_table
from gpuload.engines.base import Outcome, Status
from gpuload.engines.sizes import compare_sizes

BOTH = pytest.mark.parametrize("words", [np.uint32, np.uint64])


def compared(sizes, words, *, exact=True, outcome=None):
    """Compare sizes with slots of 100 bytes."""
    rows = make_table(range(len(sizes)), codec=Codec.LZ4, raw_size=100, exact=exact)
    outcome = outcome or Outcome.empty(len(sizes))
    compare_sizes(rows, np.array(sizes, words), outcome)
    return outcome


@BOTH
def test_sizes_that_the_file_states(words):
    outcome = compared([100, 99, 0, 101, 100], words)
    assert outcome.actual.tolist() == [100, 99, 0, 101, 100]
    assert outcome.actual.dtype == np.int64
    assert outcome.reasons == {
        1: "the engine reports 99 bytes, the file says 100",
        2: "the engine reports 0 bytes, the file says 100",
        3: "the engine reports 101 bytes, the file says 100",
    }
    assert outcome.status.tolist() == [0, Status.SIZE, Status.SIZE, Status.SIZE, 0]
    assert outcome.blame == {1: "size", 2: "size", 3: "size"}


@BOTH
def test_sizes_that_the_file_only_bounds(words):
    outcome = compared([100, 99, 0, 101], words, exact=False)
    assert outcome.actual.tolist() == [100, 99, 0, 101]
    assert outcome.reasons == {3: "the engine reports 101 bytes, the file says at most 100"}


@BOTH
@pytest.mark.parametrize("exact", [True, False])
def test_sizes_that_nobody_wrote(words, exact):
    outcome = compared([100, np.iinfo(words).max], words, exact=exact)
    assert outcome.actual.tolist() == [100, 0]
    wanted = "100" if exact else "at most 100"
    assert outcome.reasons == {1: f"the engine reports no size, the file says {wanted}"}


@BOTH
def test_rows_that_have_failed_stay_as_they_are(words):
    outcome = Outcome.empty(3)
    outcome.fail(1, Status.CORRUPT, "something else")
    outcome.blame[1] = "index"
    compared([100, 7, 8], words, outcome=outcome)
    assert outcome.actual.tolist() == [100, 0, 8]
    assert outcome.reasons[1] == "something else"
    assert outcome.status.tolist() == [Status.OK, Status.CORRUPT, Status.SIZE]
    assert outcome.blame == {1: "index", 2: "size"}


def test_no_rows():
    assert compared([], np.uint32).reasons == {}
