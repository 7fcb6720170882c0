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

from tests.helpers.fakecuda.allocations import device
from tests.helpers.fakecuda.codes import Code, Codec, DeviceFaultError
from tests.helpers.fakecuda.copies import Range, usable

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.streams import Stream

PARAMS = struct.Struct("<QQQQQi20s")
_DONE, _CORRUPT, _OUT_OF_ROOM = range(3)
_RAW_DEFLATE = -15
_PIECE = 1 << 20


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
    source = usable(cuda, stream, Range(chunk.source, chunk.source_size, write=False))
    target = usable(cuda, stream, Range(chunk.target, 1, write=True))
    count_at = usable(cuda, stream, Range(chunk.count_address, 4, write=True))
    room = cuda.memory.reach(chunk.target, device(stream.context.ordinal))
    verdict, written = _run_decoder(
        cuda, chunk.algorithm, (source, chunk.source_size), target, room
    )
    if verdict == _CORRUPT:
        verdict, written = _corrupt(cuda, chunk, target, written, room)
    if verdict == _OUT_OF_ROOM or written > chunk.target_size > 0:
        text = f"{written} bytes at {chunk.target:#x}, slot {chunk.target_size}, room {room}"
        cuda.overruns.append(text)
    if verdict == _OUT_OF_ROOM:
        raise DeviceFaultError(
            Code.ILLEGAL_ADDRESS, f"output at {chunk.target:#x} left its mapping"
        )
    ctypes.c_uint32.from_address(count_at).value = written & 0xFFFF_FFFF


def _run_decoder(
    cuda: FakeDriver, algorithm: int, source: tuple[int, int], target: int, room: int
) -> tuple[int, int]:
    if algorithm == Codec.DEFLATE:
        return _inflate(ctypes.string_at(*source), target, room)
    lz4 = algorithm == Codec.LZ4
    function = cuda.library.fakecuda_lz4 if lz4 else cuda.library.fakecuda_snappy
    written = ctypes.c_size_t(0)
    arguments = [ctypes.c_uint64(word) for word in (*source, target, room)]
    return function(*arguments, ctypes.byref(written)), written.value


def _inflate(data: bytes, target: int, room: int) -> tuple[int, int]:
    """Decode raw DEFLATE; bytes behind the last block count as corruption."""
    decoder = zlib.decompressobj(_RAW_DEFLATE)
    written = 0
    while not decoder.eof:
        try:
            piece = decoder.decompress(data, min(room - written + 1, _PIECE))
        except zlib.error:
            return _CORRUPT, written
        data = decoder.unconsumed_tail
        fits = min(len(piece), room - written)
        ctypes.memmove(target + written, piece, fits)
        written += fits
        if fits < len(piece):
            return _OUT_OF_ROOM, written
        if not piece:
            break
    return (_DONE if decoder.eof and not decoder.unused_data else _CORRUPT), written


def _corrupt(
    cuda: FakeDriver, chunk: Chunk, target: int, written: int, room: int
) -> tuple[int, int]:
    """Do with a corrupt chunk what the test has chosen."""
    if cuda.settings.corruption == "sticky":
        raise DeviceFaultError(Code.ILLEGAL_ADDRESS, f"corrupt chunk at {chunk.source:#x}")
    if cuda.settings.corruption == "short":
        known = chunk.target_size > 0
        return _DONE, min(written, chunk.target_size - 1) if known else written
    end = max(written, chunk.target_size) + cuda.settings.overrun
    filled = min(end, room)
    ctypes.memset(target + written, 0xEE, filled - written)
    return (_DONE if end <= room else _OUT_OF_ROOM), filled
