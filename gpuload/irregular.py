"""What ends a load whose stages overlap, and has it begin again step by step."""

from __future__ import annotations

__all__ = ["DamagedError", "IrregularError"]


class IrregularError(Exception):
    """A load that goes otherwise than most do; it begins again, step by step, which can say why."""


class DamagedError(IrregularError):
    """Something is wrong with what a chunk holds, however the chunks were found."""
