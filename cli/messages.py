"""Text for people: names that cannot break a line, sizes, and what an error says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpuload.errors import DecompressError, GpuloadError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "FAILURES",
    "complain",
    "describe",
    "human_size",
    "json_line",
    "plural",
    "printable",
    "warn",
]

#: What bad data, a file system or a small machine may raise; everything else is a bug.
FAILURES = (GpuloadError, OSError, MemoryError)

_FAILURES_SHOWN = 5


def printable(text: str) -> str:
    """Escape what would break a line or steer a terminal: control characters, undecodable bytes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    # Bytes of a file name that are no text are decoded to these surrogates (PEP 383).
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def human_size(size: float) -> str:
    """Return a size in binary units, such as ``1.5 MiB``."""
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return plural(int(size), "byte") if unit == "bytes" else f"{size:.1f} {unit}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 chunk`` or ``2,000 chunks``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def json_line(record: dict[str, Any]) -> str:
    """Return a record as one line of ASCII; undecodable bytes of a name become surrogates."""
    import json

    return json.dumps(record, default=_plain_value)


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.item() if hasattr(value, "item") else str(value)


def complain(lines: Iterable[str]) -> None:
    """Print an error to standard error, one prefixed line for each line."""
    for line in lines:
        click.echo(f"gpuload: error: {printable(line)}", err=True)


def warn(lines: Iterable[str]) -> None:
    """Print warnings to standard error."""
    for line in lines:
        click.echo(f"gpuload: warning: {printable(line)}", err=True)


def describe(error: BaseException, name: str = "") -> list[str]:
    """Return the lines that say what went wrong.

    Parameters
    ----------
    error : one of `FAILURES`
        What was raised.
    name : str
        The file at hand, for errors that do not name one themselves.
    """
    if isinstance(error, DecompressError):
        return _describe_failures(error)
    if isinstance(error, MemoryError):
        text = "out of memory; lower --memory-limit or --threads"
    elif isinstance(error, OSError) and error.strerror:
        name = _text(error.filename) or name
        text = error.strerror
    else:
        text = str(error)
    if isinstance(error, FileExistsError):
        text += "; --force overwrites it"
    return [text if not name or text.startswith(f"{name}: ") else f"{name}: {text}"]


def _describe_failures(error: DecompressError) -> list[str]:
    lines = [str(failure) for failure in error.failures[:_FAILURES_SHOWN]]
    hidden = len(error.failures) - len(lines)
    if hidden:
        lines.append(f"... and {plural(hidden, 'more bad chunk')}; gpuload verify lists them all")
    return lines


def _text(name: object) -> str:
    if isinstance(name, bytes):
        return name.decode("utf-8", "surrogateescape")
    return name if isinstance(name, str) else ""
