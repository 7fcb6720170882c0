"""nvCOMP's shared library, by ctypes: where it is, whether its version fits, its calls, checked.

Importing this loads nothing, and none of cuda-python.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuload.engines.nvcomp_abi import (
    END,
    FIRST,
    METHODS,
    SUCCESS,
    Alignments,
    Options,
    Properties,
    signatures,
    status_name,
)
from gpuload.errors import DriverError, EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuload.engines.nvcomp_abi import Arrays

__all__ = ["Library", "load", "unavailable"]

_INSTALL = "pip install 'gpuload[nvcomp]'"
_PACKAGE = "nvidia.libnvcomp"

#: ``NVCOMP_DECOMPRESS_BACKEND_CUDA``. The other back end is the decompression engine, for which
#: there is the hardware engine; nvCOMP reports no statuses there (its lz4.h).
_CUDA = Options(2)


class Library:
    """nvCOMP's calls, all for the device that is current.

    Parameters
    ----------
    path : str
        File name, or a name that the loader of shared libraries knows.

    Attributes
    ----------
    version : (int, int)
        Outside of `FIRST` to `END`, no call may be made.

    Raises
    ------
    OSError, AttributeError, DriverError
        If it does not load, lacks a call, or does not tell its version.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.version = self._version()
        self._calls: dict[tuple[int, str], Callable[..., int]] = {}
        if FIRST <= self.version < END:
            for codec, method in METHODS.items():
                for key, (name, parameters) in signatures(method.name, self.version).items():
                    self._calls[codec, key] = self._function(name, ctypes.c_int, parameters)

    def _function(self, name: str, result: object, parameters: list[object]) -> Callable[..., int]:
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, parameters
        return function  # type: ignore[no-any-return]

    def _version(self) -> tuple[int, int]:
        properties = Properties()
        self._check(self._library.nvcompGetProperties(ctypes.byref(properties)), "GetProperties")
        # MAKE_SEMANTIC_VERSION of nvcomp/version.h
        return properties.version // 1000, properties.version % 1000 // 100

    def alignments(self, codec: int) -> Alignments:
        """Return what addresses must be multiples of."""
        found = Alignments()
        self._call(codec, "alignments", _CUDA, ctypes.byref(found))
        return found

    def temp_size(self, codec: int, count: int, largest: int, total: int, stream: int = 0) -> int:
        """Return how many bytes of temporary memory some chunks take.

        Parameters
        ----------
        codec, count : int
            How many chunks, of which codec.
        largest, total : int
            Decoded bytes of the largest one, and of all of them.
        stream : int
            Handle of the stream on which they will be decoded.
        """
        found = ctypes.c_size_t()
        given = [count, largest, _CUDA, ctypes.byref(found), total, stream]
        # Older versions do not ask for the stream.
        number = len(self._calls[codec, "temp_size"].argtypes)  # type: ignore[attr-defined]
        self._call(codec, "temp_size", *given[:number])
        return found.value

    def decompress(
        self, codec: int, count: int, arrays: Arrays, temp: tuple[int, int], stream: int
    ) -> None:
        """Submit chunks to a stream.

        Parameters
        ----------
        codec, count : int
            How many chunks, of which codec.
        arrays : Arrays
            Of at least as many elements.
        temp : (int, int)
            Address and bytes of the temporary memory.
        stream : int
            The stream's handle.
        """
        given = (*arrays[:4], count, *temp, arrays.targets, _CUDA, arrays.statuses, stream)
        self._call(codec, "decompress", *given)

    def _call(self, codec: int, key: str, *arguments: object) -> None:
        call = self._calls[codec, key]
        self._check(call(*arguments), call.__name__)

    def _check(self, code: int, call: str) -> None:
        if code != SUCCESS:
            text = self._description(code)
            raise DriverError(f"{call} failed: {status_name(code)} ({code}){text}")

    def _description(self, code: int) -> str:
        """Return nvCOMP's sentence about a status; before 5.2 there were none."""
        try:
            describe = self._function("nvcompGetStatusString", ctypes.c_char_p, [ctypes.c_int])
        except AttributeError:
            return ""
        text: bytes | None = describe(code)  # type: ignore[assignment]
        return f": {text.decode()}" if text else ""


def unavailable() -> str:
    """Return why nvCOMP can't be used; empty if it can. The first call loads it."""
    return _find()[1]


def load() -> Library:
    """Return nvCOMP's library.

    Raises
    ------
    EngineUnavailableError
        If there is none, or only one of a version that is not known.
    """
    library, reason = _find()
    if library is None:
        raise EngineUnavailableError(f"the nvcomp engine cannot run: {reason}")
    return library


@functools.cache
def _find() -> tuple[Library | None, str]:
    """Return the library, or why there is none."""
    reason = "nvCOMP is not installed"
    for path in _candidates():
        try:
            library = Library(path)
        except (OSError, AttributeError, DriverError) as error:
            # That the system's loader knows no such name is no news.
            if Path(path).is_absolute():
                reason = f"nvCOMP does not load: {error}"
            continue
        if FIRST <= library.version < END:
            return library, ""
        found, first = (".".join(map(str, version)) for version in (library.version, FIRST))
        reason = f"nvCOMP {found} is installed, {first} or newer before {END[0]} is needed"
    return None, f"{reason}: {_INSTALL}"


def _candidates() -> Iterator[str]:
    """Yield paths in the installed package, then names for the system's loader; newest first."""
    windows = sys.platform == "win32"
    for folder in _package_folders():
        found = folder.glob("*/nvcomp64_*.dll" if windows else "*/libnvcomp.so.*")
        yield from sorted(map(str, found), reverse=True)
    for major in reversed(range(FIRST[0], END[0])):
        yield f"nvcomp64_{major}.dll" if windows else f"libnvcomp.so.{major}"


def _package_folders() -> list[Path]:
    try:
        spec = importlib.util.find_spec(_PACKAGE)
    except ModuleNotFoundError:
        return []
    return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
