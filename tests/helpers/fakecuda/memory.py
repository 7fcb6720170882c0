"""All memory: making and mapping it, and finding what an address belongs to."""

from __future__ import annotations

import bisect
import collections
import itertools
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.allocations import HOST, Allocation, Mapping
from tests.helpers.fakecuda.codes import Access, Code, CudaError
from tests.helpers.fakecuda.space import GRANULARITY, PAGE, AddressSpace, round_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.fakecuda.allocations import Place


class Memory:
    """All memory that the double knows of."""

    def __init__(self) -> None:
        self.space = AddressSpace()
        self.allocations: dict[int, Allocation] = {}
        self.reservations: dict[int, int] = {}
        self.handles: dict[int, Allocation] = {}
        self._starts: list[int] = []
        self._mappings: list[Mapping] = []
        self._numbers = itertools.count(1)
        self._stale_below = 0
        self._dead: collections.deque[tuple[int, int, str]] = collections.deque(maxlen=4096)

    def create(self, kind: str, size: int, location: Place, **fields: int | bool) -> Allocation:
        """Make an allocation of physical memory that nothing maps yet."""
        unit = PAGE if kind == "host" else GRANULARITY
        reserved = round_up(size, unit)
        made = Allocation(next(self._numbers), kind, size, location, reserved=reserved, **fields)  # type: ignore[arg-type]
        made.offset = self.space.take(reserved)
        self.allocations[made.number] = made
        return made

    def register(self, address: int, size: int, flags: int, context: int) -> Mapping:
        """Make the process's own memory known."""
        made = Allocation(next(self._numbers), "registered", size, HOST, flags=flags)
        made.context = context
        self.allocations[made.number] = made
        return self._enter(Mapping(address, size, size, made))

    def map(self, address: int, allocation: Allocation, offset: int, size: int) -> Mapping:
        """Map a piece of an allocation; nothing has access to it yet."""
        if allocation.offset is None:
            raise CudaError(Code.INVALID_VALUE, "no physical memory behind this allocation")
        span = round_up(size, PAGE if allocation.kind == "host" else GRANULARITY)
        self.space.attach(address, span, allocation.offset + offset)
        return self._enter(Mapping(address, size, span, allocation, offset))

    def map_fresh(self, allocation: Allocation) -> Mapping:
        """Map a whole allocation at a new address, its content undefined."""
        made = self.map(self.space.reserve(allocation.reserved), allocation, 0, allocation.size)
        self.poison(made)
        return made

    def poison(self, mapping: Mapping) -> None:
        """Make an allocation read as memory that nobody has written."""
        self.space.poison(mapping.start, mapping.size)
        mapping.allocation.written = True

    def is_reserved(self, address: int, size: int) -> bool:
        """Return whether a range lies in one reservation."""
        return any(
            start <= address and address + size <= start + length
            for start, length in self.reservations.items()
        )

    def grant(self, mapping: Mapping, place: Place, flags: int) -> None:
        """Set what a place may do with a mapping."""
        mapping.access[place] = flags
        if place != HOST or mapping.allocation.offset is None:
            return
        if flags == Access.NONE:
            self.space.hide_from_host(mapping.start, mapping.span)
        else:
            at = mapping.allocation.offset + mapping.offset
            self.space.show_to_host(mapping.start, mapping.span, at)

    def unmap(self, mapping: Mapping) -> None:
        """Remove a mapping, and its allocation with the last reference to it."""
        index = bisect.bisect_left(self._starts, mapping.start)
        del self._starts[index], self._mappings[index]
        allocation = mapping.allocation
        if allocation.offset is not None:
            self.space.detach(mapping.start, mapping.span)
            self._dead.append((mapping.start, mapping.start + mapping.span, str(allocation)))
        allocation.mappings -= 1
        self.drop_if_unused(allocation)

    def drop_if_unused(self, allocation: Allocation) -> None:
        """Return physical memory that neither a handle nor a mapping refers to."""
        if allocation.handles > 0 or allocation.mappings > 0:
            return
        if allocation.offset is not None:
            self.space.give_back(allocation.offset, allocation.reserved)
        self.allocations.pop(allocation.number, None)

    def find(self, address: int) -> Mapping | None:
        """Return the mapping that an address lies in."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._mappings[index].end:
            return None
        return self._mappings[index]

    def between(self, start: int, end: int) -> list[Mapping]:
        """Return the mappings that share a byte with a range, in order."""
        first = max(bisect.bisect_right(self._starts, start) - 1, 0)
        last = bisect.bisect_left(self._starts, end)
        return [m for m in self._mappings[first:last] if m.end > start]

    def covering(self, address: int, size: int) -> list[Mapping]:
        """Return the adjacent mappings that hold a whole range, or nothing."""
        found = self.between(address, address + max(size, 1))
        at = address
        for mapping in found:
            if mapping.start > at:
                return []
            at = mapping.end
        return found if found and at >= address + size else []

    def reach(self, address: int, place: Place) -> int:
        """Return how many bytes from an address on a place can write without a fault."""
        at = address
        mapping = self.find(address)
        while mapping is not None and mapping.allows(place, write=True):
            at = mapping.start + mapping.span
            mapping = self.find(at)
        return at - address

    def clear(self) -> None:
        """Unmap and free everything."""
        for mapping in self.mappings():
            mapping.allocation.handles = 0
            self.unmap(mapping)
        for allocation in tuple(self.allocations.values()):
            allocation.handles = 0
            self.drop_if_unused(allocation)
        self.handles.clear()
        self.reservations.clear()
        self._dead.clear()
        self._stale_below = self.space.reserve(1)

    def range_of(self, mapping: Mapping) -> tuple[int, int]:
        """Return start and size of the reservation around a mapping, or of the mapping."""
        for start, size in self.reservations.items():
            if start <= mapping.start < start + size:
                return start, size
        return mapping.start, mapping.size

    def host_address(self, address: int) -> int:
        """Return where the double finds the bytes of an address."""
        return self.space.shadow(address) if address in self.space else address

    def epitaph(self, address: int) -> str:
        """Return what an address without a mapping used to be."""
        for start, end, text in reversed(self._dead):
            if start <= address < end:
                return f"{address:#x} was in {text}, which is freed"
        if address in self.space:
            return f"{address:#x} is mapped to nothing"
        return f"{address:#x} is unknown to the driver"

    def is_stale(self, address: int) -> bool:
        """Return whether an address is from before a reset, which its owner could not know of."""
        return address in self.space and address < self._stale_below

    def mappings(self) -> Iterator[Mapping]:
        """Return all mappings, by address."""
        return iter(tuple(self._mappings))

    def _enter(self, mapping: Mapping) -> Mapping:
        index = bisect.bisect_left(self._starts, mapping.start)
        self._starts.insert(index, mapping.start)
        self._mappings.insert(index, mapping)
        mapping.allocation.mappings += 1
        return mapping
