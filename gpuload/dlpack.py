"""DLPack capsules of device memory.

cuda.core's own capsules ignore the consumer's stream and cannot name bf16 or fp8, so these are
built here (DLPack 0.8 layout, ``DLManagedTensor``; Python protocol of the array API standard).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CUDA", "capsule"]

#: ``kDLCUDA``
CUDA = 2
#: ``DLDataTypeCode`` by NumPy kind; ml_dtypes' types by name.
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
_NAME = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    _fields_ = [
        ("tensor", _Tensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


#: What live capsules hold on to, by the address of their tensor.
_live: dict[int, tuple[Any, ...]] = {}


def _delete(address: int) -> None:
    _live.pop(address, None)


def _destroy(capsule_address: int) -> None:
    # A consumer renames the capsule that it takes; one that nobody took is ours to delete.
    if _is_valid(capsule_address, _NAME):
        _delete(_get_pointer(capsule_address, _NAME))


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Module-level, so that they live as long as any capsule.
_deleter = _Callback(_delete)
_destructor = _Callback(_destroy)

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_get_pointer.restype = ctypes.c_void_p
_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_new.restype = ctypes.py_object


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
    axes = (ctypes.c_int64 * len(shape))(*shape)
    managed = _ManagedTensor()
    managed.tensor.data = address
    managed.tensor.device = _Device(CUDA, device_id)
    managed.tensor.ndim = len(shape)
    managed.tensor.dtype = _data_type(dtype)
    managed.tensor.shape = ctypes.cast(axes, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p)
    key = ctypes.addressof(managed)
    _live[key] = (managed, axes, owner)
    return _new(key, _NAME, ctypes.cast(_destructor, ctypes.c_void_p))


def _data_type(dtype: np.dtype[Any]) -> _DataType:
    code = _NAMES.get(dtype.name, _KINDS.get(dtype.kind))
    if code is None or not dtype.isnative:
        raise BufferError(f"DLPack has no name for elements of type {dtype}")
    return _DataType(code, 8 * dtype.itemsize, 1)
