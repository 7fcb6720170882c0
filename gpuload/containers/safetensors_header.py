"""The header of safetensors files: JSON, which says where tensors are (the format's README).

Checked is what the safetensors library checks: the tensors fill the file without holes or overlaps,
and each has the bytes that its type and shape ask for.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.containers.raw_chunks import shape_error
from gpuload.errors import MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = [
    "METADATA",
    "ML_DTYPES",
    "NUMPY",
    "PACKED",
    "Tensor",
    "check_memory",
    "parse",
    "read_header",
]

_LENGTH = 8
#: Most bytes of a header, as the library has it.
_HEADER_LIMIT = 100_000_000
#: Bytes of memory for each byte of JSON that is parsed.
_BYTES_A_BYTE = 8
#: The name in the header that is no tensor.
METADATA = "__metadata__"

#: Types by what NumPy and ml_dtypes call them.
NUMPY = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "u2",
    "I16": "i2",
    "F16": "f2",
    "U32": "u4",
    "I32": "i4",
    "F32": "f4",
    "U64": "u8",
    "I64": "i8",
    "F64": "f8",
    "C64": "c8",
}
ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
#: Types whose elements share bytes, and their bits.
PACKED = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


@dataclass(frozen=True)
class Tensor:
    """What the header says of a tensor; offsets are in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(source: Source, options: Options) -> tuple[list[Tensor], dict[str, str]]:
    """Return the tensors of a file in the order of their bytes, and its metadata.

    Raises
    ------
    FormatError
        If the header is broken, or does not fit the file.
    MemoryLimitError
        If it takes more than `memory_limit`.
    """
    length = int.from_bytes(source.peek_exact(0, _LENGTH), "little")
    if length > _HEADER_LIMIT:
        raise source.broken(0, f"a header of {length} bytes; {_HEADER_LIMIT} are the limit")
    check_memory(source, min(length, source.size), options)
    text = source.peek_exact(_LENGTH, length)
    if not text.startswith(b"{"):
        raise source.broken(_LENGTH, f"a header starts with '{{', not with {text[:4]!r}")
    header = parse(source, text, _LENGTH)
    metadata = _strings(source, header.pop(METADATA, {}))
    tensors = [_tensor(source, name, entry, length) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    _check_ranges(source, tensors, _LENGTH + length)
    return tensors, metadata


def check_memory(source: Source, length: int, options: Options) -> None:
    """Raise a MemoryLimitError if parsing so many bytes of JSON may take too much memory."""
    if length * _BYTES_A_BYTE > max(options.memory_limit, 1 << 20):
        raise MemoryLimitError(
            f"{source.name}: parsing {length} bytes of JSON takes more than memory_limit "
            f"({options.memory_limit} bytes); raise it (--memory-limit)"
        )


def parse(source: Source, text: bytes, offset: int) -> dict[str, Any]:
    """Return the JSON object that a text is."""
    try:
        found = json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise source.broken(offset + error.start, "the header is no UTF-8") from None
    except RecursionError:
        raise source.broken(offset, "the header is JSON that nests too deeply") from None
    except ValueError as error:
        raise source.broken(offset, f"the header is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise source.broken(offset, "the header is no JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {twice!r} is there twice")
    "".join(found).encode()  # fails for halves of surrogate pairs, which are no names
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _strings(source: Source, metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise source.broken(_LENGTH, f"{METADATA} is no object of strings")
    return metadata


def _tensor(source: Source, name: str, entry: Any, length: int) -> Tensor:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise source.broken(_LENGTH, f"tensor {name!r}: no object with a dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise source.broken(
            _LENGTH, f"tensor {name!r}: its shape and data_offsets are no lists of sizes"
        )
    start, end = (_LENGTH + length + offset for offset in offsets)
    tensor = Tensor(name, entry["dtype"], tuple(shape), start, end)
    if error := _size_error(tensor):
        raise source.broken(_LENGTH, f"tensor {name!r}: {error}")
    return tensor


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**63 for value in values
    )


def _size_error(tensor: Tensor) -> str:
    bits = _bits(tensor.dtype)
    if error := shape_error(tensor.shape, (bits or 8) // 8):
        return error
    there, wanted = (tensor.end - tensor.start) * 8, prod(tensor.shape) * (bits or 0)
    if bits and there != wanted:
        return (
            f"its shape {list(tensor.shape)} of {tensor.dtype} takes {wanted / 8:.15g} bytes, its "
            f"data_offsets are {there // 8} apart"
        )
    return ""


def _bits(dtype: str) -> int | None:
    """Return the bits of an element; None for a type that is not known."""
    if dtype in ML_DTYPES:
        return 16 if dtype == "BF16" else 8
    return np.dtype(NUMPY[dtype]).itemsize * 8 if dtype in NUMPY else PACKED.get(dtype)


def _check_ranges(source: Source, tensors: Sequence[Tensor], data: int) -> None:
    """Check that tensors fill a file from `data` to its end."""
    end = data
    for tensor in tensors:
        if tensor.start != end or tensor.end < tensor.start:
            raise source.broken(
                tensor.start,
                f"tensor {tensor.name!r} is at bytes {tensor.start} to {tensor.end}, the one "
                f"before ends at {end}: there may be no holes and no overlaps",
            )
        end = tensor.end
    if end > source.size:
        raise source.truncated(source.size, end - source.size)
    if end < source.size:
        raise source.broken(end, f"{source.size - end} bytes behind the last tensor")
