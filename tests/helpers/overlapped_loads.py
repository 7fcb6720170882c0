"""What the tests of overlapped loads share: small ranges, who loaded what, and files to load."""

from __future__ import annotations

import functools
import struct
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import lz4.block
import lz4.frame
import zstandard

import gpuload
from gpuload import lease, overlapped, overlapped_load
from gpuload.errors import FormatWarning
from gpuload.feeds import IrregularError
from gpuload.lease import Shape
from gpuload.staging import MappedStager
from tests.helpers.device_loads import compressed
from tests.helpers.handmade import INDEPENDENT, V1, lz4_block, lz4_frame

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["FILES", "Loads", "lz4_of", "outcome", "small_ranges", "spy"]

#: Options of every load here.
QUICK: dict[str, Any] = {"device": 0, "engine": "sm", "threads": 2}


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

    for name in ("load_listed", "load_unlisted", "load_files"):
        noting(name)
    return loads


def small_ranges(
    patch: pytest.MonkeyPatch,
    *,
    pieces: int = 4,
    piece: int = 64 << 10,
    slots: int = 6,
    margin: int = 128 << 10,
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

    def __init__(self: MappedStager, *arguments: Any) -> None:
        begin(self, *arguments)
        self.piece_size = piece

    patch.setattr(MappedStager, "__init__", __init__)


def outcome(file: Path | bytes, *, listed: bool = False, **options: Any) -> Any:
    """Load; return the bytes and the report, or the error's type and text.

    Parameters
    ----------
    file : path or bytes
        What to load.
    listed : bool
        Whether to list it before.
    **options
        Over `QUICK`.
    """
    job = gpuload.loader.Job(file, None, None, None, None, gpuload.options.Options(**QUICK | options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            if listed:
                with gpuload.open(file, **QUICK | options) as container:
                    return bytes(container.load()), container.report
            return bytes(job.run(gpuload.watch.Watch())), job.report
        except Exception as error:  # noqa: BLE001 (to be compared)
            return type(error), str(error)
