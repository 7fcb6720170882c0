"""Load a file into the memory of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import driver, pipeline
from gpuload.chunks import Codec
from gpuload.device_array import DeviceArray, allocate
from gpuload.device_run import run
from gpuload.device_sink import DeviceSink
from gpuload.devices import find_stream
from gpuload.sinks import NullSink

if TYPE_CHECKING:
    from cuda.core import Stream

    from gpuload.containers.base import Asset, Index
    from gpuload.options import Options
    from gpuload.report import Report

__all__ = ["device_of", "load"]


def device_of(out: Any) -> int:
    """Return the device that an array with ``__cuda_array_interface__`` is on."""
    place = driver.pointer(out.__cuda_array_interface__["data"][0])
    return driver.current_device() if place is None else place.device_id


def load(
    index: Index, asset: Asset, options: Options, device_id: int, *, out: Any, stream: Any
) -> tuple[DeviceArray, Report]:
    """Decode an asset into the memory of a device.

    Parameters
    ----------
    index : Index
        The file.
    asset : Asset
        What to load of it.
    options : Options
        All of them matter.
    device_id : int
        The device.
    out : object or None
        An array with ``__cuda_array_interface__`` to decode into.
    stream : object or None
        What the load is ordered after, and what the array is complete on; see
        `gpuload.devices.find_stream`.
    """
    with driver.on_device(device_id):
        ordered = find_stream(stream, device_id)
        if out is None:
            size = _capacity(index, options)
            owner: Any = allocate(size, device_id, ordered)
            address = int(owner.handle)
        else:
            owner = out
            address, size = _memory_of(out, asset)
            _check_size(size, index.raw_size, index)
            _wait_for_producer(out, ordered, device_id)
        with driver.calling("cuEventRecord", "the start of a load"):
            before = ordered.record()
        with DeviceSink(device_id, address, size, before, options.memory_limit // 4) as sink:
            report = run(index, sink, options, device_id=device_id)
        if out is not None:
            _check_size(size, report.raw_size, index)
        shape = (report.raw_size // asset.dtype.itemsize,)
        array = DeviceArray(
            address, shape, asset.dtype, device_id=device_id, stream=ordered, owner=owner
        )
    return array, report


def _capacity(index: Index, options: Options) -> int:
    """Return how many bytes the result may need: its size, or a bound that is close to it."""
    if index.exact:
        pipeline.check_limit(index, options, index.raw_bound)
    elif (index.chunks["codec"] == Codec.GZIP).any():
        # Its bound is a thousand times its size, so that the size is found by decoding it once.
        return pipeline.run(index, NullSink(), options).raw_size
    return min(index.raw_bound, options.output_limit(index.source.size))


def _memory_of(out: Any, asset: Asset) -> tuple[int, int]:
    """Return the address and the bytes of an array on a device."""
    facts = out.__cuda_array_interface__
    address, read_only = facts["data"]
    dtype = np.dtype(facts["typestr"])
    if dtype != asset.dtype:
        raise ValueError(f"out has elements of type {dtype}, the asset has {asset.dtype}")
    if read_only:
        raise ValueError("out is read-only; give a writable array")
    if facts.get("strides") and not _contiguous(facts["shape"], facts["strides"], dtype.itemsize):
        raise ValueError("out is not contiguous; give a C-contiguous array")
    return address, int(np.prod(facts["shape"], dtype=np.int64)) * dtype.itemsize


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


def _check_size(given: int, size: int | None, index: Index) -> None:
    if size not in (None, given):
        raise ValueError(f"out holds {given} bytes, {index.source.name} decodes to {size}")
