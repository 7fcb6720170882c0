"""Whether this machine has what the options ask for, whatever the file is."""

from __future__ import annotations

from typing import Any

from gpuload.errors import DriverError, EngineUnavailableError

__all__ = ["check_engine", "gpu_matters", "hardware_unavailable"]


def check_engine(options: dict[str, Any]) -> None:
    """Refuse an engine or a device that is not here, once and not for every file.

    Parameters
    ----------
    options : dict
        Fields of `gpuload.options.Options`; None stands for the default.

    Raises
    ------
    EngineUnavailableError
        If the engine that is asked for by name cannot be used, or there is no such device.
    """
    hardware = options["engine"] == "hardware"
    if not hardware and options["device"] is None:
        return
    from gpuload.devices import find_device

    try:
        device_id = find_device(options["device"])
        reason = hardware_unavailable(device_id, trusted=options["trusted"]) if hardware else ""
    except DriverError as error:
        if not hardware:
            raise EngineUnavailableError(str(error)) from None
        reason = str(error)
    if reason:
        raise EngineUnavailableError(f"the hardware engine cannot be used here: {reason}")


def gpu_matters(options: dict[str, Any]) -> bool:
    """Return whether there is a GPU here, or the options ask for an engine or a device."""
    from gpuload import driver

    asked = options["engine"] is not None or options["device"] is not None
    return asked or not driver.unavailable()


def hardware_unavailable(device_id: int | None, *, trusted: bool | None = None) -> str:
    """Return why the hardware engine can decode nothing on a device; empty if it can.

    Parameters
    ----------
    device_id : int or None
        The device; None if there is none.
    trusted : bool, optional
        See `gpuload.options.Options`.
    """
    import numpy as np

    from gpuload.chunks import CHUNK_DTYPE
    from gpuload.engines.choice import choose
    from gpuload.options import Options

    # A reason to pass an engine over that holds without a single chunk holds for every file.
    choice = choose(np.empty(0, CHUNK_DTYPE), Options(trusted=trusted), device_id)
    return choice.passed_over.get("hardware", "")
