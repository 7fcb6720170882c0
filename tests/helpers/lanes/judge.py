"""Whether kernels and the host's decoders make the same of a case, and where they may differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload.chunks import Codec
from tests.helpers import lz4_blocks
from tests.helpers.lanes.cases import OK
from tests.helpers.lanes.streams import host_decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.helpers.lanes.cases import Case, Outcome


def agrees(case: Case, outcome: Outcome, expected: bytes | None) -> bool:
    """Return whether an outcome is the same as the host's: the same bytes, or a refusal.

    Parameters
    ----------
    case : Case
        What the kernel was given.
    outcome : Outcome
        What it made of it.
    expected : bytes or None
        What the host's decoder makes of it; None if it refuses it.
    """
    if outcome.status != OK:
        return expected is None
    # The host compares the sizes of formats that state them, as Snappy's do.
    if case.codec == Codec.SNAPPY and outcome.actual != case.capacity:
        return expected is None
    return outcome.decoded == expected


def explained(case: Case, outcome: Outcome, expected: bytes | None) -> bool:
    """Return whether liblz4 is known to deviate from the block format in this way."""
    if case.codec != Codec.LZ4:
        return False
    if case.capacity == 0:
        # A token without literals decodes to nothing; its low bits are of no meaning. For a slot
        # of no bytes liblz4 takes only the byte 0.
        return expected is None and len(case.stored) == 1 and case.stored[0] < 16
    # In its shortcut for sequences with few literals it does not look at how many bytes are left.
    return outcome.status != OK and expected is not None and breaks_end_of_block(case.stored)


def breaks_end_of_block(block: bytes) -> bool:
    """Return whether a block breaks a rule of "End of block conditions" (block format)."""
    *before, last = lz4_blocks.sequences(block)
    if not before:
        return False
    return len(last.literals) < 5 or len(last.literals) + before[-1].length < 12


def compare(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Raise AssertionError unless kernels and host agree on every case.

    Returns
    -------
    decoded, differing : int
        How many the host decodes, and on how many they differ for a reason that is known.
    """
    decoded = differing = 0
    for number, (case, outcome) in enumerate(zip(cases, outcomes, strict=True)):
        expected = host_decoded(case.codec, case.stored, case.capacity)
        decoded += expected is not None
        if agrees(case, outcome, expected):
            continue
        if not explained(case, outcome, expected):
            raise AssertionError(_difference(number, case, outcome, expected))
        differing += 1
    return decoded, differing


def _difference(number: int, case: Case, outcome: Outcome, expected: bytes | None) -> str:
    host = "refuses it" if expected is None else f"decodes it to {len(expected)} bytes"
    return (
        f"case {number}: status {outcome.status}, {outcome.actual} bytes, and the host {host}: "
        f"{case.codec.name} {case.stored.hex()} into {case.capacity} bytes"
    )
