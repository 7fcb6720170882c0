"""Steps that must all run, whatever the others do: taking back, and closing."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Self

from gpuload.errors import GpuloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

__all__ = ["Undo", "run_all"]


class Undo:
    """A block of steps, each with the one that takes it back.

    If the block fails, what was done is taken back, the latest first; if it succeeds, nothing
    happens. A step that can't be taken back is added to the error's notes, and the steps before
    it stay: it is built on them.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def add(self, step: Callable[..., object], *arguments: object) -> None:
        """Call ``step(*arguments)`` if the block fails."""
        self._steps.append(functools.partial(step, *arguments))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            return
        try:
            while self._steps:
                self._steps.pop()()
        except GpuloadError as failure:
            error.add_note(f"taking back what was done before failed too: {failure}")


def run_all(steps: Iterable[Callable[[], object]]) -> None:
    """Run every step.

    Raises
    ------
    GpuloadError
        The first that a step raised; the others are its notes.
    """
    first: GpuloadError | None = None
    for step in steps:
        try:
            step()
        except GpuloadError as error:
            if first is None:
                first = error
            else:
                first.add_note(str(error))
    if first is not None:
        raise first
