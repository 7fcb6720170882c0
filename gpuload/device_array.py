"""The result of a load on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import driver
from gpuload.arrays import Array
from gpuload.devices import find_stream
from gpuload.dlpack import CUDA, capsule
from gpuload.memory import DecompressPool, copy

if TYPE_CHECKING:
    import numpy.typing as npt
    from cuda.core import Buffer, Event, Stream

__all__ = ["DeviceArray", "allocate", "close_pools"]

_pools: dict[int, DecompressPool] = {}


def allocate(size: int, device_id: int, stream: Stream) -> Buffer:
    """Return device memory in the order of a stream, from a pool that keeps what was freed.

    Raises
    ------
    MemoryLimitError
        If the device has not as much.
    """
    pool = _pools.get(device_id) or _pools.setdefault(device_id, DecompressPool(device_id))
    return pool.allocate(size, stream=stream)


def close_pools() -> None:
    """Give the memory that the pools keep back to the driver; arrays stay valid."""
    while _pools:
        _pools.popitem()[1].close()


class DeviceArray(Array):
    """Decoded bytes in the memory of a device, with a shape and an element type.

    Torch, CuPy, JAX and others take it by ``from_dlpack`` or ``__cuda_array_interface__`` without
    copying; `to_host` copies it to NumPy.

    Parameters
    ----------
    address : int
        Of the first element.
    shape : tuple of int
        Elements along each axis.
    dtype : numpy.dtype
        Element type.
    device_id : int
        CUDA device.
    stream : Stream
        On which the bytes are complete.
    owner : object
        What keeps the memory.
    complete : Event, optional
        When the bytes are complete; by default when the stream has done what it has now.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        device_id: int,
        stream: Stream,
        owner: object,
        complete: Event | None = None,
    ) -> None:
        self._address = address
        self._shape = shape
        self._dtype = dtype
        self._device_id = device_id
        self._stream = stream
        self._owner = owner
        if complete is None:
            with driver.calling("cuEventRecord", "the end of a load"):
                complete = driver.shield(stream.record())
        self._complete: Event = complete

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(np.prod(self._shape, dtype=np.int64)) * self._dtype.itemsize

    @property
    def device(self) -> str:
        """Where the bytes are, as "cuda:0"."""
        return f"cuda:{self._device_id}"

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("an array of no axes has no length")
        return self._shape[0]

    def parts(self, starts: list[int], sizes: list[int]) -> list[DeviceArray]:
        """Return parts of an array of bytes, which keep all of its memory.

        Parameters
        ----------
        starts, sizes : list of int
            Their first bytes, and how many each has.
        """
        return [
            DeviceArray(
                self._address + start,
                (size,),
                self._dtype,
                device_id=self._device_id,
                stream=self._stream,
                owner=self._owner,
                complete=self._complete,
            )
            for start, size in zip(starts, sizes, strict=True)
        ]

    def __bytes__(self) -> bytes:
        return self.to_host().tobytes()

    def to_host(self) -> npt.NDArray[Any]:
        """Return a copy in host memory."""
        host = np.empty(self._shape, self._dtype)
        with driver.on_device(self._device_id):
            copy(host.ctypes.data, self._address, self.nbytes, self._stream)
            with driver.calling("cuStreamSynchronize", "a copy to the host"):
                self._stream.sync()
        return host

    def __array__(
        self,
        dtype: npt.DTypeLike | None = None,
        copy: bool | None = None,  # noqa: FBT001 (NumPy's protocol)
    ) -> npt.NDArray[Any]:
        """Refuse: a copy from the device should be asked for."""
        raise TypeError(f"the array is on {self.device}; to_host() copies it to NumPy")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # Version 3; 1 and 2 stand for the default streams, whose handles are those numbers.
        return {
            "version": 3,
            "shape": self._shape,
            "typestr": self._dtype.str,
            "data": (self._address, False),
            "strides": None,
            "stream": int(self._stream.handle) or 1,
        }

    def __dlpack__(  # type: ignore[override]  # the host's takes anything
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule; the consumer's stream waits until the bytes are complete.

        Raises
        ------
        BufferError
            If a copy or another device is asked for.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the array is exported where it is, without a copy")
        if stream != -1:
            # -1 says that the consumer waits by itself; 0 is not defined, and None is the default.
            with driver.on_device(self._device_id):
                consumer = find_stream(stream or None, self._device_id)
                with driver.calling("cuStreamWaitEvent", "the consumer of an array"):
                    consumer.wait(self._complete)
        return capsule(self._address, self._shape, self._dtype, self._device_id, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device: (2, n), CUDA device n."""
        return CUDA, self._device_id
