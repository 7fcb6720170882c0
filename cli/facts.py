"""The facts that ``gpuload inspect`` shows, for programs and for people."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.chunks import Checksum, Codec

from .messages import human_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import IntEnum

    import numpy.typing as npt

    from gpuload.container import Container

    Column = npt.NDArray[np.integer[Any]]

__all__ = ["labelled", "record"]


def record(container: Container) -> dict[str, Any]:
    """Return the facts under names that do not change."""
    raw_size = container.raw_size
    kinds = np.concatenate([container.chunks["checksum_kind"], container.spans["checksum_kind"]])
    return {
        "file": container.name,
        "ok": True,
        "format": container.format,
        "stored_size": container.stored_size,
        "raw_size": raw_size,
        "raw_bound": container.raw_bound,
        "ratio": round(raw_size / container.stored_size, 4) if raw_size else None,
        "chunk_count": len(container.chunks),
        "codecs": _kinds(Codec, container.chunks["codec"]),
        "checksums": _kinds(Checksum, kinds[kinds != Checksum.NONE]),
        "batchable": container.batchable,
        "serial": container.serial,
        "engines": [dataclasses.asdict(choice) for choice in container.explain()],
        "details": container.details,
        "warnings": container.warnings,
    }


def labelled(container: Container, *, passed_over: bool) -> Iterator[tuple[str, str]]:
    """Yield the facts as label and text.

    Parameters
    ----------
    container : Container
        The open file.
    passed_over : bool
        Whether to say why other engines would not decode it.
    """
    yield "format", container.format
    yield "stored size", _size(container.stored_size)
    raw_size = container.raw_size
    if raw_size is None:
        yield "raw size", f"not stated; at most {_size(container.raw_bound)}"
    else:
        yield "raw size", _size(raw_size)
    if raw_size:
        yield "ratio", f"{raw_size / container.stored_size:.2f}"
    yield "chunks", f"{len(container.chunks):,}"
    yield "codecs", ", ".join(_kinds(Codec, container.chunks["codec"])) or "none"
    yield "batchable", "yes" if container.batchable else f"no: {container.serial}"
    yield from _engine_facts(container, passed_over=passed_over)
    for name, value in container.details.items():
        if text := _plain(value):
            yield name.replace("_", " "), text


def _engine_facts(container: Container, *, passed_over: bool) -> Iterator[tuple[str, str]]:
    for choice in container.explain():
        yield "checksums", choice.checksums
        yield "engine", f"{choice.engine}: {_singular(choice.reason)}"
        for engine, why in choice.passed_over.items() if passed_over else ():
            yield "", f"not {engine}: {why}"


def _singular(text: str) -> str:
    return re.sub(r"\b1 (independent chunk|thread)s\b", r"1 \1", text)


def _size(size: int) -> str:
    return f"{size:,} bytes ({human_size(size)})" if size >= 1024 else f"{size} bytes"


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return str(value)


def _kinds(names: type[IntEnum], column: Column) -> dict[str, int]:
    """Count the values of a column, by name."""
    values, numbers = np.unique(column, return_counts=True)
    counted = zip(values.tolist(), numbers.tolist(), strict=True)
    return {names(value).name.lower(): number for value, number in counted}
