"""Where a load to a device goes: new memory, or an array of the caller's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import driver
from gpuload.device_array import DeviceArray
from gpuload.devices import find_stream

if TYPE_CHECKING:
    from cuda.core import Event, Stream

    from gpuload.containers.base import Asset

__all__ = ["Destination", "device_of"]


def device_of(out: Any) -> int:
    """Return the device that an array with ``__cuda_array_interface__`` is on."""
    place = driver.pointer(out.__cuda_array_interface__["data"][0])
    return driver.current_device() if place is None else place.device_id


@dataclass(frozen=True)
class Destination:
    """Where to load to.

    Parameters
    ----------
    device_id : int
        The device.
    out : object or None
        An array with ``__cuda_array_interface__`` to decode into.
    stream : object or None
        What the load is ordered after, and what the array is complete on; see
        `gpuload.devices.find_stream`.
    """

    device_id: int
    out: Any = None
    stream: Any = None

    def ordered(self) -> Stream:
        """Return the stream."""
        return find_stream(self.stream, self.device_id)

    def start(self, ordered: Stream) -> Event:
        """Return what must have happened before the load writes to memory that is there."""
        if self.out is not None:
            _wait_for_producer(self.out, ordered, self.device_id)
        with driver.calling("cuEventRecord", "the start of a load"):
            return driver.shield(ordered.record())

    def memory(self, asset: Asset) -> tuple[int, int]:
        """Return the address and the bytes of the array that was given."""
        facts = self.out.__cuda_array_interface__
        address, read_only = facts["data"]
        dtype = np.dtype(facts["typestr"])
        if dtype != asset.dtype:
            raise ValueError(f"out has elements of type {dtype}, the asset has {asset.dtype}")
        if read_only:
            raise ValueError("out is read-only; give a writable array")
        strides = facts.get("strides")
        if strides and not _contiguous(facts["shape"], strides, dtype.itemsize):
            raise ValueError("out is not contiguous; give a C-contiguous array")
        return address, int(np.prod(facts["shape"], dtype=np.int64)) * dtype.itemsize

    def check_size(self, given: int, size: int | None, name: str) -> None:
        """Raise ValueError if the array that was given has another size than the file has."""
        if self.out is not None and size not in (None, given):
            raise ValueError(f"out holds {given} bytes, {name} decodes to {size}")

    def array(
        self, address: int, size: int, asset: Asset, ordered: Stream, owner: object
    ) -> DeviceArray:
        """Return the result."""
        shape = (size // asset.dtype.itemsize,)
        return DeviceArray(
            address, shape, asset.dtype, device_id=self.device_id, stream=ordered, owner=owner
        )


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    wanted = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != wanted:
            return False
        wanted *= length
    return True


def _wait_for_producer(out: Any, ordered: Stream, device_id: int) -> None:
    """Order a load after what the array's own library still does with it (version 3, "stream")."""
    producer = out.__cuda_array_interface__.get("stream")
    if producer is not None:
        with driver.calling("cuStreamWaitEvent", "the stream of the array to load into"):
            ordered.wait(find_stream(producer, device_id))
