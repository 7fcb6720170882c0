"""Open a file, load it, or have it loaded while the caller does something else."""

from __future__ import annotations

import os
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpuload.container import Container, destination, warn
from gpuload.containers.arrays import has_metadata, read_arrays, read_folder
from gpuload.errors import DriverError, GpuloadError
from gpuload.options import Options, Verify
from gpuload.sources import Source, open_source
from gpuload.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from gpuload.array_container import ArrayContainer
    from gpuload.arrays import Array
    from gpuload.report import Report
    from gpuload.sources.stores import Store

__all__ = ["Container", "Job", "Load", "load", "load_async", "load_many", "open"]


def open(  # noqa: A001
    source: str | os.PathLike[str] | Buffer | Source, **options: Any
) -> Container | ArrayContainer:
    """Open a compressed file, or a file or folder of arrays, and read its index.

    Parameters
    ----------
    source : str, os.PathLike or bytes-like
        A path, an fsspec URL (with ``://`` in it), or the content itself.
    **options
        Fields of `gpuload.options.Options`.

    Returns
    -------
    Container or ArrayContainer
        A stream of bytes, or arrays (Zarr, NPZ, NPY, safetensors, the members of a zip file). Close
        it, or use it in a ``with`` statement.

    Raises
    ------
    FormatError
        If the format is unknown, or the framing is broken.
    UnsupportedCodecError
        If it needs a version, a codec or a dictionary that is not at hand.
    OSError
        If the file cannot be read.
    MissingDependencyError
        For a URL without fsspec.
    ValueError, TypeError
        If an option or `source` is none that there is. Whether the engine and the device are there
        is found when they are needed: `Container.load` raises EngineUnavailableError.
    """
    return _open(source, Options(**options))


def _open(source: Any, options: Options) -> Container | ArrayContainer:
    store = _folder(source)
    opened = store or (source if isinstance(source, Source) else open_source(source))
    try:
        arrays = _arrays(opened, options)
        if arrays is not None:
            return arrays
        assert isinstance(opened, Source)
        return Container(opened, options)
    except BaseException:
        opened.close()
        raise


def _arrays(opened: Source | Store, options: Options) -> ArrayContainer | None:
    """Return the arrays of a folder or a file; None if it is a stream of bytes."""
    index = (
        read_arrays(opened, options) if isinstance(opened, Source) else read_folder(opened, options)
    )
    if index is None:
        return None
    # Streams do without what arrays need.
    from gpuload.array_container import ArrayContainer

    return ArrayContainer(index, options)


def _folder(source: Any) -> Store | None:
    """Return the store of a folder, or of a URL that ends as folders of Zarr do."""
    if isinstance(source, str) and "://" in source:
        if not source.rstrip("/").endswith(".zarr"):
            return None
        from gpuload.sources.fsspec_store import FsspecStore

        return FsspecStore(source)
    if isinstance(source, str | os.PathLike) and os.path.isdir(source):  # noqa: PTH112
        from gpuload.sources.folder_store import FolderStore

        folder = os.fspath(source)
        # What is no Zarr is opened as a file, which says that it is none.
        return FolderStore(folder) if has_metadata(folder) else None
    return None


def load(
    source: str | os.PathLike[str] | Buffer | Source,
    name: str | None = None,
    *,
    index: Any = ...,
    out: Any = None,
    device: Any = None,
    stream: Any = None,
    engine: str = "auto",
    verify: Verify = "auto",
    **options: Any,
) -> Array:
    """Load a compressed file, or one array or asset of it, into memory.

    Parameters
    ----------
    source : str, os.PathLike or bytes-like
        A path, an fsspec URL (with ``://`` in it), or the content itself.
    name : str, optional
        The asset or array; may be left out if there is one only.
    index : optional
        What of an array, as NumPy's indexing takes it; see `ArrayContainer.load`.
    out, device, stream
        Where to; see `Container.load`.
    engine : str
        "auto", "hardware", "sm", "nvcomp" or "host"; see `gpuload.options.Options`.
    verify : "auto" or bool
        Which checksums to check: "auto" those that can be checked where the bytes are decoded (on
        the host all of them), True all of them.
    **options
        Other fields of `gpuload.options.Options`.

    Returns
    -------
    Array
        The decoded bytes.

    Raises
    ------
    FormatError, UnsupportedCodecError, OSError, MissingDependencyError, TypeError
        As `open` does.
    EngineUnavailableError
        If the engine that was asked for by name cannot decode this, or not on this machine.
    DecompressError, ChecksumError, MemoryLimitError, DriverError, KeyError, ValueError
        As `Container.load` does.

    Warns
    -----
    FormatWarning
        If the file deviates from its format and decodes all the same.
    """
    chosen = Options(engine=engine, verify=verify, **options)
    job = Job(source, name, out, device, stream, chosen, index)
    array = job.run(Watch())
    job.warn(stacklevel=2)
    return array


def load_async(
    source: str | os.PathLike[str] | Buffer | Source,
    name: str | None = None,
    *,
    index: Any = ...,
    out: Any = None,
    device: Any = None,
    stream: Any = None,
    engine: str = "auto",
    verify: Verify = "auto",
    **options: Any,
) -> Load:
    """Start to load a compressed file, and return at once.

    Parameters
    ----------
    source, name, index, out, device, stream, engine, verify
        See `load`. What is written to `out` before the load comes before it on `stream`.
    **options
        Other fields of `gpuload.options.Options`.

    Returns
    -------
    Load
        `Load.result` waits for the end, and raises what `load` would have raised.

    Raises
    ------
    ValueError, TypeError
        If an option is none that there is.
    """
    chosen = Options(engine=engine, verify=verify, **options)
    return Load(Job(source, name, out, device, stream, chosen, index))


def load_many(
    sources: Iterable[str | os.PathLike[str] | Buffer | Source],
    *,
    device: Any = None,
    stream: Any = None,
    engine: str = "auto",
    verify: Verify = "auto",
    **options: Any,
) -> list[Array]:
    """Load many compressed files, each into an array of its own.

    Small local files go to a device together: thousands of them take a few batches. Their arrays
    then lie in one piece of memory, which stays as long as one of them does.

    Parameters
    ----------
    sources : iterable
        As `load` takes them; each has one asset.
    device, stream, engine, verify
        See `load`.
    **options
        Other fields of `gpuload.options.Options`; they hold for each file.

    Returns
    -------
    list of Array
        In the order of the sources.

    Raises
    ------
    GpuloadError, OSError, KeyError, ValueError
        As `load` does for the first file that does not load.

    Warns
    -----
    FormatWarning
        If a file deviates from its format and decodes all the same.
    """
    chosen = Options(engine=engine, verify=verify, **options)
    given = list(sources)
    together = _load_together(given, device, stream, chosen)
    if together is not None:
        return together
    arrays = []
    for source in given:
        job = Job(source, None, None, device, stream, chosen)
        arrays.append(job.run(Watch()))
        job.warn(stacklevel=2)
    return arrays


def _load_together(
    given: list[Any], device: Any, stream: Any, options: Options
) -> list[Array] | None:
    """Load files in shared windows; None if they do not suit."""
    paths = [os.fspath(each) for each in given if isinstance(each, str | os.PathLike)]
    usual = all(isinstance(path, str) and "://" not in path for path in paths)
    if not usual or len(paths) < max(2, len(given)):
        return None
    device_id = destination(options, None, device)
    if device_id is None:
        return None
    from gpuload import driver, overlapped_load
    from gpuload.destination import Destination
    from gpuload.irregular import IrregularError

    with driver.on_device(device_id), suppress(IrregularError, OSError):
        to = Destination(device_id, None, stream)
        return list(overlapped_load.load_files(paths, options, to, Watch())[0])
    return None


class Load:
    """A load that goes on in a thread of its own.

    Parameters
    ----------
    job : Job
        What to load.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._watch = job, Watch()
        job.resolve()
        self._array: Array | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gpuload-load")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._array = self._job.run(self._watch)
        except BaseException as error:  # noqa: BLE001 (for who asks for the result)
            # What a read that was told to give up says is no news.
            self._error = _cancelled() if self._watch.cancelled else error
        finally:
            self._watch.end()

    @property
    def ready(self) -> Any:
        """A CUDA event (of cuda.core) that all work of the load is before.

        Waits until the last of it is submitted, and with an `out` until all of it is known to be
        right. None if there is nothing that is left to do on a device: the load is over, or goes to
        host memory. Without `out`, what the load has written is only known to be right once
        `result` has returned.
        """
        return self._watch.wait()

    def wait(self, stream: Any = None) -> None:
        """Let the work of a CUDA stream from here on come after that of the load (see `ready`).

        Parameters
        ----------
        stream : object, optional
            As `load` takes it; by default the default stream.
        """
        event = self.ready
        if event is not None:
            from gpuload import driver
            from gpuload.devices import find_stream

            device_id = driver.current_device()
            with driver.calling("cuStreamWaitEvent", "a stream that comes after a load"):
                find_stream(stream, device_id).wait(event)

    def done(self) -> bool:
        """Return whether the load is over, in whatever way."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """End the load soon; `result` raises CancelledError then."""
        self._watch.cancel()

    def result(self, timeout: float | None = None) -> Array:
        """Wait for the end, and return what was loaded.

        Parameters
        ----------
        timeout : float, optional
            Most seconds to wait.

        Raises
        ------
        TimeoutError
            If it takes longer; the load goes on.
        concurrent.futures.CancelledError
            If it was cancelled.
        GpuloadError, OSError, KeyError, ValueError
            As `load` does.

        Warns
        -----
        FormatWarning
            If the file deviates from its format and decodes all the same.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the load is not over after {timeout} seconds")
        if self._array is None and self._error is None:
            raise DriverError("the process was forked while this load went on: its thread is gone")
        if self._error is not None:
            raise self._error
        self._job.warn(stacklevel=2)
        assert self._array is not None
        return self._array

    @property
    def stats(self) -> Report:
        """What the load did, and when; waits for its end.

        Raises
        ------
        RuntimeError
            If it failed before it did anything that there are numbers of.
        """
        self._thread.join()
        if self._job.report is None:
            raise RuntimeError("the load has failed: result() raises why")
        return self._job.report


class Job:
    """A load of one file, from opening it on.

    Parameters
    ----------
    source, name, out, device, stream
        See `load`.
    options : Options
        All of them matter.
    index : optional
        What of an array.

    Attributes
    ----------
    report : gpuload.report.Report or None
        What was done, after `run`.
    """

    def __init__(
        self,
        source: Any,
        name: str | None,
        out: Any,
        device: Any,
        stream: Any,
        options: Options,
        index: Any = ...,
    ) -> None:
        self._source, self._name, self._index = source, name, index
        self._out, self._device, self._stream = out, device, stream
        self._options = options
        self._warnings: list[str] = []
        self.report: Report | None = None

    def resolve(self) -> None:
        """Find the device now: which one is current differs from thread to thread."""
        if self._out is None:
            with suppress(GpuloadError, ValueError):  # `run` raises it again
                found = destination(self._options, None, self._device)
                self._device = "cpu" if found is None else found

    def run(self, watch: Watch) -> Array:
        """Open the file, load it, and close it."""
        given = self._source
        store = _folder(given)
        if store is not None:
            with store:
                arrays = _arrays(store, self._options)
                assert arrays is not None
                return self._load_selection(arrays, watch)
        if isinstance(given, Source):
            source = given
        else:
            source = open_source(given, watch.reads)
            watch.owns(source)
        watch.reads(source)
        with source:
            if (arrays := _arrays(source, self._options)) is not None:
                return self._load_selection(arrays, watch)
            if self._index is not ...:
                raise IndexError(f"{source.name} holds a stream of bytes: load it, and then index")
            device_id = destination(self._options, self._out, self._device)
            array = None
            if device_id is not None and self._name in (None, ""):
                array = self._load_unlisted(source, device_id, watch)
            return self._load_listed(source, watch) if array is None else array

    def _load_unlisted(self, source: Source, device_id: int, watch: Watch) -> Array | None:
        """Load while the file is being listed; None if that does not suit."""
        from gpuload import driver, overlapped_load
        from gpuload.destination import Destination
        from gpuload.irregular import IrregularError

        with driver.on_device(device_id):
            to = Destination(device_id, self._out, self._stream)
            try:
                loaded = overlapped_load.load_unlisted(source, self._options, to, watch)
            except IrregularError:
                watch.check()
                return None
        array, self.report, index = loaded
        self._warnings = index.warnings
        return array

    def _load_selection(self, arrays: ArrayContainer, watch: Watch) -> Array:
        try:
            return arrays._load(
                self._name, self._index, self._out, self._device, self._stream, watch
            )
        finally:
            self.report = arrays.report
            self._warnings = arrays.warnings

    def _load_listed(self, source: Source, watch: Watch) -> Array:
        container = Container(source, self._options)
        try:
            return container._load(self._name, self._out, self._device, self._stream, watch)
        finally:
            self.report = container.report
            self._warnings = container.warnings

    def warn(self, *, stacklevel: int) -> None:
        """Warn of deviations from the format, and of chunks that were skipped."""
        warn(self._warnings, self.report, stacklevel=stacklevel + 1)


def _cancelled() -> CancelledError:
    return CancelledError("the load was cancelled")
