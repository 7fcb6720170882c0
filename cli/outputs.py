"""Names of output files, and the checks that keep inputs and other outputs from harm."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import click

from .messages import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "NamelessOutputError",
    "Output",
    "Target",
    "check",
    "decompressed_name",
    "name_write_errors",
    "open_output",
    "plan",
]

STDOUT_NAME = "<stdout>"

#: Errors that only writing raises.
_WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Suffixes of compressed files, and what takes their place.
_SUFFIXES = {
    ".lz4": "",
    ".gz": "",
    ".bgz": "",
    ".zst": "",
    ".zstd": "",
    ".sz": "",
    ".snappy": "",
    ".tgz": ".tar",
    ".tzst": ".tar",
}


@dataclass(frozen=True)
class Target:
    """An input and where its bytes go; ``-`` is a standard stream."""

    file: str
    output: str


class NamelessOutputError(click.UsageError):
    """The name of an input does not say what its output is called.

    Parameters
    ----------
    file : str
        The input, as it stands on the command line.
    """

    def __init__(self, file: str) -> None:
        known = " ".join(_SUFFIXES)
        super().__init__(
            f"{printable(file)}: cannot tell the output's name, as its suffix is none of {known}; "
            "give -o"
        )
        self.file = file


class Output(Protocol):
    """Where bytes go: a descriptor, and the call that makes them the file's content."""

    fd: int
    regular: bool

    def commit(self) -> None:
        """Make the output visible, whole."""


class _StandardOutput:
    regular = False

    def __init__(self) -> None:
        sys.stdout.flush()
        self.fd = sys.stdout.fileno()

    def commit(self) -> None:
        pass


@contextlib.contextmanager
def open_output(output: str, *, force: bool) -> Iterator[Output]:
    """Open an output of a plan; without `commit` nothing of it remains."""
    from gpuload.outputs import AtomicFile

    with name_write_errors(output):
        if output == "-":
            yield _StandardOutput()
            return
        with AtomicFile(output, overwrite=force) as file:
            yield file


@contextlib.contextmanager
def name_write_errors(output: str) -> Iterator[None]:
    """Name the output in errors of a full disk, which come from a descriptor without a name."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _WRITE_ERRORS:
            error.filename = STDOUT_NAME if output == "-" else output
        raise


def decompressed_name(file: str) -> str | None:
    """Return a name without its compressed suffix; None if it has none that is known."""
    if "://" in file and not os.path.lexists(file):
        file = posixpath.basename(urlsplit(file).path)
    path = Path(file)
    replacement = _SUFFIXES.get(path.suffix.lower())
    if replacement is None:
        return None
    name = str(path.with_suffix(replacement))
    return "./-" if name == "-" else name


def plan(
    files: tuple[str, ...],
    output: str | None,
    output_dir: str | None,
    *,
    to_stdout: bool,
    force: bool,
) -> list[Target]:
    """Decide where every file goes, before anything is written.

    Raises
    ------
    click.UsageError
        If the options contradict each other, a name cannot be derived (`NamelessOutputError`), or
        an output would destroy an input or another output.
    """
    if (output is not None) + (output_dir is not None) + to_stdout > 1:
        raise click.UsageError("give only one of -o, --output-dir and -c")
    if output is not None and output != "-" and len(files) > 1:
        raise click.UsageError("-o takes one FILE; for several give --output-dir or -c")
    if files.count("-") > 1:
        raise click.UsageError("standard input can be read only once")
    if to_stdout:
        output = "-"
    targets = [
        Target(file, _default_output(file, output_dir) if output is None else output)
        for file in files
    ]
    check(targets, force=force)
    return targets


def check(targets: list[Target], *, force: bool) -> None:
    """Refuse targets that would harm an input, another output or a terminal.

    Raises
    ------
    click.UsageError
        Before anything is written.
    """
    _check_standard_output(targets, force=force)
    _check_distinct(targets)
    _check_inputs_survive(targets)


def _default_output(file: str, output_dir: str | None) -> str:
    if file == "-":
        if output_dir is not None:
            raise click.UsageError("standard input has no name to use in --output-dir; give -o")
        return "-"
    name = decompressed_name(file)
    if name is None:
        raise NamelessOutputError(file)
    return name if output_dir is None else str(Path(output_dir, Path(name).name))


def _check_standard_output(targets: list[Target], *, force: bool) -> None:
    if all(target.output != "-" for target in targets):
        return
    if sys.stdout is None:
        raise click.UsageError("standard output is closed")
    if sys.stdout.isatty() and not force:
        raise click.UsageError(
            "not writing bytes to a terminal; redirect it, or give -o or --force"
        )


def _check_distinct(targets: list[Target]) -> None:
    taken: dict[object, Target] = {}
    for target in targets:
        if target.output == "-":
            continue
        if Path(target.output).is_dir():
            raise click.UsageError(f"{printable(target.output)} is a directory; see --output-dir")
        other = taken.setdefault(_identity(target.output), target)
        if other is not target:
            raise click.UsageError(
                f"{printable(other.file)} and {printable(target.file)} would both be written to "
                f"{printable(target.output)}"
            )


def _check_inputs_survive(targets: list[Target]) -> None:
    inputs = {_identity(target.file): target.file for target in targets}
    for target in targets:
        file = inputs.get(_identity(target.output, standard=1))
        if file is not None:
            raise click.UsageError(
                f"{printable(target.output)} is the same file as the input {printable(file)}"
            )


def _identity(name: str, *, standard: int = 0) -> object:
    """Return what two names of one regular file share; for other things, something unique."""
    try:
        status = os.fstat(standard) if name == "-" else Path(name).stat()
    except OSError:
        return os.path.realpath(name) if name != "-" else object()
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else object()
