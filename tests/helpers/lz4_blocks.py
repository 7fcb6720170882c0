"""LZ4 blocks by hand: a slow reading of the block format description, and a writer of sequences.

Nothing here shares a line with the code under test; it is the oracle of the tests of LZ4.
"""

from __future__ import annotations

from typing import NamedTuple

MIN_MATCH = 4


class InvalidBlockError(Exception):
    """The block format forbids what stands here."""


class Sequence(NamedTuple):
    """Literals, then a match; the last sequence of a block has no match (`offset` is None)."""

    literals: bytes
    offset: int | None = None
    length: int = MIN_MATCH


class _Reader:
    def __init__(self, block: bytes) -> None:
        self.block = block
        self.position = 0

    def take(self, size: int) -> bytes:
        taken = self.block[self.position : self.position + size]
        if len(taken) != size:
            raise InvalidBlockError(f"the block ends inside the field at {self.position}")
        self.position += size
        return taken

    def length(self, nibble: int) -> int:
        """Read on a length whose 4 bits are full: bytes are added until one is not 255."""
        total = nibble
        if nibble == 15:
            byte = 255
            while byte == 255:
                byte = self.take(1)[0]
                total += byte
        return total


def sequences(block: bytes) -> list[Sequence]:
    """Return the sequences of a block; InvalidBlockError if it is cut inside one."""
    reader = _Reader(block)
    found = []
    while True:
        token = reader.take(1)[0]
        literals = reader.take(reader.length(token >> 4))
        if reader.position == len(block):
            # The last sequence stops right after its literals.
            return [*found, Sequence(literals)]
        offset = int.from_bytes(reader.take(2), "little")
        found.append(Sequence(literals, offset, reader.length(token & 15) + MIN_MATCH))


def decode(
    block: bytes, capacity: int, history: bytes = b"", *, zero_offset: bool = False
) -> bytes:
    """Decode a block byte by byte.

    Parameters
    ----------
    block : bytes
        The block.
    capacity : int
        Most bytes that it may decode to.
    history : bytes
        What matches may copy from before the block.
    zero_offset : bool
        Whether a match with offset 0 is taken as zeros (as liblz4 does), not refused.
    """
    out = bytearray(history)
    for literals, offset, length in sequences(block):
        out += literals
        if offset == 0 and zero_offset:
            out += bytes(length)
        elif offset is not None:
            if not 0 < offset <= len(out):
                raise InvalidBlockError(f"offset {offset} after {len(out)} bytes")
            for _ in range(length):
                out.append(out[-offset])
        if len(out) > len(history) + capacity:
            raise InvalidBlockError(f"it decodes to more than {capacity} bytes")
    return bytes(out[len(history) :])


def write(*parts: Sequence) -> bytes:
    """Return the block of some sequences."""
    block = bytearray()
    for literals, offset, length in parts:
        match = 0 if offset is None else length - MIN_MATCH
        block.append(min(15, len(literals)) << 4 | min(15, match))
        block += _more(len(literals)) + literals
        if offset is not None:
            block += offset.to_bytes(2, "little") + _more(match)
    return bytes(block)


def _more(length: int) -> bytes:
    if length < 15:
        return b""
    return b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])
