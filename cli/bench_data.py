"""The contents that ``gpuload bench kernels`` decodes: the same ones in every run, of any size."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Content = npt.NDArray[np.uint8]

__all__ = ["make"]

#: Bytes that are generated at most; from there on they repeat, too far apart for any codec to see.
_GENERATED = 128 << 20
#: Numbers that are generated at a time.
_BLOCK = 4 << 20
#: Libraries that share the content, the largest ones.
_LIBRARIES = 8
_LIBRARY_SUFFIXES = frozenset({".so", ".pyd", ".dll", ".dylib"})


def make(name: str, size: int) -> Content:
    """Return `size` bytes of a kind.

    Parameters
    ----------
    name : str
        "text", Python sources; "binary", shared libraries; "weights", bfloat16 numbers of a normal
        distribution; "field", a smooth float32 field with noise, rounded to multiples of 1/64. The
        first two are found in the Python installation that runs this.
    size : int
        In bytes. What is shorter is repeated.

    Raises
    ------
    click.ClickException
        If the installation has no such files.
    """
    makers: dict[str, Callable[[int], Content]] = {
        "text": _text,
        "binary": _binary,
        "weights": _weights,
        "field": _field,
    }
    unique = makers[name](size)
    if not unique.size:
        folders = ", ".join(map(str, _folders()))
        raise click.ClickException(f"there are no files for the data set '{name}' in {folders}")
    return _repeated(unique, size)


def _repeated(unique: Content, size: int) -> Content:
    content = np.empty(size, np.uint8)
    filled = min(size, unique.size)
    content[:filled] = unique[:filled]
    while filled < size:
        # What is there is a whole number of repetitions until the last step.
        step = min(filled, size - filled)
        content[filled : filled + step] = content[:step]
        filled += step
    return content


def _text(size: int) -> Content:
    found = bytearray()
    for path in _files():
        if path.suffix == ".py":
            found += _start(path, size - len(found))
        if len(found) >= size:
            break
    return np.frombuffer(found, np.uint8)


def _binary(size: int) -> Content:
    libraries = [path for path in _files() if _LIBRARY_SUFFIXES & set(path.suffixes)]
    largest = sorted(libraries, key=lambda path: (-_size(path), path))[:_LIBRARIES]
    share = -(-size // _LIBRARIES)
    return np.frombuffer(b"".join(_start(path, share) for path in largest), np.uint8)


def _files() -> Iterator[Path]:
    """Yield the files of the installation, in an order that is always the same."""
    seen = set()
    for root in _folders():
        for folder, folders, names in os.walk(root):
            folders.sort()
            if folder in seen:
                folders.clear()  # site-packages may be a part of the standard library's folder
                continue
            seen.add(folder)
            yield from (Path(folder, name) for name in sorted(names))


def _folders() -> list[Path]:
    """Return the folders of the standard library and of installed packages."""
    paths = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return [Path(path) for path in dict.fromkeys(paths) if path]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _start(path: Path, size: int) -> bytes:
    """Return the first bytes of a file; none if it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def _weights(size: int) -> Content:
    def block(rng: np.random.Generator, _: int, count: int) -> npt.NDArray[np.uint16]:
        numbers = rng.standard_normal(count, np.float32) * np.float32(0.02)
        # bfloat16 is the upper half of a float32.
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)

    return _generated(block, size, 2)


def _field(size: int) -> Content:
    def block(rng: np.random.Generator, start: int, count: int) -> npt.NDArray[np.float32]:
        x = np.arange(start, start + count) * 9e-7
        values = np.sin(x) * 20 + np.cos(7 * x) * 3 + rng.normal(0, 0.05, count)
        rounded: npt.NDArray[np.float32] = (np.round(values * 64) / 64).astype(np.float32)
        return rounded

    return _generated(block, size, 4)


def _generated(
    block: Callable[[np.random.Generator, int, int], npt.NDArray[np.generic]],
    size: int,
    item_size: int,
) -> Content:
    """Return numbers that a function makes block by block."""
    rng, count = np.random.default_rng(0), -(-min(size, _GENERATED) // item_size)
    starts = range(0, count, _BLOCK)
    blocks = [block(rng, start, min(_BLOCK, count - start)) for start in starts]
    return np.concatenate(blocks).view(np.uint8)
