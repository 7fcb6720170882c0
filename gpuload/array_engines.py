"""Who decodes the rows of arrays on a device: which rows there are is known only part by part."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from gpuload.batch import DRIVER_CODECS
from gpuload.chunks import Codec
from gpuload.engines import rates
from gpuload.engines.choice import DEVICE_ENGINES, scratch_limit, time_text, unavailable
from gpuload.errors import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from gpuload.array_plan import ArrayPlan
    from gpuload.chunks import ChunkTable
    from gpuload.engines.base import DeviceBatch, Engine
    from gpuload.options import Options
    from gpuload.stations import Stations

__all__ = ["RATED", "USUAL", "Engines", "passed_over"]

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
    held : Stations
        Has the engines.
    options : Options
        `engine`, `trusted`, `threads` and `memory_limit`.
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

    def __init__(self, held: Stations, options: Options, plans: Sequence[ArrayPlan]) -> None:
        self._options = options
        self.used: set[str] = set()
        self.passed_over = passed_over(options, held.device_id)
        if options.engine in self.passed_over:
            raise EngineUnavailableError(
                f"the {options.engine} engine cannot decode this: "
                f"{self.passed_over[options.engine]}"
            )
        self._lock = threading.Lock()
        names = [name for name in DEVICE_ENGINES if name not in self.passed_over]
        self._engines: list[Engine[DeviceBatch]] = [
            held.engine(name, scratch_limit(options))
            for name in names
            if options.engine != "host" and not self._too_few(name, plans)
        ]

    def _too_few(self, name: str, plans: Sequence[ArrayPlan]) -> bool:
        """Return whether the host is faster than an engine, with all chunks; say so."""
        if self._options.engine == name or name not in rates.DEVICE_RATES:
            return False
        work = _work(plans)
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

    def finish(self) -> None:
        """Raise EngineUnavailableError if an engine was asked for that has decoded nothing."""
        named = self._options.engine
        if named in DEVICE_ENGINES and self.used and named not in self.used:
            reason = self.passed_over.get(named, "it takes none of the chunks")
            raise EngineUnavailableError(f"the {named} engine cannot decode this: {reason}")


def _work(plans: Sequence[ArrayPlan]) -> rates.Work:
    codec = Codec.RAW
    for plan in plans:
        for step in plan.asset.pipeline.compression:
            codec = USUAL.get(step.name, codec)
    return rates.Work(
        codec,
        sum(int((~plan.missing).sum()) for plan in plans),
        sum(plan.stored_size for plan in plans),
        sum(int(plan.raw_sizes.sum()) for plan in plans),
        max((int(plan.raw_sizes.max(initial=0)) for plan in plans), default=0),
    )
