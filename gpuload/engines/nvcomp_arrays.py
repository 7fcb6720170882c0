"""The arrays of a batch for nvCOMP, in one block of memory, on the host and on the device alike.

Of each the host has a view and the device an address; one copy takes all of them to the device, and
another one what the device wrote back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload.batch import PARAMS_DTYPE
from gpuload.engines.copies import WORD_SIZE
from gpuload.engines.nvcomp_abi import Arrays

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.engines.nvcomp_plan import Plan

    Bytes = npt.NDArray[np.uint8]

__all__ = ["NO_SIZE", "NO_STATUS", "Layout"]

#: What stands in sizes and statuses until the device writes them.
NO_SIZE, NO_STATUS = 2**64 - 1, -1
_SIZE, _STATUS = np.dtype("<u8"), np.dtype("<i4")


class Layout:
    """Where the arrays lie.

    Parameters
    ----------
    chunks : int
        How many nvCOMP decodes.
    copies : int
        How many the kernel copies.

    Attributes
    ----------
    size, sent : int
        Bytes of all arrays, and of those that go to the device.
    words : int
        Offset of the words that the kernel for copies writes, and nobody reads.
    written : slice
        What comes back.
    """

    def __init__(self, chunks: int, copies: int) -> None:
        self._chunks, self._copies = chunks, copies
        # The parameters are first, which keeps them at multiples of their size.
        starts = PARAMS_DTYPE.itemsize * copies + _SIZE.itemsize * chunks * np.arange(6)
        *self._starts, self._statuses = starts.tolist()
        end = self._statuses + _STATUS.itemsize * chunks
        self.written = slice(self._starts[-1], end)
        self.words = self.sent = -(-end // _SIZE.itemsize) * _SIZE.itemsize
        self.size = self.words + WORD_SIZE * copies

    def arrays(self, start: int) -> Arrays:
        """Return the addresses of nvCOMP's arrays in a block that starts at an address."""
        sources, source_sizes, capacities, targets, sizes = (start + at for at in self._starts)
        return Arrays(
            sources, source_sizes, capacities, sizes, targets, statuses=start + self._statuses
        )

    def params(self, block: Bytes) -> npt.NDArray[np.void]:
        """Return the view of the kernel's parameters."""
        return block[: PARAMS_DTYPE.itemsize * self._copies].view(PARAMS_DTYPE)

    def sizes(self, block: Bytes) -> npt.NDArray[np.uint64]:
        """Return the view of the decoded sizes."""
        return self._words(block, self._starts[-1])

    def statuses(self, block: Bytes) -> npt.NDArray[np.int32]:
        """Return the view of the statuses."""
        end = self._statuses + _STATUS.itemsize * self._chunks
        return block[self._statuses : end].view(_STATUS)

    def fill(self, block: Bytes, plan: Plan, scratch: int) -> None:
        """Write nvCOMP's arrays for a plan whose scratch memory is at an address."""
        sources = np.where(plan.places < 0, plan.sources, scratch + plan.places)
        columns = (sources, plan.source_sizes, plan.capacities, plan.targets)
        for start, column in zip(self._starts, columns, strict=False):
            self._words(block, start)[:] = column
        self.sizes(block)[:] = NO_SIZE
        self.statuses(block)[:] = NO_STATUS

    def _words(self, block: Bytes, start: int) -> npt.NDArray[np.uint64]:
        return block[start : start + _SIZE.itemsize * self._chunks].view(_SIZE)
