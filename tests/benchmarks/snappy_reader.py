"""A Snappy reader to compare with: one thread of the Rust library snap, by way of cramjam.

It streams from file to file and checks every CRC-32C, as snzip does, which Debian does not have.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cramjam

if __name__ == "__main__":
    source, target = sys.argv[1:]
    Path(target).touch()
    cramjam.snappy.decompress_into(cramjam.File(source), cramjam.File(target))
