"""Write the contents that the benchmark compresses to standard output.

``contents.py mix SIZE``: installed Python sources and shared libraries, 16 MiB of each in turn,
from the beginning again when they end. ``contents.py big SIZE MIX``: a quarter of it from the file
MIX, the rest zeros.

A process of its own, because the peak memory of a process is at least that of its parent.
"""

from __future__ import annotations

import itertools
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PIECE = 16 << 20
_TILE = 1 << 20


def main(kind: str, size: str, *arguments: str) -> None:
    pieces = mix() if kind == "mix" else big(Path(*arguments))
    left = int(size)
    while left > 0:
        piece = next(pieces)[:left]
        sys.stdout.buffer.write(piece)
        left -= len(piece)


def mix() -> Iterator[bytes]:
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    sources = sorted({path for folder in folders for path in folder.rglob("*.py")})
    libraries = sorted({path for folder in folders for path in folder.rglob("*.so*")})
    streams = itertools.cycle([cut(repeat(sources)), cut(repeat(libraries))])
    return (next(stream) for stream in streams)


def repeat(paths: list[Path]) -> Iterator[bytes]:
    for path in itertools.cycle(paths):
        yield path.read_bytes()


def cut(contents: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the contents in pieces of one size."""
    piece = bytearray()
    for content in contents:
        piece += content
        while len(piece) >= _PIECE:
            yield bytes(piece[:_PIECE])
            del piece[:_PIECE]


def big(path: Path) -> Iterator[bytes]:
    zeros = bytes(_TILE - _TILE // 4)
    with path.open("rb") as file:
        while True:
            tile = file.read(_TILE // 4)
            if not tile:
                file.seek(0)
                continue
            yield tile
            yield zeros


if __name__ == "__main__":
    main(*sys.argv[1:])
