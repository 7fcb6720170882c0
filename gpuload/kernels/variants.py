"""Which variant of a kernel decodes a batch: how many threads share a chunk.

Many chunks fill a device with one warp for each; few chunks are done sooner if more threads share
each of them. Where one becomes better than the other was measured, and is kept in one table.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

__all__ = ["BLOCK", "Variant", "choose"]

#: Threads of a block, whatever the variant.
BLOCK = 128

#: For each kernel, the most chunks that a variant is for and its threads a chunk, fewest chunks
#: first; the last one is for any number. Source: one H200, tests/benchmarks/results.
_RULES: dict[str, tuple[tuple[float, int], ...]] = {
    "raw": ((float("inf"), 32),),
    "lz4": ((float("inf"), 32),),
    "snappy": ((float("inf"), 32),),
}


@dataclass(frozen=True)
class Variant:
    """A variant of a kernel.

    Attributes
    ----------
    codec : str
        The kernel's source, one of `gpuload.kernels.compiler.CODECS`.
    lanes : int
        Threads that decode a chunk together.
    """

    codec: str
    lanes: int

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return f"{self.codec}_{self.lanes}"

    def blocks(self, count: int) -> int:
        """Return how many blocks a launch for `count` operations has."""
        return -(-count * self.lanes // BLOCK)


_variant = functools.cache(Variant)


def choose(
    codec: str,
    count: int,
    mean_stored: float,  # noqa: ARG001
    mean_raw: float,  # noqa: ARG001
) -> Variant:
    """Return the variant for a batch.

    Parameters
    ----------
    codec : str
        The kernel's source.
    count : int
        Chunks of the codec.
    mean_stored, mean_raw : float
        Their mean sizes in bytes, which today's rules do not ask for.
    """
    lanes = next(lanes for most, lanes in _RULES[codec] if count <= most)
    return _variant(codec, lanes)
