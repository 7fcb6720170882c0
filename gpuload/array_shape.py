"""How much memory the parts of a load of arrays to a device get, and how many are on their way."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload.errors import MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuload.array_plan import ArrayPlan, Part

    Integers = npt.NDArray[np.int64]

__all__ = ["Limits", "Shape", "parts_of", "shape_of"]

#: Parts on their way at the same time, at most.
_STATIONS = 4
#: What memory from cuMemCreate is taken in.
_UNIT = 2 << 20
#: Stored bytes of a part, at most: what is done once a part takes less time than reading these.
_MOST_STORED = 96 << 20
#: Pinned memory for what the host decodes of parts that a device decodes otherwise.
_DECODED = 8 << 20
#: Missing chunks of a part, at most.
_MANY = 1 << 16


@dataclass(frozen=True)
class Shape:
    """How many stations there are, and the bytes of what each of them has.

    Attributes
    ----------
    count : int
        Stations.
    stored, decoded : int
        Pinned memory for stored bytes, and for what the host decodes.
    landing, first, second : int
        Memory on the device: for stored bytes, and for decoded ones before and behind a filter.
    scratch : int
        Memory that an engine may take on the device.
    """

    count: int
    stored: int
    decoded: int
    landing: int
    first: int
    second: int
    scratch: int

    def has_room_for(self, other: Shape) -> bool:
        """Return whether what another shape needs is there."""
        mine, wanted = astuple(self), astuple(other)
        return all(one >= least for one, least in zip(mine, wanted, strict=True))

    @property
    def on_host(self) -> int:
        """Bytes of pinned memory."""
        return self.count * (self.stored + self.decoded)

    @property
    def on_device(self) -> int:
        """Bytes on the device."""
        return self.count * (self.landing + self.first + self.second + self.scratch)


@dataclass(frozen=True)
class Limits:
    """What a load may take.

    Attributes
    ----------
    host, device : int
        Bytes of memory.
    on_host : bool
        Whether the host decodes.
    scratch : float
        Bytes that the engine on the device takes for each that it decodes.
    """

    host: int
    device: int
    on_host: bool = False
    scratch: float = 0.0


def parts_of(plan: ArrayPlan, shape: Shape) -> list[Part]:
    """Return the parts of a plan that stations of a shape have room for."""
    stored, first, second = plan.memory
    number = np.ones(stored.size, np.int64)
    most = [
        (stored, shape.stored),
        (first, shape.first),
        (second, shape.second),
        (number, _MANY),
    ]
    return plan.cut([(sizes, limit) for sizes, limit in most if sizes.any()])


def shape_of(plans: Sequence[ArrayPlan], limits: Limits) -> Shape:
    """Return the shape of stations for some plans.

    Raises
    ------
    MemoryLimitError
        If there is not enough memory for the largest chunk.
    """
    sizes = [[int(each.sum()) for each in plan.memory] for plan in plans]
    total = np.array(sizes, np.int64).reshape(-1, 3).sum(axis=0)
    largest = np.array([_largest(plan) for plan in plans], np.int64).reshape(-1, 3)
    largest = largest.max(axis=0, initial=0)
    repaired = max((int(plan.aligned_sizes.max(initial=0)) for plan in plans), default=0)
    for count in range(_STATIONS, 0, -1):
        shape = _shape(count, total, largest, repaired, limits)
        if shape.on_host <= limits.host and shape.on_device <= limits.device:
            return shape
    chunk, need = int(largest.max()), max(shape.on_host, shape.on_device)
    raise MemoryLimitError(
        f"{plans[0].name}: a chunk of {chunk} bytes needs {need} bytes of memory, memory_limit is "
        f"{limits.host}; raise it (--memory-limit)"
    )


def _largest(plan: ArrayPlan) -> list[int]:
    """Return the most that a chunk takes of each piece of memory."""
    return [int(each.max(initial=0)) for each in plan.memory]


def _shape(count: int, total: Integers, largest: Integers, repaired: int, limits: Limits) -> Shape:
    # There is always room for a chunk that the host decodes again.
    aside = max(repaired, 0 if limits.on_host else _DECODED)
    stored, first, second = _pieces(count, total, largest, limits, aside)
    decoded = max(repaired, first if limits.on_host else min(first, _DECODED))
    return Shape(count, stored, decoded, stored, first, second, int(limits.scratch * first))


def _pieces(
    count: int, total: Integers, largest: Integers, limits: Limits, aside: int
) -> list[int]:
    """Return the bytes of stored, first and second, as a share of what all plans take."""
    stored, first, second = (float(each) for each in total)
    on_host = stored + (first if limits.on_host else 0)
    on_device = stored + first * (1 + limits.scratch) + second
    share = min(
        1.0,
        max(0, limits.host - count * (0 if limits.on_host else aside)) / max(1.0, on_host),
        limits.device / max(1.0, on_device),
        count * _MOST_STORED / max(1.0, stored),
    )
    wanted = [
        (int(share / count * each), int(most)) for each, most in zip(total, largest, strict=True)
    ]
    return [max(size // _UNIT * _UNIT, -(-most // _UNIT) * _UNIT) for size, most in wanted]
