"""A consumer of DLPack capsules, after dlpack.h of DLPack 0.8 and the array API's protocol."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["Taken", "is_unused", "take"]


class _Tensor(ctypes.Structure):
    """``DLTensor``, and the two fields behind it in ``DLManagedTensor``."""

    _fields_ = [
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_uint64),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


# Functions of ours: those of ctypes.pythonapi are shared by all libraries of the process.
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)

_NEW, _USED = b"dltensor", b"used_dltensor"


class Taken:
    """A tensor that a consumer has taken from its capsule, until it is released."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._tensor = _Tensor.from_address(address)
        self.data = self._tensor.data + self._tensor.byte_offset
        self.device = (self._tensor.device_type, self._tensor.device_id)
        self.dtype = (self._tensor.code, self._tensor.bits, self._tensor.lanes)
        self.shape = tuple(self._tensor.shape[: self._tensor.ndim])
        strides = self._tensor.strides
        self.strides = tuple(strides[: self._tensor.ndim]) if strides else None

    def release(self) -> None:
        """Call the producer's deleter, as a consumer does once when it is done."""
        self._tensor.deleter(self._address)


def take(capsule: Any) -> Taken:
    """Take the tensor out of a capsule, which is renamed so that nobody else does."""
    address = _get_pointer(capsule, _NEW)
    assert address is not None
    # The capsule keeps a pointer to its name, which has to live as long as it does.
    _set_name(capsule, _USED)
    return Taken(address)


def is_unused(capsule: Any) -> bool:
    """Return whether nobody has taken a capsule's tensor."""
    return bool(_is_valid(capsule, _NEW))
