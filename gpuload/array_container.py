"""An open file of arrays: look into it, select from it, load it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Self

from gpuload import array_load
from gpuload.array_checks import Selected, check_size, list_chunks, on_device, on_host
from gpuload.array_explain import explain
from gpuload.array_plan import ArrayPlan
from gpuload.arrays import Array
from gpuload.container import Explanation, destination, warn
from gpuload.errors import (
    ChunkFailure,
    FormatError,
    MemoryLimitError,
    UnsupportedCodecError,
)
from gpuload.host_memory import allocate
from gpuload.report import Report, joined
from gpuload.selection import Selection
from gpuload.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from gpuload.containers.array import ArrayAsset, ArrayIndex
    from gpuload.options import Options
    from gpuload.pipeline import Progress

__all__ = ["ArrayContainer", "LazyArray"]

#: What `Report` has of the bytes of a load.
_SIZES = ("raw_size", "stored_size")


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
        return self._container._load_and_warn(self.name, index, None, None, None)

    def load(
        self, index: Any = ..., *, out: Any = None, device: Any = None, stream: Any = None
    ) -> Array:
        """Load a selection; see `ArrayContainer.load`."""
        return self._container._load_and_warn(self.name, index, out, device, stream)

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
            integer arrays, and tuples of these. Only the chunks that are needed are read. Points
            that arrays choose are listed: up to 64 bytes each, also beyond `memory_limit`.
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
        IndexError, TypeError
            As NumPy does for an index that it refuses; TypeError also if `out` is no array.
        UnsupportedCodecError
            If the array has a codec or a type that is not supported; the message names it.
        FormatError
            If metadata and chunks disagree, or a chunk is missing with ``missing="error"``.
        DecompressError, ChecksumError
            If chunks do not decode to what the file promises.
        MemoryLimitError
            If there is not as much memory as the result takes, or the list of its chunks or points,
            or `max_output` is less.
        ValueError
            If `out` has another shape or type, or is not contiguous or writable, or the container
            is closed.
        """
        return self._load_and_warn(name, index, out, device, stream)

    def _load_and_warn(
        self, name: str | None, index: Any, out: Any, device: Any, stream: Any
    ) -> Array:
        """Load for a caller of the method that calls this one."""
        array = self._load(name, index, out, device, stream)
        warn(self.warnings, self.report, stacklevel=3)
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
        KeyError, IndexError, TypeError, GpuloadError, ValueError
            As `load` does for the first that does not load; MemoryLimitError also if all results
            together are too large.
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
        plan = self._plan(self._known(self._asset(name), ...), new=False)
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
        if asset.error and not self._is_left_to_zarr(asset):
            return Report(unchecked={asset.name: asset.error})
        try:
            whole = self._selected(asset, ...)
            if whole.foreign is not None:
                return self._load_foreign(whole, None, Watch(), new=False)
            return array_load.verify(self._plan(whole, new=False), self._options)
        except FormatError as error:
            failure = ChunkFailure(self.name, asset.name, 0, 0, 0, None, None, str(error))
            return Report(failures=[failure])
        except (MemoryLimitError, UnsupportedCodecError) as error:
            return Report(unchecked={asset.name: str(error)})

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ValueError(f"{self.name}: the container is closed; open the file again")

    def _load_all(
        self, wanted: list[tuple[str, Any]], out: Any, device: Any, stream: Any, watch: Watch
    ) -> list[Array]:
        self._check_open()
        watch.reads(self._index.store)
        selected = [self._selected(self._asset(name), index) for name, index in wanted]
        device_id = destination(self._options, out, device)
        check_size(selected, self._options, new=device_id is None and out is None)
        if device_id is not None:
            return self._load_to_device(selected, device_id, out, stream, watch)
        if out is not None:
            results = [on_host(out, each) for each in selected]
        else:
            results = [_memory(each) for each in selected]
        self.report = self._load_to_host(selected, results, watch, new=out is None)
        return [Array(result) for result in results]

    def _load_to_host(
        self,
        selected: list[Selected],
        results: list[npt.NDArray[Any]],
        watch: Watch,
        *,
        new: bool,
    ) -> Report:
        pairs = [(each, result.reshape(-1)) for each, result in zip(selected, results, strict=True)]
        plans = [(self._plan(each, new=new), flat) for each, flat in pairs if each.foreign is None]
        reports = [array_load.load(plans, self._options, watch)] if plans or not pairs else []
        reports += [
            self._load_foreign(each, flat, watch, new=new)
            for each, flat in pairs
            if each.foreign is not None
        ]
        report = reports[0] if len(reports) == 1 else joined(reports)
        report.engine = ", ".join(sorted({each.engine for each in reports}))
        return report

    def _load_to_device(
        self, selected: list[Selected], device_id: int, out: Any, stream: Any, watch: Watch
    ) -> list[Array]:
        # Imports cuda.core, which takes a third of a second.
        from gpuload import array_device, driver
        from gpuload.destination import Destination

        if any(each.foreign for each in selected):
            raise UnsupportedCodecError(
                "on_unsupported='host' loads to host memory only (device='cpu')", source=self.name
            )
        plans = [self._plan(each, new=False) for each in selected]
        with driver.on_device(device_id):
            given = None if out is None else on_device(out, selected[0].asset.dtype)
            to = Destination(device_id, given, stream)
            arrays, self.report = array_device.load(plans, self._options, to, watch)
        return list(arrays)

    def _selected(self, asset: ArrayAsset, index: Any) -> Selected:
        if not self._is_left_to_zarr(asset):
            return self._known(asset, index)
        from gpuload.array_foreign import ForeignArray

        name = self._name_of(asset)
        foreign = ForeignArray(self._index.store, asset.name, name)
        return Selected(name, foreign.dtype, Selection(index, foreign.shape), asset, foreign)

    def _known(self, asset: ArrayAsset, index: Any) -> Selected:
        """Return a selection that gpuload itself loads."""
        if asset.error:
            raise UnsupportedCodecError(asset.error, source=self._name_of(asset))
        selection = Selection(index, asset.lengths)
        return Selected(self._name_of(asset), asset.dtype, selection, asset)

    def _name_of(self, asset: ArrayAsset) -> str:
        return f"{self.name}: {asset.name}" if asset.name else self.name

    def _is_left_to_zarr(self, asset: ArrayAsset) -> bool:
        """Return whether zarr-python is to decode an array."""
        if self._options.on_unsupported != "host" or self.format != "zarr" or not asset.error:
            return False
        from gpuload.containers.zarr_host import is_foreign

        return is_foreign(self._index.store, asset)

    def _plan(self, selected: Selected, *, new: bool) -> ArrayPlan:
        """Return the plan for a selection, for which maybe host memory is taken."""
        list_chunks(selected, self._options, new=new)
        return ArrayPlan(
            selected.asset, self._index.store, selected.selection, self._options.missing
        )

    def _load_foreign(self, selected: Selected, out: Any, watch: Watch, *, new: bool) -> Report:
        assert selected.foreign is not None
        list_chunks(selected, self._options, new=new)
        return selected.foreign.load(selected.selection, out, self._options, watch)

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
        return [
            Explanation(asset.name, "host", "zarr-python decodes it", "")
            if self._is_left_to_zarr(asset)
            else explain(asset, self._options)
            for asset in self.assets
        ]

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


def _memory(selected: Selected) -> npt.NDArray[Any]:
    """Return new memory for a selection."""
    memory = allocate(selected.size, selected.name)
    return memory.view(selected.dtype).reshape(selected.selection.shape)


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:10]))
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")
