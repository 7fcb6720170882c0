"""Zstandard frames of random headers (RFC 8878, section 3.1.1), and a model of what a scan takes.

The blocks' contents are noise: whoever lists frames does not look at them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.containers import zstd_frames as handmade

if TYPE_CHECKING:
    import random

__all__ = ["MOST_BLOCKS", "Header", "header_at", "random_frame", "random_table"]

MAGIC = b"\x28\xb5\x2f\xfd"
#: Blocks of a frame that a scan looks at.
MOST_BLOCKS = 64
_LIMIT = 128 << 10
_RAW, _RLE, _COMPRESSED, _RESERVED = range(4)


class Header(NamedTuple):
    """What the headers of a frame say; all 0 if it is cut or none.

    Attributes
    ----------
    cut : bool
        Whether bytes are missing to know.
    size, content, marks : int
        Its bytes, its decoded bytes, and the third word of a record.
    """

    cut: bool
    size: int = 0
    content: int = 0
    marks: int = 0


BROKEN, CUT = Header(cut=False), Header(cut=True)


def header_at(data: bytes, at: int) -> Header:
    """Return what a scan should find at a position that at least 9 bytes follow."""
    descriptor = data[at + 4]
    if data[at : at + 4] != MAGIC or descriptor & 0x08:
        return BROKEN
    single = bool(descriptor & 0x20)
    id_size, size = (0, 1, 2, 4)[descriptor & 3], (int(single), 2, 4, 8)[descriptor >> 6]
    window_at = at + 5
    id_at = window_at + (not single)
    content_at = id_at + id_size
    place = content_at + size
    if not size:
        return BROKEN
    if place + 3 > len(data):
        return CUT
    content = int.from_bytes(data[content_at:place], "little") + 256 * (size == 2)
    if any(data[id_at:content_at]) or content >> 32:
        return BROKEN
    exponent, mantissa = divmod(data[window_at], 8)
    window = content if single else (8 + mantissa) * (1 << 10 + exponent) // 8
    limit, bound = min(window, _LIMIT), 0
    for number in range(1, MOST_BLOCKS + 1):
        if place + 3 > len(data):
            return CUT
        block = int.from_bytes(data[place : place + 3], "little")
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        if kind == _RESERVED or length > limit:
            return BROKEN
        bound += limit if kind == _COMPRESSED else length
        place += 3 + (1 if kind == _RLE else length)
        if last:
            marks = number << 16 | (0 if single else data[window_at] << 8) | descriptor
            end = place + 4 * bool(descriptor & 4)
            return Header(False, end - at, content, marks) if content <= bound else BROKEN
    return BROKEN


def random_frame(rng: random.Random, size: int, most: int = 4) -> bytes:
    """Return a frame that states its size, of about so many bytes in at most so many blocks."""
    parts, kinds, bound = [], [], 0
    for _ in range(rng.randrange(1, most + 1)):
        part = rng.randbytes(rng.randrange(size // most + 2))
        kind = rng.choice((_RAW, _RAW, _RLE, _COMPRESSED))
        kinds.append((kind, len(part)))
        parts.append(rng.randbytes(1) if kind == _RLE else part)
        bound += len(part)
    single = rng.random() < 0.5 and bound > 0
    content = bound if single else rng.randrange(bound + 1)
    blocks = [
        handmade.block(kind, length, part, last=number == len(parts))
        for number, ((kind, length), part) in enumerate(zip(kinds, parts, strict=True), 1)
    ]
    # A field of two bytes starts at 256, and one of one byte is for single segments only.
    fields = [field for field in (1, 2, 4, 8) if _has_room(field, content, single=single)]
    field = rng.choice(fields)
    value = content - 256 * (field == 2)
    return handmade.frame(
        *blocks,
        window=None if single else rng.choice((0x50, 0x3A, 0x67, 0x5B)),
        content_size=(value, field),
        dictionary=(0, rng.choice((0, 0, 0, 1, 2, 4))),
        checksum=rng.choice((None, rng.randrange(1 << 32))),
    )


def _has_room(field: int, content: int, *, single: bool) -> bool:
    if field == 1:
        return single and content < 256
    return 256 <= content < 65_536 + 256 if field == 2 else True


def random_table(rng: random.Random, frames: list[bytes]) -> bytes:
    """Return the seek table of frames, with checksums or without."""
    summed = rng.random() < 0.5
    entries = []
    for each in frames:
        found = header_at(each, 0)
        own = int.from_bytes(each[-4:], "little") if found.marks & 4 else rng.randrange(1 << 32)
        entries.append((len(each), found.content, *([own] if summed else [])))
    return handmade.seek_table(entries)
