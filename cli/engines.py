"""Whether this machine has what the options ask for, whatever the file is."""

from __future__ import annotations

from typing import Any

from gpuload.errors import DriverError, EngineUnavailableError

__all__ = ["check_engine", "engine_unavailable", "engines_unavailable", "gpu_matters"]


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
    from gpuload.engines.choice import DEVICE_ENGINES

    engine = options["engine"] if options["engine"] in DEVICE_ENGINES else None
    if engine is None and options["device"] is None:
        return
    from gpuload.devices import find_device

    try:
        device_id = find_device(options["device"])
        reason = engine and engine_unavailable(engine, device_id, trusted=options["trusted"])
    except DriverError as error:
        if engine is None:
            raise EngineUnavailableError(str(error)) from None
        reason = str(error)
    if reason:
        raise EngineUnavailableError(f"the {engine} engine cannot be used here: {reason}")


def gpu_matters(options: dict[str, Any]) -> bool:
    """Return whether there is a GPU here, or the options ask for an engine or a device."""
    from gpuload import driver

    asked = options["engine"] is not None or options["device"] is not None
    return asked or not driver.unavailable()


def engine_unavailable(engine: str, device_id: int | None, *, trusted: bool | None = None) -> str:
    """Return why an engine, asked for by name, can decode nothing on a device; empty if it can.

    Parameters
    ----------
    engine : str
        One that runs on a device.
    device_id : int or None
        The device; None if there is none.
    trusted : bool, optional
        See `gpuload.options.Options`.
    """
    from gpuload.engines.choice import unavailable
    from gpuload.options import Options

    return unavailable(engine, Options(engine=engine, trusted=trusted), device_id)


def engines_unavailable(device_id: int) -> dict[str, str | None]:
    """Return why each engine on a device can decode nothing there; None for those that can."""
    from gpuload.engines.choice import DEVICE_ENGINES

    return {engine: engine_unavailable(engine, device_id) or None for engine in DEVICE_ENGINES}
