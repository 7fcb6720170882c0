"""The errors that gpuload raises, one reason a class.

::

    GpuloadError
    ├── FormatError               the framing of a file is broken, cut short, or of no known format
    ├── UnsupportedCodecError     valid, but made with something gpuload does not decode
    ├── DecompressError           chunks did not decode (``.failures`` lists them)
    │   └── ChecksumError         chunks decoded, but to other bytes than their checksum promises
    ├── DriverError               the CUDA driver refused a call
    │   └── EngineUnavailableError  an engine that was asked for by name cannot run here
    ├── RemoteError               a remote file system sent other bytes than it was asked for
    ├── MemoryLimitError          a limit on memory or output size would be exceeded
    └── MissingDependencyError    an optional library is not installed (names the pip command)

`FormatWarning` is the category of warnings about files that decode but are not quite as their
format asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ChecksumError",
    "ChunkFailure",
    "DecompressError",
    "DriverError",
    "EngineUnavailableError",
    "FormatError",
    "FormatWarning",
    "GpuloadError",
    "MemoryLimitError",
    "MissingDependencyError",
    "RemoteError",
    "UnsupportedCodecError",
]

#: How many failures the message of a DecompressError spells out; `.failures` always holds all of
#: them.
_FAILURES_SHOWN = 5


class FormatWarning(UserWarning):
    """A file decodes, but deviates from its format (trailing bytes, a missing end marker)."""


class GpuloadError(Exception):
    """Base of every error that gpuload raises on purpose."""


class _LocatedError(GpuloadError):
    """An error with a place in a file.

    Parameters
    ----------
    message : str
        What was found, and what was expected instead.
    source : str, optional
        Name of the file.
    offset : int, optional
        Byte offset in the file at which the damage was seen.
    """

    def __init__(self, message: str, *, source: str = "", offset: int | None = None) -> None:
        where = f"{source}: " if source else ""
        at = "" if offset is None else f"byte {offset}: "
        super().__init__(f"{where}{at}{message}")
        self.source = source
        self.offset = offset


class FormatError(_LocatedError):
    """The framing of a file is broken, cut short, or of no known format."""


class UnsupportedCodecError(_LocatedError):
    """The file needs a codec, a version or a dictionary that is not at hand."""


@dataclass(frozen=True)
class ChunkFailure:
    """One chunk that did not decode to what its file promises.

    Attributes
    ----------
    source, asset : str
        Names of the file and of the asset in it.
    chunk : int
        Row of the container's chunk table.
    offset : int
        Byte offset of the damage in the file (of the chunk's payload, where nothing finer is
        known).
    stored_size : int
        Bytes of the chunk's payload in the file.
    expected_size : int or None
        Decoded bytes that the file promises; None where the format does not say.
    actual_size : int or None
        Decoded bytes that came out; None where the decoder did not say.
    reason : str
        What was found, and what was expected instead.
    checksum : bool
        True if the bytes decoded and only a checksum disagrees.
    driver_code : int or None
        What the CUDA driver answered, where it refused the chunk or its batch.
    blame : str
        How a failure on a device is known: "index" if the driver named the chunk, "none" if it
        named none of the batch, "size" if the decoded size disagreed afterwards; else empty.
    """

    source: str
    asset: str
    chunk: int
    offset: int
    stored_size: int
    expected_size: int | None
    actual_size: int | None
    reason: str
    checksum: bool = False
    driver_code: int | None = None
    blame: str = ""

    def __str__(self) -> str:
        asset = f"{self.asset}: " if self.asset else ""
        return f"{self.source}: {asset}chunk {self.chunk} at byte {self.offset}: {self.reason}"


class DecompressError(GpuloadError):
    """Chunks did not decode.

    Parameters
    ----------
    failures : sequence of ChunkFailure
        At least one, in the order of the chunk table.
    """

    def __init__(self, failures: Sequence[ChunkFailure]) -> None:
        self.failures = list(failures)
        shown = [str(failure) for failure in self.failures[:_FAILURES_SHOWN]]
        hidden = len(self.failures) - len(shown)
        if hidden:
            shown.append(f"... and {hidden} more chunks (all of them are in .failures)")
        super().__init__("\n".join(shown))


class ChecksumError(DecompressError):
    """Chunks decoded, but every failure is a checksum that disagrees."""


class DriverError(GpuloadError):
    """The CUDA driver refused a call."""


class EngineUnavailableError(DriverError):
    """An engine that was asked for by name cannot decode this, or not on this machine."""


class RemoteError(GpuloadError, OSError):
    """A remote file system answered with something else than the bytes that were asked for."""


class MemoryLimitError(GpuloadError):
    """Memory or output would exceed a limit; the message names the option that lifts it."""


class MissingDependencyError(GpuloadError, ImportError):
    """An optional library is needed for this and not installed.

    Parameters
    ----------
    library : str
        Import name of the library.
    extra : str
        The extra of gpuload that brings it.
    purpose : str
        What it is needed for.
    """

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}: pip install 'gpuload[{extra}]'")
        self.library = library
        self.extra = extra


def decompress_error(failures: Sequence[ChunkFailure]) -> DecompressError:
    """Return the error that fits `failures`: ChecksumError if all of them are checksums."""
    only_checksums = all(failure.checksum for failure in failures)
    return ChecksumError(failures) if only_checksums else DecompressError(failures)
