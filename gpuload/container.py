"""An open file: look into it, load it."""

from __future__ import annotations

import warnings as _warnings
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gpuload import checksums, pipeline
from gpuload.arrays import Array
from gpuload.chunks import Checksum
from gpuload.containers import read_index
from gpuload.devices import find_device
from gpuload.engines.choice import (
    DEVICE_ENGINES,
    HOST,
    choose,
    fetching_is_slower,
    time_text,
)
from gpuload.errors import DriverError, FormatWarning, MemoryLimitError
from gpuload.host_memory import allocate, reserve
from gpuload.options import ENGINES, Options
from gpuload.sinks import CountingSink, DescriptorSink, MemorySink, NullSink
from gpuload.watch import Watch

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable, SpanTable
    from gpuload.containers.base import Asset
    from gpuload.engines.choice import Choice
    from gpuload.pipeline import Progress
    from gpuload.report import Report
    from gpuload.sinks import Sink
    from gpuload.sources import Source

__all__ = ["Container", "Explanation", "destination", "warn"]


@dataclass(frozen=True)
class Explanation:
    """How an asset would be loaded.

    Attributes
    ----------
    asset : str
        Its name; empty for the only asset of a stream.
    engine : str
        Who would decode it.
    reason : str
        Why.
    passed_over : dict of str to str
        For each engine that was not taken, why not.
    checksums : str
        Which checksums there are, and which of them would be checked.
    """

    asset: str
    engine: str
    reason: str
    checksums: str
    passed_over: dict[str, str] = field(default_factory=dict)


class Container:
    """An open file: what is in it, and the ways to get it out.

    Use `gpuload.open` to make one; it is a context manager and closes its file.

    Attributes
    ----------
    format : str
        "lz4", "snappy", "gzip", "bgzf" or "zstd".
    assets : list of Asset
        What can be loaded.
    chunks : ChunkTable
        One row per compressed chunk.
    spans : SpanTable
        Sizes and checksums that cover several chunks.
    details : dict
        Facts of the format.
    warnings : list of str
        Deviations from the format; grows while the file is decoded.
    report : gpuload.report.Report or None
        What the last load, `write_to` or `verify` did.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._source = source
        self._options = options
        self._index = read_index(source, options)
        self.format: str = self._index.format
        self.assets: list[Asset] = self._index.assets
        self.chunks: ChunkTable = self._index.chunks
        self.spans: SpanTable = self._index.spans
        self.details: dict[str, Any] = self._index.details
        self.warnings: list[str] = self._index.warnings
        self.report: Report | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The file's name, as messages give it."""
        return self._source.name

    @property
    def batchable(self) -> bool:
        """Whether the chunks are independent of one another."""
        return self._index.batchable

    @property
    def serial(self) -> str:
        """Why they are not; empty if they are."""
        return self._index.serial

    @property
    def stored_size(self) -> int:
        """Bytes of the file."""
        return self._source.size

    @property
    def raw_size(self) -> int | None:
        """Decoded bytes as the file states them, or None where only decoding finds them."""
        return self._index.raw_size

    @property
    def raw_bound(self) -> int:
        """Most bytes that the file can decode to."""
        return self._index.raw_bound

    def explain(self) -> list[Explanation]:
        """Return, for each asset, which engine would decode it, and why.

        Raises
        ------
        EngineUnavailableError
            As `load` does.
        """
        choice = choose(self.chunks, self._options, find_device(self._options.device))
        names = [ENGINES[number] for number in np.unique(choice.engines)] or ["host"]
        on_device = bool((choice.engines != HOST).any())
        checksums = self._checksums()
        if on_device and self._options.verify == "auto":
            checksums += self._on_device()
        return [
            Explanation(
                a.name, ", ".join(names), self._reason(choice), checksums, choice.passed_over
            )
            for a in self.assets
        ]

    def _reason(self, choice: Choice) -> str:
        if self.serial:
            return f"one thread decodes: {self.serial}"
        chunks = f"{self.chunks.size} independent chunks"
        if (choice.engines == HOST).all():
            return f"{chunks} on up to {self._options.thread_count} threads"
        times = [f"{name} {time_text(seconds)}" for name, seconds in choice.seconds.items()]
        estimates = f"; about: {', '.join(times)}" if times else ""
        return f"{chunks} in batches{estimates}"

    def _on_device(self) -> str:
        """Return what is added to the checksums of a file that a device decodes."""
        said = ""
        if self.chunks["checksum_kind"].any():
            said = " (those of single chunks are checked on the device)"
        if self.spans["checksum_kind"].any():
            said += " (those over several chunks are not checked; verify=True checks on the host)"
        return said

    def _checksums(self) -> str:
        kinds = np.unique(self._index.checksum_kinds)
        names = [checksums.describe(k) for k in kinds if k != Checksum.NONE]
        if self.format == "gzip":
            names = ["CRC-32 and size of each member"]
        if not names:
            return "the file has none"
        return ", ".join(names) + ("" if self._options.verify else " (not checked)")

    def load(
        self, name: str | None = None, *, out: Any = None, device: Any = None, stream: Any = None
    ) -> Array:
        """Decode an asset into memory.

        Parameters
        ----------
        name : str, optional
            The asset; may be left out if there is one only.
        out : array or writable buffer, optional
            Contiguous memory of the asset's element type and exact size to decode into, on the host
            or (with ``__cuda_array_interface__``) on a device.
        device : None, int, str or object
            Where to, if `out` is not given: by default the device of the options, else the current
            CUDA device where there is one, else host memory. "cpu" is host memory; a number,
            "cuda" and "cuda:1" are CUDA devices, and so are the device objects of cuda.core, torch
            and CuPy.
        stream : object, optional
            CUDA stream that a load to a device is ordered on.

        Returns
        -------
        Array
            The decoded bytes, in `out` if it was given.

        Raises
        ------
        KeyError
            If there is no such asset.
        ValueError
            If `out` has another size or element type, or is not contiguous or writable. Where the
            file does not state its size, this is only found while decoding, and `out` holds a part.
            Also if the container is closed, or `device` names no device.
        DecompressError, ChecksumError
            If chunks do not decode to what the file promises.
        MemoryLimitError
            If the result would exceed `max_output` or the memory there is.
        DriverError
            If a device fails, or is not there.
        EngineUnavailableError
            If the engine that was asked for by name cannot decode this, or not on this machine (a
            kind of DriverError).
        """
        array = self._load(name, out, device, stream)
        warn(self.warnings, self.report, stacklevel=2)
        return array

    def _load(
        self, name: str | None, out: Any, device: Any, stream: Any, watch: Watch | None = None
    ) -> Array:
        self._check_open()
        asset = self._asset(name)
        device_id = destination(self._options, out, device)
        if device_id is not None:
            return self._load_to_device(asset, device_id, out, stream, watch)
        progress = watch.progress if watch else None
        if out is not None:
            return Array(self._load_into(_as_bytes(out, asset.dtype), progress))
        if self._index.exact:
            pipeline.check_limit(self._source, self._options, self.raw_bound)
            return Array(self._load_into(allocate(self.raw_bound, self.name), progress))
        return Array(self._load_growing(progress))

    def _load_to_device(
        self, asset: Asset, device_id: int, out: Any, stream: Any, watch: Watch | None
    ) -> Array:
        # Imports cuda.core, which takes a third of a second.
        from gpuload import device_load, driver
        from gpuload.destination import Destination

        with driver.on_device(device_id):
            to = Destination(device_id, out, stream)
            array, self.report = device_load.load(
                self._index, asset, self._options, to, watch or Watch()
            )
        return array

    def _load_into(
        self, memory: npt.NDArray[np.uint8], progress: Progress | None
    ) -> npt.NDArray[np.uint8]:
        if self.raw_size is not None:
            _check_size(memory.size, self.raw_size, self.name)
        report = self._run(MemorySink(memory), progress=progress)
        _check_size(memory.size, report.raw_size, self.name)
        return memory

    def _load_growing(self, progress: Progress | None) -> npt.NDArray[np.uint8]:
        limit = self._options.output_limit(self.stored_size)
        memory = reserve(min(self.raw_bound, limit))
        if memory is None:
            memory = allocate(self._run(NullSink(), progress=progress).raw_size, self.name)
        report = self._run(MemorySink(memory), progress=progress)
        return memory[: report.raw_size]

    def write_to(
        self, fd: int, *, positional: bool = False, progress: Progress | None = None
    ) -> Report:
        """Decode the file to a descriptor.

        Parameters
        ----------
        fd : int
            Open for writing.
        positional : bool
            Whether it is an empty regular file, which several threads may write at once.
        progress : callable, optional
            ``progress(decoded bytes, stored bytes)``, called about ten times a second.

        Returns
        -------
        gpuload.report.Report
            What was done.

        Raises
        ------
        DecompressError, ChecksumError, MemoryLimitError, DriverError, EngineUnavailableError
            As `load` does.
        OSError
            As writing does. What was written until then stays written.
        ValueError
            If the container is closed.
        """
        sink = DescriptorSink(fd, positional=positional)
        return self._run(sink, progress=progress, fetching=True)

    def verify(self, *, progress: Progress | None = None) -> Report:
        """Decode and check everything, and keep nothing.

        Returns
        -------
        gpuload.report.Report
            `failures` lists every chunk that is broken.

        Raises
        ------
        MemoryLimitError, DriverError, EngineUnavailableError
            As `load` does.
        ValueError
            If the container is closed.
        """
        return self._run(NullSink(), collect=True, progress=progress)

    def _asset(self, name: str | None) -> Asset:
        names = [asset.name for asset in self.assets]
        if name is None and len(names) == 1:
            return self.assets[0]
        if name not in names:
            raise KeyError(f"{self.name} has no asset {name!r}; it has {names}")
        return self.assets[names.index(name)]

    def _run(
        self,
        sink: Sink,
        *,
        collect: bool = False,
        progress: Progress | None = None,
        fetching: bool = False,
    ) -> Report:
        """Decode into host memory, with a device if one was asked for, or would be faster."""
        self._check_open()
        named = self._options.engine in DEVICE_ENGINES
        wanted = named or self._options.device not in (None, "cpu")
        slower: dict[str, str] = {}
        offered = fetching and self._options.device is None and self._options.engine == "auto"
        if offered:
            slower = fetching_is_slower(self.chunks, self._options)
        if wanted:
            device_id = find_device(self._options.device)
            self.report = self._run_on(sink, device_id, {}, collect=collect, progress=progress)
        elif offered and not slower:
            self.report = self._run_offered(sink, collect=collect, progress=progress)
        else:
            self.report = self._run_on(sink, None, slower, collect=collect, progress=progress)
        return self.report

    def _run_offered(self, sink: Sink, **settings: Any) -> Report:
        """Decode with a device that nobody asked for; without it, if it fails at that."""
        counted = CountingSink(sink)
        try:
            return self._run_on(counted, find_device(None), {}, **settings)
        except (DriverError, MemoryLimitError) as error:
            if counted.written and sink.ordered:
                raise
            return self._run_on(sink, None, {"sm": f"it failed: {error}"}, **settings)

    def _run_on(
        self,
        sink: Sink,
        device_id: int | None,
        passed_over: dict[str, str],
        *,
        collect: bool,
        progress: Progress | None,
    ) -> Report:
        if device_id is None:
            passed_over = {**choose(self.chunks, self._options, None).passed_over, **passed_over}
            run = pipeline.run
        else:
            from gpuload.device_run import run as device_run

            run = partial(device_run, device_id=device_id)
        report = run(self._index, sink, self._options, collect=collect, progress=progress)
        report.passed_over = {**passed_over, **report.passed_over}
        return report

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self.name}: the container is closed; open the file again")

    def close(self) -> None:
        """Close the file; what was loaded stays valid."""
        self._closed = True
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpuload.Container {self.name!r}: {self.format}, {self.chunks.size} chunks>"


def warn(messages: list[str], report: Report | None, *, stacklevel: int) -> None:
    """Warn of deviations from the format, and of chunks that were skipped."""
    failures = report.failures if report else []
    for message in [*messages, *map(str, failures)]:
        _warnings.warn(message, FormatWarning, stacklevel=stacklevel + 1)


def destination(options: Options, out: Any, device: Any) -> int | None:
    """Return the device to load to; None for host memory."""
    if out is None:
        return find_device(options.device if device is None else device)
    if hasattr(out, "__cuda_array_interface__"):
        from gpuload.destination import device_of

        return device_of(out)
    return None


def _as_bytes(out: Any, dtype: np.dtype[Any]) -> npt.NDArray[np.uint8]:
    known = isinstance(out, np.ndarray | Array)
    array = np.asarray(out if known else _buffer_of(out))
    if array.dtype != dtype:
        raise ValueError(f"out has elements of type {array.dtype}, the asset has {dtype}")
    if not array.flags.c_contiguous:
        raise ValueError("out is not contiguous; give a C-contiguous array")
    if not array.flags.writeable:
        raise ValueError("out is read-only; give a writable array")
    return array.reshape(-1).view(np.uint8)


def _buffer_of(out: Any) -> memoryview:
    # NumPy would make an array of nearly anything, and what is decoded into a copy is lost.
    try:
        return memoryview(out)
    except TypeError:
        raise TypeError(
            f"out must be an array or a writable buffer, not {type(out).__name__}"
        ) from None


def _check_size(size: int, wanted: int, name: str) -> None:
    if size != wanted:
        raise ValueError(f"out holds {size} bytes, {name} decodes to {wanted}")
