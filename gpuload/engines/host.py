"""The host engine: CPU threads and well-kept libraries, for every codec that has one.

A task is a range of chunks, decoded one after the other straight into their slots; the libraries
release the GIL, so that tasks run side by side. Where threads would still wait for each other
between small chunks, one call decodes many (see `gpuload.codecs.members` and
`gpuload.codecs.frames`).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload import codecs
from gpuload.chunks import Checksum, Codec
from gpuload.codecs import frames, members
from gpuload.codecs.base import CorruptChunkError, check, mismatch
from gpuload.codecs.deflate import decode_checked
from gpuload.codecs.zstd import embedded_checksum
from gpuload.engines.base import Engine, HostBatch, Outcome, Status, Submission

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.chunks import ChunkTable
    from gpuload.codecs.base import Bytes, Decoder, ManyDecoder
    from gpuload.options import Options

__all__ = ["HostEngine"]

#: Decoded bytes of a task: enough to hide the cost of starting it, few enough to stay in cache.
TASK_SIZE = 1 << 20
#: How many times as much a task has of rows that are decoded many at a time, if there are enough.
_MANY = 4
#: With fewer threads, chunks are decoded one by one by the fastest library for one. With as many or
#: more, those that one call can take are decoded together: on 2 cores, BGZF came at 1.65 GB/s one
#: by one and at 1.5 together on 2 threads, at 1.0 and 1.5 on 8.
MANY_THREADS = 3

#: Rows that a decoder of many looks at, of which it may take only the first few.
_ROWS_AT_ONCE = 1024

_BEFORE_DECODING = (Checksum.NONE, Checksum.XXH32_STORED)


class HostEngine(Engine[HostBatch]):
    """Decodes on CPU threads.

    Parameters
    ----------
    options : Options
        `threads`, `verify` and `dictionary` matter here.
    vouched : bool
        Whether the caller checks everything that is decoded against checksums (see
        `gpuload.codecs.decoders`).
    together : int
        Threads from which on chunks that one call can take are decoded together.
    """

    name = "host"

    def __init__(
        self, options: Options, *, vouched: bool = False, together: int = MANY_THREADS
    ) -> None:
        self._decoders: dict[int, Decoder] = codecs.decoders(options, vouched=vouched)
        self._verify = bool(options.verify)
        self._threads = options.thread_count
        self._together = self._many_decoders(options) if self._threads >= together else {}
        self._pool: ThreadPoolExecutor | None = None

    def _many_decoders(self, options: Options) -> dict[int, ManyDecoder]:
        """Return the decoders of many rows at once, by the codec of these."""
        found: dict[int, ManyDecoder | None] = {
            Codec.DEFLATE: members.decoder(),
            Codec.ZSTD: frames.decoder(options.dictionary, verify=self._verify),
        }
        return {codec: decoder for codec, decoder in found.items() if decoder is not None}

    def takes_together(self, rows: ChunkTable) -> bool:
        """Return whether rows are decoded many at a time, with little of Python between."""
        if Codec.DEFLATE in self._together and members.suits(rows):
            return True
        return Codec.ZSTD in self._together and frames.suits(rows)

    def refusals(self, rows: ChunkTable) -> dict[str, npt.NDArray[np.bool_]]:
        """See `Engine.refusals`."""
        return {
            "chained to the chunk before": rows["chained"],
            "one serial stream": rows["codec"] == Codec.GZIP,
            **{reason: rows["codec"] == codec for codec, reason in codecs.MISSING.items()},
        }

    def submit(self, batch: HostBatch) -> Submission:
        """See `Engine.submit`."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "gpuload-host")
        ends = np.cumsum(batch.rows["raw_size"])
        task = self._task_size(batch.rows, int(ends[-1]) if ends.size else 0)
        bounds = np.flatnonzero(np.diff(ends // task, prepend=0)) + 1
        edges = [0, *bounds[bounds < len(batch.rows)].tolist(), len(batch.rows)]
        parts = [batch.part(a, b) for a, b in pairwise(edges)]
        return _HostSubmission([self._pool.submit(self.decode, part) for part in parts])

    def _task_size(self, rows: ChunkTable, total: int) -> int:
        """Return the bytes of a task; larger ones have more that one call decodes."""
        if not self.takes_together(rows):
            return TASK_SIZE
        return max(TASK_SIZE, min(_MANY * TASK_SIZE, total // (2 * self._threads)))

    def decode(self, batch: HostBatch) -> Outcome:
        """Decode a batch in the calling thread."""
        outcome = Outcome.empty(len(batch.rows))
        done = self._decode_together(batch)
        outcome.actual[:done] = batch.rows["raw_size"][:done]
        rest = batch.part(done, len(batch.rows))
        for number, (start, end, slot, slot_end, *row) in enumerate(_columns(rest), done):
            stored, out = batch.stored[start:end], batch.out[slot:slot_end]
            try:
                outcome.actual[number] = self._decode_row(stored, out, *row)
            except CorruptChunkError as error:
                outcome.fail(number, _status(error), error.reason)
                outcome.actual[number] = error.actual or 0
        return outcome

    def _decode_together(self, batch: HostBatch) -> int:
        """Decode the first rows, and return how many; none more if anything is wrong with any.

        Chunk by chunk it is found out then which one, and what.
        """
        done, more = 0, 1
        while more and done < len(batch.rows):
            decode = self._together.get(int(batch.rows["codec"][done]))
            rest = batch.part(done, done + _ROWS_AT_ONCE)
            more = decode(rest.rows, rest.src, rest.dst, rest.stored, rest.out) if decode else 0
            done += more
        return done

    def _decode_row(
        self, stored: Bytes, slot: Bytes, codec: int, exact: int, kind: int, checksum: int
    ) -> int:
        if self._verify and kind == Checksum.XXH32_STORED:
            check(kind, stored, checksum)
        checked = self._verify and exact and codec == Codec.DEFLATE and kind == Checksum.CRC32
        if checked:
            size = decode_checked(stored, slot, checksum)
        else:
            size = self._decoders[codec](stored, slot)
        if exact and size != slot.size:
            reason = f"it decodes to {size} bytes, the file says {slot.size}"
            raise CorruptChunkError(reason, actual=size)
        if self._verify and not checked and kind not in _BEFORE_DECODING:
            _check_decoded(kind, codec, stored, slot[:size], checksum)
        return size

    @staticmethod
    def check(batch: HostBatch, outcome: Outcome) -> None:
        """Check the checksums of rows that another engine decoded, as far as they are OK."""
        sizes, good = outcome.actual.tolist(), (outcome.status == Status.OK).tolist()
        for number, (start, end, slot, _, _, _, kind, checksum) in enumerate(_columns(batch)):
            if not good[number] or kind == Checksum.NONE:
                continue
            decoded = batch.out[slot : slot + sizes[number]]
            try:
                covered = batch.stored[start:end] if kind == Checksum.XXH32_STORED else decoded
                check(kind, covered, checksum)
            except CorruptChunkError as error:
                outcome.fail(number, Status.CHECKSUM, error.reason)

    def close(self) -> None:
        """See `Engine.close`."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _HostSubmission(Submission):
    def __init__(self, parts: list[Future[Outcome]]) -> None:
        self._parts = parts

    def wait(self) -> Outcome:
        """See `Submission.wait`."""
        return Outcome.joined([part.result() for part in self._parts])


def _columns(batch: HostBatch) -> Iterator[tuple[int, ...]]:
    """Yield what decoding takes of each row, as Python integers."""
    rows = batch.rows
    start = batch.src - rows["prefix_size"]
    end = batch.src + rows["stored_size"].astype(np.int64)
    slot_end = batch.dst + rows["raw_size"].astype(np.int64)
    columns = [start, end, batch.dst, slot_end]
    columns += [rows[name] for name in ("codec", "exact", "checksum_kind", "checksum")]
    return zip(*(column.tolist() for column in columns), strict=True)


def _check_decoded(kind: int, codec: int, stored: Bytes, decoded: Bytes, expected: int) -> None:
    embedded = embedded_checksum(stored) if codec == Codec.ZSTD else None
    if embedded is None:
        check(kind, decoded, expected)
    elif embedded != expected:
        # The library has compared the frame's own; only a seek table can say something else.
        raise CorruptChunkError(mismatch(kind, expected, embedded), checksum=True)


def _status(error: CorruptChunkError) -> Status:
    if error.actual is not None:
        return Status.SIZE
    return Status.CHECKSUM if error.checksum else Status.CORRUPT
