"""What the tests of several codecs need."""

from __future__ import annotations

import sys

import pytest

from gpuload import checksums
from gpuload.codecs import inflate


def _forget() -> None:
    inflate._implementation.cache_clear()
    checksums.crc32.cache_clear()
    checksums._function.cache_clear()


@pytest.fixture(params=["ISA-L", "zlib"])
def inflate_library(request, monkeypatch):
    """Run a test with ISA-L and, as if that were not installed, with zlib; return the module."""
    if request.param == "ISA-L":
        pytest.importorskip("isal", reason="ISA-L (the isal package) is not installed")
    else:
        for name in ("isal", "isal.igzip_lib", "isal.isal_zlib"):
            monkeypatch.setitem(sys.modules, name, None)
    _forget()
    yield "igzip_lib" if request.param == "ISA-L" else "gpuload.codecs.inflate"
    monkeypatch.undo()
    _forget()
