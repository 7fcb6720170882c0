"""Compiled kernels on disk, one folder a user, shared by all processes.

cuda.core's cache does the work: an entry appears whole or not at all, and the least recently read
ones go when there are too many. What it stores has no checksum, so a digest is put behind it here:
a damaged kernel must not reach the device.

A cache is a help, never a need: whatever is wrong with the folder is remembered as `problem`, and
kernels are compiled as if there were none. What is in it runs on the device, so that a folder that
others may write to is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cuda.core.utils import FileStreamProgramCache

__all__ = ["KernelCache", "cache_folder"]

_OVERRIDE = "GPULOAD_CACHE_DIR"
#: Bytes of all entries; a kernel has some 40,000 for each architecture.
_LARGEST = 64 << 20
_DIGEST = hashlib.sha256().digest_size


def cache_folder() -> Path | None:
    """Return the folder of compiled kernels, which may not exist yet; None without a home.

    ``kernels`` in ``$GPULOAD_CACHE_DIR``, or else in ``gpuload`` of the user's cache folder:
    ``$XDG_CACHE_HOME``, which counts only if it is absolute, or ``~/.cache`` (XDG Base Directory
    Specification).
    """
    override, shared = os.environ.get(_OVERRIDE), os.environ.get("XDG_CACHE_HOME", "")
    try:
        if override:
            return Path(override).expanduser() / "kernels"
        base = Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache"
        return base / "gpuload" / "kernels" if base.is_absolute() else None
    except RuntimeError:  # pathlib knows no home, as in containers without a user
        return None


class KernelCache:
    """The compiled kernels in a folder.

    Parameters
    ----------
    folder : Path or None
        Made if missing; None is a cache that keeps nothing.

    Attributes
    ----------
    problem : str
        The last thing that was wrong with the folder; empty if nothing was.
    """

    def __init__(self, folder: Path | None) -> None:
        self.problem = "" if folder else f"there is no home folder; set {_OVERRIDE}"
        self._entries: FileStreamProgramCache | None = None
        if folder is not None:
            with self._noting_problems():
                from cuda.core.utils import FileStreamProgramCache

                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _refuse_what_others_write(folder)
                self._entries = FileStreamProgramCache(folder, max_size_bytes=_LARGEST)

    def get(self, key: bytes) -> bytes | None:
        """Return what was put under a key; None if nothing was, or it is damaged."""
        entry = None
        if self._entries is not None:
            with self._noting_problems():
                entry = self._entries.get(key)
        if entry is None or len(entry) <= _DIGEST:
            return None
        code, digest = entry[:-_DIGEST], entry[-_DIGEST:]
        return code if hashlib.sha256(code).digest() == digest else None

    def put(self, key: bytes, code: bytes) -> None:
        """Keep a compiled kernel, in place of what was under its key."""
        if self._entries is not None:
            with self._noting_problems():
                self._entries[key] = code + hashlib.sha256(code).digest()

    @contextlib.contextmanager
    def _noting_problems(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.problem = str(error)


def _refuse_what_others_write(folder: Path) -> None:
    """Raise an OSError if another user could have put a kernel there, or it holds oddities."""
    private = not folder.stat().st_mode & 0o011  # others cannot enter
    for path in (folder, *folder.rglob("*")):
        found = path.lstat()
        if found.st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user: remove it, or set {_OVERRIDE}")
        if found.st_mode & 0o022 and not private:
            raise PermissionError(f"{path} may be written by other users: chmod go-w it")
        if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
            raise OSError(f"{path} is no file: remove it")
        if found.st_size > _LARGEST:
            raise OSError(f"{path} is larger than any kernel: remove it")
