"""Files that appear whole or not at all, and writes that are never cut short."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

    from typing_extensions import Buffer

    Opener = Callable[[str, int], int]

__all__ = ["AtomicFile", "write_all"]

#: Bytes of the target's name that are repeated in the temporary file's. Together with its other
#: parts the name stays far below NAME_MAX (255 bytes, less on some file systems).
_NAME_SHOWN = 64
#: What ``link`` answers on file systems without hard links (FAT, exFAT and some of FUSE).
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


class AtomicFile:
    """An output file that takes its name only once it is complete.

    A context manager. The data goes to a temporary file beside the target, which `commit` renames;
    leaving the context without it removes the temporary file and keeps whatever the target was.
    Symbolic links are followed, so that a link keeps pointing to its (new) target. A new file gets
    the permission bits that the umask leaves of 0o666; one that replaces an older file keeps the
    older file's bits, as if it had been opened and overwritten.

    An existing target that is no regular file (a device, a pipe) is opened and written as it is.
    Nothing is synchronised to the disk: a power failure may lose the new content.

    Parameters
    ----------
    path : str, bytes or os.PathLike
        The target.
    overwrite : bool, optional
        Whether an existing regular file may be replaced.

    Attributes
    ----------
    fd : int
        The open descriptor; -1 outside the context and after `commit`.
    regular : bool
        Whether the descriptor is of a regular file that is readable too, so that ``os.pwrite`` and
        ``os.pread`` work. Otherwise only consecutive writes do.

    Raises
    ------
    FileExistsError
        On entering or at `commit`, if the target exists and must not be overwritten.
    IsADirectoryError, NotADirectoryError, FileNotFoundError, PermissionError, OSError
        On entering, as the file system says.
    """

    fd = -1
    regular = True
    # Here, so that __del__ finds them even when __init__ failed.
    _temporary: Path | None = None
    _file: FileIO | None = None

    def __init__(
        self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes], *, overwrite: bool = True
    ) -> None:
        self._name = os.fsdecode(path)
        self._path = Path(self._name)
        self._overwrite = overwrite

    def __enter__(self) -> Self:
        try:
            self._file = self._open()
            self.fd = self._file.fileno()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._discard()

    def __del__(self) -> None:
        # A second Ctrl-C can keep __exit__ from its work.
        self._discard()

    def commit(self) -> None:
        """Close the descriptor and give the file its name.

        Raises
        ------
        FileExistsError
            If `overwrite` is false and the target came into being meanwhile.
        OSError
            If the last writes or the renaming fail; the target is then as it was.
        """
        if self._file is None or self._file.closed:
            raise self._error(errno.EBADF)
        # Before the renaming: network file systems report a full disk only now.
        self._close(self._file)
        if self._temporary is not None:
            self._rename(self._temporary)
            self._temporary = None

    def _open(self) -> FileIO:
        existing = self._existing()
        # Resolved once, so that a later chdir or a changed link does not move the target.
        self._path = self._path.resolve()
        if existing is None:
            return self._create(0o666)
        if not self._replaceable(existing):
            self.regular = False
            # Linux refuses O_CREAT for other users' pipes in sticky directories.
            return _open(self._name, "wb", lambda name, flags: os.open(name, flags & ~os.O_CREAT))
        if not self._overwrite:
            raise self._error(errno.EEXIST)
        bits = stat.S_IMODE(existing.st_mode) & 0o777
        file = self._create(bits)
        # The umask took some bits away. There are file systems that know no bits at all.
        with contextlib.suppress(OSError):
            os.fchmod(file.fileno(), bits)
        return file

    def _existing(self) -> os.stat_result | None:
        try:
            # Not resolved: that would break links such as /dev/stdout where it is a pipe.
            status = os.stat(self._name)  # noqa: PTH116 (Path drops a trailing slash)
        except FileNotFoundError:
            if not self._name:
                raise
            status = None
        last = self._name.rpartition(os.sep)[2]
        if last in {"", ".", ".."} or (status and stat.S_ISDIR(status.st_mode)):
            raise self._error(errno.EISDIR)
        return status

    def _replaceable(self, existing: os.stat_result) -> bool:
        if not stat.S_ISREG(existing.st_mode):
            return False
        # A file without a name, such as a memfd given as /proc/self/fd/3, cannot be replaced.
        return self._path.exists() and self._path.samefile(self._name)

    def _create(self, bits: int) -> FileIO:
        shown = os.fsencode(self._path.name)[:_NAME_SHOWN]
        # A multi-byte character that the cut went through is left out.
        name = shown.decode(sys.getfilesystemencoding(), "ignore")
        # Noted before it exists: Ctrl-C may come between its creation and the next line.
        self._temporary = self._path.with_name(f".{name}.{secrets.token_hex(8)}.tmp")
        try:
            return _open(self._temporary, "x+b", lambda name, flags: os.open(name, flags, bits))
        except OSError as error:
            # The user knows the target's name, not the temporary one.
            raise self._error(error.errno or errno.EIO) from None

    def _rename(self, temporary: Path) -> None:
        if self._overwrite:
            temporary.replace(self._path)
            return
        try:
            self._path.hardlink_to(temporary)
        except FileExistsError:
            raise self._error(errno.EEXIST) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._claim(temporary)
        else:
            temporary.unlink()

    def _claim(self, temporary: Path) -> None:
        """Rename without hard links: reserve the name with an empty file, then replace that."""
        try:
            self._path.open("xb").close()
        except FileExistsError:
            raise self._error(errno.EEXIST) from None
        try:
            temporary.replace(self._path)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise

    def _discard(self) -> None:
        # What went wrong before matters more than a failure to clean up after it.
        with contextlib.suppress(OSError):
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)
                self._temporary = None
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._close(self._file)

    def _close(self, file: FileIO) -> None:
        self.fd = -1
        file.close()

    def _error(self, code: int) -> OSError:
        # OSError picks the subclass that belongs to the code.
        return OSError(code, os.strerror(code), self._name)


def _open(path: str | Path, mode: Literal["wb", "x+b"], opener: Opener) -> FileIO:
    # The umask applies, and the descriptor is not inherited.
    return open(path, mode, buffering=0, opener=opener)


def write_all(write: Callable[[memoryview], Any], data: Buffer) -> None:
    """Write all of `data`, however little of it each call takes.

    Parameters
    ----------
    write : callable
        The ``write`` method of a binary file, or anything that takes a byte view and returns how
        many of its bytes it took; None stands for all of them.
    data : bytes-like
        What to write.

    Raises
    ------
    OSError
        If a call takes nothing.
    """
    view = memoryview(data).cast("B")
    while len(view):
        written = write(view)
        if written is None:
            return
        if written <= 0:
            raise OSError(errno.EIO, f"the output took none of {len(view)} bytes")
        view = view[written:]
