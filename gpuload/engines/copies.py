"""Many copies of a batch on a device.

A call of the driver for each of thousands of chunks takes longer than the copies; the kernel for
RAW chunks makes them side by side, where kernels can be compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload.batch import ALGORITHMS, PARAMS_DTYPE
from gpuload.chunks import Codec
from gpuload.kernels import compiler
from gpuload.kernels.launches import launch
from gpuload.kernels.variants import Variant
from gpuload.memory import copy

if TYPE_CHECKING:
    import numpy.typing as npt
    from cuda.core import Kernel, Stream

    Integers = npt.NDArray[np.int64]

__all__ = ["WORD_SIZE", "Copies", "raw_kernel"]

#: Bytes for each copy by the kernel that it writes to: the copied bytes, and how it went.
WORD_SIZE = 8
#: As many copies are worth a launch; what is larger than this is left to the driver, whose copies
#: use the whole device.
_FEW, _LARGE = 4, 1 << 20
_RAW = Variant("raw", 32)


def raw_kernel(device_id: int) -> Kernel | None:
    """Return the kernel that copies; None where kernels can't be compiled or run.

    Raises
    ------
    DriverError
        If it should compile, and does not.
    """
    if compiler.refusal(device_id):
        return None
    return compiler.kernel(device_id, _RAW.codec, _RAW.lanes)


class Copies:
    """Copies in groups; those of a group do not touch each other's bytes.

    Parameters
    ----------
    kernel : Kernel, optional
        As `raw_kernel` returns it.
    groups : list of (ndarray, ndarray, ndarray) of int64
        For each copy of a group: to which address, from which one, how many bytes.

    Attributes
    ----------
    launched : int
        How many of all of them the kernel makes.
    """

    def __init__(
        self, kernel: Kernel | None, groups: list[tuple[Integers, Integers, Integers]]
    ) -> None:
        self._kernel = kernel
        self._by_driver, self._by_kernel = [], []
        for to, of, size in groups:
            small = (size <= _LARGE) & (kernel is not None)
            small &= small.sum() >= _FEW
            self._by_kernel.append((to[small], of[small], size[small]))
            self._by_driver.append((to[~small], of[~small], size[~small]))
        self._ends = np.cumsum([0, *(size.size for _, _, size in self._by_kernel)]).tolist()
        self.launched: int = self._ends[-1]

    def fill(self, params: npt.NDArray[np.void], words: int) -> None:
        """Write the kernel's parameters.

        Parameters
        ----------
        params : ndarray of PARAMS_DTYPE, shape (launched,)
            Will be read by the device when the copies run.
        words : int
            Address of `WORD_SIZE` bytes for each of them, which the device will write.
        """
        columns = zip(*self._by_kernel, strict=True)
        to, of, size = (np.concatenate(column) for column in columns)
        params[:] = np.zeros(1, PARAMS_DTYPE)
        params["src"], params["dst"] = of, to
        params["src_num_bytes"] = params["dst_num_bytes"] = size
        params["dst_act_bytes"] = words + 4 * np.arange(self.launched)
        params["algo"] = ALGORITHMS[Codec.RAW]

    def run(self, group: int, params: int, words: int, stream: Stream) -> None:
        """Submit a group to a stream.

        Parameters
        ----------
        group : int
            Its number.
        params, words : int
            Addresses on the device of what `fill` wrote, and of the words.
        stream : Stream
            The stream.
        """
        for to, of, size in zip(*(c.tolist() for c in self._by_driver[group]), strict=True):
            copy(to, of, size, stream)
        first, last = self._ends[group : group + 2]
        if self._kernel is not None and last > first:
            launch(
                self._kernel,
                _RAW,
                stream,
                params=params + PARAMS_DTYPE.itemsize * first,
                count=last - first,
                statuses=words + 4 * (self.launched + first),
                what="copies",
            )
