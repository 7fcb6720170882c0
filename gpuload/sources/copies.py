"""Copies of objects that cannot be read in parts."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from gpuload.errors import GpuloadError, RemoteError
from gpuload.sources.calls import ThreadCall
from gpuload.sources.faults import diagnose
from gpuload.sources.local import SpoolError, spool
from gpuload.sources.stop import Stop

if TYPE_CHECKING:
    from gpuload.sources.base import Source

__all__ = ["Copying"]


class Copying:
    """A copy that is made in a thread, since what an open stream waits for cannot be given up.

    Parameters
    ----------
    files : fsspec.AbstractFileSystem
        The file system.
    path, url : str
        The object in it, and what to call it.
    options : dict
        Of `open`.
    """

    def __init__(self, files: Any, path: str, url: str, options: dict[str, Any]) -> None:
        self._files, self._path, self._url, self._options = files, path, url, options
        self._stop = Stop()
        self._call = ThreadCall(self._copy)

    def cancel(self) -> None:
        """Let whoever waits for the result give up; the thread ends after what it waits for."""
        self._stop.cancel()
        self._call.cancel()

    def result(self) -> Source:
        """Make the copy and return it.

        Raises
        ------
        OSError
            With the reason that lies at the bottom of what fsspec raised, or a SpoolError.
        RemoteError
            After `cancel`.
        ImportError, MemoryError, GpuloadError
            As the file system raised it.
        """
        if not self._call.cancelled():
            self._call.thread.start()
        try:
            source: Source = self._call.result()
        except CancelledError:
            raise RemoteError(f"{self._url}: the read was cancelled") from None
        except (GpuloadError, ImportError, MemoryError, SpoolError):
            raise
        except Exception as error:  # each file system has its own errors
            raise diagnose(error).error(self._url) from error
        finally:
            self._stop.cancel()  # of a thread that is left behind
        return source

    def _copy(self) -> Source:
        with self._files.open(self._path, "rb", **self._options) as stream:
            return spool(stream, self._url, self._stop)
