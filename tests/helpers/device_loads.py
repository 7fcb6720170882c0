"""What the tests of loads to a device share: files whose chunks they know, arrays of other makers.

Files are built by hand after the format specifications, so that a test knows where each payload
stands without asking the readers.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lz4.block
import numpy as np

import gpuload
from gpuload.chunks import Checksum, Codec
from gpuload.errors import GpuloadError
from tests.helpers.handmade import (
    BGZF_EOF,
    INDEPENDENT,
    SIZE,
    SNAPPY_IDENTIFIER,
    V1,
    bgzf_block,
    lz4_block,
    lz4_frame,
    snappy_data,
    varint,
)
from tests.helpers.payloads import checksum, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "BUILDERS",
    "QUICK",
    "ChunkedFile",
    "UserArray",
    "allocate",
    "clean_loads",
    "compressed",
    "hang_ends_the_process",
    "new_stream",
    "read",
    "run_alone",
    "text",
    "write",
]

ROOT = Path(__file__).resolve().parents[2]

#: Options of loads that have little memory for staging, which is quick to make.
QUICK: dict[str, Any] = {"memory_limit": 16 << 20, "threads": 2}

#: Starts of payloads that nothing decodes: the reserved block type of DEFLATE (RFC 1951, section
#: 3.2.3), and matches that copy from before the first byte.
_SPOILT = {Codec.DEFLATE: b"\x07", Codec.SNAPPY: b"\x01\x01", Codec.LZ4: b"\x00\x01\x00"}


def text(size: int) -> bytes:
    """Return bytes that compress and do not repeat."""
    return b"".join(b"%d bottles of something on the wall\n" % n for n in range(size // 34))[:size]


def compressed(data: bytes, codec: str, **options: Any) -> bytes:
    """Return what `gpuload.compress` makes of `data`."""
    file = io.BytesIO()
    gpuload.compress(data, file, codec=codec, **options)
    return file.getvalue()


@dataclass
class ChunkedFile:
    """A file that knows its chunks.

    Attributes
    ----------
    codec : Codec
        Of all chunks.
    parts : list of bytes
        What each chunk decodes to.
    data : bytearray
        The file.
    places : list of (int, int)
        Offset and size of each payload.
    """

    codec: Codec
    parts: list[bytes]
    data: bytearray = field(default_factory=bytearray)
    places: list[tuple[int, int]] = field(default_factory=list)

    def append(self, before: bytes, payload: bytes, after: bytes = b"") -> None:
        """Write a chunk."""
        self.places.append((len(self.data) + len(before), len(payload)))
        self.data += before + payload + after

    @property
    def raw(self) -> bytes:
        """What the file decodes to."""
        return b"".join(self.parts)

    def with_zeros(self, *chunks: int) -> bytes:
        """Return what it decodes to with zeros for some chunks."""
        parts = list(self.parts)
        for chunk in chunks:
            parts[chunk] = bytes(len(parts[chunk]))
        return b"".join(parts)

    def spoilt(self, *chunks: int) -> bytes:
        """Return the file with payloads that do not decode; framing and sizes stay."""
        data = bytearray(self.data)
        start = _SPOILT[self.codec]
        for chunk in chunks:
            offset, size = self.places[chunk]
            assert size > len(start)
            data[offset : offset + len(start)] = start
        return bytes(data)


def _snappy(parts: list[bytes]) -> ChunkedFile:
    file = ChunkedFile(Codec.SNAPPY, parts, bytearray(SNAPPY_IDENTIFIER))
    for part in parts:
        packed = encode(Codec.SNAPPY, part)
        whole = snappy_data(
            part,
            elements=packed.stored,
            checksum=checksum(Checksum.CRC32C_MASKED, packed),
        )
        # The chunk's header, the checksum and the preamble are before the elements.
        before = 8 + len(varint(len(part)))
        file.append(whole[:before], whole[before:])
    return file


def _bgzf(parts: list[bytes]) -> ChunkedFile:
    file = ChunkedFile(Codec.DEFLATE, parts)
    for part in parts:
        whole = bgzf_block(part)
        # 12 bytes of header, 6 of the BC subfield; CRC-32 and size behind (RFC 1952, section 2.3).
        file.append(whole[:18], whole[18:-8], whole[-8:])
    file.data += BGZF_EOF
    return file


def _lz4(parts: list[bytes]) -> ChunkedFile:
    file = ChunkedFile(Codec.LZ4, parts)
    for part in parts:
        payload = lz4.block.compress(part, store_size=False)
        whole = lz4_frame(lz4_block(payload), flags=V1 | INDEPENDENT | SIZE, size=len(part))
        # Magic, descriptor and its checksum are 15 bytes; size words stand around the block.
        file.append(whole[:19], whole[19:-4], whole[-4:])
    return file


#: Builders of files by name: parts in, a file with a chunk for each of them out.
BUILDERS: dict[str, Callable[[list[bytes]], ChunkedFile]] = {
    "snappy": _snappy,
    "bgzf": _bgzf,
    "lz4": _lz4,
}


# --- Memory and arrays of other makers ------------------------------------------------------------


class UserArray:
    """An array of some other library on a device.

    Parameters
    ----------
    address, size : int
        Its bytes.
    **changes
        Other values for fields of its ``__cuda_array_interface__``.
    """

    def __init__(self, address: int, size: int, **changes: Any) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "stream": None,
        } | changes


def new_stream() -> Any:
    """Return a stream of device 0, which is current afterwards."""
    from gpuload import driver

    device = driver.device(0)
    device.set_current()
    return device.create_stream()


@contextmanager
def allocate(kind: str, size: int, stream: Any) -> Iterator[int]:
    """Take memory of a kind, as its own maker would, and give it back; yields its address.

    Kinds are "cuMemAlloc", "cuMemHostAlloc", "pool" (the device's default one), "DecompressPool",
    "DecompressMemory" and "HostNumaMemory".
    """
    from gpuload import memory

    api = importlib.import_module("cuda.bindings._v2.driver")
    raw = {
        "cuMemAlloc": (api.mem_alloc_v2, api.mem_free_v2),
        "cuMemHostAlloc": (lambda size: api.mem_host_alloc(size, 0), api.mem_free_host),
        "pool": (
            lambda size: api.mem_alloc_async(size, int(stream.handle)),
            lambda address: api.mem_free_async(address, int(stream.handle)),
        ),
    }
    if kind in raw:
        take, free = raw[kind]
        address = take(size)
        try:
            yield address
        finally:
            free(address)
        return
    with getattr(memory, kind)(0) as resource:
        buffer = resource.allocate(size, stream=stream)
        try:
            yield int(buffer.handle)
        finally:
            buffer.close()


def read(address: int, size: int, stream: Any) -> bytes:
    """Return bytes of a device, in stream order."""
    from gpuload.memory import HostNumaMemory, copy, host_view

    if not size:
        return b""
    with HostNumaMemory(0) as host:
        landing = host.allocate(size, stream=stream)
        copy(int(landing.handle), address, size, stream)
        stream.sync()
        data = host_view(landing).tobytes()
        landing.close()
    return data


def write(address: int, data: bytes, stream: Any) -> None:
    """Put bytes on a device, and wait for it."""
    from gpuload.memory import copy

    held = np.frombuffer(data, np.uint8)
    copy(address, held.ctypes.data, held.size, stream)
    stream.sync()


# --- Processes ------------------------------------------------------------------------------------


@contextmanager
def hang_ends_the_process(seconds: float) -> Iterator[None]:
    """End the process with the stacks of all threads if what runs inside takes too long."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def clean_loads() -> Iterator[None]:
    """End the process if loads inside hang; check that no thread stays; close their pools."""
    from gpuload.device_array import close_pools

    before = set(threading.enumerate())
    with hang_ends_the_process(120):
        yield
        assert set(threading.enumerate()) <= before, "a thread stays"
    # After a fault nothing can be closed; what is not given back shows as a leak.
    with suppress(GpuloadError):
        close_pools()


def run_alone(script: str, **variables: str) -> str:
    """Run a script in a process of its own that has a double, and return what it prints."""
    prelude = "from tests.helpers import fakecuda\ncuda = fakecuda.load()\n"
    options = ["-X", "faulthandler", "-W", "error"]
    command = [sys.executable, *options, "-c", prelude + textwrap.dedent(script)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **variables},
        timeout=120,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()
