"""What the engine does with one chunk when its batch runs.

The decoders know no expected size: they stop where their input ends, or where the mapped memory
does. Nobody here has seen a real engine meet corrupt data, so three ways are modelled and a test
chooses one; none of them is a statement about the hardware.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.codes import Code, Codec, DeviceFaultError
from tests.helpers.fakecuda.copies import Range, usable
from tests.helpers.fakecuda.memory import device

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.streams import Stream

PARAMS = struct.Struct("<QQQQQi20s")
_DONE, _CORRUPT, _OUT_OF_ROOM = range(3)
_WINDOW = -15  # raw DEFLATE


@dataclass(frozen=True)
class Chunk:
    """One entry of the params array, as it was when the call was made."""

    source_size: int
    target_size: int
    count_address: int
    source: int
    target: int
    algorithm: int
    padding: bytes

    @classmethod
    def read(cls, address: int) -> Chunk:
        """Read a CUmemDecompressParams."""
        return cls(*PARAMS.unpack(ctypes.string_at(address, PARAMS.size)))


def decode(cuda: FakeDriver, stream: Stream, chunk: Chunk) -> None:
    """Decode a chunk where it lies and store its count."""
    source = usable(cuda, stream, Range(chunk.source, chunk.source_size, False, False))
    usable(cuda, stream, Range(chunk.target, 1, True, False))
    count_at = usable(cuda, stream, Range(chunk.count_address, 4, True, False))
    room = cuda.memory.reach(chunk.target, device(stream.context.ordinal))
    verdict, written = _decoder(cuda, chunk)(source, chunk.source_size, _host(cuda, chunk), room)
    if verdict == _CORRUPT:
        verdict, written = _corrupt(cuda, chunk, written, room)
    _note_overrun(cuda, chunk, written)
    if verdict == _OUT_OF_ROOM:
        raise DeviceFaultError(
            Code.ILLEGAL_ADDRESS, f"output of {chunk.target:#x} left the mapping"
        )
    ctypes.c_uint32.from_address(count_at).value = written & 0xFFFF_FFFF


def _host(cuda: FakeDriver, chunk: Chunk) -> int:
    return cuda.memory.host_address(chunk.target)


def _decoder(cuda: FakeDriver, chunk: Chunk):  # type: ignore[no-untyped-def]
    if chunk.algorithm == Codec.DEFLATE:
        return _inflate
    name = "fakecuda_lz4" if chunk.algorithm == Codec.LZ4 else "fakecuda_snappy"
    function = getattr(cuda.library, name)
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t) * 2 + (ctypes.c_void_p,)

    def run(source: int, size: int, target: int, room: int) -> tuple[int, int]:
        written = ctypes.c_size_t(0)
        verdict = function(source, size, target, room, ctypes.byref(written))
        return verdict, written.value

    return run


def _inflate(source: int, size: int, target: int, room: int) -> tuple[int, int]:
    """Decode raw DEFLATE; bytes behind the last block count as corruption."""
    decoder = zlib.decompressobj(_WINDOW)
    data = ctypes.string_at(source, size)
    written = 0
    while not decoder.eof and (data or written == 0):
        try:
            piece = decoder.decompress(data, min(room - written + 1, 1 << 20))
        except zlib.error:
            return _CORRUPT, written
        data = decoder.unconsumed_tail
        ctypes.memmove(target + written, piece, min(len(piece), room - written))
        written += min(len(piece), room - written)
        if len(piece) > room - written and written == room:
            return _OUT_OF_ROOM, written
        if not piece and not data:
            break
    return (_DONE if decoder.eof and not decoder.unused_data else _CORRUPT), written


def _corrupt(cuda: FakeDriver, chunk: Chunk, written: int, room: int) -> tuple[int, int]:
    """Do with a corrupt chunk what the test has chosen."""
    if cuda.settings.corruption == "sticky":
        raise DeviceFaultError(Code.ILLEGAL_ADDRESS, f"corrupt chunk at {chunk.source:#x}")
    if cuda.settings.corruption == "overrun":
        end = max(written, chunk.target_size) + cuda.settings.overrun
        filled = min(end, room)
        ctypes.memset(_host(cuda, chunk) + written, 0xEE, filled - written)
        return (_DONE if end <= room else _OUT_OF_ROOM), filled
    return _DONE, min(written, max(chunk.target_size - 1, 0)) if chunk.target_size else written


def _note_overrun(cuda: FakeDriver, chunk: Chunk, written: int) -> None:
    mapping = cuda.memory.find(chunk.target)
    if mapping is not None and chunk.target + written > mapping.end:
        cuda.overruns.append(f"{written} bytes at {chunk.target:#x} left {mapping.allocation}")
    elif chunk.target_size and written > chunk.target_size:
        cuda.overruns.append(f"{written} bytes at {chunk.target:#x}, slot {chunk.target_size}")
