"""What a run reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuload.chunks import Checksum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuload.errors import ChunkFailure

__all__ = ["Report", "checksum_counts"]


@dataclass
class Report:
    """What a run did.

    Attributes
    ----------
    raw_size, stored_size : int
        Decoded bytes, and bytes of the file.
    chunks : int
        Rows of the chunk table.
    failures : list of ChunkFailure
        In the order of the rows: those that were collected or skipped.
    verified, unverified : dict of str to int
        Checksums that agreed, and those that were not looked at, by kind.
    seconds : float
        Wall time.
    engine : str
        Who decoded.
    passed_over : dict of str to str
        For each engine that did not, or not everything, why.
    threads : int
        Worker threads.
    """

    raw_size: int = 0
    stored_size: int = 0
    chunks: int = 0
    failures: list[ChunkFailure] = field(default_factory=list)
    verified: dict[str, int] = field(default_factory=dict)
    unverified: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    engine: str = "host"
    passed_over: dict[str, str] = field(default_factory=dict)
    threads: int = 1


def checksum_counts(counts: Mapping[int, int]) -> dict[str, int]:
    """Return counts by the name of the kind of checksum, without those that are zero."""
    return {
        Checksum(kind).name.lower(): number
        for kind, number in sorted(counts.items())
        if number and kind != Checksum.NONE
    }
