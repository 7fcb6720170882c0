"""DLPack capsules of device memory.

cuda.core's own capsules ignore the consumer's stream and cannot name bf16 or fp8. A capsule needs
a destructor in C, which may run at any time, so NumPy makes one here (of an array that nobody
reads), and the fields that NumPy has no words for are set afterwards (DLPack, ``DLTensor``).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

__all__ = ["CUDA", "capsule"]

#: ``kDLCUDA``
CUDA = 2
#: ``DLDataTypeCode`` by NumPy kind; ml_dtypes' types by name.
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}

#: A type of NumPy's for each size that elements have.
_STAND_INS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}

# A prototype of our own: argument types set on ctypes.pythonapi would be everybody's.
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """``DLTensor``, with which a ``DLManagedTensor`` starts."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Memory:
    """Memory to NumPy (its array interface, version 3), which keeps the owner of it."""

    def __init__(self, address: int, shape: tuple[int, ...], itemsize: int, owner: object) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(_STAND_INS[itemsize]).str,
            "shape": shape,
            "data": (address or 1, False),
        }


def capsule(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device_id: int, owner: object
) -> Any:
    """Return a capsule of C-contiguous device memory.

    Parameters
    ----------
    address : int
        Of the first element.
    shape : tuple of int
        Elements along each axis.
    dtype : numpy.dtype
        Element type, also one of ml_dtypes.
    device_id : int
        CUDA device.
    owner : object
        Kept alive until the consumer is done with the memory.

    Raises
    ------
    BufferError
        If DLPack has no name for the element type.
    """
    data_type = _data_type(dtype)
    stand_in = np.asarray(_Memory(address, shape, dtype.itemsize, owner))
    made = stand_in.__dlpack__()
    tensor = _Tensor.from_address(_get_pointer(made, b"dltensor"))
    tensor.data = address
    tensor.device = _Device(CUDA, device_id)
    tensor.dtype = data_type
    tensor.strides = None
    tensor.byte_offset = 0
    return made


def _data_type(dtype: np.dtype[Any]) -> _DataType:
    code = _NAMES.get(dtype.name, _KINDS.get(dtype.kind))
    if code is None or not dtype.isnative or dtype.itemsize not in _STAND_INS:
        raise BufferError(f"DLPack has no name for elements of type {dtype}")
    return _DataType(code, 8 * dtype.itemsize, 1)
