"""Where chunks and what they consist of stand, one behind the other or along axes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuload.array_codecs import Skip, Transpose
from gpuload.filters.device import supported

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.array_plan import ArrayPlan
    from gpuload.containers.expand import Expanded

    Integers = npt.NDArray[np.int64]

__all__ = [
    "c_strides",
    "groups_of",
    "is_shuffled",
    "runs_of",
    "starts_of",
    "strides_of",
    "unsupported",
]


def starts_of(sizes: Integers) -> Integers:
    """Return where each stands if one follows the other."""
    starts: Integers = np.cumsum(sizes) - sizes
    return starts


def runs_of(of: Integers, to: Integers, sizes: Integers) -> list[tuple[int, int, int]]:
    """Return the copies that bring all bytes: from where, to where and how many.

    One takes along what goes on at both sides where the one before ends.
    """
    if not sizes.size:
        return []
    apart = (of[1:] != of[:-1] + sizes[:-1]) | (to[1:] != to[:-1] + sizes[:-1])
    first = np.concatenate([[0], np.flatnonzero(apart) + 1])
    ends = np.add.reduceat(sizes, first)
    return list(zip(of[first].tolist(), to[first].tolist(), ends.tolist(), strict=True))


def groups_of(sizes: Integers, most: int) -> list[tuple[int, int]]:
    """Return groups of at most `most` bytes in all; none of `sizes` is larger."""
    ends, edges = np.cumsum(sizes), [0]
    while edges[-1] < sizes.size:
        begun = int(ends[edges[-1] - 1]) if edges[-1] else 0
        edges.append(max(edges[-1] + 1, int(np.searchsorted(ends, begun + most, "right"))))
    return list(pairwise(edges))


def is_shuffled(expanded: Expanded, count: int) -> npt.NDArray[np.bool_]:
    """Return which of `count` chunks have blocks that are shuffled."""
    found = np.zeros(count, np.bool_)
    found[expanded.shuffled.chunk] = True
    return found


def unsupported(plan: ArrayPlan) -> str:
    """Return why the host has to undo the filters of an array; empty if it need not."""
    filters = plan.asset.pipeline.filters
    if any(isinstance(step, Transpose) for step in filters[:-1]):
        return "filters behind a transposition"
    steps = [step for step in filters if not isinstance(step, Skip | Transpose)]
    return next((reason for step in steps if (reason := supported(step))), "")


def strides_of(plan: ArrayPlan) -> Integers:
    """Return the bytes between elements of a decoded chunk along each axis."""
    shape, filters = plan.asset.chunk_shape, plan.asset.pipeline.filters
    if not filters or not isinstance(filters[-1], Transpose):
        return c_strides(shape, plan.itemsize)
    order = list(filters[-1].order)
    strides = np.zeros(len(shape), np.int64)
    strides[order] = c_strides(tuple(shape[axis] for axis in order), plan.itemsize)
    return strides


def c_strides(shape: tuple[int, ...], itemsize: int) -> Integers:
    """Return the bytes between elements along each axis, the last one being the fastest."""
    behind = np.array([*shape[1:], 1][: len(shape)], np.int64)
    strides: Integers = itemsize * np.cumprod(behind[::-1])[::-1]
    return strides
