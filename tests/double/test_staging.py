"""The ways in which bytes come to the double of a device."""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuload import driver, staging
from gpuload.errors import DriverError, FormatError
from gpuload.irregular import IrregularError
from gpuload.memory import DecompressMemory, HostNumaMemory, StagingRing
from gpuload.options import Options
from gpuload.sources import BytesSource, LocalFile
from gpuload.stages import Stages
from gpuload.staging import MappedStager, Piece, ReadingStager, ShowingStager, choose_way
from tests.helpers.device_loads import new_stream, read
from tests.helpers.fakecuda import Code

DATA = random.Random(1).randbytes(300_000)
SLOT = 10_000
MIB = 1 << 20
#: Starts and sizes of pieces that lie anywhere in pages.
PIECES = [
    (0, 40_000),
    (40_000, 1),
    (40_001, 4095),
    (44_096, 4096),
    (48_192, 9_999),
    (58_191, 40_000),
]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    with LocalFile(tmp_path / "file") as made:
        yield made


@pytest.fixture
def stream():
    made = new_stream()
    yield made
    made.sync()
    made.close()


@pytest.fixture
def ring(stream):
    with HostNumaMemory(0) as memory, StagingRing(memory, 4, SLOT) as made:
        yield made


@pytest.fixture
def address(stream):
    """Return memory on the device, as large as the file."""
    with DecompressMemory(0) as memory:
        buffer = memory.allocate(len(DATA), stream=stream)
        yield int(buffer.handle)
        buffer.close()


@pytest.fixture
def make(source, ring):
    """Return a function that makes a stager by its name, with two threads."""

    def stager(kind, of=None, stages=None):
        of, stages, options = of or source, stages or Stages(), Options(threads=2)
        if kind == "mapped":
            return MappedStager(of, 8 * MIB, stages)
        return {"read": ReadingStager, "shown": ShowingStager}[kind](of, ring, options, stages)

    return stager


each_kind = pytest.mark.parametrize("kind", ["read", "shown", "mapped"])


def bring(stager, pieces, address, stream):
    """Bring pieces to where they lie in the file; release what is shown."""
    shown = b""
    for offset, size in pieces:
        slot = stager.bring(Piece(offset, size, address + offset, stream))
        if slot is not None:
            shown += slot.view[:size].tobytes()
            slot.release(stream)
    return shown


# --- What comes -----------------------------------------------------------------------------------


def cut(stager, pieces):
    """Cut pieces to those that a stager takes."""
    step = stager.piece_size
    return [
        (at, min(step, start + size - at))
        for start, size in pieces
        for at in range(start, start + size, step)
    ]


@each_kind
def test_bytes(cuda, make, address, stream, kind):
    stages = Stages()
    stager = make(kind, stages=stages)
    shown = bring(stager, cut(stager, PIECES), address, stream)
    stager.finish()
    assert read(address, 98_191, stream) == DATA[:98_191]
    assert shown == (DATA[:98_191] if kind == "shown" else b"")
    assert stages.stages["read"].bytes == 98_191
    assert cuda.pageable_copies == []


@each_kind
def test_by_several_threads(make, address, stream, kind):
    stager = make(kind)
    pieces = cut(stager, [(start, 20_000) for start in range(0, len(DATA), 20_000)])

    def work(piece):
        driver.device(0).set_current()
        bring(stager, [piece], address, stream)

    with ThreadPoolExecutor(stager.threads) as pool:
        for done in [pool.submit(work, piece) for piece in pieces]:
            done.result(60)
    stager.finish()
    assert read(address, len(DATA), stream) == DATA


def test_slots_are_not_filled_before_they_are_copied(make, address, stream):
    """The double copies when it is waited for, from what is in the slot then."""
    stager = make("read")
    bring(stager, [(at, 30_000) for at in range(0, len(DATA), 30_000)], address, stream)
    stager.finish()
    assert read(address, len(DATA), stream) == DATA


def test_pages_are_let_go(cuda, make, address, stream):
    """Few are pinned at a time, and none at the end."""
    stager = make("mapped")
    pinned = []
    for start in range(0, len(DATA), 30_000):
        bring(stager, [(start, 30_000)], address, stream)
        kinds = [each.kind for each in cuda.memory.allocations.values()]
        pinned.append(kinds.count("registered"))
    assert max(pinned) <= stager.threads
    assert stager.most <= stager.threads * (30_000 + 2 * mmap.PAGESIZE)
    stager.finish()
    assert not [each for each in cuda.memory.allocations.values() if each.kind == "registered"]
    assert "file" not in mappings()
    stager.finish()


def mappings():
    with open("/proc/self/maps") as file:
        return " ".join(os.path.basename(line.split()[-1]) for line in file)


def test_slots_are_given_back(make, ring, address, stream):
    for _ in range(3):
        stager = make("read")
        bring(stager, [(0, 40_000)], address, stream)
        stager.finish()
    slots = [ring.acquire() for _ in range(ring.slots)]
    for slot in slots:
        slot.release()


# --- What is chosen -------------------------------------------------------------------------------


class Remote(BytesSource):
    remote = True


@pytest.mark.parametrize(
    ("way", "threads"), [("auto", 1), ("auto", 64), ("read", 1), ("mapped", 64)]
)
def test_ways_of_sources_that_are_no_files(way, threads):
    options = Options(way=way, threads=threads)
    assert choose_way(BytesSource(b""), options) == "read"
    assert choose_way(Remote(b""), options) == "remote"


def test_ways_of_files(source):
    assert choose_way(source, Options(way="read", threads=1)) == "read"
    assert choose_way(source, Options(way="mapped", threads=64)) == "mapped"
    assert choose_way(source, Options(threads=1)) == "mapped"
    assert choose_way(source, Options(threads=64)) in ("read", "mapped")


# --- What fails -----------------------------------------------------------------------------------


@each_kind
def test_a_source_that_ends_too_early(cuda, make, source, address, stream, kind, tmp_path):
    stager = make(kind)
    os.truncate(tmp_path / "file", 5_000)
    with pytest.raises(FormatError, match=r"byte 5000: the file ends here.*when opened") as caught:
        bring(stager, [(0, 9_000)], address, stream)
    assert source.name in str(caught.value)
    stager.finish()
    assert not [each for each in cuda.memory.allocations.values() if each.kind == "registered"]


@pytest.mark.parametrize("kind", ["read", "shown"])
def test_a_source_that_fails(make, address, stream, kind):
    class Broken(BytesSource):
        def readinto(self, offset, view):
            raise OSError(errno.EIO, "the disk is broken")

    stager = make(kind, Broken(DATA))
    with pytest.raises(OSError, match="broken"):
        bring(stager, [(0, 9_000)], address, stream)
    stager.finish()


def test_pages_that_cannot_be_pinned(cuda, make, address, stream):
    stager = make("mapped")
    cuda.fail_next("cuMemHostRegister", Code.INVALID_VALUE)
    with pytest.raises(IrregularError, match="cuMemHostRegister"):
        bring(stager, [(0, 9_000)], address, stream)
    assert "file" not in mappings()
    bring(stager, [(0, 9_000)], address, stream)
    stager.finish()
    assert read(address, 9_000, stream) == DATA[:9_000]


def test_files_that_cannot_be_mapped(make, address, stream, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENODEV, "no mapping")

    stager = make("mapped")
    monkeypatch.setattr(staging, "_map", refuse)
    with pytest.raises(IrregularError, match="no mapping"):
        bring(stager, [(0, 9_000)], address, stream)
    stager.finish()


def test_what_the_system_says_of_a_mapping(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENODEV)) as caught:
            staging._map(descriptor, 0, 4096)
    finally:
        os.close(descriptor)
    assert caught.value.errno == errno.ENODEV


@pytest.mark.parametrize("name", ["cuMemcpyAsync", "cuEventCreate", "cuEventRecord"])
@each_kind
def test_a_copy_that_cannot_be_submitted(cuda, make, ring, address, stream, kind, name):
    """Nothing is held afterwards, and the next piece comes."""
    stager = make(kind)
    if kind == "read":
        bring(stager, [(0, 40_000)], address, stream)  # acquires its slots
    cuda.fail_next(name, Code.INVALID_VALUE)
    with contextlib.suppress(DriverError):
        bring(stager, [(0, 9_000)], address, stream)
    cuda.recorder._injections.clear()
    bring(stager, [(0, 9_000)], address, stream)
    stager.finish()
    assert read(address, 9_000, stream) == DATA[:9_000]
    gc.collect()
    assert not [each for each in cuda.memory.allocations.values() if each.kind == "registered"]
    slots = [ring.acquire() for _ in range(ring.slots)]
    for slot in slots:
        slot.release()


@pytest.mark.parametrize("name", ["cuEventSynchronize", "cuMemHostUnregister"])
def test_letting_go_may_fail(cuda, make, address, stream, name):
    """What is pinned keeps its addresses; the rest is let go."""
    stager = make("mapped")
    bring(stager, [(0, 9_000), (9_000, 9_000)], address, stream)
    cuda.fail_next(name, Code.INVALID_VALUE)
    with pytest.raises(DriverError, match=name):
        stager.finish()
    registered = [each for each in cuda.memory.allocations.values() if each.kind == "registered"]
    assert len(registered) == (name == "cuMemHostUnregister")
    assert ("file" in mappings().split()) == bool(registered)
    stager.finish()
    bring(stager, [(0, 9_000)], address, stream)
    stager.finish()
    assert read(address, 9_000, stream) == DATA[:9_000]
    # As the end of the process does.
    for mapping in list(cuda.memory.mappings()):
        if mapping.allocation.kind == "registered":
            driver.mem_host_unregister(mapping.start)


def test_taking_slots_may_fail(make, ring, address, stream, monkeypatch):
    """A thread takes no more than its share, whatever has failed before."""
    stager, acquire, calls = make("read"), ring.acquire, []

    def failing():
        calls.append(1)
        if len(calls) % 2 == 0:
            raise DriverError("no")
        return acquire()

    monkeypatch.setattr(ring, "acquire", failing)
    for _ in range(6):
        with contextlib.suppress(DriverError):
            bring(stager, [(0, 40_000)], address, stream)
    bring(stager, [(0, 40_000)], address, stream)
    stager.finish()
    assert read(address, 40_000, stream) == DATA[:40_000]


def test_a_file_that_is_cut_within_its_last_page(make, source, stream, address, tmp_path):
    """The page stays, with zeros behind the new end, and would be taken for what was stored."""
    mapped = make("mapped")
    mapped.bring(Piece(0, len(DATA), address, stream))
    os.truncate(tmp_path / "file", len(DATA) - 5)
    with pytest.raises(FormatError, match=rf"byte {len(DATA) - 5}: the file ends here, 5 bytes"):
        mapped.finish()
