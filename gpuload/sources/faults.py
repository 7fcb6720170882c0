"""What went wrong with a request, and whether to try again.

Each file system of fsspec has errors of its own, without a common base, and the reason often lies
below the error that comes out.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

__all__ = ["Fault", "ShortAnswerError", "diagnose"]

#: HTTP statuses from 400 on that another attempt may change (RFC 9110, section 15; RFC 6585, 4).
_TIMEOUT, _TOO_EARLY, _TOO_MANY, _SERVER = 408, 425, 429, 500
_NOT_IMPLEMENTED, _VERSION = 501, 505
_NUMBERS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}
#: Answers of a system that stay the same.
_FINAL_NUMBERS = frozenset(
    (
        errno.EACCES,
        errno.ECONNREFUSED,
        errno.EISDIR,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
    )
)
#: What code says that was called in a way it does not know, and ssl of certificates.
_FINAL_TYPES = (AttributeError, LookupError, NotImplementedError, TypeError, ValueError)


class ShortAnswerError(OSError):
    """Fewer bytes came than were asked for."""


@dataclass(frozen=True)
class Fault:
    """Why a request failed.

    Attributes
    ----------
    number : int
        The error number that fits it best.
    reason : str
        For people.
    final : bool
        Whether another attempt would end in the same way.
    """

    number: int
    reason: str
    final: bool

    def error(self, url: str) -> OSError:
        """Return the error of a fault that is final."""
        return OSError(self.number, self.reason, url)


def diagnose(error: BaseException) -> Fault:
    """Return what lies behind an error of a file system of fsspec."""
    # Of whatever keeps it from a URL, its http makes a FileNotFoundError of that URL.
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    status = _status(error)
    if status:
        message = getattr(error, "message", "")
        reason = f"the server answers {status} {message}".rstrip()
        return Fault(_NUMBERS.get(status, errno.EIO), reason, not _is_passing(status))
    if isinstance(error, FileNotFoundError):
        return Fault(errno.ENOENT, os.strerror(errno.ENOENT), final=True)
    number = _system_number(error)
    if number:
        return Fault(number, os.strerror(number), number in _FINAL_NUMBERS)
    reason = str(error) or type(error).__name__
    if isinstance(error, PermissionError):
        return Fault(errno.EACCES, reason, final=True)
    return Fault(errno.EIO, reason, isinstance(error, _FINAL_TYPES))


def _status(error: BaseException) -> int:
    """Return the HTTP status that an error carries; 0 without one."""
    # Of aiohttp, gcsfs and Azure's library.
    for name in ("status", "code", "status_code"):
        status = getattr(error, name, None)
        if isinstance(status, int) and 400 <= status < 600:
            return status
    return 0


def _is_passing(status: int) -> bool:
    if status >= _SERVER:
        return status not in (_NOT_IMPLEMENTED, _VERSION)
    return status in (_TIMEOUT, _TOO_EARLY, _TOO_MANY)


def _system_number(error: BaseException) -> int:
    """Return the error number that the system gave; 0 if it gave none."""
    import ssl

    # OpenSSL and getaddrinfo have numbers of their own.
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError):
        return 0
    return (error.errno in errno.errorcode and error.errno) or 0
