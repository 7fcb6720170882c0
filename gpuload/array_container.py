"""An open file of arrays: look into it, select from it, load it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gpuload import array_load
from gpuload.array_engines import RATED, USUAL, passed_over
from gpuload.array_plan import ArrayPlan
from gpuload.arrays import Array
from gpuload.chunks import Codec
from gpuload.container import Explanation, destination, warn
from gpuload.devices import find_device
from gpuload.engines.choice import DEVICE_ENGINES
from gpuload.errors import (
    ChunkFailure,
    FormatError,
    MemoryLimitError,
    UnsupportedCodecError,
)
from gpuload.host_memory import allocate, available
from gpuload.report import Report, joined
from gpuload.selection import Selection
from gpuload.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from gpuload.containers.array import ArrayAsset, ArrayIndex
    from gpuload.options import Options
    from gpuload.pipeline import Progress

__all__ = ["ArrayContainer", "LazyArray"]

#: What `Report` has of the bytes of a load.
_SIZES = ("raw_size", "stored_size")
#: What the framing of a codec carries to check chunks by.
CHECKSUMS = {
    "deflate": "CRC-32 of each member",
    "gzip": "CRC-32",
    "zlib": "Adler-32",
    "zstd": "xxHash-64 where frames have it",
    "crc32c": "CRC-32C of stored bytes",
}
#: Of the list of what is selected of which chunk, and where each of those is.
_BYTES_A_BOX = 256


class LazyArray:
    """An array in a file; what is selected of it is loaded.

    ``array[10:20, :, ::2]`` takes what NumPy takes, and reads only the chunks that are needed.

    Parameters
    ----------
    container : ArrayContainer
        The file.
    asset : ArrayAsset
        The array.
    """

    def __init__(self, container: ArrayContainer, asset: ArrayAsset) -> None:
        self._container, self._asset = container, asset

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self._asset.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._asset.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._asset.dtype

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Elements of a stored chunk along each axis."""
        return self._asset.chunk_shape

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of no axes has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        """Load a selection; see `ArrayContainer.load`."""
        return self._container.load(self.name, index)

    def load(self, index: Any = ..., **where: Any) -> Array:
        """Load a selection with `out`, `device` or `stream`; see `ArrayContainer.load`."""
        return self._container.load(self.name, index, **where)

    def __repr__(self) -> str:
        return f"<gpuload.LazyArray {self.name!r} shape={self.shape} dtype={self.dtype}>"


class ArrayContainer(Mapping[str, LazyArray]):
    """An open file of arrays: Zarr, NPZ, NPY, safetensors, or the members of a zip file.

    Use `gpuload.open` to make one; it is a context manager and closes its file. Like a mapping, it
    has the arrays by their names.

    Parameters
    ----------
    index : ArrayIndex
        What is in it.
    options : Options
        Of all loads.

    Attributes
    ----------
    format : str
        "zarr", "npz", "npy", "zip" or "safetensors".
    assets : list of ArrayAsset
        The arrays.
    details : dict
        Facts of the format.
    warnings : list of str
        Deviations from the format.
    report : gpuload.report.Report or None
        What the last load did.
    """

    def __init__(self, index: ArrayIndex, options: Options) -> None:
        self._index, self._options = index, options
        self.format = index.format
        self.assets = index.assets
        self.details = index.details
        self.warnings = index.warnings
        self.report: Report | None = None
        self._by_name = {asset.name: asset for asset in index.assets}
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        """The file's name, as messages give it."""
        return self._index.store.name

    @property
    def stored_size(self) -> int | None:
        """Bytes of the file; None where only asking for every chunk would tell."""
        return self._index.stored_size

    @property
    def raw_size(self) -> int:
        """Bytes of the elements of all arrays that can be loaded."""
        return sum(LazyArray(self, asset).nbytes for asset in self.assets if not asset.error)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __len__(self) -> int:
        return len(self._by_name)

    def __getitem__(self, name: str) -> LazyArray:
        """Return an array; nothing of it is read yet.

        Raises
        ------
        KeyError
            If there is no such array.
        """
        return LazyArray(self, self._asset(name))

    def load(
        self,
        name: str | None = None,
        index: Any = ...,
        *,
        out: Any = None,
        device: Any = None,
        stream: Any = None,
    ) -> Array:
        """Load an array, or a selection of one.

        Parameters
        ----------
        name : str, optional
            The array; may be left out if there is one only.
        index : optional
            What of it, as NumPy's indexing takes it: integers, slices, Ellipsis, None, boolean and
            integer arrays, and tuples of these. Only the chunks that are needed are read.
        out : array, optional
            Contiguous memory of the array's element type and the selection's shape to load into, on
            the host or (with ``__cuda_array_interface__``) on a device.
        device, stream
            Where to; see `gpuload.Container.load`.

        Returns
        -------
        Array
            The elements, in `out` if it was given.

        Raises
        ------
        KeyError
            If there is no such array.
        IndexError
            As NumPy does.
        UnsupportedCodecError
            If the array has a codec or a type that is not supported; the message names it.
        FormatError
            If metadata and chunks disagree, or a chunk is missing with ``missing="error"``.
        DecompressError, ChecksumError
            If chunks do not decode to what the file promises.
        MemoryLimitError
            If there is not as much memory as the result takes, or `max_output` is less.
        ValueError
            If `out` has another shape or type, or the container is closed.
        """
        array = self._load(name, index, out, device, stream)
        warn(self.warnings, self.report, stacklevel=2)
        return array

    def load_many(
        self, wanted: Mapping[str, Any], *, device: Any = None, stream: Any = None
    ) -> dict[str, Array]:
        """Load several arrays or selections as one batch.

        Parameters
        ----------
        wanted : mapping of str to index
            What of which array, as `load` takes it; ``...`` is all of one.
        device, stream
            Where to; see `load`.

        Returns
        -------
        dict of str to Array
            In the order of `wanted`.

        Raises
        ------
        KeyError, IndexError, GpuloadError, ValueError
            As `load` does for the first that does not load.
        """
        if not isinstance(wanted, Mapping):
            raise TypeError(f"wanted must be a mapping of names, not {type(wanted).__name__}")
        arrays = self._load_all(list(wanted.items()), None, device, stream, Watch())
        warn(self.warnings, self.report, stacklevel=2)
        return dict(zip(wanted, arrays, strict=True))

    def _load(
        self,
        name: str | None,
        index: Any,
        out: Any,
        device: Any,
        stream: Any,
        watch: Watch | None = None,
    ) -> Array:
        name = self._asset(name).name
        return self._load_all([(name, index)], out, device, stream, watch or Watch())[0]

    def stored(self, name: str) -> tuple[int, int, int]:
        """Return the stored bytes of an array, its chunks, and how many of them are missing.

        Asks the store for every chunk.

        Raises
        ------
        KeyError, GpuloadError, OSError
            As `load` does.
        """
        self._check_open()
        asset = self._asset(name)
        plan = self._whole(asset)
        return plan.stored_size, plan.raw_sizes.size, int(plan.missing.sum())

    def verify(self, *, progress: Progress | None = None) -> Report:
        """Decode and check every array on the host, and keep nothing.

        Parameters
        ----------
        progress : callable, optional
            ``progress(decoded bytes, stored bytes)``, called behind each array.

        Returns
        -------
        gpuload.report.Report
            `failures` lists every chunk that is broken, and every array that cannot be loaded.

        Raises
        ------
        GpuloadError, OSError, ValueError
            As `load` does for what is not the matter of a chunk.
        """
        self._check_open()
        reports = []
        for asset in self.assets:
            reports.append(self._verify(asset))
            if progress is not None:
                progress(*(sum(getattr(r, name) for r in reports) for name in _SIZES))
        self.report = joined(reports)
        return self.report

    def _verify(self, asset: ArrayAsset) -> Report:
        try:
            if self._is_left_to_zarr(asset):
                return Report(raw_size=self._by_zarr(asset, ...).nbytes)
            if asset.error:
                return Report(unchecked={asset.name: asset.error})
            return array_load.verify(self._whole(asset), self._options)
        except FormatError as error:
            failure = ChunkFailure(self.name, asset.name, 0, 0, 0, None, None, str(error))
            return Report(failures=[failure])
        except (MemoryLimitError, UnsupportedCodecError) as error:
            return Report(unchecked={asset.name: str(error)})

    def _whole(self, asset: ArrayAsset) -> ArrayPlan:
        """Return the plan for all of an array, nothing of which is kept."""
        selection = Selection(..., asset.lengths)
        self._check_boxes(asset, selection)
        return ArrayPlan(asset, self._index.store, selection, self._options.missing)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ValueError(f"{self.name}: the container is closed; open the file again")

    def _load_all(
        self, wanted: list[tuple[str, Any]], out: Any, device: Any, stream: Any, watch: Watch
    ) -> list[Array]:
        self._check_open()
        watch.reads(self._index.store)
        if any(self._is_left_to_zarr(self._asset(name)) for name, _ in wanted):
            return self._load_by_zarr(wanted, out, device)
        device_id = destination(self._options, out, device)
        on_host = device_id is None and out is None
        plans = [self._plan(name, index, on_host=on_host) for name, index in wanted]
        if device_id is not None:
            return self._load_to_device(plans, device_id, out, stream, watch)
        results = [self._memory(plan, out) for plan in plans]
        flat = [(plan, result.reshape(-1)) for plan, result in zip(plans, results, strict=True)]
        self.report = array_load.load(flat, self._options, watch)
        return [Array(result) for result in results]

    def _load_by_zarr(self, wanted: list[tuple[str, Any]], out: Any, device: Any) -> list[Array]:
        """Let zarr-python decode what gpuload does not know."""
        if destination(self._options, out, device) is not None:
            raise UnsupportedCodecError(
                "on_unsupported='host' loads to host memory only (device='cpu')", source=self.name
            )
        arrays = [self._by_zarr(self._asset(name), index) for name, index in wanted]
        self.report = Report(raw_size=sum(array.nbytes for array in arrays), engine="zarr-python")
        if out is not None:
            np.copyto(out, arrays[0], casting="no")
            return [Array(out)]
        return [Array(array) for array in arrays]

    def _is_left_to_zarr(self, asset: ArrayAsset) -> bool:
        """Return whether zarr-python is to decode an array."""
        host = self._options.on_unsupported == "host"
        return host and bool(asset.error) and self.format == "zarr"

    def _by_zarr(self, asset: ArrayAsset, index: Any) -> npt.NDArray[Any]:
        from gpuload.containers.zarr import load_with_zarr, zarr_array

        store = self._index.store
        if self._options.missing == "error":
            array = zarr_array(store, asset.name)
            missing = array.nchunks - array.nchunks_initialized
            if missing:
                raise FormatError(f"{missing} chunks are missing", source=self._name_of(asset))
        return load_with_zarr(store, asset.name, index)

    def _load_to_device(
        self, plans: list[ArrayPlan], device_id: int, out: Any, stream: Any, watch: Watch
    ) -> list[Array]:
        # Imports cuda.core, which takes a third of a second.
        from gpuload import array_device, driver
        from gpuload.destination import Destination

        with driver.on_device(device_id):
            to = Destination(device_id, out, stream)
            arrays, self.report = array_device.load(plans, self._options, to, watch)
        return list(arrays)

    def _plan(self, name: str, index: Any, *, on_host: bool) -> ArrayPlan:
        asset = self._asset(name)
        selection = Selection(index, asset.lengths)
        self._check_size(asset, selection, on_host=on_host)
        return ArrayPlan(asset, self._index.store, selection, self._options.missing)

    def _check_size(self, asset: ArrayAsset, selection: Selection, *, on_host: bool) -> None:
        """Refuse what is too large before anything is made for it."""
        name = self._name_of(asset)
        size, limit = prod(selection.shape) * asset.dtype.itemsize, self._options.max_output
        if limit is not None and size > limit:
            raise MemoryLimitError(
                f"{name}: {size} bytes are selected, over the limit of {limit}; raise max_output "
                "(--max-output) if you trust it"
            )
        there = available() if on_host else None
        if there is not None and size > there:
            raise MemoryLimitError(
                f"{name}: {size} bytes are selected, there are {there} bytes of memory; select "
                "less of it at a time"
            )
        self._check_boxes(asset, selection)

    def _check_boxes(self, asset: ArrayAsset, selection: Selection) -> None:
        boxes, most = selection.most_boxes(asset.chunk_shape), self._options.memory_limit
        if not asset.error and boxes * _BYTES_A_BOX > most:
            raise MemoryLimitError(
                f"{self._name_of(asset)}: the list of up to {boxes} parts of chunks that are "
                f"selected takes {boxes * _BYTES_A_BOX} bytes, memory_limit is {most}; raise it "
                "(--memory-limit), or select less of it at a time"
            )

    def _name_of(self, asset: ArrayAsset) -> str:
        return f"{self.name}: {asset.name}" if asset.name else self.name

    def _memory(self, plan: ArrayPlan, out: Any) -> npt.NDArray[Any]:
        if out is not None:
            return _checked(out, plan)
        memory = allocate(plan.result_size, plan.name)
        return memory.view(plan.asset.dtype).reshape(plan.selection.shape)

    def _asset(self, name: str | None) -> ArrayAsset:
        if name is None and len(self.assets) == 1:
            return self.assets[0]
        if name is None:
            raise KeyError(f"{self.name} has several arrays, name one of {_some(list(self))}")
        if name not in self._by_name:
            raise KeyError(f"{self.name} has no array {name!r}; it has {_some(list(self))}")
        return self._by_name[name]

    def explain(self) -> list[Explanation]:
        """Return, for each array, which engine would decode it, and why."""
        return [self._explain(asset) for asset in self.assets]

    def _explain(self, asset: ArrayAsset) -> Explanation:
        if self._is_left_to_zarr(asset):
            return Explanation(asset.name, "host", "zarr-python decodes it", "")
        if asset.error:
            return Explanation(asset.name, "none", asset.error, "")
        sums = _checksums(asset)
        device_id = find_device(self._options.device)
        over = passed_over(self._options, device_id)
        engines = [name for name in DEVICE_ENGINES if name not in over]
        if device_id is None or not engines or self._options.engine == "host":
            reason = f"chunks on up to {self._options.thread_count} threads"
            return Explanation(asset.name, "host", reason, sums, over)
        return Explanation(asset.name, *_on_device(asset, engines), sums, over)

    def close(self) -> None:
        """Close the file; what was loaded stays valid."""
        self._closed.set()
        self._index.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpuload.ArrayContainer {self.name!r}: {self.format}, {len(self.assets)} arrays>"


def _checksums(asset: ArrayAsset) -> str:
    """Return which checksums the chunks of an array have."""
    names = {step.name: CHECKSUMS.get(step.name) for step in asset.pipeline.compression}
    found = [name for name in names.values() if name]
    return ", ".join(found) or "its codecs have none"


def _on_device(asset: ArrayAsset, engines: list[str]) -> tuple[str, str]:
    """Return who would decode an array on a device, and why."""
    codecs = {USUAL.get(step.name, Codec.RAW) for step in asset.pipeline.compression}
    known = next((name for name in engines if codecs <= RATED[name]), "")
    if not known:
        return "host", "its codec has no engine on the device; its bytes are copied there"
    return known, "chunks in batches; few of them are decoded by the host"


def _checked(out: Any, plan: ArrayPlan) -> npt.NDArray[Any]:
    """Return memory of the caller's as an array, if a selection fits there exactly."""
    array = np.asarray(out)
    if array.dtype != plan.asset.dtype:
        raise ValueError(f"out has elements of type {array.dtype}, {plan.name} {plan.asset.dtype}")
    if array.shape != plan.selection.shape:
        raise ValueError(
            f"out has the shape {array.shape}, what is selected {plan.selection.shape}"
        )
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("out must be writable and C-contiguous")
    return array


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:10]))
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")
