"""Metadata of Zarr arrays, as the specifications of version 2 and 3 have it."""

from __future__ import annotations

import json

__all__ = ["document_2", "document_3", "sharded", "written"]


def document_2(dtype, fill, **more):
    return {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [2],
        "dtype": dtype,
        "fill_value": fill,
        "order": "C",
        "filters": None,
        "compressor": None,
    } | more


def document_3(dtype, fill, **more):
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    } | more


def written(folder, document):
    folder.mkdir(exist_ok=True)
    name = "zarr.json" if document.get("zarr_format") == 3 else ".zarray"
    (folder / name).write_text(json.dumps(document))
    return folder


def sharded(
    chunk_shape, codecs=None, *, index=("bytes", "crc32c"), location="end", endian="little"
):
    """Return the codec ``sharding_indexed``."""
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    first = {"name": "bytes", "configuration": {"endian": endian}}
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunk_shape),
            "codecs": codecs or [little],
            "index_codecs": [first if name == "bytes" else {"name": name} for name in index],
            "index_location": location,
        },
    }
