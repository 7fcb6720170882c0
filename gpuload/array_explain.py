"""Which engine would decode an array, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload.array_engines import RATED, USUAL, passed_over
from gpuload.chunks import Codec
from gpuload.container import Explanation
from gpuload.devices import find_device
from gpuload.engines.choice import DEVICE_ENGINES

if TYPE_CHECKING:
    from gpuload.containers.array import ArrayAsset
    from gpuload.options import Options

__all__ = ["explain"]

#: What the framing of a codec carries to check chunks by.
_CHECKSUMS = {
    "deflate": "CRC-32 of each member",
    "gzip": "CRC-32",
    "zlib": "Adler-32",
    "zstd": "xxHash-64 where frames have it",
    "crc32c": "CRC-32C of stored bytes",
}


def explain(asset: ArrayAsset, options: Options) -> Explanation:
    """Return how an array would be loaded."""
    if asset.error:
        return Explanation(asset.name, "none", asset.error, "")
    sums = _checksums(asset)
    device_id = find_device(options.device)
    over = passed_over(options, device_id)
    engines = [name for name in DEVICE_ENGINES if name not in over]
    if device_id is None or not engines or options.engine == "host":
        reason = f"chunks on up to {options.thread_count} threads"
        return Explanation(asset.name, "host", reason, sums, over)
    return Explanation(asset.name, *_on_device(asset, engines), sums, over)


def _checksums(asset: ArrayAsset) -> str:
    """Return which checksums the chunks of an array have."""
    names = {step.name: _CHECKSUMS.get(step.name) for step in asset.pipeline.compression}
    found = [name for name in names.values() if name]
    return ", ".join(found) or "its codecs have none"


def _on_device(asset: ArrayAsset, engines: list[str]) -> tuple[str, str]:
    """Return who would decode an array on a device, and why."""
    codecs = {USUAL.get(step.name, Codec.RAW) for step in asset.pipeline.compression}
    known = next((name for name in engines if codecs <= RATED[name]), "")
    if not known:
        return "host", "its codec has no engine on the device; its bytes are copied there"
    return known, "chunks in batches; few of them are decoded by the host"
