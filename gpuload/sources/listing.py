"""Stores whose folders can be listed, and keys that stay inside of them."""

from __future__ import annotations

import os
import re
from abc import abstractmethod

from gpuload.errors import FormatError
from gpuload.sources.stores import Store

__all__ = ["ListedStore", "is_inside"]

#: Characters of a key that messages show.
_LONG = 200
#: A part that is empty, "." or "..", or a byte that no system takes.
_OUTSIDE = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|\0")


class ListedStore(Store):
    """A store of keys with ``/`` between the names of folders."""

    @abstractmethod
    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders in a folder, sorted.

        Parameters
        ----------
        prefix : str
            The folder; empty for the whole store.

        Raises
        ------
        OSError, GpuloadError
            As the system or the network does.
        """

    def checked(self, key: str) -> str:
        """Return a key; a FormatError if it points out of the store."""
        if not is_inside(key):
            raise FormatError(
                f"the key {_shown(key)} points out of the store; a relative path without '..' was "
                "expected",
                source=self.name,
            )
        return key


def is_inside(key: str) -> bool:
    """Return whether a key is a relative path that leads down only, and that a system may have."""
    if _OUTSIDE.search(key):
        return False
    if key.isascii():
        return True
    try:
        os.fsencode(key)
    except UnicodeEncodeError:
        return False
    return True


def _shown(key: str) -> str:
    return repr(key) if len(key) <= _LONG else f"{key[:_LONG]!r}..."
