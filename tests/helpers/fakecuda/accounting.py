"""How much device memory is taken, counted in the units that a driver takes it in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.fakecuda.allocations import device
from tests.helpers.fakecuda.codes import Code, CudaError
from tests.helpers.fakecuda.space import GRANULARITY, round_up

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver

_SHARED_BELOW = 1 << 20  # smaller allocations of cuMemAlloc share blocks


def device_memory_used(cuda: FakeDriver, ordinal: int) -> int:
    """Return how many bytes of a device are taken, by pools too."""
    here = device(ordinal)
    plain = [a for a in cuda.memory.allocations.values() if a.location == here and not a.pool]
    small = sum(a.size for a in plain if a.size < _SHARED_BELOW)
    large = sum(round_up(a.size, GRANULARITY) for a in plain if a.size >= _SHARED_BELOW)
    pooled = sum(p.reserved for p in cuda.pools.values() if p.location == here)
    return round_up(small, GRANULARITY) + large + pooled


def charge(cuda: FakeDriver, ordinal: int, size: int) -> None:
    """Refuse an allocation that the device has no room for."""
    if device_memory_used(cuda, ordinal) + size > cuda.settings.total_memory:
        raise CudaError(Code.OUT_OF_MEMORY, f"{size} bytes on device {ordinal}")
