"""The JSON documents that Zarr's metadata consists of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuload.errors import FormatError, MemoryLimitError

if TYPE_CHECKING:
    from gpuload.sources.stores import Store

__all__ = ["Document", "load", "shown"]

#: Memory of what is parsed, for each byte of its text.
_GROWTH = 8
_LONGEST = 80
_MOST_AXES = 32


@dataclass(frozen=True)
class Document:
    """A JSON object, and where it is.

    Attributes
    ----------
    where : str
        What messages call it.
    data : dict
        What it holds.
    """

    where: str
    data: dict[str, Any]

    def error(self, message: str) -> FormatError:
        """Return the error for something that is wrong with it."""
        return FormatError(message, source=self.where)

    def require(self, key: str) -> Any:
        """Return the value of a key; a FormatError without it."""
        if key not in self.data:
            raise self.error(f"no key {key!r}, which the metadata of an array has")
        return self.data[key]

    def lengths(self, key: str, least: int = 0) -> tuple[int, ...]:
        """Return the value of a key that is a list of integers, none below `least`."""
        value = self.require(key)
        if not isinstance(value, list) or not all(_is_integer(n) and n >= least for n in value):
            raise self.error(f"{key!r} is {shown(value)}, not a list of integers from {least} on")
        if len(value) > _MOST_AXES:
            raise self.error(f"{key!r} has {len(value)} axes; {_MOST_AXES} are the limit")
        return tuple(value)

    def choice(self, key: str, choices: tuple[Any, ...], default: Any) -> Any:
        """Return the value of a key that may be one of few."""
        value = self.data.get(key, default)
        if isinstance(value, list | dict) or value not in choices:
            expected = " or ".join(repr(choice) for choice in choices)
            raise self.error(f"{key!r} is {shown(value)}, not {expected}")
        return value

    def list_of(self, key: str) -> list[Any]:
        """Return the value of a key that is a list; an empty one for null or nothing."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(f"{key!r} is {shown(value)}, not a list")
        return value or []

    def named(self, value: Any, what: str) -> tuple[str, Document]:
        """Return the name and the configuration of an extension (Zarr 3, "Extension definition").

        Parameters
        ----------
        value : object
            Its JSON: a name, or an object with it.
        what : str
            What it is, for messages.
        """
        if isinstance(value, str):
            value = {"name": value}
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str):
            raise self.error(f"{what} is {shown(value)}, not an object with a name")
        configuration = value.get("configuration") or {}
        if not isinstance(configuration, dict):
            raise self.error(f"{what} {name!r}: its configuration is no object")
        return name, Document(f"{self.where}: {what} {name!r}", configuration)


def shown(value: Any) -> str:
    """Return a value for a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def load(store: Store, key: str, size: int, limit: int) -> Document:
    """Read a document.

    Parameters
    ----------
    store, key
        Where it is.
    size : int
        Its bytes.
    limit : int
        Bytes of memory that it may take.

    Raises
    ------
    FormatError
        If it is no JSON object.
    MemoryLimitError
        If it is too large.
    """
    where = store.location(key)
    if size * _GROWTH > limit:
        raise MemoryLimitError(
            f"{where}: {size} bytes of metadata, too many for a memory_limit of {limit} bytes; "
            "raise it (--memory-limit)"
        )
    buffer = bytearray(size)
    store.readinto(key, 0, memoryview(buffer))
    data = _parsed(where, bytes(buffer))
    if not isinstance(data, dict):
        raise FormatError(f"a JSON object was expected, not {shown(data)}", source=where)
    return Document(where, data)


def _parsed(where: str, data: bytes) -> Any:
    try:
        return json.loads(data.decode())
    except UnicodeDecodeError as error:
        raise FormatError("no UTF-8", source=where, offset=error.start) from None
    except json.JSONDecodeError as error:
        offset = len(error.doc[: error.pos].encode())
        raise FormatError(f"no JSON: {error.msg}", source=where, offset=offset) from None
    except (RecursionError, ValueError) as error:
        reason = "it nests too deeply" if isinstance(error, RecursionError) else f"{error}"
        raise FormatError(f"no JSON that can be read: {reason[:_LONGEST]}", source=where) from None
