"""Many Zstandard frames in one call of a library: as one stream.

A call for each frame has threads take turns at Python, and some more for looking at its blocks. A
reader that reads on from frame to frame decodes all those that it is given, one behind the other,
and hardly needs it.

It finds by itself where frames start and end. That each row is decoded as it would be alone follows
from what is looked at here (sections of RFC 8878), whatever the blocks hold:

* The payloads lie back to back, and the first frame starts where the first payload does. At the
  start of each payload is the header of a frame (not of a skippable one, section 3.1.2) whose
  blocks, with the checksum, end where the payload ends (sections 3.1.1 and 3.1.1.2). The reader
  goes by the same headers, so that its frames are the payloads: if a frame is one of them, the
  next one starts where the next payload starts.
* Each frame states its size (section 3.1.1.1.4), and it is that of the row. The library refuses
  frames that decode to any other. The slots lie back to back as well, so that each frame fills
  the slot of its row: if all before it did, it starts where the slot starts.
* A frame decodes to the same bytes wherever it stands: matches reach no further back than its own
  start, except into the dictionary, and no table or offset outlives the frame that it comes in
  (sections 3.1.1.5 and 4). Rows that are decoded one by one have the same dictionary.
* If checksums matter, the library compares the one that a frame carries, and here it is compared
  with what the row says. Rows with one that their frames do not carry are not taken; nor are, if
  they do not matter, frames that carry one.

The library stops at the first frame that is not in order. What it left in the slots until then,
also in those behind that frame, is of no use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import Checksum, Codec
from gpuload.codecs.base import CorruptChunkError
from gpuload.codecs.refuse import words_at
from gpuload.codecs.zstd import Decompressors, translated
from gpuload.codecs.zstd_headers import CHECKSUM_SIZE, SMALLEST, blocks_end, read_headers

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.codecs.base import Bytes, ManyDecoder, Offsets

    Mask = npt.NDArray[np.bool_]

__all__ = ["decoder", "suits"]

#: Decoded bytes of a row that is taken: for larger ones a call for each costs little.
_LARGEST = 256 << 10
#: Decoded bytes of a call, and stored ones.
_LIMIT = 1 << 24
#: Rows of a call: to look at fewer takes longer than to decode them one by one.
_FEWEST = 8
#: Blocks of a frame: encoders write a few, and others could be made to keep the lock for long.
_MOST_BLOCKS = 64
#: Plain integers, which NumPy compares with faster.
_ZSTD, _NO_CHECKSUM, _XXH64 = int(Codec.ZSTD), int(Checksum.NONE), int(Checksum.XXH64_LOW)


def decoder(dictionary: bytes | None, *, verify: bool = True) -> ManyDecoder:
    """Return a decoder of many rows at once, for use from any number of threads.

    Parameters
    ----------
    dictionary : bytes, optional
        For frames that were made with one. Those that name it are not taken.
    verify : bool
        Whether to compare checksums.

    Returns
    -------
    callable
        See `gpuload.codecs.base.ManyDecoder`.
    """
    decompressors = Decompressors(dictionary)

    def decode(rows: ChunkTable, src: Offsets, dst: Offsets, stored: Bytes, out: Bytes) -> int:
        sizes, raw = rows["stored_size"].astype(np.int64), rows["raw_size"].astype(np.int64)
        ends = src + sizes
        count = _leading(_together(rows, src, ends, dst, raw))
        if count < _FEWEST or ends[count - 1] > stored.size:
            return 0
        count = _leading(_plain(rows[:count], src[:count], ends[:count], stored, verify=verify))
        if count < _FEWEST:
            return 0
        last = count - 1
        slots = out[dst[0] : dst[last] + raw[last]]
        return count if _fill(decompressors, stored[src[0] : ends[last]], slots) else 0

    return decode


def suits(rows: ChunkTable) -> bool:
    """Return whether all rows are of the kind that may be decoded together.

    Their frames may still be of another kind: they are not looked at.
    """
    if not rows.size:
        return False
    known = bool(_known(rows, rows["raw_size"].astype(np.int64)).all())
    ends = rows["offset"] + rows["stored_size"]
    return known and bool((rows["offset"][1:] == ends[:-1]).all())


def _known(rows: ChunkTable, raw: Offsets) -> Mask:
    kind, size = rows["checksum_kind"], rows["stored_size"]
    known: Mask = (rows["codec"] == _ZSTD) & rows["exact"] & (rows["prefix_size"] == 0)
    known &= (kind == _NO_CHECKSUM) | (kind == _XXH64)
    known &= (raw > 0) & (raw <= _LARGEST) & (size >= SMALLEST) & (size <= _LIMIT)
    return known


def _together(rows: ChunkTable, src: Offsets, ends: Offsets, dst: Offsets, raw: Offsets) -> Mask:
    """Return which rows lie as those of a call have to, from the first one on."""
    fits = _known(rows, raw)
    fits[1:] &= (src[1:] == ends[:-1]) & (dst[1:] == dst[:-1] + raw[:-1])
    fits &= (ends - src[:1] <= _LIMIT) & (dst + raw - dst[:1] <= _LIMIT)
    return fits


def _plain(rows: ChunkTable, src: Offsets, ends: Offsets, stored: Bytes, *, verify: bool) -> Mask:
    """Return which payloads are a frame that states its size, with the checksum of its row."""
    headers = read_headers(stored, src)
    fits: Mask = headers.plain & headers.stated & (headers.content_sizes == rows["raw_size"])
    summed, unsaid = headers.checksum, rows["checksum_kind"] == _NO_CHECKSUM
    if verify:
        same = words_at(stored, ends - CHECKSUM_SIZE) == rows["checksum"].astype(np.int64)
        fits &= unsaid | (summed & same)
    else:
        fits &= ~summed
    last = ends - CHECKSUM_SIZE * summed
    fits &= blocks_end(stored, src + headers.sizes, last, most=_MOST_BLOCKS)
    return fits


def _leading(fits: Mask) -> int:
    """Return how many rows are before the first that does not fit."""
    return fits.size if fits.all() else int(fits.argmin())


def _fill(decompressors: Decompressors, stored: Bytes, slots: Bytes) -> bool:
    """Return whether frames are in order and fill the slots."""
    try:
        with translated():
            reader = decompressors.own().stream_reader(stored, read_across_frames=True)
            # The end of the last frame may only be looked at by the second call.
            return bool(reader.readinto(slots) == slots.size and not reader.readinto(bytearray(1)))
    except CorruptChunkError:
        return False
