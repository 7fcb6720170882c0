"""What the process's own mappings allow, read from the kernel."""

from __future__ import annotations

from pathlib import Path


def writable(address: int, size: int) -> bool:
    """Return whether every byte of a range is mapped for writing."""
    at = address
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split(maxsplit=2)[:2]
        start, end = (int(text, 16) for text in span.split("-"))
        if start <= at < end:
            if "w" not in rights:
                return False
            at = end
            if at >= address + size:
                return True
    return False
