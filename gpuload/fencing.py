"""What the host says about batches of engines that have no bounds of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuload.engines.base import Status

if TYPE_CHECKING:
    from gpuload.engines.base import HostBatch, Outcome
    from gpuload.engines.host import HostEngine

__all__ = ["confirm", "doubt_short_rows", "retry"]


def doubt_short_rows(host: HostEngine, batch: HostBatch, outcome: Outcome) -> None:
    """Find the sizes of rows on the host that the file does not state.

    A row that fills its slot has the size that it should have. Of a shorter one (the last block
    of an LZ4 frame) nobody can tell whether the engine stopped early.
    """
    short = ~batch.rows["exact"] & (outcome.actual < batch.rows["raw_size"].astype(np.int64))
    doubtful = np.flatnonzero(short & (outcome.status == Status.OK))
    if not doubtful.size or outcome.reasons:
        return
    checked = host.decode(batch.take(doubtful))
    good = (checked.status == Status.OK) & (checked.actual == outcome.actual[doubtful])
    for number in np.flatnonzero(~good).tolist():
        row = int(doubtful[number])
        found = checked.reasons.get(number, f"the host decodes {checked.actual[number]}")
        reason = f"the engine reports {outcome.actual[row]} bytes; {found}"
        outcome.fail(row, Status.SIZE, reason)
        outcome.blame[row] = "size"


def confirm(first: Outcome, second: Outcome) -> Outcome:
    """Return the host's outcome of a batch, with the engine's failures.

    Others of the batch were refused with those, or only may be damaged: the host's word counts.
    """
    for row in first.blame:
        reason = first.reasons[row]
        found = second.reasons.get(
            row, "the host engine decodes it: on_error='retry-host' (--on-error) takes that"
        )
        second.fail(row, Status(first.status[row]), f"{reason} ({found})")
        second.actual[row] = first.actual[row]
    return replace(second, code=first.code, blame=first.blame)


def retry(host: HostEngine, batch: HostBatch, outcome: Outcome) -> None:
    """Decode the rows that failed again on the host; its word counts."""
    bad = np.array(sorted(outcome.reasons), np.intp)
    again = host.decode(batch.take(bad))
    outcome.status[bad], outcome.actual[bad] = again.status, again.actual
    outcome.blame.clear()
    outcome.reasons.clear()
    outcome.reasons.update({int(bad[row]): reason for row, reason in again.reasons.items()})
