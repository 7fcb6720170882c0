"""What each engine was measured to take, in one table, and what that makes of a batch.

The numbers decide who decodes when nobody is asked for by name. They are one machine's, and orders
of magnitude are what matters: a few chunks are done on the host before a device has started, and
many are not.

The decompression engine is not in the table, since nobody here had one to measure: where it can
decode, it does.

Sources
-------
sm
    One NVIDIA H200, 1 GiB in chunks of 64 KiB, source text and, for RAW, what does not compress;
    one chunk in 0.39 ms (tests/benchmarks/results/2026-11-30-h200-kernels.json).
nvcomp
    nvCOMP 6.0 on the same GPU and text; one chunk of LZ4 in 1.6 ms, of Snappy in 0.4 ms; one of
    the others is an estimate.
host
    16 cores of an AMD EPYC, Python sources, on 1 to 16 threads
    (tests/benchmarks/results/2026-11-30-h200.txt); RAW and GZIP are estimates.
start
    Whole loads to that GPU of 64 KiB to 4 GiB (tests/benchmarks/results).
process, fetching
    Whole processes of ``gpuload decompress`` of 4 GiB of LZ4 to /dev/null on that machine
    (tests/benchmarks/results).
link
    Copies between pinned memory and that GPU, PCI Express 5 x16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuload.chunks import Codec

if TYPE_CHECKING:
    from gpuload.chunks import ChunkTable

__all__ = [
    "Work",
    "device_seconds",
    "fetching_seconds",
    "host_seconds",
    "measure",
    "saturated_seconds",
]

#: Seconds of a launch and of waiting for it, whatever is launched.
LAUNCH = 100e-6
#: Seconds of a load that a device decodes, beyond decoding, once there was one.
START = 2e-3
#: Stored bytes until all stages of a load overlap, and bytes a second that are brought until then
#: and from then on.
RAMP, RAMPING, BRINGING = 100 << 20, 10e9, 30e9
#: The same, where the bytes come back to the host: memory is made for each load.
START_FETCHING = 15e-3
#: Seconds that a load to a device takes beyond decoding if the host decodes: memory from which its
#: bytes are copied is made for each.
HOST_START = 8e-3
#: Bytes a second between the host and a device.
LINK = 55e9


#: Seconds until a new process has CUDA and a device, and decoded bytes a second that come back from
#: the device and are written.
PROCESS, FETCHING = 1.2, 4.6e9


@dataclass(frozen=True)
class Rate:
    """How fast an engine on a device decodes a codec.

    Attributes
    ----------
    bytes_per_second : float
        Decoded bytes with enough chunks to fill the device.
    seconds_per_byte : float
        Of the largest chunk, which one group of threads decodes from start to end.
    """

    bytes_per_second: float
    seconds_per_byte: float


#: 0.39 ms for a chunk of 64 KiB.
_ALONE = 0.39e-3 / 65536

DEVICE_RATES: dict[str, dict[int, Rate]] = {
    "sm": {
        Codec.RAW: Rate(1000e9, _ALONE / 10),
        Codec.LZ4: Rate(271e9, _ALONE),
        Codec.SNAPPY: Rate(257e9, _ALONE),
    },
    "nvcomp": {
        Codec.RAW: Rate(1000e9, _ALONE / 10),
        Codec.LZ4: Rate(126e9, 4 * _ALONE),
        Codec.SNAPPY: Rate(219e9, _ALONE),
        Codec.DEFLATE: Rate(48e9, 4 * _ALONE),
        Codec.ZSTD: Rate(109e9, 4 * _ALONE),
        Codec.GDEFLATE: Rate(93e9, 4 * _ALONE),
    },
}


@dataclass(frozen=True)
class HostRate:
    """How fast the host decodes a codec, in decoded bytes a second.

    Attributes
    ----------
    one : float
        On one thread.
    small, large : float
        On any number of threads: chunks smaller than `SMALL_CHUNK`, between which threads wait for
        their turn at Python, and others.
    """

    one: float
    small: float
    large: float


#: Of the codecs that the host decodes.
HOST_RATES: dict[int, HostRate] = {
    Codec.RAW: HostRate(10e9, 10e9, 20e9),
    Codec.LZ4: HostRate(1.3e9, 1.4e9, 4e9),
    Codec.SNAPPY: HostRate(0.75e9, 2.5e9, 2.5e9),
    Codec.DEFLATE: HostRate(0.55e9, 4.9e9, 4.9e9),
    Codec.ZSTD: HostRate(0.66e9, 1.2e9, 2.9e9),
    Codec.GZIP: HostRate(0.4e9, 0.4e9, 0.4e9),
    Codec.BLOSC: HostRate(2.2e9, 2.2e9, 4e9),
}
SMALL_CHUNK = 256 << 10
#: Decoded bytes that a thread takes at a time.
HOST_PIECE = 1 << 20


@dataclass(frozen=True)
class Work:
    """Chunks of one codec, as far as their time depends on them.

    Attributes
    ----------
    codec : int
        The codec.
    count : int
        How many.
    stored, raw, largest : int
        Their stored and their decoded bytes, and the decoded bytes of the largest.
    """

    codec: int
    count: int
    stored: int
    raw: int
    largest: int


def measure(rows: ChunkTable, codec: int) -> Work:
    """Return what the time of rows depends on; they count as rows of `codec`."""
    raw = rows["raw_size"]
    stored, total = int(rows["stored_size"].sum()), int(raw.sum())
    return Work(codec, rows.size, stored, total, int(raw.max(initial=0)))


def device_seconds(engine: str, work: Work) -> float:
    """Return about how long an engine takes to load chunks to its device."""
    rate = DEVICE_RATES[engine][work.codec]
    alone = work.largest * rate.seconds_per_byte
    bringing = min(work.stored, RAMP) / RAMPING + max(0, work.stored - RAMP) / BRINGING
    return START + LAUNCH + alone + max(bringing, work.raw / rate.bytes_per_second)


def fetching_seconds(engine: str, work: Work) -> float:
    """Return about how long a new process takes to decode on a device and to fetch the bytes."""
    return PROCESS + max(work.raw / FETCHING, saturated_seconds(engine, work))


def saturated_seconds(engine: str, work: Work) -> float:
    """Return how long they would take as a part of many more."""
    rate = DEVICE_RATES[engine][work.codec]
    # Stored bytes arrive while those before them are decoded.
    return max(work.stored / LINK, work.raw / rate.bytes_per_second)


def host_seconds(work: Work, threads: int) -> float:
    """Return about how long the host takes to decode chunks and to copy them to a device.

    It is infinite for a codec that the host does not decode.
    """
    rate = HOST_RATES.get(work.codec)
    if rate is None:
        return math.inf
    pieces = max(1, min(work.count, work.raw // HOST_PIECE))
    most = rate.small if work.raw < SMALL_CHUNK * work.count else rate.large
    decoding = work.raw / min(rate.one * min(threads, pieces), most)
    return max(decoding, work.raw / LINK)
