"""Headers found on the double: right ones, loads that are listed so, memory, and errors."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpuload import lease as leases
from gpuload.containers import read_index
from gpuload.containers.base import Asset
from gpuload.containers.prospect import prospect
from gpuload.destination import Destination
from gpuload.engines.scans import DeviceScans
from gpuload.errors import DriverError
from gpuload.irregular import IrregularError
from gpuload.lease import Shape, lease
from gpuload.memory import copy
from gpuload.options import Options
from gpuload.overlapped_load import _Load
from gpuload.scanned import ScannedFeed
from gpuload.sources import BytesSource, open_source
from gpuload.stages import Stages
from gpuload.watch import Watch
from tests.helpers.benches import workbench
from tests.helpers.device_loads import hang_ends_the_process
from tests.helpers.encoders import ENCODERS
from tests.helpers.fakecuda import Code
from tests.helpers.handmade import BLOCK_SUM, INDEPENDENT, V1, lz4_block, lz4_frame
from tests.helpers.host_scans import HostScans

#: Of each format the first header, and the longest chunk.
FORMATS = {
    "lz4": ("lz4 independent blocks", 7, 65_536, True),
    "snappy": ("snappy chunks", 10, 76_494, False),
    "bgzf": ("bgzf", 0, 65_536, False),
    "zstd": ("zstd frames", 0, 0, False),
}
SEGMENT = 2048

each_format = pytest.mark.parametrize("name", FORMATS)


def parts(seed, size=150_000):
    rng = random.Random(seed)
    words = [rng.randbytes(9) for _ in range(40)]
    found = []
    while size > 0:
        sort = rng.randrange(3)
        made = (
            rng.randbytes(rng.randrange(1, 9000)) if sort else b"".join(rng.choices(words, k=4000))
        )
        found.append(made)
        size -= len(made)
    return found


@pytest.fixture
def bench(cuda):
    with workbench() as made, hang_ends_the_process(120):
        yield made


@pytest.fixture
def scans(bench):
    made = DeviceScans(0, SEGMENT)
    yield made
    made.close()


def submit(bench, scans, name, *, known=True):
    """Look for headers of a file on the device; return the file, too."""
    encoder, first, longest, summed = FORMATS[name]
    data = ENCODERS[encoder](parts(1))
    window = bench.device.allocate(len(data), stream=bench.stream)
    bench._kept.append(window)
    stored = bench.stored(np.frombuffer(data, np.uint8))
    copy(int(window.handle), stored, len(data), bench.stream)
    entry = first if known else None
    where = int(window.handle), len(data), bench.stream
    return data, scans.submit(name, *where, entry=entry, longest=longest, summed=summed)


@each_format
@pytest.mark.parametrize("known", [True, False])
def test_headers(bench, scans, name, known):
    data, submission = submit(bench, scans, name, known=known)
    scan = submission.wait()
    _, first, longest, summed = FORMATS[name]
    memory = np.frombuffer(data, np.uint8).ctypes.data, len(data), None
    entry = first if known else None
    alone = HostScans(SEGMENT).submit(name, *memory, entry=entry, longest=longest, summed=summed)
    assert scan.positions.tolist() == alone.wait().positions.tolist()
    assert scan.words.tolist() == alone.wait().words.tolist()
    assert scan.positions.size > 5


@each_format
def test_submitting_does_not_wait(cuda, bench, scans, name):
    submit(bench, scans, name)[1].wait()
    encoder = FORMATS[name][0]
    size = len(ENCODERS[encoder](parts(1)))
    window = bench.device.allocate(size, stream=bench.stream)
    bench._kept.append(window)
    before = calls(cuda)
    launched = cuda.recorder.calls["cuLaunchKernelEx"]
    submission = scans.submit(name, int(window.handle), size, bench.stream, longest=65_536)
    assert calls(cuda) == before
    assert cuda.recorder.calls["cuLaunchKernelEx"] == launched + 1
    submission.wait()


def calls(cuda):
    words = "Synchronize", "Memcpy", "Alloc", "Create", "Library"
    found = cuda.recorder.calls.items()
    return {name: number for name, number in found if any(word in name for word in words)}


def test_waiting_twice(bench, scans):
    _, submission = submit(bench, scans, "lz4")
    first = submission.wait()
    assert submission.wait() is first


@pytest.mark.parametrize("name", ["cuLaunchKernelEx", "cuEventRecord"])
def test_calls_that_fail(cuda, bench, scans, name):
    submit(bench, scans, "lz4")[1].wait()
    window = bench.device.allocate(100, stream=bench.stream)
    bench._kept.append(window)
    cuda.fail_next(name, Code.INVALID_VALUE)
    with pytest.raises(DriverError, match=f"{name} failed: "):
        scans.submit("lz4", int(window.handle), 100, bench.stream, longest=65_536)
    submit(bench, scans, "lz4")[1].wait()


def test_closing_waits_for_what_nobody_waited_for(bench):
    made = DeviceScans(0, SEGMENT)
    _, submission = submit(bench, made, "snappy")
    made.close()
    assert submission.wait().positions.size


# --- Loads ----------------------------------------------------------------------------------------


@pytest.fixture
def small_margin(cuda, monkeypatch):
    monkeypatch.setattr("gpuload.lease.MARGIN", 128 << 10)
    monkeypatch.setattr("gpuload.overlapped.MARGIN", 128 << 10)
    with hang_ends_the_process(120):
        yield
        leases.release()


def load(data, folder, landing, way="read"):
    """Load a file in ranges of so many bytes, listed by the device."""
    path = folder / "file"
    path.write_bytes(data)
    options = Options(engine="sm", way=way, threads=2)
    with open_source(path) as source:
        promise, clock = prospect(source, options), Stages()
        chosen = _Load(source, "sm", options, Destination(0), Watch(), clock)
        with lease(0, Shape(4, landing, 6, 64 << 10)) as held:
            scans = DeviceScans(0, SEGMENT)
            try:
                feed = ScannedFeed(source, options, landing, scans, clock)
                stager = chosen.stager(held)
                array, report = chosen.run(feed, stager, held, Asset(), promise.raw_size)
            finally:
                scans.close()
    return array.to_host().tobytes(), report, feed.index()


@pytest.mark.usefixtures("small_margin")
@pytest.mark.parametrize("way", ["read", "mapped"])
@pytest.mark.parametrize("landing", [128 << 10, 192 << 10, 1 << 20])
@pytest.mark.parametrize("name", ["lz4", "snappy"])
def test_loads(tmp_path, name, landing, way):
    """Of what does not compress, in many ranges."""
    rng = random.Random(5)
    raw = b"".join(rng.randbytes(3000) + bytes(900) for _ in range(200))
    if name == "lz4":
        blocks = [raw[at : at + 65_536] for at in range(0, len(raw), 65_536)]
        stored = [lz4_block(block, raw=True, checksum=True) for block in blocks]
        data = lz4_frame(*stored, flags=V1 | INDEPENDENT | BLOCK_SUM)
    else:
        data = ENCODERS["snappy chunks"]([raw])
    loaded, report, index = load(data, tmp_path, landing, way)
    assert loaded == raw
    expected = read_index(BytesSource(data), Options())
    assert index.chunks.tolist() == expected.chunks.tolist()
    assert sum(report.verified.values()) == expected.chunks.size
    assert report.chunks == expected.chunks.size
    assert len(report.windows) == -(-len(data) // landing)
    assert report.stages["index"].bytes == len(data)


@pytest.mark.usefixtures("small_margin")
def test_files_that_are_irregular(tmp_path):
    frame = lz4_frame(*[lz4_block(bytes(60_000), raw=True)] * 4)
    with pytest.raises(IrregularError, match="no header"):
        load(frame + frame, tmp_path, 128 << 10)
