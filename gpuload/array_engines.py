"""Who decodes the rows of arrays on a device: which rows there are is known only part by part."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from gpuload.batch import DRIVER_CODECS
from gpuload.chunks import Codec
from gpuload.engines import rates
from gpuload.engines.choice import DEVICE_ENGINES, time_text, unavailable
from gpuload.errors import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from gpuload.array_plan import ArrayPlan
    from gpuload.chunks import ChunkTable
    from gpuload.engines.base import DeviceBatch, Engine
    from gpuload.options import Options
    from gpuload.stations import Stations

#: By the three highest bits of a Blosc chunk's third byte (c-blosc's README_HEADER).
_FLAGS = 2
_INSIDE_BLOSC: dict[int, int] = {1: Codec.LZ4, 2: Codec.SNAPPY, 3: Codec.DEFLATE, 4: Codec.ZSTD}
#: Memory that nvCOMP takes for each byte that it decodes, where that is much; else it decodes a
#: batch in several steps.
_SCRATCH: dict[int, float] = {Codec.ZSTD: 3.4, Codec.DEFLATE: 1.0}
_LITTLE = 0.125

#: What brings bytes to a device that are stored as they are.
COPY = "copy"

__all__ = ["COPY", "RATED", "USUAL", "Engines", "passed_over"]

#: The codec that most rows of a compression have; of Blosc only its chunks tell.
USUAL = {
    "deflate": Codec.DEFLATE,
    "gzip": Codec.DEFLATE,
    "zlib": Codec.DEFLATE,
    "zstd": Codec.ZSTD,
    "lz4": Codec.LZ4,
    "blosc": Codec.LZ4,
}
#: What each engine on a device decodes of arrays.
RATED: dict[str, set[int]] = {
    "hardware": {Codec.RAW, *DRIVER_CODECS},
    **{name: set(of) for name, of in rates.DEVICE_RATES.items()},
}


def passed_over(options: Options, device_id: int | None) -> dict[str, str]:
    """Return, for each engine on a device that can decode nothing of arrays, why not."""
    reasons = {name: unavailable(name, options, device_id) for name in DEVICE_ENGINES}
    if not reasons["hardware"] and not options.trusted:
        reasons["hardware"] = (
            "parts of arrays have no guard behind them (trusted=True does without)"
        )
    return {name: reason for name, reason in reasons.items() if reason}


class Engines:
    """The engines of one load.

    Parameters
    ----------
    options : Options
        `engine`, `trusted` and `threads`.
    device_id : int
        The device.
    plans : sequence of ArrayPlan
        What is loaded.

    Attributes
    ----------
    passed_over : dict of str to str
        For each engine that did not decode everything, why not.
    used : set of str
        Those that have decoded something.

    Raises
    ------
    EngineUnavailableError
        If an engine is asked for by name that is not here.
    """

    def __init__(self, options: Options, device_id: int, plans: Sequence[ArrayPlan]) -> None:
        self._options = options
        self.used: set[str] = set()
        self.passed_over = passed_over(options, device_id)
        if options.engine in self.passed_over:
            raise EngineUnavailableError(
                f"the {options.engine} engine cannot decode this: "
                f"{self.passed_over[options.engine]}"
            )
        self._lock = threading.Lock()
        self._work = _work(plans)
        here = [name for name in DEVICE_ENGINES if name not in self.passed_over]
        wanted = [] if options.engine == "host" else here
        self._names = [name for name in wanted if not self._too_few(name)]
        self._engines: list[Engine[DeviceBatch]] = []

    @property
    def on_host(self) -> bool:
        """Whether the host decodes most of what has to be decoded."""
        rated = [name for name in self._names if self._work.codec in RATED[name]]
        return self._work.codec != Codec.RAW and not rated

    @property
    def scratch(self) -> float:
        """Bytes of memory that engines take for each byte that they decode."""
        if "nvcomp" not in self._names:
            return 0.0
        others = [name for name in self._names if name != "nvcomp"]
        alone = not any(self._work.codec in RATED[name] for name in others)
        return _SCRATCH.get(self._work.codec, _LITTLE) if alone else _LITTLE

    def start(self, held: Stations) -> None:
        """Take the engines from what has them."""
        self._engines = [held.engine(name, held.shape.scratch) for name in self._names]

    def _too_few(self, name: str) -> bool:
        """Return whether the host is faster than an engine, with all chunks; say so."""
        if self._options.engine == name or name not in rates.DEVICE_RATES:
            return False
        work = self._work
        if work.codec not in rates.DEVICE_RATES[name]:
            return False
        seconds = rates.device_seconds(name, work)
        host = rates.host_seconds(work, self._options.thread_count) + rates.HOST_START
        if host < seconds:
            times = f"{time_text(seconds)} against {time_text(host)} on the host"
            self.passed_over[name] = f"{work.count} chunks are slower there ({times})"
        return host < seconds

    def split(
        self, rows: ChunkTable, *, host: bool = False
    ) -> Iterator[tuple[Engine[DeviceBatch] | None, npt.NDArray[np.intp]]]:
        """Yield engines and the rows that each decodes; None is the host, which may take all."""
        left = np.ones(rows.size, np.bool_)
        for engine in [] if host else self._engines:
            refusals = engine.refusals(rows)
            taken = left & ~np.any(list(refusals.values()), axis=0)
            self._note(engine.name, refusals, left)
            if taken.any():
                self.used.add(engine.name)
                left &= ~taken
                yield engine, np.flatnonzero(taken)
        if left.any():
            self.used.add("host")
            yield None, np.flatnonzero(left)

    def _note(
        self, name: str, refusals: dict[str, npt.NDArray[np.bool_]], left: npt.NDArray[np.bool_]
    ) -> None:
        reasons = [reason for reason, mask in refusals.items() if (mask & left).any()]
        if reasons:
            with self._lock:
                self.passed_over.setdefault(name, "; ".join(reasons))

    def leave_to_host(self, reason: str) -> None:
        """Say why the host decodes all of something."""
        with self._lock:
            self.used.add("host")
            for name in self._names:
                self.passed_over.setdefault(name, reason)

    def finish(self) -> None:
        """Raise EngineUnavailableError if an engine was asked for that has decoded nothing."""
        named = self._options.engine
        others = self.used - {COPY}
        if named in DEVICE_ENGINES and others and named not in others:
            reason = self.passed_over.get(named, "it takes none of the chunks")
            raise EngineUnavailableError(f"the {named} engine cannot decode this: {reason}")


def _work(plans: Sequence[ArrayPlan]) -> rates.Work:
    codec: int = Codec.RAW
    for plan in plans:
        if not plan.bare and not plan.missing.all():
            codec = _codec_of(plan)
    return rates.Work(
        codec,
        sum(int((~plan.missing).sum()) for plan in plans),
        sum(plan.stored_size for plan in plans),
        sum(int(plan.raw_sizes.sum()) for plan in plans),
        max((int(plan.raw_sizes.max(initial=0)) for plan in plans), default=0),
    )


def _codec_of(plan: ArrayPlan) -> int:
    """Return the codec that most rows of a plan have; of Blosc the first chunk tells."""
    names = [step.name for step in plan.asset.pipeline.compression]
    if names[-1] != "blosc":
        return USUAL.get(names[-1], Codec.RAW)
    first, header = int((~plan.missing).argmax()), np.zeros(_FLAGS + 1, np.uint8)
    if plan.places.sizes[first] < header.size or len(names) > 1:
        return USUAL["blosc"]
    key, offset = plan.places.keys[plan.places.objects[first]], int(plan.places.offsets[first])
    plan.bring([(key, offset, 0, header.size)], header)
    return _INSIDE_BLOSC.get(int(header[_FLAGS]) >> 5, Codec.BLOSC)
