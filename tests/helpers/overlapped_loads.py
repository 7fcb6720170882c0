"""What the tests of overlapped loads share: small ranges, who loaded what, and files to load."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import lz4.block
import lz4.frame
import numpy as np

import gpuload
from gpuload import lease, loader, overlapped, overlapped_load
from gpuload.errors import FormatWarning
from gpuload.irregular import IrregularError
from gpuload.lease import Shape
from gpuload.options import Options
from gpuload.staging import MappedStager
from gpuload.watch import Watch
from tests.helpers.device_loads import compressed
from tests.helpers.handmade import BLOCK_SUM, INDEPENDENT, V1, lz4_block, lz4_frame

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

__all__ = [
    "FEEDS",
    "QUICK",
    "Loads",
    "bgzf",
    "find_rows",
    "lz4_blocks",
    "mixed",
    "outcome",
    "overlapped_off",
    "regular_files",
    "small_ranges",
    "spy",
]

#: Options of every load here.
QUICK: dict[str, Any] = {"device": 0, "engine": "sm", "threads": 2}
#: How the rows of a file are found: before it is loaded, by a thread, or on the device.
FEEDS = ("listed", "walked", "scanned")
_FUNCTIONS = ("load_listed", "load_unlisted", "load_files")


def mixed(size: int, seed: int = 1) -> bytes:
    """Return bytes of which each KiB compresses by a quarter."""
    rng = np.random.default_rng(seed)
    return b"".join(rng.bytes(768) + bytes(256) for _ in range(-(-size // 1024)))[:size]


# --- Loads ----------------------------------------------------------------------------------------


@dataclass
class Loads:
    """What became of loads that were begun overlapped.

    Attributes
    ----------
    ended : list of (str, str)
        Which function it was ("load_listed", "load_unlisted" or "load_files"), and "done",
        "irregular" or the name of another error.
    """

    ended: list[tuple[str, str]] = field(default_factory=list)

    @property
    def done(self) -> list[str]:
        """The functions that have loaded something."""
        return [name for name, end in self.ended if end == "done"]


def spy(patch: pytest.MonkeyPatch) -> Loads:
    """Note how overlapped loads end."""
    loads = Loads()

    def noting(name: str) -> None:
        right = getattr(overlapped_load, name)

        @functools.wraps(right)
        def load(*arguments: Any) -> Any:
            try:
                loaded = right(*arguments)
            except BaseException as error:
                irregular = isinstance(error, IrregularError)
                loads.ended.append((name, "irregular" if irregular else type(error).__name__))
                raise
            loads.ended.append((name, "done"))
            return loaded

        patch.setattr(overlapped_load, name, load)

    for name in _FUNCTIONS:
        noting(name)
    return loads


def overlapped_off(patch: pytest.MonkeyPatch) -> None:
    """Let every load go step by step."""

    def irregular(*arguments: Any) -> Any:
        raise IrregularError

    for name in _FUNCTIONS:
        patch.setattr(overlapped_load, name, irregular)


def small_ranges(
    patch: pytest.MonkeyPatch,
    *,
    pieces: int = 4,
    piece: int = 64 << 10,
    slots: int = 6,
    margin: int = 320 << 10,
) -> None:
    """Let small files take many ranges, and be listed while they are loaded.

    Parameters
    ----------
    pieces, piece : int
        Pieces of a range, and bytes of a piece.
    slots : int
        Of the ring; each holds a piece.
    margin : int
        Bytes in front of landing places.
    """
    shape = Shape(3, pieces * piece, slots, piece)
    patch.setattr(Shape, "within", lambda *_: shape)
    patch.setattr(lease, "MARGIN", margin)
    patch.setattr(overlapped, "MARGIN", margin)
    patch.setattr(overlapped_load, "_WORTH_WALKING", 0)
    begin = MappedStager.__init__

    def begin_small(stager: MappedStager, *arguments: Any) -> None:
        begin(stager, *arguments)
        stager.piece_size = piece

    patch.setattr(MappedStager, "__init__", begin_small)


def find_rows(patch: pytest.MonkeyPatch, feed: str) -> None:
    """Let rows of files that are not listed be found on the device or by a thread only.

    Parameters
    ----------
    feed : str
        Of `FEEDS`.
    """

    def irregular(*arguments: Any) -> Any:
        raise IrregularError

    other = {"walked": "_load_scanned", "scanned": "_load_walked"}.get(feed)
    if other:
        patch.setattr(overlapped_load, other, irregular)


def outcome(file: Path | bytes, feed: str = "", *, out: Any = None, **options: Any) -> Any:
    """Load; return the bytes and the report, or the error's type and text.

    Parameters
    ----------
    file : path or bytes
        What to load.
    feed : str
        "listed" to list it before.
    out : array, optional
        Where to.
    **options
        Over `QUICK`.
    """
    chosen = QUICK | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            if feed == "listed":
                with gpuload.open(file, **chosen) as container:
                    return bytes(container.load(out=out)), container.report
            job = loader.Job(file, None, out, None, None, Options(**chosen))
            return bytes(job.run(Watch())), job.report
        except Exception as error:  # noqa: BLE001 (to be compared)
            return type(error), str(error)


# --- Files ----------------------------------------------------------------------------------------


def lz4_blocks(parts: Iterable[bytes], flags: int = V1 | INDEPENDENT, **fields: Any) -> bytes:
    """Return an LZ4 frame with a block for each part; those that would not shrink are stored."""
    blocks = []
    for part in parts:
        packed = lz4.block.compress(part, store_size=False)
        raw = len(packed) >= len(part)
        stored = part if raw else packed
        blocks.append(lz4_block(stored, raw=raw, checksum=bool(flags & BLOCK_SUM)))
    return lz4_frame(*blocks, flags=flags, **fields)


def bgzf(data: bytes) -> bytes:
    """Return a BGZF file."""
    return compressed(data, "gzip", chunk_size=65_280)


def regular_files(size: int) -> dict[str, tuple[bytes, bytes]]:
    """Return files that load overlapped by the sm engine, and what they decode to."""
    raw, noise = mixed(size), np.random.default_rng(2).bytes(size)
    whole = raw[: size // 65_536 * 65_536]
    frame = functools.partial(lz4.frame.compress, block_size=4, block_linked=False)
    half = functools.partial(lz4.frame.compress, block_size=5, block_linked=False)
    return {
        "lz4 without its size": (frame(raw, store_size=False), raw),
        "lz4 with its size": (frame(raw), raw),
        "lz4 with block checksums": (frame(raw, block_checksum=True, store_size=False), raw),
        "lz4 with a content checksum": (frame(raw, content_checksum=True), raw),
        "lz4 as gpuload writes it": (compressed(raw, "lz4"), raw),
        "lz4 of noise": (frame(noise, block_checksum=True), noise),
        "lz4, last block full": (frame(whole, store_size=False), whole),
        "lz4 frames of full blocks": (
            b"".join(
                frame(whole[at : at + 131_072], store_size=False)
                for at in range(0, len(whole), 131_072)
            ),
            whole,
        ),
        "lz4 of larger blocks": (half(raw), raw),
        "lz4 of one block": (frame(raw[:50_000], store_size=False), raw[:50_000]),
        "lz4 of one byte": (frame(b"a", store_size=False), b"a"),
        "snappy": (compressed(raw, "snappy"), raw),
        "snappy of noise": (compressed(noise, "snappy"), noise),
        "snappy of small chunks": (compressed(raw, "snappy", chunk_size=1500), raw),
    }
