"""Which engine decodes which rows, and why not another.

``engine="auto"`` takes, row by row, the first engine that can: hardware, then host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload import batch, driver
from gpuload.chunks import Codec
from gpuload.errors import EngineUnavailableError
from gpuload.options import ENGINES

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.chunks import ChunkTable
    from gpuload.driver import Capabilities
    from gpuload.options import Options

__all__ = ["HARDWARE", "HOST", "Choice", "choose", "hardware_refusals"]

HARDWARE, HOST = map(ENGINES.index, ("hardware", "host"))


@dataclass(frozen=True)
class Choice:
    """Who decodes the rows of a table.

    Attributes
    ----------
    engines : ndarray of uint8
        For each row, the engine's place in `gpuload.options.ENGINES`.
    passed_over : dict of str to str
        For each engine that is not used for some rows, why not.
    """

    engines: npt.NDArray[np.uint8]
    passed_over: dict[str, str]


def choose(chunks: ChunkTable, options: Options, device_id: int | None) -> Choice:
    """Return who decodes each row.

    Parameters
    ----------
    chunks : ChunkTable
        The rows.
    options : Options
        `engine` and `trusted`.
    device_id : int or None
        The device that may be used; None if there is none, or none is wanted.

    Raises
    ------
    EngineUnavailableError
        If an engine is asked for by name that cannot decode anything here.
    """
    engines = np.full(chunks.size, HOST, np.uint8)
    if options.engine == "host":
        return Choice(engines, {"hardware": "the host engine was asked for"})
    reason = _hardware_unavailable(options, device_id)
    if not reason:
        assert device_id is not None
        refused = hardware_refusals(chunks, driver.capabilities(device_id))
        taken = ~np.any(list(refused.values()), axis=0)
        engines[taken] = HARDWARE
        reason = _summary(refused, chunks.size)
    if options.engine == "hardware" and chunks.size and not (engines == HARDWARE).any():
        raise EngineUnavailableError(f"the hardware engine cannot decode this: {reason}")
    return Choice(engines, {"hardware": reason} if reason else {})


def _hardware_unavailable(options: Options, device_id: int | None) -> str:
    if options.trusted is False:
        return "it has no bounds of its own, and the input is not trusted"
    if reason := driver.unavailable():
        return reason
    if device_id is None:
        return "the bytes are wanted in host memory, and no device was named"
    device = driver.capabilities(device_id)
    if not device.decompress_mask:
        return f"{device.name} has no decompression engine (its algorithm mask is 0)"
    if not device.host_numa_memory:
        return f"{device.name} cannot map memory of the host, which stages stored chunks"
    return driver.decompress_unavailable()


def hardware_refusals(rows: ChunkTable, device: Capabilities) -> dict[str, npt.NDArray[np.bool_]]:
    """Return why a decompression engine cannot take rows: for each reason, which it holds for."""
    bits = np.zeros(max(Codec) + 1, np.int64)
    bits[list(batch.DRIVER_CODECS)] = list(batch.DRIVER_CODECS.values())
    raw, serial = rows["codec"] == Codec.RAW, rows["codec"] == Codec.GZIP
    known = bits[rows["codec"]] & device.decompress_mask != 0
    limit = device.decompress_max_length
    long = (rows["raw_size"] > limit) | (rows["stored_size"] > limit)
    mask = (
        f"the codec's bit is missing in the device's algorithm mask ({device.decompress_mask:#x})"
    )
    return {
        "one serial stream": serial,
        "linked to other chunks": rows["chained"] | np.append(rows["chained"][1:], False),
        "a dictionary is needed": rows["dictionary"],
        mask: ~(known | raw | serial),
        f"longer than the device's maximum of {limit} bytes": known & long,
    }


def _summary(refused: dict[str, npt.NDArray[np.bool_]], rows: int) -> str:
    """Return the reasons that hold for any row, with how many rows if not for all."""
    counts = {reason: int(mask.sum()) for reason, mask in refused.items() if mask.any()}
    return "; ".join(
        reason if count == rows else f"{reason} ({count} of {rows} chunks)"
        for reason, count in counts.items()
    )
