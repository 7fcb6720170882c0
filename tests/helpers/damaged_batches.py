"""Batches in which every other payload is damaged, and what must hold of their outcome."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import Codec
from gpuload.engines.base import HostBatch, Status
from gpuload.engines.host import HostEngine
from gpuload.options import Options
from tests.engines.engine_tests import check, damaged
from tests.helpers.payloads import KINDS, encode, sample

if TYPE_CHECKING:
    from tests.engines.engine_tests import Result
    from tests.helpers.payloads import Payload, Work

__all__ = ["check_damaged", "damaged_batch"]

#: Different payloads that are damaged again and again, and the most bytes that they decode to.
_DIFFERENT, _LARGEST = 128, 3000


def damaged_batch(codec: Codec, count: int, seed: int) -> tuple[list[Payload], set[int]]:
    """Return payloads of a codec, `count` of them damaged and as many not, and which are."""
    rng = random.Random(f"{codec} {seed}")
    good = [
        encode(codec, sample(KINDS[n % len(KINDS)], rng.randrange(1, _LARGEST), n))
        for n in range(_DIFFERENT)
    ]
    payloads = []
    for _ in range(count):
        payload = rng.choice(good)
        bad = replace(payload, stored=damaged(rng, payload.stored))
        # Snappy's preamble, which the kernel is not given, would disagree with the slot.
        if codec != Codec.SNAPPY and rng.randrange(3) == 0:
            bad = replace(bad, slot=rng.randrange(_LARGEST), exact=False)
        payloads += [payload, bad]
    return payloads, set(range(1, 2 * count, 2))


def check_damaged(payloads: list[Payload], work: Work, result: Result, bad: set[int]) -> None:
    """Check that valid rows are exact, and that the host agrees about the damaged ones."""
    check(payloads, work, result, bad)
    which = np.array(sorted(bad))
    out = np.empty_like(work.out)
    batch = HostBatch(work.rows, work.src, work.dst, work.stored, out).take(which)
    expected = HostEngine(Options(threads=1, verify=False)).decode(batch)
    passed = result.outcome.status[which] == Status.OK
    agree = passed == (expected.status == Status.OK)
    assert agree.all(), f"the host does not agree about row {which[~agree][0]}"
    for row in which[passed].tolist():
        start, size = int(work.dst[row]), int(result.outcome.actual[row])
        place = slice(start, start + size)
        assert (result.out[place] == out[place]).all(), f"row {row} decodes to other bytes"
