"""Load a file into the memory of a device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuload import overlapped_load, pipeline
from gpuload.chunks import Codec
from gpuload.device_array import DeviceArray, allocate
from gpuload.device_run import run
from gpuload.device_sink import DeviceSink
from gpuload.irregular import DamagedError, IrregularError
from gpuload.sinks import NullSink

if TYPE_CHECKING:
    from gpuload.containers.base import Asset, Index
    from gpuload.destination import Destination
    from gpuload.options import Options
    from gpuload.report import Report
    from gpuload.watch import Watch

__all__ = ["load"]


def load(
    index: Index, asset: Asset, options: Options, to: Destination, watch: Watch
) -> tuple[DeviceArray, Report]:
    """Decode an asset into the memory of a device, which is current.

    Parameters
    ----------
    index : Index
        The file.
    asset : Asset
        What to load of it.
    options : Options
        All of them matter.
    to : Destination
        Where to.
    watch : Watch
        Is told how far the load is.
    """
    if to.out is not None:
        to.check_size(to.memory(asset)[1], index.raw_size, index.source.name)
    try:
        return overlapped_load.load_listed(index, asset, options, to, watch)
    except DamagedError:
        # What is wrong may be a checksum, which is looked at again where the bytes come by.
        options = replace(options, verify=bool(options.verify))
    except IrregularError:
        pass
    watch.check()
    return _load_step_by_step(index, asset, options, to, watch)


def _load_step_by_step(
    index: Index, asset: Asset, options: Options, to: Destination, watch: Watch
) -> tuple[DeviceArray, Report]:
    ordered = to.ordered()
    if to.out is None:
        size = _capacity(index, options)
        owner: Any = allocate(size, to.device_id, ordered)
        address = int(owner.handle)
    else:
        owner = to.out
        address, size = to.memory(asset)
    before = to.start(ordered)
    with DeviceSink(to.device_id, address, size, before, options.memory_limit // 4) as sink:
        watch.reads(index.source)
        report = run(index, sink, options, device_id=to.device_id, progress=watch.progress)
    to.check_size(size, report.raw_size, index.source.name)
    return to.array(address, report.raw_size, asset, ordered, owner), report


def _capacity(index: Index, options: Options) -> int:
    """Return how many bytes the result may need: its size, or a bound that is close to it."""
    if index.exact:
        pipeline.check_limit(index.source, options, index.raw_bound)
    elif (index.chunks["codec"] == Codec.GZIP).any():
        # Its bound is a thousand times its size, so that the size is found by decoding it once.
        return pipeline.run(index, NullSink(), options).raw_size
    return min(index.raw_bound, options.output_limit(index.source.size))
