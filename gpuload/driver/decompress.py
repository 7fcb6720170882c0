"""``cuMemBatchDecompressAsync``: the decompression engine's one call.

cuda-python has it, but raises an exception on failure and drops the index of the operation that is
to blame; so the C function is called by its address.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

from gpuload.driver import library
from gpuload.driver.virtual import DECOMPRESS_SINCE
from gpuload.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["decompress_unavailable", "mem_batch_decompress_async"]

#: The index that stands for no operation in particular: the documented ``SIZE_MAX``, which is also
#: what is left in the word where the driver does not write to it.
_NO_INDEX = ctypes.c_size_t(-1).value


@functools.cache
def _function() -> Callable[..., int] | None:
    major, minor = DECOMPRESS_SINCE
    return library.function(
        "cuMemBatchDecompressAsync",
        1000 * major + 10 * minor,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_uint,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.c_void_p,
    )


def decompress_unavailable() -> str:
    """Return why the driver can't be asked to decompress; empty if it can.

    Whether a device has an engine is another question, see `Capabilities.decompress_mask`.
    """
    if _function() is not None:
        return ""
    have, need = (".".join(map(str, v)) for v in (library.driver_version(), DECOMPRESS_SINCE))
    return f"the driver supports CUDA {have}; decompression in hardware came with CUDA {need}"


def mem_batch_decompress_async(
    params: int, count: int, flags: int, stream: int
) -> tuple[int, int | None]:
    """Submit a batch of decompressions to a stream (``cuMemBatchDecompressAsync``).

    Parameters
    ----------
    params : int
        Address of `count` structures ``CUmemDecompressParams``, which must stay as they are until
        this function returns.
    count : int
        Operations in the batch.
    flags : int
        0; the driver refuses anything else.
    stream : int
        Handle of the stream. The whole batch is one unit of work on it.

    Returns
    -------
    code : int
        ``CUresult``: 0 if the batch was submitted. Operations may still fail when they run.
    index : int or None
        The operation that `code` is about; None if it is about none in particular.

    Raises
    ------
    DriverError
        If the driver lacks the function, or this process is a forked one.
    """
    library.claim()
    submit = _function()
    if submit is None:
        raise DriverError(decompress_unavailable())
    index = ctypes.c_size_t(_NO_INDEX)
    # ctypes lets other threads run during the call.
    code = submit(params, count, flags, ctypes.byref(index), stream)
    return code, None if index.value == _NO_INDEX else index.value
