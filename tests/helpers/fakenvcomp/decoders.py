"""What a chunk decodes to: reference decoders that never leave the slot.

Each takes where the stored bytes are and where the slot is, and returns a status of nvCOMP's and
the decoded size. Of GDeflate, for which there is no reference decoder on the host, only the call is
checked: what is "decoded" is a stand-in of the tests.
"""

from __future__ import annotations

import ctypes
import zlib
from typing import TYPE_CHECKING

import zstandard

from tests.helpers.payloads import GDEFLATE_STAND_IN

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.fakecuda import FakeDriver

    Verdict = tuple[int, int]

SUCCESS, CANNOT_DECOMPRESS = 0, 12
_RAW_DEFLATE = -15


def decoder(cuda: FakeDriver, method: str) -> Callable[[tuple[int, int], tuple[int, int]], Verdict]:
    """Return the decoder of a method: ``decoder((source, size), (slot, capacity))``."""
    if method == "LZ4":
        return lambda source, slot: _native(cuda.library.fakecuda_lz4, source, slot)
    if method == "Snappy":
        return lambda source, slot: _snappy(cuda, source, slot)
    decode = {"Deflate": _inflate, "Zstd": _zstd, "Gdeflate": _stand_in}[method]
    return lambda source, slot: _stored(decode, source, slot)


def _native(
    function: Callable[..., int], source: tuple[int, int], slot: tuple[int, int]
) -> Verdict:
    written = ctypes.c_size_t(0)
    arguments = [ctypes.c_uint64(word) for word in (*source, *slot)]
    verdict = function(*arguments, ctypes.byref(written))
    return (SUCCESS, written.value) if verdict == 0 else (CANNOT_DECOMPRESS, 0)


def _snappy(cuda: FakeDriver, source: tuple[int, int], slot: tuple[int, int]) -> Verdict:
    """Decode a stream with its preamble (Snappy format description, section 1)."""
    address, size = source
    length = used = 0
    for byte in ctypes.string_at(address, min(size, 5)):
        length |= (byte & 127) << 7 * used
        used += 1
        if byte < 128:
            break
    else:
        return CANNOT_DECOMPRESS, 0
    if length > slot[1]:
        return CANNOT_DECOMPRESS, 0
    elements = (address + used, size - used)
    status, written = _native(cuda.library.fakecuda_snappy, elements, (slot[0], length))
    return (status, written) if written == length else (CANNOT_DECOMPRESS, 0)


def _stored(
    decode: Callable[[bytes, int], bytes | None], source: tuple[int, int], slot: tuple[int, int]
) -> Verdict:
    decoded = decode(ctypes.string_at(*source), slot[1])
    if decoded is None or len(decoded) > slot[1]:
        return CANNOT_DECOMPRESS, 0
    ctypes.memmove(slot[0], decoded, len(decoded))
    return SUCCESS, len(decoded)


def _inflate(data: bytes, capacity: int) -> bytes | None:
    stream = zlib.decompressobj(_RAW_DEFLATE)
    try:
        decoded = stream.decompress(data, capacity + 1)
    except zlib.error:
        return None
    return decoded if stream.eof and not stream.unused_data else None


def _zstd(data: bytes, capacity: int) -> bytes | None:
    stream = zstandard.ZstdDecompressor().decompressobj()
    try:
        decoded = stream.decompress(data)
    except zstandard.ZstdError:
        return None
    return decoded if stream.eof and not stream.unused_data else None


def _stand_in(data: bytes, capacity: int) -> bytes | None:
    """Return the bytes behind a mark: this is no GDeflate."""
    return data.removeprefix(GDEFLATE_STAND_IN) if data.startswith(GDEFLATE_STAND_IN) else None
