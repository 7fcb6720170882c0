"""What is allocated, and how addresses reach it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.helpers.fakecuda.codes import Access, LocationType

#: A place that may have access: (LocationType.DEVICE, ordinal), or HOST for any CPU.
Place = tuple[int, int]
HOST: Place = (LocationType.HOST, 0)


def device(ordinal: int) -> Place:
    """Return the place of a device."""
    return (LocationType.DEVICE, ordinal)


@dataclass(eq=False)
class Allocation:
    """Physical memory from one call of one allocator.

    Attributes
    ----------
    kind : str
        "device" (cuMemAlloc), "host" (cuMemHostAlloc), "registered" (cuMemHostRegister),
        "created" (cuMemCreate) or "pool".
    asked : tuple of int
        The location as the program gave it; `location` knows only one host.
    handles : int
        References through cuMemCreate's handle; memory lives while there are any or mappings.
    """

    number: int
    kind: str
    size: int
    location: Place
    capable: bool = False
    offset: int | None = None
    reserved: int = 0
    usage: int = 0
    handle_types: int = 0
    asked: tuple[int, int] = (0, 0)
    pool: int = 0
    context: int = 0
    flags: int = 0
    handles: int = 0
    mappings: int = 0
    written: bool = False

    def __str__(self) -> str:
        return f"allocation {self.number} ({self.kind}, {self.size} bytes)"


@dataclass(eq=False)
class Mapping:
    """A range of addresses that reach an allocation.

    Attributes
    ----------
    span : int
        Bytes that are mapped, at least `size`: the driver maps in units of the granularity.
    access : dict
        What each place may do.
    ready : bool
        False until a stream-ordered allocation has been reached by its stream.
    freed : bool
        True once cuMemFreeAsync was called; queued work may still use the memory.
    """

    start: int
    size: int
    span: int
    allocation: Allocation
    offset: int = 0
    access: dict[Place, int] = field(default_factory=dict)
    ready: bool = True
    freed: bool = False

    @property
    def end(self) -> int:
        """The first address behind what the program asked for."""
        return self.start + self.size

    def allows(self, place: Place, *, write: bool) -> bool:
        """Return whether a place may read, or write, this mapping."""
        flags = self.access.get(place, Access.NONE)
        return flags == Access.READ_WRITE if write else flags != Access.NONE
