"""Folders of the local system as stores."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuload.errors import FormatError
from gpuload.sources.listing import ListedStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["FolderStore"]

#: What the system says of files that are not there; nothing has a name that is too long.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
#: Opening a FIFO must not wait for somebody who writes to it.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)


class FolderStore(ListedStore):
    """A folder; its files are opened when they are read.

    A key cannot name what is outside of the folder. Links that somebody put into the folder are
    followed, as by everybody who reads it.

    Parameters
    ----------
    folder : str or os.PathLike
        Where it is.
    name : str, optional
        What messages call it; default its path.

    Raises
    ------
    NotADirectoryError
        If there is no such folder.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str | None = None) -> None:
        self.path = os.fspath(folder)
        self.name = name or self.path
        if not Path(self.path).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "there is no such folder", self.name)
        self._start = os.path.join(self.path, "")  # noqa: PTH118 (ends with a separator)

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """See `Store.sizes`.

        Raises
        ------
        FormatError
            If a key is outside, or of a pipe or a device.
        """
        return np.fromiter((self._size(key) for key in keys), np.int64, len(keys))

    def _size(self, key: str) -> int:
        path = self._start + self.checked(key)
        try:
            status = os.stat(path)  # noqa: PTH116 (a path takes as long again)
        except OSError as error:
            if error.errno in _ABSENT:
                return -1
            raise
        if stat.S_ISDIR(status.st_mode):
            return -1  # buckets have no folders, either
        if not stat.S_ISREG(status.st_mode):
            raise FormatError("is no regular file", source=self.location(key))
        return status.st_size

    def readinto(self, key: str, offset: int, view: memoryview) -> None:
        """See `Store.readinto`."""
        try:
            file = os.open(self._start + self.checked(key), _FLAGS)
        except OSError as error:
            if error.errno in _ABSENT:
                raise self._broken(key, offset, "the file is not there (any more)") from None
            raise
        try:
            self._fill(file, key, offset, view)
        finally:
            os.close(file)

    def _fill(self, file: int, key: str, offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            got = self._read(file, key, offset + done, view[done:])
            if not got:
                message = f"the file ends here or before, {len(view) - done} bytes too early"
                raise self._broken(key, offset + done, message)
            done += got

    def _read(self, file: int, key: str, offset: int, view: memoryview) -> int:
        try:
            return os.preadv(file, [view], offset)
        except OSError as error:
            text = f"byte {offset}: {error.strerror}"
            raise OSError(error.errno, text, self.location(key)) from error

    def _broken(self, key: str, offset: int, message: str) -> FormatError:
        return FormatError(message, source=self.location(key), offset=offset)

    def folders(self, prefix: str) -> list[str]:
        """See `ListedStore.folders`."""
        path = self._start + (self.checked(prefix) if prefix else "")
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere, or in circles
        return False
