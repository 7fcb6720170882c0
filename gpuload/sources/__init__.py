"""Byte ranges of local files, of bytes in memory and of fsspec objects.

Every read is positional and safe from several threads at once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuload.errors import MissingDependencyError
from gpuload.sources.base import BytesSource, Source
from gpuload.sources.local import LocalFile, SpooledFile, open_path, spool
from gpuload.sources.remote import FsspecSource, open_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from gpuload.sources.attempts import Request
    from gpuload.sources.copies import Copying
    from gpuload.sources.stop import Stop

__all__ = [
    "BytesSource",
    "FsspecSource",
    "LocalFile",
    "Source",
    "SpooledFile",
    "open_source",
    "spool",
]


def open_source(
    source: str | os.PathLike[str] | Buffer,
    started: Callable[[Request | Copying | Stop], object] | None = None,
) -> Source:
    """Open a path, an fsspec URL or a bytes-like object.

    Parameters
    ----------
    source : str, os.PathLike or bytes-like
        A str with ``://`` in it is a URL, any other str a path; bytes-like objects are the content
        itself.
    started : callable, optional
        Is given, one after another, what opening waits for; each can be cancelled, so that this
        raises an OSError.

    Returns
    -------
    Source
        Pipes and other files that cannot seek are copied first (see `spool`).

    Raises
    ------
    OSError
        As the file system says; for a URL with the reason that lies at the bottom of it (see
        `gpuload.sources.remote` for what is tried again, and for how long).
    MissingDependencyError
        For a URL without fsspec.
    ImportError
        For a URL that fsspec needs another package for; the message names it.
    ValueError
        For a URL of a protocol that fsspec does not know, or a GPULOAD_REMOTE_TIMEOUT that is no
        number of seconds.
    TypeError
        For anything else.
    """
    if isinstance(source, str) and "://" in source:
        return _open_url(source, started)
    if isinstance(source, str | os.PathLike):
        return open_path(os.fspath(source), started)
    if not _has_buffer(source):
        raise TypeError(f"source must be a path, a URL or bytes-like, not {type(source).__name__}")
    return BytesSource(source)


def _has_buffer(source: object) -> bool:
    try:
        memoryview(source)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _open_url(url: str, started: Callable[[Request | Copying], object] | None) -> Source:
    try:
        import fsspec
    except ImportError:
        raise MissingDependencyError("fsspec", "remote", f"{url}: reading it") from None
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (AttributeError, TypeError) as error:
        # What some of its file systems say to URLs that they cannot read.
        raise OSError(f"fsspec cannot open {url}: {error}") from error
    return open_object(files, path, url, started)
