"""Arrays of Zarr that are loaded through zarr-python, since gpuload lacks their codecs or types."""

from __future__ import annotations

import time
from math import prod
from typing import TYPE_CHECKING, Any

from gpuload.containers.zarr_host import decode, stored_shape, zarr_array
from gpuload.errors import FormatError, MemoryLimitError
from gpuload.report import Report

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpuload.options import Options
    from gpuload.selection import Selection
    from gpuload.sources.stores import Store
    from gpuload.watch import Watch

__all__ = ["ForeignArray"]

#: A chunk is in memory as it is stored, decoded, and maybe on its way.
_COPIES = 3


class ForeignArray:
    """An array as zarr-python has it.

    Parameters
    ----------
    store : Store
        Where it is.
    path : str
        Its name there.
    name : str
        What messages call it.

    Attributes
    ----------
    shape : tuple of int
        Elements along each axis.
    dtype : numpy.dtype
        Of the elements, in the byte order of the host.
    chunk_shape : tuple of int
        Elements of what is read at once, along each axis.

    Raises
    ------
    GpuloadError, OSError
        As `gpuload.containers.zarr_host.zarr_array` does.
    """

    def __init__(self, store: Store, path: str, name: str) -> None:
        self._array, self._name = zarr_array(store, path), name
        self.shape: tuple[int, ...] = self._array.shape
        self.dtype: np.dtype[Any] = self._array.dtype.newbyteorder("=")
        self.chunk_shape = stored_shape(self._array)

    def load(
        self, selection: Selection, out: npt.NDArray[Any] | None, options: Options, watch: Watch
    ) -> Report:
        """Load a selection.

        Parameters
        ----------
        selection : Selection
            What of it.
        out : ndarray, one axis, or None
            Where to; None decodes all the same, and keeps nothing.
        options : Options
            `threads`, `memory_limit` and `missing` matter here.
        watch : Watch
            Can end the load.

        Raises
        ------
        FormatError
            If it does not decode, or chunks are missing that must not be.
        MemoryLimitError
            If a chunk takes more than `memory_limit`.
        """
        began = time.perf_counter()
        threads = self._threads(options)
        if options.missing == "error":
            self._check_missing()
        chunks = decode(self._array, selection, out, threads=threads, check=watch.check)
        return Report(
            raw_size=prod(selection.shape) * self.dtype.itemsize,
            chunks=chunks,
            engine="zarr-python",
            threads=threads,
            seconds=time.perf_counter() - began,
        )

    def _threads(self, options: Options) -> int:
        size = prod(self.chunk_shape) * self.dtype.itemsize
        if size > options.memory_limit:
            raise MemoryLimitError(
                f"{self._name}: a chunk decodes to {size} bytes, memory_limit is "
                f"{options.memory_limit}; raise it (--memory-limit)"
            )
        return max(1, min(options.thread_count, options.memory_limit // (_COPIES * max(1, size))))

    def _check_missing(self) -> None:
        missing = self._array.nchunks - self._array.nchunks_initialized
        if missing:
            raise FormatError(f"{missing} chunks are missing", source=self._name)
