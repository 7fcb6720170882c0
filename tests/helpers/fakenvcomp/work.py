"""A batch of nvCOMP's: what its headers ask for, and what it does when its turn comes."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.codes import CudaError
from tests.helpers.fakecuda.copies import DEVICE, Range, check_range, usable
from tests.helpers.fakenvcomp.decoders import CANNOT_DECOMPRESS, decoder

if TYPE_CHECKING:
    from tests.helpers.fakecuda.streams import Stream
    from tests.helpers.fakenvcomp import FakeNvcomp

#: What temporary memory is filled with before a batch runs, and what is left in failed slots.
_SCRIBBLE, _SPOILT = 0xEE, 0xEF


@dataclass(frozen=True)
class Batch:
    """The arguments of a call, in the order of its words."""

    nvcomp: FakeNvcomp
    stream: Stream
    method: str
    sources: int
    source_sizes: int
    capacities: int
    sizes: int
    count: int
    temp: int
    temp_size: int
    targets: int
    statuses: int

    def check_call(self) -> None:
        """Refuse what can be known to be wrong when the call is made."""
        if not self.count:
            raise CudaError(1, "no chunks")
        for name, size, write in self._arrays():
            address = getattr(self, name)
            if address % size:
                raise CudaError(1, f"{name} at {address:#x}, which is not aligned to {size}")
            self._check(name, address, size * self.count, write=write)
        if self.temp % self.nvcomp.alignments[self.method][2]:
            raise CudaError(1, f"temporary memory at {self.temp:#x}")
        if self.temp_size:
            self._check("temporary memory", self.temp, self.temp_size, write=True)

    def _arrays(self) -> list[tuple[str, int, bool]]:
        read = [(name, 8, False) for name in ("sources", "source_sizes", "capacities", "targets")]
        return [*read, ("sizes", 8, True), ("statuses", 4, True)]

    def _check(self, what: str, address: int, size: int, *, write: bool) -> None:
        if not address:
            raise CudaError(1, f"{what}: a null pointer")
        check_range(self.nvcomp.cuda, self.stream, address, size, write=write, kind=DEVICE)

    def run(self) -> None:
        """Decode every chunk."""
        at = {
            name: self._usable(getattr(self, name), size * self.count, write=write)
            for name, size, write in self._arrays()
        }
        sources, source_sizes, capacities, targets = (
            list((ctypes.c_uint64 * self.count).from_address(at[name]))
            for name in ("sources", "source_sizes", "capacities", "targets")
        )
        self._scribble(capacities)
        self._check_slots(targets, capacities)
        chunks = zip(
            zip(sources, source_sizes, strict=True),
            zip(targets, capacities, strict=True),
            strict=True,
        )
        for number, (source, slot) in enumerate(chunks):
            status, size = self._decode(source, slot)
            ctypes.c_uint64.from_address(at["sizes"] + 8 * number).value = size
            ctypes.c_int32.from_address(at["statuses"] + 4 * number).value = status

    def _usable(self, address: int, size: int, *, write: bool) -> int:
        return usable(self.nvcomp.cuda, self.stream, Range(address, size, write))

    def _violation(self, text: str) -> None:
        self.nvcomp.cuda.recorder.violation(f"nvCOMP's {self.method}: {text}")

    def _scribble(self, capacities: list[int]) -> None:
        """Use the temporary memory, as much of it as these chunks take."""
        need = self.nvcomp.temp_sizes[self.method](self.count, max(capacities), sum(capacities))
        if need > self.temp_size:
            self._violation(f"{self.temp_size} bytes of temporary memory, {need} are needed")
        elif need:
            ctypes.memset(self._usable(self.temp, need, write=True), _SCRIBBLE, need)

    def _check_slots(self, targets: list[int], capacities: list[int]) -> None:
        spans = sorted((at, at + size) for at, size in zip(targets, capacities, strict=True))
        for (_, end), (start, _) in itertools.pairwise(spans):
            if start < end:
                self._violation(f"two chunks are decoded to {start:#x}")

    def _decode(self, source: tuple[int, int], slot: tuple[int, int]) -> tuple[int, int]:
        needed = self.nvcomp.alignments[self.method]
        if source[0] % needed[0] or slot[0] % needed[1]:
            self._violation(f"from {source[0]:#x} to {slot[0]:#x}, alignments {needed}")
        stored = (self._usable(*source, write=False), source[1])
        target = (self._usable(*slot, write=True), slot[1])
        status, size = decoder(self.nvcomp.cuda, self.method)(stored, target)
        if status == CANNOT_DECOMPRESS:
            ctypes.memset(target[0], _SPOILT, target[1])
        return status, size
