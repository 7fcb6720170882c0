"""Which engine decodes which rows, and why not another.

``engine="auto"`` takes, row by row, the first engine that can and is the fastest by what was
measured (`gpuload.engines.rates`): hardware, sm, nvcomp, host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.batch import DRIVER_CODECS
from gpuload.chunks import CHUNK_DTYPE, Codec
from gpuload.codecs import MISSING
from gpuload.engines import rates
from gpuload.engines.refusals import KERNELS, hardware_refusals, sm_refusals
from gpuload.errors import EngineUnavailableError, UnsupportedCodecError
from gpuload.options import ENGINES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.driver import Capabilities
    from gpuload.engines.rates import Work
    from gpuload.engines.refusals import Masks
    from gpuload.options import Options

__all__ = [
    "DEVICE_ENGINES",
    "HARDWARE",
    "HOST",
    "NVCOMP",
    "SM",
    "Choice",
    "choose",
    "choose_for",
    "fetching_is_slower",
    "scratch_limit",
    "time_text",
    "unavailable",
]

HARDWARE, SM, NVCOMP, HOST = range(len(ENGINES))
#: By name, in the order in which they are tried.
DEVICE_ENGINES = ENGINES[:HOST]


@dataclass(frozen=True)
class Choice:
    """Who decodes the rows of a table.

    Attributes
    ----------
    engines : ndarray of uint8
        For each row, the engine's place in `gpuload.options.ENGINES`.
    passed_over : dict of str to str
        For each engine that some rows could not go to, or would not be faster on, why not.
    seconds : dict of str to float
        Where engines were compared: about how long the chosen one takes, and how long the host
        would take for the same rows, by name.
    """

    engines: npt.NDArray[np.uint8]
    passed_over: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)


def choose(
    chunks: ChunkTable,
    options: Options,
    device_id: int | None,
    *,
    broken: Mapping[str, str] | None = None,
    fetched: bool = False,
) -> Choice:
    """Return who decodes each row.

    Parameters
    ----------
    chunks : ChunkTable
        The rows.
    options : Options
        `engine`, `trusted`, `threads` and `memory_limit`.
    device_id : int or None
        The device that may be used; None if there is none, or none is wanted.
    broken : dict of str to str, optional
        Engines that were found not to run, and why.
    fetched : bool
        Whether the decoded bytes are wanted on the host.

    Raises
    ------
    EngineUnavailableError
        If an engine is asked for by name that cannot decode anything here.
    UnsupportedCodecError
        If there are rows that nobody here can decode.
    """
    choosing = _Choosing(chunks, options, device_id, dict(broken or {}), fetched=fetched)
    for engine in DEVICE_ENGINES:
        choosing.offer(engine)
    named = options.engine
    if named in DEVICE_ENGINES and chunks.size and (choosing.engines == HOST).all():
        reason = choosing.passed_over[named]
        raise EngineUnavailableError(f"the {named} engine cannot decode this: {reason}")
    choosing.check_host()
    return Choice(choosing.engines, choosing.passed_over, choosing.seconds)


def choose_for(work: Work, options: Options, device_id: int) -> str:
    """Return who would decode chunks of one codec of which only their number and size are known.

    Parameters
    ----------
    work : Work
        The chunks, about.
    options : Options
        As for `choose`.
    device_id : int
        The device that may be used.
    """
    choosing = _Choosing(np.zeros(0, CHUNK_DTYPE), options, device_id, {})
    device = driver.capabilities(device_id)
    for engine in DEVICE_ENGINES:
        if not choosing.unavailable(engine) and _knows(engine, work.codec, device):
            rated = engine in rates.DEVICE_RATES and options.engine != engine
            if not (rated and choosing.slower(engine, work)):
                return engine
    return ENGINES[HOST]


def fetching_is_slower(chunks: ChunkTable, options: Options) -> dict[str, str]:
    """Return why no device need be asked to decode for the host; empty if one might be faster.

    No device is touched: starting CUDA takes longer than decoding most files.

    Parameters
    ----------
    chunks : ChunkTable
        The rows.
    options : Options
        `trusted` and `threads`.

    Returns
    -------
    dict of str to str
        The reason, by the engine that would do it.
    """
    codec = int(_main_codecs(chunks["codec"], chunks["raw_size"])[0]) if chunks.size else Codec.RAW
    engine = "nvcomp" if options.trusted and codec not in KERNELS else "sm"
    if codec not in rates.DEVICE_RATES[engine] or codec == Codec.RAW:
        return {"sm": "there is no kernel for the codec"}
    work = rates.measure(chunks, codec)
    device = rates.fetching_seconds(engine, work)
    host = rates.host_seconds(work, options.thread_count)
    if device < host:
        return {}
    times = f"{time_text(device)} with the start of CUDA, against {time_text(host)} on the host"
    return {engine: f"fetching the bytes from a device would take about {times}"}


def _knows(engine: str, codec: int, device: Capabilities) -> bool:
    if engine == "hardware":
        return bool(DRIVER_CODECS.get(Codec(codec), 0) & device.decompress_mask)
    return codec in (KERNELS if engine == "sm" else rates.DEVICE_RATES[engine])


def unavailable(engine: str, options: Options, device_id: int | None) -> str:
    """Return why an engine can decode nothing, whatever the file is; empty if it can.

    Parameters
    ----------
    engine : str
        One of `DEVICE_ENGINES`.
    options : Options
        `engine` and `trusted`.
    device_id : int or None
        The device that may be used; None if there is none, or none is wanted.
    """
    if options.engine not in ("auto", engine):
        return f"the {options.engine} engine was asked for"
    if options.trusted is False and engine != "sm":
        return "it has no bounds of its own, and the input is not trusted"
    if reason := driver.unavailable():
        return reason
    if device_id is None:
        return "the bytes are wanted in host memory, and no device was named"
    if engine == "sm":
        # Imported where there is a device: loads on the host are not to wait for it.
        from gpuload.kernels import compiler

        return compiler.refusal(device_id)
    device = driver.capabilities(device_id)
    if engine == "hardware":
        return _hardware_unavailable(device)
    return _nvcomp_unavailable(options, device)


def _hardware_unavailable(device: Capabilities) -> str:
    if not device.decompress_mask:
        return f"{device.name} has no decompression engine (its algorithm mask is 0)"
    if not device.host_numa_memory:
        return f"{device.name} cannot map memory of the host, which stages stored chunks"
    return driver.decompress_unavailable()


def _nvcomp_unavailable(options: Options, device: Capabilities) -> str:
    if options.engine == "auto" and not options.trusted:
        return "it may be given valid input only, and nobody says that this is (trusted=True)"
    if not device.memory_pools:
        return f"{device.name} has no memory pools, which nvCOMP's scratch memory comes from"
    from gpuload.engines import nvcomp_library

    return nvcomp_library.unavailable()


def scratch_limit(options: Options) -> int:
    """Return the bytes of scratch memory that nvCOMP may use on each stream."""
    return options.memory_limit // 8


class _Choosing:
    """Rows and the engines that have taken them so far."""

    def __init__(
        self,
        chunks: ChunkTable,
        options: Options,
        device_id: int | None,
        broken: dict[str, str],
        *,
        fetched: bool = False,
    ) -> None:
        self.fetched = fetched
        self.chunks, self.options, self.device_id, self.broken = chunks, options, device_id, broken
        self.engines = np.full(chunks.size, HOST, np.uint8)
        self.passed_over: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def offer(self, engine: str) -> None:
        """Let an engine take what it can of the rows that nobody has taken, if it is faster."""
        left = self.engines == HOST
        if self.chunks.size and not left.any():
            return
        reason = self.unavailable(engine)
        if not reason:
            refused = self._refusals(engine)
            taken = left & ~np.any(list(refused.values()), axis=0)
            slow = self._leave_out_slow(engine, taken)
            self.engines[taken] = ENGINES.index(engine)
            reason = "; ".join([*_reasons(refused, left), *slow])
        if reason:
            self.passed_over[engine] = reason

    def check_host(self) -> None:
        """Raise UnsupportedCodecError if the host cannot decode rows that are left to it."""
        left = self.chunks["codec"][self.engines == HOST]
        for codec, reason in MISSING.items():
            if (left == codec).any():
                raise UnsupportedCodecError(f"{reason}, and not here: {self.passed_over['nvcomp']}")

    def unavailable(self, engine: str) -> str:
        return self.broken.get(engine) or unavailable(engine, self.options, self.device_id)

    def _refusals(self, engine: str) -> Masks:
        assert self.device_id is not None
        if engine == "sm":
            return sm_refusals(self.chunks)
        if engine == "hardware":
            return hardware_refusals(self.chunks, driver.capabilities(self.device_id))
        from gpuload.engines import nvcomp_library, nvcomp_refusals

        with driver.on_device(self.device_id):
            library = nvcomp_library.load()
            return nvcomp_refusals.refusals(self.chunks, library, scratch_limit(self.options))

    def _leave_out_slow(self, engine: str, taken: npt.NDArray[np.bool_]) -> list[str]:
        """Take rows off `taken` that are loaded sooner by others; return the reasons."""
        if engine not in rates.DEVICE_RATES or self.options.engine == engine:
            return []
        reasons = []
        codecs = _main_codecs(self.chunks["codec"], self.chunks["raw_size"])
        for codec in np.unique(codecs[taken]).tolist():
            rows = taken & (codecs == codec)
            reason = "uncompressed chunks among others that it cannot take"
            if codec in rates.DEVICE_RATES[engine]:
                reason = self.slower(engine, rates.measure(self.chunks[rows], codec))
            if reason:
                taken &= ~rows
                reasons.append(reason)
        return reasons

    def slower(self, engine: str, work: Work) -> str:
        """Return why others load some rows sooner; empty if the engine is the fastest."""
        seconds = rates.device_seconds(engine, work)
        host = rates.host_seconds(work, self.options.thread_count)
        if self.fetched:
            seconds += rates.START_FETCHING
        else:
            host += rates.HOST_START
        if host < seconds:
            few = rates.saturated_seconds(engine, work) < host
            return _too_slow(
                work, f"{time_text(seconds)} against {time_text(host)} on the host", few=few
            )
        if engine == "sm" and not self.unavailable("nvcomp"):
            other = rates.device_seconds("nvcomp", work)
            if other < seconds:
                times = f"{time_text(seconds)} against {time_text(other)} by nvcomp"
                return _too_slow(work, times, few=False)
        for name, value in ((engine, seconds), ("host", host)):
            self.seconds[name] = self.seconds.get(name, 0.0) + value
        return ""


def _main_codecs(
    codecs: npt.NDArray[np.uint16], sizes: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint16]:
    """Return the codecs of rows; RAW ones go with those of the codec that has the most bytes."""
    weights = np.bincount(codecs, sizes, minlength=1)
    weights[Codec.RAW] = 0
    main = weights.argmax()
    return np.where(codecs == Codec.RAW, main, codecs)


def _too_slow(work: Work, times: str, *, few: bool) -> str:
    count = "1 chunk is" if work.count == 1 else f"{work.count} chunks are"
    return f"{count} {'too few to pay for the start' if few else 'slower there'} ({times})"


def time_text(seconds: float) -> str:
    """Return a time for people, such as ``0.85 ms``; an infinite one is "never"."""
    if math.isinf(seconds):
        return "never"
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"


def _reasons(refused: Masks, left: npt.NDArray[np.bool_]) -> list[str]:
    """Return the reasons that hold for any row that is left, with how many if not for all."""
    counts = {reason: int((mask & left).sum()) for reason, mask in refused.items()}
    return [
        reason if count == left.size else f"{reason} ({count} of {left.size} chunks)"
        for reason, count in counts.items()
        if count
    ]
