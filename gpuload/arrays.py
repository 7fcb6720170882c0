"""What a load returns: an array that other libraries take without copying."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array"]


class Array:
    """Decoded bytes in host memory, with a shape and an element type.

    NumPy takes it by ``numpy.asarray``, other libraries by ``from_dlpack``; neither copies.

    Parameters
    ----------
    data : ndarray
        Contiguous.
    """

    def __init__(self, data: npt.NDArray[Any]) -> None:
        self._data = data

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._data.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._data.nbytes

    @property
    def device(self) -> str:
        """Where the bytes are: "cpu"."""
        return "cpu"

    def __len__(self) -> int:
        return len(self._data)

    def __bytes__(self) -> bytes:
        return self._data.tobytes()

    def to_host(self) -> npt.NDArray[Any]:
        """Return the data as a NumPy array, without copying: it is in host memory already.

        An array on a device has this, too, and copies, so that callers need not ask which it is.
        """
        return self._data

    def __repr__(self) -> str:
        return f"<gpuload.Array shape={self.shape} dtype={self.dtype} on {self.device}>"

    def __array__(
        self,
        dtype: npt.DTypeLike | None = None,
        copy: bool | None = None,  # noqa: FBT001 (NumPy's protocol)
    ) -> npt.NDArray[Any]:
        """Return the data as a NumPy array (NumPy's conversion protocol)."""
        if copy:
            return np.array(self._data, dtype)
        converted = np.asarray(self._data, dtype)
        if copy is False and not np.may_share_memory(converted, self._data):
            raise ValueError(f"no view of {self.dtype} as {converted.dtype} without a copy")
        return converted

    def __dlpack__(self, **options: Any) -> Any:
        """Return a DLPack capsule of the data."""
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device: (1, 0), the CPU."""
        kind, number = self._data.__dlpack_device__()
        return int(kind), int(number)
