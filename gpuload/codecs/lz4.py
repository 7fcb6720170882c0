"""LZ4 blocks on the host: cramjam into the slot, python-lz4 where a block has history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import Checksum, Codec
from gpuload.codecs.base import (
    Bytes,
    CorruptChunkError,
    Decoder,
    StreamDecoder,
    check,
    gather,
)
from gpuload.codecs.lz4_strict import has_zero_offset

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ChainDecoder", "decoder"]

#: How far back a match may reach (LZ4 block format: offsets are 16-bit).
HISTORY = 65536


def decoder(dictionary: bytes | None, *, strict: bool) -> Decoder:
    """Return the decoder of independent LZ4 blocks.

    Parameters
    ----------
    dictionary : bytes, optional
        Content before each block.
    strict : bool
        Whether to look for matches with offset 0, which the library lets pass.
    """
    history = (dictionary or b"")[-HISTORY:]

    def decode(stored: Bytes, slot: Bytes) -> int:
        if history:
            size = _copy(_decode_with_history(stored, slot.size, history), slot)
        else:
            size = _decode(stored, slot)
        if strict:
            refuse_zero_offset(stored, slot[:size])
        return size

    return decode


def _decode(stored: Bytes, slot: Bytes) -> int:
    import cramjam

    # cramjam tries a block that fails once more as one with a size before it, so a broken block
    # whose first four bytes happen to be a possible size could decode to other bytes.
    if _looks_size_prefixed(stored, slot.size):
        return _copy(_decode_with_history(stored, slot.size, b""), slot)
    try:
        size: int = cramjam.lz4.decompress_block_into(stored, slot, slot.size)
    except cramjam.DecompressionError:
        raise _corrupt(stored.size, slot.size, b"") from None
    return size


def _looks_size_prefixed(stored: Bytes, capacity: int) -> bool:
    return stored.size >= 4 and int.from_bytes(stored[:4].tobytes(), "little") <= capacity


def _decode_with_history(stored: Bytes, capacity: int, history: bytes | memoryview) -> bytes:
    import lz4.block

    try:
        decoded: bytes = lz4.block.decompress(stored, uncompressed_size=capacity, dict=history)
    except (lz4.block.LZ4BlockError, ValueError):
        raise _corrupt(stored.size, capacity, history) from None
    return decoded


def refuse_zero_offset(stored: Bytes, decoded: Bytes) -> None:
    """Raise CorruptChunkError if a block holds a match with offset 0."""
    if has_zero_offset(stored, decoded):
        raise CorruptChunkError("the LZ4 block holds a match with offset 0, which is invalid")


def _copy(decoded: bytes, slot: Bytes) -> int:
    slot[: len(decoded)] = np.frombuffer(decoded, np.uint8)
    return len(decoded)


def _corrupt(stored_size: int, capacity: int, history: bytes | memoryview) -> CorruptChunkError:
    message = (
        f"the LZ4 block ({stored_size} stored bytes) is damaged, "
        f"or decodes to more than {capacity} bytes"
    )
    hint = "" if history else ", or was made with a dictionary that was not given"
    return CorruptChunkError(message + hint)


class ChainDecoder(StreamDecoder):
    """Linked LZ4 blocks: each may copy from the 64 KiB decoded before it.

    Rows that are not `chained` start a new history (the dictionary, if there is one).
    """

    def pieces(self) -> Iterator[Bytes]:
        """See `StreamDecoder.pieces`."""
        return gather(self._blocks())

    def _blocks(self) -> Iterator[bytes]:
        start = (self.options.dictionary or b"")[-HISTORY:]
        history = bytearray(start)
        for number, row in enumerate(self.rows):
            if not row["chained"]:
                history[:] = start
            try:
                decoded = self._decode_row(row, history)
            except CorruptChunkError as error:
                error.row = number
                raise
            _extend(history, decoded)
            yield decoded

    def _decode_row(self, row: np.void, history: bytearray) -> bytes:
        stored = np.empty(int(row["stored_size"]), np.uint8)
        self.source.read_exact(int(row["offset"]), memoryview(stored))
        self.position = int(row["offset"]) + stored.size
        if self.options.verify and row["checksum_kind"] != Checksum.NONE:
            check(int(row["checksum_kind"]), stored, int(row["checksum"]))
            self.verified[int(row["checksum_kind"])] += 1
        if row["codec"] == Codec.RAW:
            return stored.tobytes()
        with memoryview(history)[-HISTORY:] as before:
            decoded = _decode_with_history(stored, int(row["raw_size"]), before)
        if not self.vouched:
            refuse_zero_offset(stored, np.frombuffer(decoded, np.uint8))
        return decoded


def _extend(history: bytearray, decoded: bytes) -> None:
    """Append to a history, and cut what no match can reach once in a while."""
    history += decoded[-HISTORY:]
    if len(history) > 8 * HISTORY:
        del history[:-HISTORY]
