"""The engines on a device by their names. Importing this imports cuda.core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload.engines.hardware import HardwareEngine
from gpuload.engines.nvcomp import NvcompEngine
from gpuload.engines.sm import SmEngine

if TYPE_CHECKING:
    from gpuload.engines.base import DeviceBatch, Engine

__all__ = ["make_engine"]


def make_engine(name: str, device_id: int, *, scratch_limit: int) -> Engine[DeviceBatch]:
    """Return an engine that decodes on a device.

    Parameters
    ----------
    name : str
        "hardware", "sm" or "nvcomp".
    device_id : int
        The device.
    scratch_limit : int
        Bytes of scratch memory on the device, for each stream; only nvCOMP needs any.

    Raises
    ------
    EngineUnavailableError
        If it is nvCOMP, and that is not here.
    """
    if name == NvcompEngine.name:
        return NvcompEngine(device_id, memory_limit=scratch_limit)
    return SmEngine(device_id) if name == SmEngine.name else HardwareEngine(device_id)
