"""Stores over files: one that has a single object, and one of several local files."""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuload.errors import FormatError
from gpuload.sources.local import LocalFile
from gpuload.sources.stores import Store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from gpuload.sources.base import Source

__all__ = ["FilesStore", "SourceStore"]

#: Files of a store that stay open between reads.
_KEPT_OPEN = 64


class SourceStore(Store):
    """One file, whose key is the empty string.

    Parameters
    ----------
    source : Source
        The file; it is closed with the store.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.name = source.name
        self.remote = source.remote

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """See `Store.sizes`."""
        return np.array([-1 if key else self._source.size for key in keys], np.int64)

    def readinto(self, key: str, offset: int, view: memoryview) -> None:
        """See `Store.readinto`."""
        if key:
            raise FormatError("is not there: the store is one file", source=self.location(key))
        self._source.read_exact(offset, view)

    def close(self) -> None:
        """See `Store.close`."""
        self._source.close()


@dataclass
class _Open:
    file: LocalFile
    users: int = 0


class FilesStore(Store):
    """Local files of one folder, opened when they are read.

    A file that nobody reads is closed as soon as more than a few dozen are open.

    Parameters
    ----------
    folder : str or os.PathLike
        Where they are; keys are paths in it. Whoever takes keys from a file checks first that they
        stay inside.
    name : str, optional
        What messages call the store; default the folder.
    kept_open : int, optional
        Files that stay open between reads.
    """

    def __init__(
        self, folder: str | os.PathLike[str], name: str | None = None, kept_open: int = _KEPT_OPEN
    ) -> None:
        self._folder = Path(folder)
        self.name = name or str(folder)
        self._kept_open = kept_open
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()
        self._closed = False

    def location(self, key: str) -> str:
        """See `Store.location`: the path of the file."""
        return str(self._folder / key)

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """See `Store.sizes`."""
        return np.array([self._size(key) for key in keys], np.int64)

    def _size(self, key: str) -> int:
        try:
            return (self._folder / key).stat().st_size
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return -1
            raise

    def readinto(self, key: str, offset: int, view: memoryview) -> None:
        """See `Store.readinto`."""
        with self._borrowed(key) as file:
            file.read_exact(offset, view)

    def peek(self, key: str, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of a file, fewer only where it ends."""
        with self._borrowed(key) as file:
            return file.peek(offset, size)

    @contextmanager
    def _borrowed(self, key: str) -> Iterator[LocalFile]:
        with self._lock:
            opened = self._open.pop(key, None) or _Open(self._opened(key))
            self._open[key] = opened  # the last is the one that was used last
            opened.users += 1
        try:
            yield opened.file
        finally:
            with self._lock:
                opened.users -= 1
                self._close_idle(0 if self._closed else self._kept_open)

    def _opened(self, key: str) -> LocalFile:
        if self._closed:
            raise ValueError(f"{self.name}: the store is closed")
        try:
            return LocalFile(self.location(key))
        except (FileNotFoundError, NotADirectoryError):
            raise FormatError("is not there (any more)", source=self.location(key)) from None

    def _close_idle(self, keep: int) -> None:
        for key in [key for key, opened in self._open.items() if not opened.users]:
            if len(self._open) <= keep:
                return
            self._open.pop(key).file.close()

    def close(self) -> None:
        """See `Store.close`; files that are being read are closed when that is done."""
        with self._lock:
            self._closed = True
            self._close_idle(0)
