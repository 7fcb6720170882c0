"""What a kernel of gpuload's does when its turn comes.

The kernels' own sources, compiled by g++ (tests/helpers/lanes), do the work: in warps of lanes, or
where that takes too long (2 to 4 MB/s) by one lane at native speed. What they may touch is checked
before: the arrays, and of each operation its source, its slot and its word. Kernels of checksums
have no slot, and read the word if there is one; scans have no word. What those of filters touch is
in `filters`.
"""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from gpuload.batch import ALGORITHMS, PARAMS_DTYPE, SUMS
from gpuload.chunks import Checksum
from gpuload.engines.scan_plan import SCANS
from tests.helpers import lanes
from tests.helpers.fakecuda import filters
from tests.helpers.fakecuda.allocations import device
from tests.helpers.fakecuda.codes import Code, DeviceFaultError
from tests.helpers.lanes import build

if TYPE_CHECKING:
    import numpy.typing as npt

    from tests.helpers.fakecuda.cubin import Entry
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.streams import Stream

    Rows = npt.NDArray[np.void]
    Chosen = npt.NDArray[np.bool_]
    from tests.helpers.fakecuda.filters import Range

#: Operations of more bytes, stored and decoded, are run by one lane, and so are those of a launch
#: behind the first that have as many bytes in all.
LARGE, MOST_OF_LAUNCH = 8 << 10, 256 << 10
_OF_SUMS = {
    "crc32": SUMS[Checksum.CRC32],
    "crc32c": SUMS[Checksum.CRC32C_MASKED],
    "xxh32": SUMS[Checksum.XXH32],
    "xxh64": SUMS[Checksum.XXH64_LOW],
}
_OF_SCANS = {kind.variant.codec: kind.algorithm for kind in SCANS.values()}
_OF_CODECS = {codec.name.lower(): code for codec, code in ALGORITHMS.items()}
_ALGORITHMS = _OF_CODECS | _OF_SUMS | _OF_SCANS | filters.ALGORITHMS
_PARAMETERS = {0: (0, 8), 1: (8, 4), 2: (16, 8)}


def is_known(entry: Entry) -> bool:
    """Return whether a kernel takes gpuload's parameters."""
    codec, _, width = entry.name.rpartition("_")
    return codec in _ALGORITHMS and width.isdecimal() and entry.parameters == _PARAMETERS


@dataclass(frozen=True)
class Launch:
    """A kernel, its blocks and their threads, and its parameters."""

    cuda: FakeDriver
    stream: Stream
    kernel: str
    shape: tuple[int, int]
    params: int
    count: int
    status: int

    @property
    def _codec(self) -> str:
        return self.kernel.rpartition("_")[0]

    @property
    def _reached(self) -> int:
        """How many operations the grid has threads for."""
        blocks, threads = self.shape
        return min(self.count, blocks * threads // int(self.kernel.rpartition("_")[2]))

    def check_arrays(self) -> None:
        """Note what no correct program passes, though the call succeeds."""
        for address in (self.params, self.status):
            mapping = self.cuda.memory.find(address)
            if mapping is not None and mapping.freed:
                text = f"{self.kernel} launched after a free: {mapping.allocation}"
                self.cuda.recorder.violation(text)

    def run(self) -> None:
        """Do the work, or end the context."""
        rows = self._rows()
        mine = rows["algo"] == _ALGORITHMS[self._codec]
        if not mine.any():
            return
        status = self._usable(self.status, 4 * rows.size, write=True, unit=4)
        if self._codec not in _OF_SUMS and self._codec != "boxes":
            self._note_shared_targets(rows[mine])
        sizes = self._sizes(rows)
        for index in np.flatnonzero(mine):
            self._place(rows[index], self._touched(rows[index]))
        small = mine & (sizes <= LARGE)
        small &= np.cumsum(sizes * small) <= MOST_OF_LAUNCH
        self._run_lanes(rows, small, status)
        self._run_alone(rows, mine & ~small, status)

    def _rows(self) -> Rows:
        """Return a copy of the operations."""
        size = self._reached * PARAMS_DTYPE.itemsize
        if not size:
            return np.zeros(0, PARAMS_DTYPE)
        at = self._usable(self.params, size, write=False, unit=8)
        return np.frombuffer(bytearray(ctypes.string_at(at, size)), PARAMS_DTYPE)

    def _note_shared_targets(self, rows: Rows) -> None:
        """Operations run in any order: no two may write the same bytes."""
        spans = zip(rows["dst"].tolist(), rows["dst_num_bytes"].tolist(), strict=True)
        written = [(start, start + size) for start, size in spans if size]
        if self._codec in _OF_CODECS:
            written += [(start, start + 4) for start in rows["dst_act_bytes"].tolist()]
        for (_, end), (start, _) in itertools.pairwise(sorted(written)):
            if start < end:
                text = f"two operations of {self.kernel} write to {start:#x}"
                self.cuda.recorder.violation(text)

    def _sizes(self, rows: Rows) -> npt.NDArray[np.uint64]:
        """Return the bytes that operations read and write."""
        if self._codec in filters.ALGORITHMS:
            return filters.sizes(self._codec, rows)
        return rows["src_num_bytes"] + (0 if self._codec in _OF_SUMS else rows["dst_num_bytes"])

    def _touched(self, row: np.void) -> list[Range]:
        """Return what an operation touches."""
        if self._codec in filters.ALGORITHMS:
            return filters.ranges(self._codec, row, self._words)
        sums, scans = self._codec in _OF_SUMS, self._codec in _OF_SCANS
        return (self._sources if sums else self._segments if scans else self._ranges)(row)

    def _words(self, address: int, count: int) -> npt.NDArray[np.int64]:
        """Return 64-bit integers from memory that the device reads."""
        at = self._usable(address, 8 * count, write=False, unit=8)
        return np.frombuffer(ctypes.string_at(at, 8 * count), np.int64)

    @staticmethod
    def _ranges(row: np.void) -> list[Range]:
        """Return what a decoder touches."""
        return [
            ("src", int(row["src_num_bytes"]), False, 1),
            ("dst", int(row["dst_num_bytes"]), True, 1),
            ("dst_act_bytes", 4, True, 4),
        ]

    @staticmethod
    def _sources(row: np.void) -> list[Range]:
        """Return what a kernel of checksums touches."""
        word = [("dst_act_bytes", 4, False, 4)] if row["dst_act_bytes"] else []
        return [("src", int(row["src_num_bytes"]), False, 1), *word]

    @staticmethod
    def _segments(row: np.void) -> list[Range]:
        """Return what a scan touches."""
        return [
            ("src", int(row["src_num_bytes"]), False, 1),
            ("dst", int(row["dst_num_bytes"]), True, 4),
        ]

    def _place(self, row: np.void, ranges: list[Range]) -> None:
        """Replace the addresses of an operation by where their bytes are."""
        for name, size, write, unit, *before in ranges:
            start = int(row[name]) - sum(before)
            row[name] = self._usable(start, size, write=write, unit=unit) + sum(before)

    def _usable(self, address: int, size: int, *, write: bool, unit: int) -> int:
        """Return where the bytes of a range are now, or end the context."""
        memory, place = self.cuda.memory, device(self.stream.context.ordinal)
        if not size:
            return memory.host_address(address)
        if address % unit:
            self._fault(Code.MISALIGNED_ADDRESS, f"{address:#x} is not aligned to {unit}")
        found = memory.covering(address, size)
        if not found or not all(one.allows(place, write=write) for one in found):
            what = "wrote" if write else "read"
            where = "out of reach" if found else memory.epitaph(address)
            self._fault(Code.ILLEGAL_ADDRESS, f"{what} {size} bytes at {address:#x}: {where}")
        early = next((one for one in found if not one.ready), None)
        if early is not None:
            text = f"used before its stream allocated it: {early.allocation}"
            self.cuda.recorder.violation(text)
        return memory.host_address(address)

    def _fault(self, code: Code, why: str) -> NoReturn:
        self.cuda.recorder.violation(f"{self.kernel}: {why}")
        raise DeviceFaultError(code, why)

    def _run_lanes(self, rows: Rows, chosen: Chosen, status: int) -> None:
        """Run the kernel as it is."""
        width = int(self.kernel.rpartition("_")[2])
        threads = self.shape[1]
        blocks = min(self.shape[0], -(-rows.size * width // threads))
        self._call(lanes.shared_library(), self.kernel, (blocks, threads), rows, chosen, status)

    def _run_alone(self, rows: Rows, chosen: Chosen, status: int) -> None:
        """Run the same source with one lane for each operation."""
        library = lanes.shared_library(build=build.NATIVE)
        self._call(library, f"{self._codec}_1", (rows.size, 1), rows, chosen, status)

    def _call(
        self,
        library: ctypes.CDLL,
        kernel: str,
        shape: tuple[int, int],
        rows: Rows,
        chosen: Chosen,
        status: int,
    ) -> None:
        if not chosen.any():
            return
        params = rows.copy()
        params["algo"][~chosen] = 0  # kernels leave alone what is not theirs
        arguments = (params.ctypes.data, rows.size, status)
        if library.lanes_launch_grid(kernel.encode(), *shape, *arguments):
            self._fault(Code.LAUNCH_FAILED, library.lanes_error().decode())
