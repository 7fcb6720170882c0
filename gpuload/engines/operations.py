"""Operations of kernels in a block of pinned memory, where the device reads and writes.

The parameters of all come first, and a 32-bit word for each behind them, which says how it went.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from gpuload import batch as batches
from gpuload.kernels import compiler
from gpuload.kernels.launches import launch

if TYPE_CHECKING:
    import numpy.typing as npt
    from cuda.core import Stream

    from gpuload.engines.pinned import PinnedBlock
    from gpuload.kernels.variants import Variant

__all__ = ["NOT_WRITTEN", "size_of", "start", "statuses", "write", "write_one"]

#: What stands in a status until a kernel writes it.
NOT_WRITTEN = 0xFFFFFFFF
_PARAMS, _STATUS = batches.PARAMS_DTYPE.itemsize, 4
#: The parameters and the status of a batch of one operation, in their order in `PARAMS_DTYPE`.
_ONE = struct.Struct("<QQqqqi20xI")


def size_of(count: int) -> int:
    """Return how many bytes operations take."""
    return (_PARAMS + _STATUS) * count


def write(block: PinnedBlock, params: npt.NDArray[np.void]) -> None:
    """Put operations into a block; nothing is known of their statuses yet."""
    # As bytes: field by field, as NumPy copies records, takes seven times as long.
    block.bytes[: params.nbytes] = params.view(np.uint8)
    statuses(block, params.size)[:] = NOT_WRITTEN


def write_one(
    block: PinnedBlock,
    *,
    stored: int,
    room: int,
    actual: int,
    src: int,
    dst: int,
    algo: int,
) -> None:
    """Put a single operation into a block: arrays of one element take several times as long.

    Parameters
    ----------
    block : PinnedBlock
        Where to.
    stored, room, actual, src, dst, algo : int
        The columns of `PARAMS_DTYPE`, in their order.
    """
    _ONE.pack_into(block.bytes, 0, stored, room, actual, src, dst, algo, NOT_WRITTEN)


def statuses(block: PinnedBlock, count: int) -> npt.NDArray[np.uint32]:
    """Return the statuses of as many operations, as they stand in a block."""
    return block.bytes[_PARAMS * count : size_of(count)].view(np.uint32)


def start(
    device_id: int,
    variant: Variant,
    block: PinnedBlock,
    stream: Stream,
    *,
    count: int,
    first: int = 0,
    last: int | None = None,
) -> None:
    """Submit a kernel for operations `first` to `last` (exclusive) of the `count` of a block.

    Raises
    ------
    DriverError
        If the driver refuses, or the kernel can't be compiled or loaded.
    """
    kernel = compiler.kernel(device_id, variant.codec, variant.lanes)
    params = block.address + _PARAMS * first
    words = block.address + _PARAMS * count + _STATUS * first
    number = (count if last is None else last) - first
    launch(kernel, variant, stream, params=params, count=number, statuses=words)
