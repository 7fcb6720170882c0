"""Zarr arrays and groups, of the versions 2 and 3 of the format.

Element types and fill values are read by zarr-python; chunks are not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.containers.array import ArrayAsset, ArrayIndex
from gpuload.containers.shards import ChunkKeys, KeyGrid, ShardGrid
from gpuload.containers.zarr_codecs import translate_2, translate_3
from gpuload.containers.zarr_host import load_with_zarr, zarr_array
from gpuload.containers.zarr_json import Document, shown
from gpuload.containers.zarr_nodes import METADATA, Node, hierarchy
from gpuload.containers.zarr_types import fill_bytes, parse_elements
from gpuload.errors import FormatError, MissingDependencyError, UnsupportedCodecError
from gpuload.sources import open_source
from gpuload.sources.stores import Store

if TYPE_CHECKING:
    from gpuload.options import Options

__all__ = ["is_zarr", "load_with_zarr", "open_store", "read", "zarr_array"]

_LARGEST = 2**63 - 1
#: What the metadata of an array of version 3 has.
_KNOWN = frozenset(
    (
        "zarr_format",
        "node_type",
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
        "attributes",
        "storage_transformers",
        "dimension_names",
        "consolidated_metadata",
    )
)


def open_store(source: str | os.PathLike[str], options: Options | None = None) -> Store:
    """Return the store of a folder, of a URL of one, or of a zip file.

    Raises
    ------
    OSError, GpuloadError
        As opening it does.
    """
    from gpuload.containers.zip_store import ZipStore
    from gpuload.sources.folder_store import FolderStore
    from gpuload.sources.fsspec_store import FsspecStore

    if isinstance(source, str) and "://" in source and not source.endswith(".zip"):
        return FsspecStore(source)
    if os.path.isdir(source):  # noqa: PTH112
        return FolderStore(source)
    opened = open_source(source)
    try:
        return ZipStore(opened, options)
    except BaseException:
        opened.close()
        raise


def is_zarr(source: Store | str | os.PathLike[str]) -> bool:
    """Return whether a store, or what is at a path, has the metadata of a Zarr array or group.

    Raises
    ------
    OSError, GpuloadError
        If it cannot be looked into.
    """
    if isinstance(source, Store):
        return bool((source.sizes(METADATA) >= 0).any())
    with open_store(source) as store:
        return is_zarr(store)


def read(source: Store | str | os.PathLike[str], options: Options) -> ArrayIndex:
    """Read the metadata of a Zarr array or group.

    Parameters
    ----------
    source : Store, str or os.PathLike
        Where it is; a store belongs to the index from now on.
    options : Options
        `memory_limit` bounds the metadata, and the indexes of shards.

    Returns
    -------
    ArrayIndex
        The arrays by their paths; the name of a root that is an array is empty. Those of a group
        that are broken, or have codecs or elements that gpuload does not know, have an error.

    Raises
    ------
    FormatError
        If the root is no group or array, or broken.
    MissingDependencyError
        Without zarr-python.
    OSError, GpuloadError
        As reading does.
    """
    if not isinstance(source, Store):
        store = open_store(source, options)
        try:
            return read(store, options)
        except BaseException:
            store.close()
            raise
    found = hierarchy(source, options)
    assets = [_asset(source, node, options) for node in found.nodes]
    details: dict[str, Any] = {"zarr_format": found.version, "consolidated": found.consolidated}
    return ArrayIndex("zarr", source, assets, None, details, found.warnings)


def _asset(store: Store, node: Node, options: Options) -> ArrayAsset:
    """Return an array; with an error if it is broken and not the root."""
    if node.document is None:
        return _broken(node.name, node.error)
    try:
        return _known(store, node.name, node.document, options)
    except FormatError as error:
        if not node.name:
            raise
        return _broken(node.name, f"{error}")


def _broken(name: str, error: str) -> ArrayAsset:
    return ArrayAsset(name, np.dtype(np.uint8), (0,), (1,), error=error)


@dataclass(frozen=True)
class _Layout:
    """Shape and chunks, and how the objects of chunks are called."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    keys: ChunkKeys
    type_key: str
    version: int


def _known(store: Store, name: str, document: Document, options: Options) -> ArrayAsset:
    """Return an array, with an error if it takes what gpuload does not have."""
    version = document.choice("zarr_format", (2, 3), None)
    prefix = f"{name}/" if name else ""
    asset = ArrayAsset(name, np.dtype(object), ())
    try:
        layout = _layout_2(document, prefix) if version == 2 else _layout_3(document, prefix)
        _check(document, layout)
        asset = replace(asset, shape=layout.shape, chunk_shape=layout.chunks)
        elements = parse_elements(document, layout.type_key, version)
        asset = replace(asset, dtype=elements.dtype)
        _check_size(document, layout, elements.dtype.itemsize)
        asset = replace(asset, fill=fill_bytes(document, elements, version))
        translate = translate_2 if version == 2 else translate_3
        found = translate(document, elements, layout.chunks)
    except (UnsupportedCodecError, MissingDependencyError) as error:
        if isinstance(error, MissingDependencyError) and error.library == "zarr":
            raise
        return replace(asset, error=f"{error}")
    keys, levels = layout.keys, found.levels
    grid = ShardGrid(store, keys, levels, options.memory_limit) if levels else KeyGrid(store, keys)
    return replace(
        asset,
        chunk_shape=found.chunk_shape,
        pipeline=found.pipeline,
        codecs=found.codecs,
        grid=grid,
    )


def _layout_2(document: Document, prefix: str) -> _Layout:
    separator = document.choice("dimension_separator", (".", "/"), ".")
    shape, chunks = document.lengths("shape"), document.lengths("chunks", 1)
    document.require("compressor")
    return _Layout(shape, chunks, ChunkKeys(prefix, separator, "0"), "dtype", 2)


def _layout_3(document: Document, prefix: str) -> _Layout:
    document.choice("node_type", ("array",), None)
    _check_extensions(document)
    kind, grid = document.named(document.require("chunk_grid"), "chunk grid")
    shape = document.lengths("shape")
    if kind != "regular":
        raise UnsupportedCodecError(f"a chunk grid {kind!r}; gpuload reads 'regular' ones")
    document.require("codecs")
    keys = _keys(document, prefix)
    return _Layout(shape, grid.lengths("chunk_shape", 1), keys, "data_type", 3)


def _check_extensions(document: Document) -> None:
    """Refuse what must be understood (Zarr 3, "Extensions"), and storage transformers."""
    if document.list_of("storage_transformers"):
        raise UnsupportedCodecError("storage transformers, of which gpuload knows none")
    for key, value in document.data.items():
        optional = isinstance(value, dict) and value.get("must_understand") is False
        if key not in _KNOWN and not optional:
            raise UnsupportedCodecError(f"an extension {shown(key)} that must be understood")


def _keys(document: Document, prefix: str) -> ChunkKeys:
    """Return how the objects of chunks are called (Zarr 3, "Chunk key encoding")."""
    given = document.require("chunk_key_encoding")
    kind, encoding = document.named(given, "chunk key encoding")
    if kind == "default":
        separator = encoding.choice("separator", ("/", "."), "/")
        start = separator if document.require("shape") else ""
        return ChunkKeys(f"{prefix}c{start}", separator, "")
    if kind == "v2":
        return ChunkKeys(prefix, encoding.choice("separator", ("/", "."), "."), "0")
    raise UnsupportedCodecError(f"a chunk key encoding {kind!r}; gpuload reads 'default' and 'v2'")


def _check(document: Document, layout: _Layout) -> None:
    shape, chunks = layout.shape, layout.chunks
    if len(shape) != len(chunks):
        raise document.error(f"{len(shape)} axes, and chunks of {len(chunks)}")
    names = document.data.get("dimension_names") if layout.version == 3 else None
    if names is not None and (not isinstance(names, list) or len(names) != len(shape)):
        raise document.error(f"'dimension_names' is {shown(names)}, not {len(shape)} names")


def _check_size(document: Document, layout: _Layout, itemsize: int) -> None:
    for what, lengths in (("array", layout.shape), ("chunk", layout.chunks)):
        # NumPy multiplies all lengths but zeros.
        if prod(length for length in lengths if length) * itemsize > _LARGEST:
            raise document.error(
                f"the shape {shown(lengths)} of an {what} is of 2^63 bytes or more"
            )
