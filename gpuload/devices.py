"""What users may name a device or a stream by."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, SupportsIndex

from gpuload import driver

if TYPE_CHECKING:
    from cuda.core import Stream

__all__ = ["find_device", "find_stream"]

_NAME = re.compile(r"(?:cuda|gpu)(?::(\d+))?")


def find_device(device: Any) -> int | None:
    """Return the number of a CUDA device, or None for host memory.

    Parameters
    ----------
    device : None, int, str or object
        None is the current CUDA device where there is one, else host memory; "cpu" is host memory;
        a number, "cuda" and "cuda:1" are CUDA devices, and so are the device objects of cuda.core,
        torch and CuPy.

    Raises
    ------
    ValueError
        If it names no device.
    DriverError
        If there is no CUDA here, or no such device.
    """
    if device is None:
        return None if driver.unavailable() else driver.current_device()
    if isinstance(device, str) or hasattr(device, "type"):
        # The str() of torch's devices is "cuda:0".
        return _named(str(device))
    number = next(
        (getattr(device, name) for name in ("device_id", "id") if hasattr(device, name)), device
    )
    if isinstance(number, bool) or not isinstance(number, SupportsIndex):
        raise ValueError(f"device must be None, 'cpu', 'cuda:N' or a number, not {device!r}")
    number = operator.index(number)
    driver.device(number)  # raises if there is no such device
    return number


def _named(name: str) -> int | None:
    if name == "cpu":
        return None
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', not {name!r}")
    if match[1]:
        return find_device(int(match[1]))
    return driver.current_device()


def find_stream(stream: Any, device_id: int) -> Stream:
    """Return a stream of cuda.core for a stream of any library.

    Parameters
    ----------
    stream : None, int or object
        None is the default stream; a number is a ``CUstream`` handle; objects have
        ``__cuda_stream__`` (cuda.core, and others that follow it), ``cuda_stream`` (torch) or
        ``ptr`` (CuPy).
    device_id : int
        The device of the stream, which is current.

    Raises
    ------
    TypeError
        If it is none of these.
    """
    from cuda.core import Stream

    if stream is None:
        return driver.device(device_id).default_stream
    if isinstance(stream, Stream):
        return stream
    handle = stream
    if hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    elif not isinstance(stream, int):
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if handle is None:
        raise TypeError(f"stream must be a CUDA stream or its handle, not {stream!r}")
    with driver.calling("cuStreamGetCtx", "the stream that was given"):
        return Stream.from_handle(int(handle))
