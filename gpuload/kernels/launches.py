"""Launching a kernel: every kernel takes the same three arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.kernels.variants import BLOCK

if TYPE_CHECKING:
    from cuda.core import Kernel, Stream

    from gpuload.kernels.variants import Variant

__all__ = ["launch"]


def launch(
    kernel: Kernel,
    variant: Variant,
    stream: Stream,
    *,
    params: int,
    count: int,
    statuses: int,
    what: str = "chunks",
) -> None:
    """Submit a kernel to a stream.

    Parameters
    ----------
    kernel : Kernel
        As `gpuload.kernels.compiler.kernel` returns it for `variant`.
    variant : Variant
        Which kernel it is.
    stream : Stream
        The stream.
    params, statuses : int
        Addresses, for the device, of the parameters of `count` operations and of a 32-bit word for
        each of them.
    what : str
        What messages call the operations.

    Raises
    ------
    DriverError
        If the driver refuses.
    """
    from cuda.core import LaunchConfig
    from cuda.core import launch as submit

    config = LaunchConfig(grid=variant.blocks(count), block=BLOCK)
    with driver.calling("cuLaunchKernelEx", f"{count} {what}"):
        submit(stream, config, kernel, params, np.uint32(count), statuses)
