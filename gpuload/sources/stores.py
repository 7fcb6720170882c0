"""Stores: many objects by their keys, as the folders, zip files and buckets of Zarr arrays are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["Store"]


class Store(ABC):
    """Objects by their keys; any thread may use it.

    Attributes
    ----------
    name : str
        What messages call it.
    remote : bool
        Whether reading waits for a network.
    """

    name: str
    remote = False

    @abstractmethod
    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the bytes of objects, shape (n,); -1 for those that are not there.

        Raises
        ------
        OSError, GpuloadError
            As the system or the network does.
        """

    @abstractmethod
    def readinto(self, key: str, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes of an object from `offset` on.

        Raises
        ------
        FormatError
            If the object ends before, or is gone; with the store's name, the key and the offset.
        OSError, GpuloadError
            As the system or the network does.
        """

    def cancel(self) -> None:  # noqa: B027 (most reads wait for nothing)
        """Let reads give up that are under way in other threads and wait for a network."""

    def location(self, key: str) -> str:
        """Return what messages call an object."""
        return f"{self.name}/{key}" if key else self.name

    def close(self) -> None:  # noqa: B027 (a folder has nothing to release)
        """Release what is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
