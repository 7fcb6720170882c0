"""What ``gpuload inspect`` shows of files of arrays."""

from __future__ import annotations

import dataclasses
from math import prod
from typing import TYPE_CHECKING, Any

from gpuload.errors import GpuloadError

from .messages import human_size, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.array_container import ArrayContainer
    from gpuload.container import Explanation
    from gpuload.containers.array import ArrayAsset

__all__ = ["array_lines", "array_record"]

_HEADER = ("name", "dtype", "shape", "chunks", "codecs", "stored", "ratio", "engine")


def array_record(container: ArrayContainer) -> dict[str, Any]:
    """Return the facts under names that do not change."""
    arrays = zip(container.assets, container.explain(), strict=True)
    return {
        "file": container.name,
        "ok": True,
        "format": container.format,
        "stored_size": container.stored_size,
        "raw_size": container.raw_size,
        "arrays": [_record(container, asset, choice) for asset, choice in arrays],
        "details": container.details,
        "warnings": container.warnings,
    }


def _record(container: ArrayContainer, asset: ArrayAsset, choice: Explanation) -> dict[str, Any]:
    stored, chunks, missing, error = _stored(container, asset)
    raw = _raw_size(asset)
    return {
        "name": asset.name,
        "dtype": str(asset.dtype),
        "shape": list(asset.lengths),
        "chunk_shape": list(asset.chunk_shape),
        "codecs": list(asset.codecs),
        "raw_size": raw,
        "stored_size": stored,
        "ratio": round(raw / stored, 4) if stored else None,
        "chunks": chunks,
        "missing_chunks": missing,
        "error": asset.error or error,
        **{k: v for k, v in dataclasses.asdict(choice).items() if k != "asset"},
    }


def _raw_size(asset: ArrayAsset) -> int:
    return prod(asset.lengths) * asset.dtype.itemsize


def _stored(
    container: ArrayContainer, asset: ArrayAsset
) -> tuple[int | None, int | None, int | None, str]:
    """Return stored bytes, chunks, those that are missing, and what is wrong with their index."""
    if asset.error:
        return None, None, None, ""
    try:
        return *container.stored(asset.name), ""
    except GpuloadError as error:
        return None, None, None, str(error)


def array_lines(container: ArrayContainer, *, passed_over: bool) -> Iterator[str]:
    """Yield a table of the arrays, and why some do not load.

    Parameters
    ----------
    container : ArrayContainer
        The open file.
    passed_over : bool
        Whether to say why other engines would not decode them.
    """
    facts = array_record(container)
    size = facts["stored_size"]
    yield f"  format  {container.format}, {plural(len(container.assets), 'array')}" + (
        f", {human_size(size)} stored" if size else ""
    )
    rows = [_HEADER, *(_row(array) for array in facts["arrays"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip()
    for array in facts["arrays"]:
        name = array["name"] or "the array"
        if array["error"] and array["engine"] == "none":
            yield f"  {name}: {array['error']}"
        for engine, why in array["passed_over"].items() if passed_over else ():
            yield f"  {name}: not {engine}: {why}"


def _row(array: dict[str, Any]) -> tuple[str, ...]:
    known = bool(array["codecs"]) or not array["error"]
    failed = array["engine"] == "none"
    return (
        array["name"] or "-",
        array["dtype"] if known else "-",
        _shape(array["shape"]) if known else "-",
        _shape(array["chunk_shape"]) if known else "-",
        ", ".join(array["codecs"]) or "-",
        "-" if array["stored_size"] is None else human_size(array["stored_size"]),
        "-" if array["ratio"] is None else f"{array['ratio']:.2f}",
        "none" if failed else f"{array['engine']}: {array['reason']}",
    )


def _shape(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "()"
