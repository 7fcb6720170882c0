"""Memory pools and how much memory they hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.accounting import charge, device_memory_used
from tests.helpers.fakecuda.codes import Access, LocationType, PoolAttribute
from tests.helpers.fakecuda.space import GRANULARITY, round_up

if TYPE_CHECKING:
    from tests.helpers.fakecuda.allocations import Mapping, Place
    from tests.helpers.fakecuda.driver import FakeDriver

_UNIT = 32 << 20  # a pool takes memory in pieces of this size
_DEFAULT_HANDLES = 0x7E57_1000_0000


@dataclass(eq=False)
class Pool:
    """A pool: what its allocations are like, and how much memory it holds.

    Attributes
    ----------
    reserved : int
        Bytes the pool has from the driver; `used` of them are allocated. The rest is given back
        when something synchronises, down to the release threshold.
    """

    handle: int
    location: Place
    capable: bool = False
    handle_types: int = 0
    maximum: int = 0
    default: bool = False
    destroyed: bool = False
    reserved: int = 0
    used: int = 0
    peak_reserved: int = 0
    peak_used: int = 0
    settings: dict[int, int] = field(
        default_factory=lambda: {
            PoolAttribute.REUSE_FOLLOW_EVENT_DEPENDENCIES: 1,
            PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC: 1,
            PoolAttribute.REUSE_ALLOW_INTERNAL_DEPENDENCIES: 1,
            PoolAttribute.RELEASE_THRESHOLD: 0,
        }
    )
    access: dict[Place, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.access.setdefault(self.location, Access.READ_WRITE)

    def allocate(self, cuda: FakeDriver, size: int) -> None:
        """Count an allocation, and refuse it if the device cannot hold it."""
        missing = self.used + size - self.reserved
        if missing > 0:
            self._grow(cuda, missing)
        self.used += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.peak_used = max(self.peak_used, self.used)

    def _grow(self, cuda: FakeDriver, missing: int) -> None:
        grown = round_up(missing, _UNIT)
        if self.location[0] == LocationType.DEVICE:
            ordinal = self.location[1]
            charge(cuda, ordinal, round_up(missing, GRANULARITY))
            left = cuda.settings.total_memory - device_memory_used(cuda, ordinal)
            grown = min(grown, left)
        self.reserved += grown

    def trim(self, keep: int | None = None) -> None:
        """Give unused memory back, down to the release threshold or to `keep` bytes."""
        if keep is None:
            keep = self.settings[PoolAttribute.RELEASE_THRESHOLD]
        self.reserved = min(self.reserved, max(round_up(self.used, _UNIT), keep))


class Pools(dict[int, Pool]):
    """All pools by their handles."""

    def __init__(self, cuda: FakeDriver) -> None:
        super().__init__()
        self._cuda = cuda

    def default(self, place: Place) -> Pool:
        """Return the default pool of a place, whose handle never changes."""
        handle = _DEFAULT_HANDLES + 0x100 * place[0] + place[1]
        return self.setdefault(handle, Pool(handle, place, default=True))

    def give_back(self, mapping: Mapping) -> None:
        """Count an allocation of a pool as freed."""
        pool = self[mapping.allocation.pool]
        pool.used -= mapping.allocation.size
        self.forget_if_empty(pool)

    def forget_if_empty(self, pool: Pool) -> None:
        """Remove a destroyed pool once none of its memory is in use."""
        if pool.destroyed and pool.used == 0:
            self.pop(pool.handle, None)

    def trim(self) -> None:
        """Let every pool give back what it need not keep."""
        for pool in self.values():
            pool.trim()
