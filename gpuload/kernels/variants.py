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

#: Chunks for each multiprocessor from which on a warp for each chunk decodes them sooner than a
#: block of four. Source: one H200 (132 multiprocessors), where 2,048 chunks of 64 KiB are done
#: sooner by blocks and 4,096 by warps (tests/benchmarks/results).
_MANY = 22
#: Stored bytes of a decoded byte from which on blocks are better for any number of chunks: there
#: is little to parse and much to copy. Source: bfloat16 weights on the same device.
_HARDLY_COMPRESSED = 0.98
_WARP, _WHOLE_BLOCK = 32, BLOCK


@dataclass(frozen=True)
class Variant:
    """A variant of a kernel.

    Attributes
    ----------
    codec : str
        The kernel's source, one of `gpuload.kernels.compiler.SOURCES`.
    lanes : int
        Threads that work on a chunk together.
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
    codec: str, count: int, mean_stored: float, mean_raw: float, *, multiprocessors: int
) -> Variant:
    """Return the variant for a batch.

    Parameters
    ----------
    codec : str
        The kernel's source.
    count : int
        Chunks of the codec.
    mean_stored, mean_raw : float
        Their mean sizes in bytes.
    multiprocessors : int
        Of the device.
    """
    few = count < _MANY * multiprocessors
    lanes = _WHOLE_BLOCK if few or mean_stored > _HARDLY_COMPRESSED * mean_raw else _WARP
    return _variant(codec, lanes)
