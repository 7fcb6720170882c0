"""The address space of the double: what a device address is, and where its bytes really are.

Two ranges of the process's addresses of the same length are reserved without access. Device
addresses are handed out from the first and never twice, so that a stale one is always recognised.
The bytes live in an anonymous file (the "physical" memory); mapping a piece of it makes it
readable to the double at the same place of the second range, the shadow, and to the host at the
device address itself only if the host has been given access. A host that touches device memory
therefore dies of SIGSEGV, as it would with a GPU, while the double reads and writes every byte.
"""

from __future__ import annotations

import ctypes
import mmap
import os

SPAN = 1 << 43  # 8 TiB of addresses; pages cost memory only once they are written
PAGE = mmap.PAGESIZE
GRANULARITY = 2 << 20  # what the driver answers for mem_create, and the gap between allocations

_POISON = 0xCD  # never-written memory reads as this
_POISON_LIMIT = 64 << 20  # longer allocations are poisoned at their beginning only
_KEPT_FREE = 256 << 20  # freed pages kept for the next allocation of the same size
_PROT_NONE, _PROT_READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED = 0x01, 0x02, 0x10
_MAP_ANONYMOUS, _MAP_NORESERVE = 0x20, 0x4000
_MADV_REMOVE, _MADV_POPULATE_WRITE = 9, 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def round_up(value: int, unit: int) -> int:
    """Return the next multiple of `unit`, `value` itself if it is one."""
    return -(-value // unit) * unit


class AddressSpace:
    """Reservations, physical memory and the mapping of one onto the other."""

    def __init__(self) -> None:
        self._file = os.memfd_create("fakecuda")
        os.ftruncate(self._file, SPAN)
        self.base = _mmap(None, SPAN, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
        self._shadow = _mmap(None, SPAN, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
        self.base = round_up(self.base, GRANULARITY)
        self._shadow = round_up(self._shadow, GRANULARITY)
        self._limit = SPAN - GRANULARITY
        self._next = 0
        self._physical_next = 0
        self._free: dict[int, list[int]] = {}
        self._free_bytes = 0

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.base + self._limit

    def overlaps(self, start: int, size: int) -> bool:
        """Return whether any byte of the range is one that only the double hands out."""
        return start < self.base + self._limit and start + size > self.base

    def reserve(self, size: int, alignment: int = GRANULARITY) -> int:
        """Return an address of `size` unused bytes with a guard behind them."""
        start = round_up(self.base + self._next, max(alignment, GRANULARITY))
        self._next = start - self.base + round_up(size, GRANULARITY) + GRANULARITY
        if self._next > self._limit:
            raise MemoryError("the double has handed out all its addresses")
        return start

    def shadow(self, address: int) -> int:
        """Return where the double itself finds the bytes of a mapped device address."""
        return address - self.base + self._shadow

    def take(self, size: int) -> int:
        """Return the offset of `size` bytes (a multiple of the page) of physical memory."""
        kept = self._free.get(size)
        if kept:
            self._free_bytes -= size
            return kept.pop()
        offset = self._physical_next
        if offset + size > SPAN:
            raise MemoryError("the double has used all its physical memory")
        self._physical_next += size
        return offset

    def give_back(self, offset: int, size: int) -> None:
        """Take physical memory back; it must not be mapped any more."""
        if self._free_bytes + size <= _KEPT_FREE:
            self._free.setdefault(size, []).append(offset)
            self._free_bytes += size
            return
        window = _mmap(None, size, _PROT_READ_WRITE, _MAP_SHARED, self._file, offset)
        _libc.madvise(window, size, _MADV_REMOVE)
        _libc.munmap(ctypes.c_void_p(window), ctypes.c_size_t(size))

    def attach(self, address: int, size: int, offset: int) -> None:
        """Map physical memory at a device address, for the double alone."""
        flags = _MAP_SHARED | _MAP_FIXED | _MAP_NORESERVE
        _mmap(self.shadow(address), size, _PROT_READ_WRITE, flags, self._file, offset)

    def show_to_host(self, address: int, size: int, offset: int) -> None:
        """Let the host read and write a mapped range at its device address."""
        flags = _MAP_SHARED | _MAP_FIXED | _MAP_NORESERVE
        _mmap(address, size, _PROT_READ_WRITE, flags, self._file, offset)

    def hide_from_host(self, address: int, size: int) -> None:
        """Take the host's access to a range away."""
        _mmap(address, size, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_FIXED, -1, 0)

    def detach(self, address: int, size: int) -> None:
        """Unmap a range from the double and from the host."""
        self.hide_from_host(self.shadow(address), size)
        self.hide_from_host(address, size)

    def poison(self, address: int, size: int) -> None:
        """Make a mapped range read as memory that nobody has written."""
        length = min(size, _POISON_LIMIT)
        # One call instead of a page fault for every 4 KiB; where the kernel lacks it, those do.
        _libc.madvise(self.shadow(address), round_up(length, PAGE), _MADV_POPULATE_WRITE)
        ctypes.memset(self.shadow(address), _POISON, length)


def _mmap(
    address: int | None, size: int, protection: int, flags: int, file: int, offset: int
) -> int:
    if flags & _MAP_ANONYMOUS:
        flags |= _MAP_NORESERVE
    got = _libc.mmap(address, size, protection, flags, file, offset)
    if got is None or got == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"mmap of {size} bytes: {os.strerror(code)}")
    return int(got)
