"""What every source of bytes can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from gpuload.errors import FormatError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BytesSource", "Source"]

_NOTHING = memoryview(b"")


class Source(ABC):
    """Random access to the bytes of one file.

    Attributes
    ----------
    name : str
        What error messages call it.
    size : int
        Bytes in it, as it was opened.
    descriptor : int or None
        Of the open file, for who maps it; None for what is no regular file.
    remote : bool
        Whether reads wait for a network, so that they want to be large.
    """

    name: str
    size: int
    descriptor: int | None = None
    remote: bool = False

    @abstractmethod
    def readinto(self, offset: int, view: memoryview) -> int:
        """Read into a writable byte view from `offset` on; return how many bytes were there."""

    def peek(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`, fewer only where the source ends.

        Raises
        ------
        FormatError
            If it ends before the size that it was opened with: readers take its end for the end of
            the content.
        """
        buffer = bytearray(max(0, min(size, self.size - offset)))
        self.read_exact(offset, memoryview(buffer))
        return bytes(buffer)

    def resident(self, offset: int) -> tuple[memoryview, int]:
        """Return bytes that are in memory anyway, for readers that look at many places.

        Parameters
        ----------
        offset : int
            Where the next look goes.

        Returns
        -------
        view : memoryview
            Some bytes of the source, maybe with those at `offset` among them, maybe none at all.
        start : int
            The offset of the first of them.
        """
        return _NOTHING, 0

    def look(self, offset: int, times: int) -> None:  # noqa: B027 (few sources count)
        """Take note that somebody looked so often into `resident` bytes, up to `offset`."""

    def peek_exact(self, offset: int, size: int) -> bytes:
        """Return the `size` bytes at `offset`; a FormatError if the source ends before."""
        data = self.peek(offset, size)
        if len(data) != size:
            raise self.cut_short(offset, data, size)
        return data

    def read_exact(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes at `offset`.

        Raises
        ------
        FormatError
            If the source ends before the view is full.
        """
        got = self.readinto(offset, view)
        if got != len(view):
            raise self.truncated(offset + got, len(view) - got)

    def truncated(self, offset: int, missing: int) -> FormatError:
        """Return the error for a source that ends at `offset` with `missing` bytes still wanted."""
        shrunk = f" (it was {self.size} bytes long when opened)" if offset < self.size else ""
        return self.broken(offset, f"the file ends here, {missing} bytes too early{shrunk}")

    def cut_short(self, offset: int, got: bytes, wanted: int) -> FormatError:
        """Return the error for an `offset` (maybe past the end) that gave only `got`."""
        end = min(offset + len(got), self.size)
        return self.truncated(end, offset + wanted - end)

    def broken(self, offset: int, message: str) -> FormatError:
        """Return the error for framing that is broken at `offset`."""
        return FormatError(message, source=self.name, offset=offset)

    def cancel(self) -> None:  # noqa: B027 (most reads wait for nothing)
        """Let the reads that are under way in other threads give up, those that wait for a network.

        They raise a RemoteError. Reads that begin afterwards are as good as ever.
        """

    def abandon(self) -> None:
        """Let the reads give up that are under way, and, of a network, those that begin later."""
        self.cancel()

    def close(self) -> None:  # noqa: B027 (bytes in memory have nothing to release)
        """Release the file; reading afterwards is an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class BytesSource(Source):
    """The content of a bytes-like object.

    Parameters
    ----------
    data : bytes-like
        Any object with a contiguous buffer; it is not copied and must not change while it is
        loaded.
    name : str
        What to call it in messages.
    """

    def __init__(self, data: Buffer, name: str = "<bytes>") -> None:
        view = memoryview(data)
        if not view.c_contiguous:
            raise TypeError(
                "source must be a path, a URL or bytes-like, not an array that is not contiguous; "
                "copy it first"
            )
        self._view = view.cast("B") if view.nbytes else memoryview(b"")
        self.name = name
        self.size = len(self._view)

    def readinto(self, offset: int, view: memoryview) -> int:
        """See `Source.readinto`."""
        part = self._view[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def peek(self, offset: int, size: int) -> bytes:
        """See `Source.peek`."""
        return bytes(self._view[offset : offset + size])

    def resident(self, offset: int) -> tuple[memoryview, int]:
        """See `Source.resident`."""
        return self._view, 0

    def close(self) -> None:
        """See `Source.close`; the object may be resized again."""
        self._view.release()
