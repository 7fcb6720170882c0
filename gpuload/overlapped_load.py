"""Which loads to a device may overlap their stages, and with what."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import driver
from gpuload.containers.base import Asset
from gpuload.containers.prospect import prospect
from gpuload.device_array import allocate
from gpuload.engines.choice import HOST, NVCOMP, SM, choose, choose_for, scratch_limit
from gpuload.engines.rates import Work
from gpuload.engines.refusals import KERNELS
from gpuload.errors import MemoryLimitError
from gpuload.feeds import ListedFeed, WalkedFeed
from gpuload.irregular import DamagedError, IrregularError
from gpuload.kernels import compiler
from gpuload.lease import Shape, lease, release
from gpuload.many import JoinedFiles, ManyFeed
from gpuload.memory import GrowingMemory
from gpuload.options import ENGINES
from gpuload.overlapped import Overlapped, Target
from gpuload.scanned import ScannedFeed
from gpuload.sources import open_source
from gpuload.stages import Stages
from gpuload.staging import (
    MappedStager,
    ReadingStager,
    ShowingStager,
    choose_way,
    reading_threads,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cuda.core import Buffer, Stream

    from gpuload.containers.base import Index
    from gpuload.containers.prospect import Prospect
    from gpuload.destination import Destination
    from gpuload.device_array import DeviceArray
    from gpuload.feeds import Feed
    from gpuload.lease import Lease
    from gpuload.options import Options
    from gpuload.report import Report
    from gpuload.sources import Source
    from gpuload.staging import Stager
    from gpuload.watch import Watch

__all__ = ["load_files", "load_listed", "load_unlisted"]

#: Bytes of a file from which on listing it is worth a thread of its own.
_WORTH_WALKING = 4 << 20
#: Decoded bytes of a stored byte, where nothing says how many there are.
_RATIO = 2.5
#: Slots of the staging ring for each thread that reads.
_SLOTS = 3
#: Threads that read and list small files: each file is little but Python, which is one at a time.
#: On 16 cores, 10,000 files of 100 KiB took 0.24 s with 1 thread, 0.25 with 2 and 0.42 with 8.
_MANY_READERS = 1


def load_listed(
    index: Index, asset: Asset, options: Options, to: Destination, watch: Watch
) -> tuple[DeviceArray, Report]:
    """Load a file that is listed; see `gpuload.device_load.load`.

    Raises
    ------
    IrregularError
        If it does not suit, or turns out not to.
    """
    began = Stages()
    choice = choose(index.chunks, options, to.device_id)
    engines = np.unique(choice.engines)
    if engines.size != 1 or engines[0] == HOST:
        raise IrregularError
    if options.verify is True and index.spans["checksum_kind"].any():
        raise IrregularError
    load = _Load(index.source, ENGINES[engines[0]], options, to, watch, began)
    with lease(to.device_id, load.shape) as held:
        feed = ListedFeed(index, held.shape.landing_size)
        stager = load.stager(held)
        array, report = load.run(feed, stager, held, asset, feed.placing.size)
    report.passed_over = choice.passed_over
    return array, report


def load_unlisted(
    source: Source, options: Options, to: Destination, watch: Watch
) -> tuple[DeviceArray, Report, Index]:
    """Load a file while it is being listed.

    Raises
    ------
    IrregularError
        If it does not suit, or turns out not to.
    """
    began = Stages()
    promise = prospect(source, options) if source.size >= _WORTH_WALKING else None
    if promise is None or (options.verify is True and promise.serial_checksum):
        raise IrregularError
    engine = choose_for(_work(source, promise), options, to.device_id)
    if engine == ENGINES[HOST]:
        raise IrregularError
    load = _Load(source, engine, options, to, watch, began)
    try:
        return _load_scanned(load, promise)
    except DamagedError:
        raise
    except IrregularError:
        if not promise.on_the_way:
            raise
        watch.check()
        load.stages = Stages()
        return _load_walked(load, promise)


def _load_scanned(load: _Load, promise: Prospect) -> tuple[DeviceArray, Report, Index]:
    """Load a file that the device lists."""
    if load.source.remote or compiler.refusal(load.to.device_id):
        raise IrregularError("it takes a kernel, and a source that is quick to look at")
    with lease(load.to.device_id, load.shape) as held:
        size = held.shape.landing_size
        feed = ScannedFeed(load.source, load.options, size, held.scans, load.stages)
        stager = load.stager(held)
        array, report = load.run(feed, stager, held, Asset(), promise.raw_size)
    return array, report, feed.index()


def _load_walked(load: _Load, promise: Prospect) -> tuple[DeviceArray, Report, Index]:
    """Load a file that a thread lists."""
    with lease(load.to.device_id, load.shape) as held:
        stager = load.stager(held, shown=True)
        piece = stager.piece_size if isinstance(stager, ShowingStager) else 0
        size = held.shape.landing_size
        feed = WalkedFeed(load.source, load.options, size, piece, load.stages)
        feed.start()
        try:
            array, report = load.run(feed, stager, held, Asset(), promise.raw_size)
        finally:
            feed.stop()
    return array, report, feed.index()


def load_files(
    paths: Sequence[str], options: Options, to: Destination, watch: Watch
) -> tuple[list[DeviceArray], Report]:
    """Load many small files, each to an array of its own, in windows that they share.

    Raises
    ------
    IrregularError
        If they do not suit, or turn out not to.
    """
    began = Stages()
    files = JoinedFiles(paths)
    with open_source(paths[0]) as first:
        promise = prospect(first, options)
    if promise is None or options.verify is True:
        raise IrregularError
    engine = choose_for(_work(files, promise), options, to.device_id)
    if engine != "sm":
        raise IrregularError
    load = _Load(files, engine, replace(options, threads=_MANY_READERS), to, watch, began)
    load.way = "read"
    # Each file has a limit of its own, which its rows are compared with.
    load.limit = 1 << 62
    with lease(to.device_id, load.shape) as held:
        feed = ManyFeed(files, options, held.shape.landing_size, set(KERNELS))
        stager = load.stager(held, shown=True)
        array, report = load.run(feed, stager, held, Asset(), None)
    return array.parts(feed.places.tolist(), feed.sizes.tolist()), report


def _work(source: Source, promise: Prospect) -> Work:
    raw = int(source.size * _RATIO)
    count = max(1, raw // promise.chunk_size)
    return Work(promise.codec, count, source.size, raw, promise.chunk_size)


class _Load:
    """What loads of listed and of other files have in common."""

    def __init__(
        self,
        source: Source,
        engine: str,
        options: Options,
        to: Destination,
        watch: Watch,
        stages: Stages,
    ) -> None:
        number = ENGINES.index(engine)
        if number != SM and not options.trusted:
            raise IrregularError  # it decodes into windows with a guard
        self.source, self.engine, self.options = source, engine, options
        self.to, self.watch, self.stages = to, watch, stages
        self.direct = number in (SM, NVCOMP)
        slots = _SLOTS * reading_threads(options)
        shape = Shape.within(options.memory_limit, slots)
        if shape is None or options.on_error == "skip":
            raise IrregularError
        self.shape: Shape = shape
        self.way = choose_way(source, options)
        #: Most bytes that the result may have.
        self.limit = options.output_limit(source.size)

    def stager(self, held: Lease, *, shown: bool = False) -> Stager:
        """Return what brings the bytes, and shows them where they are read, if that is wanted."""
        if self.way == "mapped":
            return MappedStager(self.source, self.options.memory_limit // 2, self.stages)
        kind = ShowingStager if shown else ReadingStager
        return kind(self.source, held.ring, self.options, self.stages)

    def run(
        self, feed: Feed, stager: Stager, held: Lease, asset: Asset, size: int | None
    ) -> tuple[DeviceArray, Report]:
        """Load; `size` is that of the result, if it is known."""
        ordered = self.to.ordered()
        with ExitStack() as undo:
            target, owner = self._target(asset, size, ordered, undo)
            # Memory that grows is capable, which the driver knows once there is some.
            capable = not target.size or driver.is_hw_decompress_capable(target.address)
            if not self.direct and not capable:
                raise IrregularError
            engine = held.engine(self.engine, scratch_limit(self.options))
            load = Overlapped(
                feed,
                stager,
                self.way,
                engine,
                target,
                held,
                self.options,
                self.stages,
                self.watch,
            )
            load.limit, load.shared = self.limit, self.to.out is not None
            report = load.run(self.to.start(ordered))
            undo.pop_all()
        if self.to.out is not None and report.raw_size != target.size:
            raise IrregularError
        return self.to.array(target.address, report.raw_size, asset, ordered, owner), report

    def _target(
        self, asset: Asset, size: int | None, ordered: Stream, undo: ExitStack
    ) -> tuple[Target, Any]:
        if self.to.out is not None:
            return Target(*self.to.memory(asset)), self.to.out
        if size is not None:
            buffer = self._allocate(size, ordered)
            undo.callback(buffer.close)
            return Target(int(buffer.handle), size), buffer
        if not driver.capabilities(self.to.device_id).virtual_memory:
            raise IrregularError
        memory = GrowingMemory(self.to.device_id)
        most = min(self.limit, driver.capabilities(self.to.device_id).total_memory)
        buffer = driver.shield(memory.allocate(most, stream=ordered))
        undo.callback(buffer.close)
        return Target(int(buffer.handle), 0, memory.grow), buffer

    def _allocate(self, size: int, ordered: Stream) -> Buffer:
        """Return memory for a result of a size that is a bound, or what a header says."""
        if size > self.limit:
            raise IrregularError("more than is allowed")
        try:
            return allocate(size, self.to.device_id, ordered)
        except MemoryLimitError as error:
            release()
            raise IrregularError(str(error)) from error
