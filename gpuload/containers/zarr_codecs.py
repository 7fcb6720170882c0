"""Codecs of Zarr arrays as pipelines.

Version 2 has filters and a compressor, all of numcodecs. Version 3 has codecs: from arrays to
arrays, one from arrays to bytes, and from bytes to bytes (Zarr 3, "Codecs"); zarr-python writes
those of numcodecs there as ``numcodecs.*``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from gpuload.containers.shard_index import ShardLevel
from gpuload.containers.zarr_filters import (
    ARRAY_FILTERS,
    COMPRESSIONS,
    Encoding,
    add_numcodec,
    unsupported,
)
from gpuload.containers.zarr_json import Document, shown

if TYPE_CHECKING:
    from gpuload.array_codecs import Pipeline
    from gpuload.containers.zarr_types import Elements

__all__ = ["Translated", "translate_2", "translate_3"]

_PREFIX = "numcodecs."
#: What one byte order is called here, in NumPy and in Zarr 3.
_ORDERS = {"little": "<", "big": ">"}
_NATIVE = _ORDERS[sys.byteorder]
#: Those of numcodecs that Zarr 3 has names for.
_NAMED_3 = frozenset(("gzip", "zstd", "blosc", "crc32c"))
_SHARDS_IN_SHARDS = 8
_LARGEST = 2**62


@dataclass(frozen=True)
class Translated:
    """What the codecs of an array come to.

    Attributes
    ----------
    pipeline : Pipeline
        Of the innermost chunks.
    codecs : tuple of str
        For people, in the order in which they were applied.
    chunk_shape : tuple of int
        Of the innermost chunks.
    levels : tuple of ShardLevel
        The shards that they are in, the outermost first.
    """

    pipeline: Pipeline
    codecs: tuple[str, ...]
    chunk_shape: tuple[int, ...]
    levels: tuple[ShardLevel, ...] = ()


def translate_2(document: Document, elements: Elements, chunk_shape: tuple[int, ...]) -> Translated:
    """Translate filters and compressor of an array of version 2.

    Parameters
    ----------
    document : Document
        The metadata of the array.
    elements : Elements
        Its elements.
    chunk_shape : tuple of int
        Of its chunks.

    Raises
    ------
    UnsupportedCodecError
        For a codec, or an order of codecs, that gpuload does not decode.
    FormatError
        If the metadata is broken.
    """
    encoding = Encoding(chunk_shape, elements.dtype, elements.unit)
    if document.choice("order", ("C", "F"), "C") == "F":
        encoding.transpose(tuple(reversed(range(len(chunk_shape)))))
    encoding.swap(elements.unit if elements.swapped else 1)
    compressor = document.data.get("compressor")
    for entry in [*document.list_of("filters"), *([] if compressor is None else [compressor])]:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise document.error(f"a codec is {shown(entry)}, not an object with an 'id'")
        add_numcodec(encoding, name, Document(f"{document.where}: codec {name!r}", entry))
    return Translated(encoding.pipeline(), tuple(encoding.names), chunk_shape)


def translate_3(
    document: Document, elements: Elements, chunk_shape: tuple[int, ...], depth: int = 0
) -> Translated:
    """Translate the codecs of an array of version 3; see `translate_2`.

    Parameters
    ----------
    document : Document
        The metadata of the array, or the configuration of shards.
    elements, chunk_shape
        Of the array, and of its chunks or shards.
    depth : int
        How many shards the chunks are in.
    """
    encoding = Encoding(chunk_shape, elements.dtype, elements.unit)
    shards: Translated | None = None
    arrays = True
    for entry in document.list_of("codecs"):
        name, given = document.named(entry, "codec")
        if name == "bytes" or name == "sharding_indexed":
            if not arrays:
                raise document.error("two codecs from arrays to bytes, or one behind the bytes")
            arrays = False
            if name == "bytes":
                _to_bytes(encoding, given)
            else:
                shards = _sharding(encoding, given, elements, depth)
        elif arrays:
            _array_codec(encoding, name, given)
        else:
            _bytes_codec(encoding, name, given)
    if arrays:
        raise document.error("no codec from arrays to bytes, such as 'bytes'")
    if shards is None:
        return Translated(encoding.pipeline(), tuple(encoding.names), chunk_shape)
    if encoding.steps:
        raise unsupported(f"shards with other codecs around them ({', '.join(encoding.names)})")
    return shards


def _to_bytes(encoding: Encoding, given: Document) -> None:
    """Take the codec ``bytes``."""
    order = given.choice("endian", ("little", "big", None), None)
    if order is None and encoding.unit != 1:
        raise given.error("no 'endian', which elements of several bytes need")
    if order is None or _ORDERS[order] == _NATIVE or encoding.unit == 1:
        return
    if encoding.unit == 0:
        raise unsupported("structures in the other byte order")
    encoding.names.append(f"bytes({order})")
    encoding.swap(encoding.unit)


def _array_codec(encoding: Encoding, name: str, given: Document) -> None:
    if name == "transpose":
        order = given.lengths("order")
        axes = len(encoding.shape)
        if sorted(order) != list(range(axes)):
            raise given.error(f"'order' is {list(order)}, no order of {axes} axes")
        encoding.names.append(f"transpose{order}" if axes > 1 else "transpose")
        encoding.transpose(order)
    elif name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in ARRAY_FILTERS:
        add_numcodec(encoding, name.removeprefix(_PREFIX), given)
    elif name in _NAMED_3:
        raise given.error("it is before the codec from arrays to bytes")
    else:
        raise unsupported(f"the codec {name!r}")


def _bytes_codec(encoding: Encoding, name: str, given: Document) -> None:
    plain = name.removeprefix(_PREFIX)
    if name == "transpose" or (name != plain and plain in ARRAY_FILTERS):
        raise given.error("it is behind the codec from arrays to bytes")
    known = name in _NAMED_3 if name == plain else plain in (*COMPRESSIONS, "crc32c", "shuffle")
    if not known:
        raise unsupported(f"the codec {name!r}")
    add_numcodec(encoding, plain, given)


def _sharding(encoding: Encoding, given: Document, elements: Elements, depth: int) -> Translated:
    """Take the codec ``sharding_indexed`` (Zarr 3, "Sharding codec")."""
    inner = given.lengths("chunk_shape", 1)
    outer = encoding.shape
    if len(inner) != len(outer) or any(a % b for a, b in zip(outer, inner, strict=True)):
        raise given.error(f"chunks of shape {shown(inner)} do not divide {shown(outer)}")
    if depth == _SHARDS_IN_SHARDS:
        raise unsupported("shards in shards in shards, and so on")
    ratio = tuple(a // b for a, b in zip(outer, inner, strict=True))
    level = _level(given, ratio)
    encoding.names.append("sharding_indexed")
    found = translate_3(given, elements, inner, depth + 1)
    names = (*encoding.names, *found.codecs)
    return Translated(found.pipeline, names, found.chunk_shape, (level, *found.levels))


def _level(given: Document, ratio: tuple[int, ...]) -> ShardLevel:
    if prod(ratio) > _LARGEST // 16:
        raise given.error(f"{prod(ratio)} chunks in a shard")
    at_start = given.choice("index_location", ("start", "end"), "end") == "start"
    codecs = [given.named(entry, "codec") for entry in given.list_of("index_codecs")]
    names = [name for name, _ in codecs]
    if not names:
        raise given.error("no 'index_codecs'")
    if names not in (["bytes"], ["bytes", "crc32c"]):
        raise unsupported(f"a shard index with the codecs {', '.join(names)}")
    order = codecs[0][1].choice("endian", ("little", "big"), None)
    return ShardLevel(ratio, at_start, len(names) == 2, _ORDERS[order])
