"""Memory pools and their stream-ordered allocations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.codes import Access, LocationType, PoolAttribute

if TYPE_CHECKING:
    from tests.helpers.fakecuda.memory import Place


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

    @property
    def on_device(self) -> bool:
        """Whether the pool's memory is a device's."""
        return self.location[0] == LocationType.DEVICE

    def growth(self, size: int) -> int:
        """Return how many more bytes the pool needs from the driver for an allocation."""
        return max(self.used + size - self.reserved, 0)

    def allocate(self, size: int) -> None:
        """Count an allocation."""
        self.reserved += self.growth(size)
        self.used += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.peak_used = max(self.peak_used, self.used)

    def free(self, size: int) -> None:
        """Count a freed allocation; the memory stays with the pool for now."""
        self.used -= size

    def trim(self, keep: int | None = None) -> None:
        """Give unused memory back, down to the release threshold or to `keep` bytes."""
        if keep is None:
            keep = self.settings[PoolAttribute.RELEASE_THRESHOLD]
        self.reserved = min(self.reserved, max(self.used, keep))
