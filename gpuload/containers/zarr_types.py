"""Element types and fill values of Zarr arrays, through zarr-python.

What zarr-python leaves to others is added: the types of ml_dtypes, raw bits, and fill values in
hexadecimal, whose bits are kept.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.containers.zarr_json import shown
from gpuload.errors import FormatError, MissingDependencyError, UnsupportedCodecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.containers.zarr_json import Document

__all__ = ["Elements", "fill_bytes", "parse_elements", "quiet"]

#: Of ml_dtypes, one byte or two an element, by the names that Zarr gives them, too.
_ML_TYPES = frozenset(
    (
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
)
_RAW_BITS = re.compile(r"r([1-9][0-9]{0,9})")
_OBJECTS = (
    "bytes",
    "string",
    "str",
    "variable_length_bytes",
    "variable_length_utf8",
    "vlen-bytes",
    "vlen-utf8",
)
_HEX = re.compile(r"0[xX][0-9a-fA-F]+")
_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_EXPECTED = "a number, 'NaN', 'Infinity', '-Infinity' or '0x...' was expected"
_LARGEST_ELEMENT = 1 << 20
#: Filters of warnings are not thread-safe.
_quiet = threading.Lock()


@dataclass(frozen=True)
class Elements:
    """The elements of an array.

    Attributes
    ----------
    dtype : numpy.dtype
        In the byte order of the host.
    unit : int
        Bytes of what is reversed in the other byte order: of the parts of complex numbers, and of
        the characters of strings; 1 for what has no order; 0 for structures, where each field has
        its own.
    swapped : bool
        Whether they are stored in the other byte order (version 2, where the type says so).
    zarr_type : object
        The data type as zarr-python has it; None for what it leaves to others.
    """

    dtype: np.dtype[Any]
    unit: int
    swapped: bool = False
    zarr_type: Any = None


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out warnings: zarr-python gives them for whatever is not in the specification."""
    with _quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parse_elements(document: Document, key: str, version: int) -> Elements:
    """Return the element type that the metadata of an array names.

    Raises
    ------
    UnsupportedCodecError
        If it is of Python objects, or no type that zarr-python or ml_dtypes have.
    MissingDependencyError
        Without zarr-python, or without ml_dtypes for one of its types.
    FormatError
        If there is none.
    """
    spec = document.require(key)
    if not _is_type(spec, version):
        raise document.error(f"{key!r} is {shown(spec)}, no data type")
    if isinstance(spec, str) and spec in _ML_TYPES:
        return _ml_elements(spec)
    raw = _RAW_BITS.fullmatch(spec) if isinstance(spec, str) and version == 3 else None
    if raw and not int(raw[1]) % 8:
        return _checked(np.dtype(f"V{int(raw[1]) // 8}"), spec, None)
    if _has_objects(spec, version):
        raise UnsupportedCodecError(
            f"elements of type {shown(spec)} are Python objects or strings of any length, not "
            "numbers of a fixed size"
        )
    dtype, zarr_type = _of_zarr(spec, version)
    return _checked(dtype, spec, zarr_type)


def _is_type(spec: Any, version: int) -> bool:
    if version == 2:
        return isinstance(spec, str | list)
    return isinstance(_name(spec), str)


def _name(spec: Any) -> Any:
    """Return the name of a data type; None for structures of version 2."""
    if isinstance(spec, dict):
        return spec.get("name")
    return spec if isinstance(spec, str) else None


def _has_objects(spec: Any, version: int) -> bool:
    name = _name(spec)
    if version == 2:
        return isinstance(name, str) and name.lstrip("|<>=").startswith("O")
    return isinstance(name, str) and name in _OBJECTS


def _ml_elements(name: str) -> Elements:
    try:
        import ml_dtypes
    except ImportError:
        raise MissingDependencyError("ml_dtypes", "zarr", f"elements of type {name}") from None
    scalar = getattr(ml_dtypes, name, None)
    if scalar is None:
        raise UnsupportedCodecError(f"this ml_dtypes has no {name}; a later one is needed")
    dtype = np.dtype(scalar)
    return Elements(dtype, dtype.itemsize)


def _of_zarr(spec: Any, version: Any) -> tuple[np.dtype[Any], Any]:
    try:
        from zarr.dtype import parse_dtype
    except ImportError:
        raise MissingDependencyError("zarr", "zarr", "reading the metadata of Zarr") from None
    if version == 2 and isinstance(spec, str) and re.fullmatch(r"[<>=][iub]1", spec):
        spec = f"|{spec[1:]}"  # as NumPy says it, whoever wrote this
    try:
        with quiet():
            found: Any = parse_dtype(spec, zarr_format=version)
            told: Any = found.to_json(zarr_format=version)
            dtype = found.to_native_dtype()
    except Exception as error:  # of zarr-python and NumPy, for any JSON
        raise _unknown(spec) from error
    # It also takes what NumPy calls its types, which is no metadata.
    if _name(spec) != _name(told["name"] if version == 2 else told):
        raise _unknown(spec)
    return dtype, found


def _unknown(spec: Any) -> UnsupportedCodecError:
    return UnsupportedCodecError(f"elements of type {shown(spec)}, which zarr-python does not have")


def _checked(dtype: np.dtype[Any], spec: Any, zarr_type: Any) -> Elements:
    if dtype.hasobject or dtype.kind not in "biufcmMSUV":
        raise UnsupportedCodecError(f"elements of type {shown(spec)} are Python objects")
    if not 0 < dtype.itemsize <= _LARGEST_ELEMENT or dtype.subdtype is not None:
        raise UnsupportedCodecError(f"elements of type {shown(spec)} have {dtype.itemsize} bytes")
    if dtype.names is not None:
        if not dtype.isnative:
            raise UnsupportedCodecError(f"structures in the other byte order: {shown(spec)}")
        return Elements(dtype, 0, zarr_type=zarr_type)
    parts = {"c": 2, "U": dtype.itemsize // 4, "S": dtype.itemsize, "V": dtype.itemsize}
    unit = dtype.itemsize // parts.get(dtype.kind, 1)
    return Elements(dtype.newbyteorder("="), unit, not dtype.isnative, zarr_type)


def fill_bytes(document: Document, elements: Elements, version: int) -> bytes:
    """Return the fill value of an array as the bytes of an element.

    Raises
    ------
    FormatError
        If it is none of the element type.
    """
    value, dtype = document.data.get("fill_value"), elements.dtype
    if value is None:
        if version == 2:
            return bytes(dtype.itemsize)
        raise document.error("'fill_value' is null or not there")
    try:
        with np.errstate(all="ignore"), quiet():
            filled = _fill(value, elements, version)
    except Exception as error:  # of zarr-python and NumPy, for any JSON
        reason = f"{error}".splitlines()[0][:200] if f"{error}" else type(error).__name__
        message = f"'fill_value' is {shown(value)}, which {dtype} has not: {reason}"
        raise document.error(message) from error
    if len(filled) != dtype.itemsize:
        message = f"'fill_value' is {shown(value)}, of {len(filled)} bytes; {dtype} has others"
        raise document.error(message)
    return filled


def _fill(value: Any, elements: Elements, version: Any) -> bytes:
    dtype = elements.dtype
    if dtype.kind == "c" and version == 2 and not isinstance(value, list):
        value = [value, 0.0]
    if dtype.kind == "c" and isinstance(value, list) and len(value) == 2:
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return b"".join(_number(each, part) for each in value)
    if dtype.kind == "f" or elements.zarr_type is None:
        return _number(value, dtype)
    if version == 2 and value == 0 and not isinstance(value, bool) and dtype.kind in "SUV":
        return bytes(dtype.itemsize)
    if isinstance(value, float) and value.is_integer() and dtype.kind in "iu":
        value = int(value)
    scalar = elements.zarr_type.from_json_scalar(value, zarr_format=version)
    return np.array(scalar, dtype).tobytes()


def _number(value: Any, dtype: np.dtype[Any]) -> bytes:
    """Return a floating-point number, or raw bits (Zarr 3, "Permitted fill values")."""
    if dtype.kind == "V" and dtype.type is np.void:
        return bytes(value) if isinstance(value, list) else _hexadecimal(value, dtype)
    if isinstance(value, str):
        if value not in _NUMBERS:
            return _hexadecimal(value, dtype)
        value = _NUMBERS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(_EXPECTED)
    return np.array(float(value)).astype(dtype).tobytes()


def _hexadecimal(value: Any, dtype: np.dtype[Any]) -> bytes:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise FormatError(_EXPECTED)
    if len(value) != 2 + 2 * dtype.itemsize:
        raise FormatError(f"{2 * dtype.itemsize} hexadecimal digits were expected")
    return int(value, 16).to_bytes(dtype.itemsize, sys.byteorder)
