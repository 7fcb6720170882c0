"""What ``gpuload doctor`` says of the CUDA devices, or of why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuload.errors import GpuloadError

from .engines import engines_unavailable
from .messages import human_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuload.driver import Capabilities

__all__ = ["device_lines", "devices"]


def devices() -> dict[str, Any]:
    """Return a record for each device as ``devices``; if there are none, ``no_devices`` says why.

    A device that does not answer has an ``error`` instead of facts.
    """
    from gpuload import driver
    from gpuload.driver.library import device_count

    reason = driver.unavailable()
    numbers = range(0 if reason else device_count())
    return {"devices": [_device(number) for number in numbers], "no_devices": reason or None}


def _device(number: int) -> dict[str, Any]:
    from gpuload import driver

    try:
        found = driver.capabilities(number)
        return {"device": number, **_facts(found), **_decompression(number, found), **_free(number)}
    except GpuloadError as error:
        return {"device": number, "error": str(error)}


def _facts(found: Capabilities) -> dict[str, Any]:
    return {
        "name": found.name,
        "compute_capability": _dotted(found.compute_capability),
        "driver": f"CUDA {_dotted(found.driver_version)}",
        "sparse_arrays": bool(found.sparse_arrays),
        "memory_pools": bool(found.memory_pools),
        "virtual_memory": bool(found.virtual_memory),
        "host_numa_memory": bool(found.host_numa_memory),
        "host_numa_node": found.host_numa_id,
        "total_memory": found.total_memory,
    }


def _decompression(number: int, found: Capabilities) -> dict[str, Any]:
    from gpuload.batch import DRIVER_CODECS

    mask, engines = found.decompress_mask, engines_unavailable(number)
    return {
        "engines": engines,
        "decompression": {
            "algorithms": [
                codec.name.lower() for codec, bit in DRIVER_CODECS.items() if bit & mask
            ],
            "algorithm_mask": mask,
            "maximum_length": found.decompress_max_length,
            "unavailable": engines["hardware"],
        },
    }


def _free(number: int) -> dict[str, Any]:
    """Return the free memory; asking for it takes some, which a full device may not have."""
    from gpuload import driver

    try:
        return {"free_memory": driver.memory_info(number)[0], "memory_error": None}
    except GpuloadError as error:
        return {"free_memory": None, "memory_error": str(error)}


def device_lines(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the headings and the labelled facts of a report that `devices` is part of."""
    if report["no_devices"]:
        yield "devices", {"none": report["no_devices"]}
    for device in report["devices"]:
        facts = {"error": device["error"]} if "error" in device else _labelled(device)
        yield f"device {device['device']}", facts


def _labelled(device: dict[str, Any]) -> dict[str, str]:
    node = device["host_numa_node"]
    return {
        "name": device["name"],
        "compute capability": device["compute_capability"],
        "driver": device["driver"],
        "decompression": _engine(**device["decompression"]),
        **{f"{engine} engine": _able(device["engines"][engine]) for engine in ("sm", "nvcomp")},
        "sparse arrays": _yes(device["sparse_arrays"]),
        "memory pools": _yes(device["memory_pools"]),
        "virtual memory": _yes(device["virtual_memory"]),
        "host-NUMA memory": _yes(device["host_numa_memory"], f", node {node}" * (node >= 0)),
        "memory": _memory(device),
    }


def _engine(
    *, algorithms: list[str], maximum_length: int, unavailable: str | None, **_: object
) -> str:
    if unavailable:
        return f"no: {unavailable}"
    return f"{', '.join(algorithms)}; at most {human_size(maximum_length)} a chunk"


def _able(reason: str | None) -> str:
    return f"no: {reason}" if reason else "yes"


def _memory(device: dict[str, Any]) -> str:
    total = human_size(device["total_memory"])
    if device["free_memory"] is None:
        return f"{total}; how much is free is not known: {device['memory_error']}"
    return f"{human_size(device['free_memory'])} of {total} free"


def _yes(answer: bool, more: str = "") -> str:  # noqa: FBT001
    return f"yes{more}" if answer else "no"


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
