"""safetensors files: a header of JSON, and raw tensors; one of them, or several with an index.

Nothing but headers is read: a tensor is where its header says (`safetensors_header`).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.containers.array import ArrayAsset, ArrayIndex
from gpuload.containers.raw_chunks import RawGrid, chunk_shape
from gpuload.containers.safetensors_header import (
    METADATA,
    ML_DTYPES,
    NUMPY,
    PACKED,
    check_memory,
    parse,
    read_header,
)
from gpuload.errors import FormatError, MissingDependencyError
from gpuload.sources.listing import is_inside
from gpuload.sources.local import LocalFile
from gpuload.sources.single_store import FilesStore, SourceStore

if TYPE_CHECKING:
    import os

    from gpuload.containers.safetensors_header import Tensor
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = ["read", "read_many"]

#: Characters of a file's name that messages show.
_LONG_NAME = 200


def read(source: Source, options: Options) -> ArrayIndex:
    """Read the header of a safetensors file.

    Parameters
    ----------
    source : Source
        The file; belongs to the index from now on.
    options : Options
        `memory_limit` bounds the header.

    Returns
    -------
    ArrayIndex
        Tensors in the order of their bytes; those of a type that NumPy cannot have, an error.
        ``__metadata__`` is in the details.

    Raises
    ------
    FormatError
        If the header is broken, or does not fit the file.
    MemoryLimitError
        If the header takes more than `memory_limit`.
    """
    tensors, metadata = read_header(source, options)
    assets = [_asset(tensor) for tensor in tensors]
    details = {METADATA: metadata} if metadata else {}
    return ArrayIndex("safetensors", SourceStore(source), assets, source.size, details)


# --- Tensors --------------------------------------------------------------------------------------


def _asset(tensor: Tensor, key: str = "") -> ArrayAsset:
    try:
        dtype = _dtype(tensor.dtype)
    except MissingDependencyError as error:
        return _broken(tensor.name, str(error))
    if dtype is None:
        return _broken(tensor.name, _refusal(tensor.dtype))
    chunks = chunk_shape(tensor.shape, dtype.itemsize)
    grid = RawGrid(tensor.start, tensor.shape, chunks, dtype.itemsize, key=key)
    return ArrayAsset(tensor.name, dtype, tensor.shape, chunk_shape=chunks, clipped=True, grid=grid)


def _broken(name: str, error: str) -> ArrayAsset:
    return ArrayAsset(name, np.dtype(np.uint8), (0,), (1,), error=error)


def _refusal(dtype: str) -> str:
    if dtype in PACKED:
        return f"elements of type {dtype} share bytes, which arrays cannot have"
    return f"elements of type {dtype!r}, which gpuload does not know"


def _dtype(name: str) -> np.dtype[Any] | None:
    if name in NUMPY:
        return np.dtype(NUMPY[name])
    if name not in ML_DTYPES:
        return None
    try:
        import ml_dtypes
    except ImportError:
        raise MissingDependencyError("ml_dtypes", "arrays", f"a tensor of type {name}") from None
    # Older versions lack some of them.
    found = getattr(ml_dtypes, ML_DTYPES[name], None)
    return None if found is None else np.dtype(found)


# --- Several files --------------------------------------------------------------------------------


def read_many(index_json_path: str | os.PathLike[str], options: Options) -> ArrayIndex:
    """Read the headers of the files that a Hugging Face ``*.safetensors.index.json`` names.

    Parameters
    ----------
    index_json_path : str or os.PathLike
        The index; the files are in its folder.
    options : Options
        `memory_limit` bounds the index and each header.

    Returns
    -------
    ArrayIndex
        The tensors that the index names, in its order. Those whose file is not there or broken, or
        does not have them, have an error.

    Raises
    ------
    FormatError
        If the index is broken, or names a file outside of its folder.
    OSError
        If it cannot be read.
    MemoryLimitError, MissingDependencyError
        As `read` does.
    """
    path = str(Path(index_json_path))
    weight_map, metadata = _read_index(path, options)
    folder = Path(path).parent
    shards = {file: _Shard(folder, file, options) for file in dict.fromkeys(weight_map.values())}
    store = FilesStore(folder, name=path)
    assets = [shards[file].asset(name) for name, file in weight_map.items()]
    details = {"files": list(shards), **({"metadata": metadata} if metadata else {})}
    size = sum(shard.size for shard in shards.values())
    index = ArrayIndex("safetensors", store, assets, size, details)
    index.warnings += _extra(path, shards, weight_map)
    return index


def _extra(path: str, shards: dict[str, _Shard], weight_map: dict[str, str]) -> list[str]:
    """Return warnings about tensors that the index does not name."""
    named = defaultdict(set)
    for name, file in weight_map.items():
        named[file].add(name)
    counts = {file: len(shard.tensors.keys() - named[file]) for file, shard in shards.items()}
    return [
        f"{path}: {count} tensors of {file} are not in weight_map; ignored"
        for file, count in counts.items()
        if count
    ]


def _read_index(path: str, options: Options) -> tuple[dict[str, str], Any]:
    with LocalFile(path) as file:
        check_memory(file, file.size, options)
        index = parse(file, file.peek(0, file.size), 0)
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict):
            raise file.broken(0, "no object weight_map, with the file of each tensor")
        for name, shard in weight_map.items():
            if not isinstance(shard, str) or not _is_inside(shard):
                raise file.broken(
                    0,
                    f"weight_map: tensor {_shown(repr(name))} is in {_shown(repr(shard))}; the "
                    "name of a file in the same folder was expected",
                )
    return weight_map, index.get("metadata")


def _is_inside(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return is_inside("/".join(part for part in parts if part != ".")) and name[1:2] != ":"


def _shown(name: str) -> str:
    return name if len(name) <= _LONG_NAME else f"{name[:_LONG_NAME]}..."


class _Shard:
    """One of several files: its tensors by name, or what is wrong with it."""

    def __init__(self, folder: Path, file: str, options: Options) -> None:
        self._file, self._error, self.size = file, "", 0
        self.tensors: dict[str, Tensor] = {}
        try:
            with LocalFile(folder / file) as source:
                self.size = source.size
                self.tensors = {t.name: t for t in read_header(source, options)[0]}
        except OSError as error:
            self._error = f"{_shown(file)} cannot be read: {error.strerror or error}"
        except FormatError as error:
            self._error = f"{error}"

    def asset(self, name: str) -> ArrayAsset:
        if self._error:
            return _broken(name, self._error)
        if name not in self.tensors:
            file = _shown(self._file)
            return _broken(name, f"weight_map says that it is in {file}, which lacks it")
        return _asset(self.tensors[name], self._file)
