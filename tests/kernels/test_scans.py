"""The kernels that find headers on the CPU, under sanitizers, against a model of what they are for.

A lane looks at 32 bytes at a time, and a warp at 1,024: what is special about alignments and about
where segments and ranges end repeats with these.
"""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import lz4.frame
import numpy as np
import pytest

from gpuload.batch import ALGORITHMS, PARAMS_DTYPE, SUMS
from gpuload.engines.scan_plan import SCAN_DTYPE, SCANS
from tests.helpers.handmade import (
    BGZF_EOF,
    bgzf_block,
    lz4_block,
    lz4_frame,
    skippable,
    snappy_chunk,
    zstd_frame,
)
from tests.helpers.lanes import build, scans
from tests.helpers.lanes.scans import (
    BROKEN,
    CUT,
    END,
    FILLED,
    LEFT,
    NOTHING,
    UNKNOWN,
    Case,
    Found,
)
from tests.helpers.zstd_headers import MAGIC, header_at, random_frame

#: Headers in a row that are a chain.
CHAIN = 8
HEADS = {"lz4": 4, "snappy": 13, "bgzf": 18, "zstd": 9}

pytestmark = pytest.mark.parametrize("name", SCANS)


@pytest.fixture(autouse=True, scope="module")
def _sanitizers():
    skip_without(build.WARPS)


def skip_without(way: build.Build) -> None:
    if reason := build.missing(way):
        pytest.skip(reason)


# --- The model ------------------------------------------------------------------------------------


def word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def step(case: Case, at: int) -> int:
    """Return the distance from a header to the next, 0 if there is none."""
    data = case.data
    if case.name == "lz4":
        size = word(data, at) & 0x7FFFFFFF
        return 4 + size + 4 * case.summed if word(data, at) and size <= case.longest else 0
    if case.name == "snappy":
        kind, length = data[at], word(data, at) >> 8
        most = (case.longest, 65540)[kind] if kind <= 1 else 0
        return 4 + length if 4 <= length <= most else 0
    if case.name == "zstd":
        return header_at(data, at).size
    fixed = data[at : at + 4] + data[at + 10 : at + 16] == b"\x1f\x8b\x08\x04\x06\x00BC\x02\x00"
    size = struct.unpack_from("<H", data, at + 16)[0] + 1
    return size if fixed and size >= 28 else 0


def may_start(case: Case, at: int) -> bool:
    if case.name == "zstd":
        return case.data[at : at + 4] == MAGIC
    return step(case, at) > 0


def ends(case: Case, at: int) -> bool:
    if case.name == "zstd":
        if word(case.data, at) & ~15 == 0x184D2A50:
            return at + 8 + word(case.data, at + 4) >= len(case.data)
        return header_at(case.data, at).cut
    return case.name == "lz4" and len(case.data) - at in (4, 8) and word(case.data, at) == 0


def is_chain(case: Case, at: int) -> bool:
    for _ in range(CHAIN):
        if at + HEADS[case.name] > len(case.data):
            return True
        following = step(case, at)
        if not following:
            return ends(case, at)
        at += following
    return True


def record(case: Case, at: int) -> list[int]:
    data = case.data
    if case.name == "lz4":
        return [at, word(data, at), word(data, at - 4) if at >= 4 else 0]
    if case.name == "snappy":
        return [at, *struct.unpack_from("<IIIB", data, at)]
    if case.name == "zstd":
        found = header_at(data, at)
        return [at, found.content, found.marks, word(data, at - 4) if at >= 4 else 0]
    before = struct.unpack_from("<II", data, at - 8) if at >= 8 else (0, 0)
    return [at, struct.unpack_from("<H", data, at + 16)[0], *before]


def walk(case: Case, at: int, end: int) -> Found:
    first, records = at, []
    size = 4 * (1 + SCANS[case.name].words)
    stop = LEFT
    while at < end:
        if at + HEADS[case.name] > len(case.data):
            stop = CUT
            break
        following = step(case, at)
        if not following:
            stop = END if ends(case, at) else BROKEN
            break
        if len(records) == (case.room - 12) // size:
            stop = FILLED
            break
        records.append(record(case, at))
        at += following
    return Found(stop, first, at, records)


def model(case: Case) -> Found:
    end = len(case.data) if case.end is None else min(case.end, len(case.data))
    if case.entry is not None:
        return walk(case, case.entry, end)
    for at in range(case.start, min(end, len(case.data) - HEADS[case.name] + 1)):
        if may_start(case, at) and is_chain(case, at):
            found = walk(case, at, end)
            if found.stop != BROKEN:
                return found
    return Found(NOTHING, UNKNOWN, UNKNOWN, [])


def verify(cases: list[Case], **options) -> list[Found]:
    found = scans.run_parallel(cases[0].name, cases, **options)
    for number, (case, each) in enumerate(zip(cases, found, strict=True)):
        assert each == model(case), (number, len(case.data), case.start, case.end, case.entry)
    return found


# --- Files ----------------------------------------------------------------------------------------


def chunk(rng: random.Random, name: str, size: int, *, summed: bool) -> bytes:
    """Return a chunk of random bytes, the size of which is about what is asked for."""
    if name == "zstd":
        return random_frame(rng, size)
    content = rng.randbytes(size)
    if name == "lz4":
        return lz4_block(content, raw=rng.random() < 0.5, checksum=summed)
    if name == "snappy":
        return snappy_chunk(rng.randrange(2), rng.randbytes(4) + content)
    return bgzf_block(content, level=0)


def chain(rng: random.Random, name: str, sizes: list[int], *, summed: bool = False) -> bytes:
    return b"".join(chunk(rng, name, size, summed=summed) for size in sizes)


def mixture(name: str, seed: int, count: int, longest: int = 3000) -> list[Case]:
    """Return segments of all sorts."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        summed = rng.random() < 0.5
        most = rng.choice((20, 300, longest))
        sizes = [rng.randrange(1, most) for _ in range(rng.randrange(1, 25))]
        data = chain(rng, name, sizes, summed=summed)
        data += rng.choice(
            (
                b"",
                bytes(4),
                bytes(8),
                bytes(4) + rng.randbytes(4),
                rng.randbytes(50),
                skippable(rng.randbytes(rng.randrange(40))),
            )
        )
        cut = rng.randrange(len(data))
        data = data[rng.choice((0, cut)) : rng.choice((len(data), cut + rng.randrange(5000)))]
        start = rng.choice((0, rng.randrange(len(data) + 1)))
        end = rng.choice((None, start + rng.randrange(3000), len(data) + 100))
        room = rng.choice((4096, 12, 12 + rng.randrange(400)))
        of_segment = {"start": start, "end": end, "longest": rng.choice((longest, 1 << 16))}
        found.append(
            Case(name, data, summed=summed, room=room & ~3, at=rng.randrange(32), **of_segment)
        )
    return found


def test_many_segments(name):
    found = verify(mixture(name, 1, 200))
    assert {LEFT, FILLED, NOTHING} <= {each.stop for each in found}


def test_bounds_to_the_byte(name):
    skip_without(build.EXACT)
    verify(mixture(name, 2, 100, 500), build=build.EXACT)


def test_one_lane(name):
    skip_without(build.ALONE)
    verify(mixture(name, 3, 150), lanes=1, build=build.ALONE)


def test_no_data_races(name):
    skip_without(build.RACES)
    verify(mixture(name, 4, 30, 500), build=build.RACES)


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_every_order_of_lanes(name, order):
    verify(mixture(name, 5, 40, 500), order=order, batch=7)


def test_every_alignment_and_size(name):
    skip_without(build.EXACT)
    data = chain(random.Random(6), name, [30, 1, 9, 60, 20, 33, 70, 10, 5, 80])
    asked = [Case(name, data[:size], at=at) for size in range(0, 90, 3) for at in range(32)]
    verify(asked, build=build.EXACT)


def test_ranges_that_end_anywhere(name):
    data = chain(random.Random(7), name, [30, 1, 9, 60, 20, 33, 70, 10, 5, 80])
    verify([Case(name, data[cut:], at=cut % 32) for cut in range(len(data))])
    verify([Case(name, data[:cut], entry=0) for cut in range(1, len(data))])


def test_an_entry(name):
    """It is believed, wherever it points to."""
    rng = random.Random(8)
    data = chain(rng, name, [100] * 30)
    asked = [Case(name, data, entry=rng.randrange(len(data)), end=2000) for _ in range(100)]
    found = verify([case for case in asked if case.entry < case.end])
    assert BROKEN in {each.stop for each in found}
    (behind,) = scans.run(name, [Case(name, data, start=100, end=200, entry=200)])
    assert (behind.stop, behind.records) == (NOTHING, [])


def test_chains_go_on_from_segment_to_segment(name):
    rng = random.Random(9)
    data = chain(rng, name, [rng.randrange(1, 900) for _ in range(80)])
    size = len(data)
    asked = [
        Case(name, data, start=start, end=start + 1000, entry=None if start else 0, longest=1000)
        for start in range(0, size, 1000)
    ]
    found = verify(asked)
    whole = [each for part in found for each in part.records]
    assert whole == model(Case(name, data, entry=0, room=1 << 16)).records
    for one, other in pairwise(found):
        assert one.following in (other.first, size)


def test_random_bytes(name):
    rng = random.Random(10)
    asked = [
        Case(name, rng.randbytes(rng.randrange(3000)), longest=rng.choice((1 << 16, 0x7FFFFFFF)))
        for _ in range(60)
    ]
    verify(asked)


@pytest.mark.parametrize("byte", [0, 1, 4, 31, 255])
def test_runs(name, byte):
    verify([Case(name, bytes([byte]) * size, at=size % 32) for size in (0, 1, 31, 32, 3000)])


def test_small_integers(name):
    """Most of them look like a header, and many like a chain."""
    rng = np.random.default_rng(11)
    asked = [
        Case(name, rng.integers(0, most, 600, np.uint32).tobytes(), longest=most, at=4)
        for most in (5, 300, 5000, 65_536)
        for _ in range(4)
    ]
    verify(asked)


def test_headers_everywhere(name):
    """What looks like more than it can be is given up, sooner or later."""
    patterns = {
        "lz4": struct.pack("<I", 0x101) * 20_000 + b"\xff" * 600,
        "snappy": b"\x00\x05\x00\x00" * 20_000 + b"\xff" * 600,
        "bgzf": BGZF_EOF * 3_000 + b"\xff" * 600,
        "zstd": bytes.fromhex("28b52ffd2000010000") * 9_000 + b"\xff" * 600,
    }
    cases = [Case(name, patterns[name], room=1 << 20)]
    (found,) = scans.run(name, cases, lanes=1, build=build.ALONE)
    assert found.stop in (LEFT, CUT, NOTHING)
    for start, *_ in found.records:
        assert step(cases[0], start)


def test_files_in_files(name):
    """A chain of a file that is stored in another one is a chain."""
    rng = random.Random(12)
    inner = chain(rng, name, [500] * 20)
    outer = (
        chunk(rng, name, 100, summed=False)
        + {
            "lz4": lambda: lz4_block(inner, raw=True),
            "snappy": lambda: snappy_chunk(1, bytes(4) + inner),
            "bgzf": lambda: bgzf_block(inner, level=0),
            "zstd": lambda: zstd_frame((0, len(inner), inner), size=len(inner)),
        }[name]()
    )
    data = outer + chain(rng, name, [100] * 9)
    verify([Case(name, data, start=start) for start in range(0, 12_000, 777)])


def test_sizes_of_all_sorts(name):
    """Whatever a range claims to be, nothing is read of what is no range."""
    rows = np.zeros(3, SCAN_DTYPE)
    output = np.full((3, 4), 0xCDCDCDCD, np.uint32)
    rows["size"] = 1 << 30, 1 << 40, 100
    rows["room"] = 16, 16, 8
    rows["range"], rows["output"] = 64, output.ctypes.data + 16 * np.arange(3)
    rows["algo"], rows["end"], rows["longest"] = SCANS[name].algorithm, 100, 1 << 16
    rows["entry"] = UNKNOWN
    assert launch(name, rows).tolist() == [NOTHING, NOTHING, FILLED]
    assert output[:2, 0].tolist() == [0, 0]
    assert (output[2] == 0xCDCDCDCD).all()


def test_operations_of_others_are_left_alone(name):
    """Nothing is read: the addresses are not mapped."""
    others = {kind.algorithm for other, kind in SCANS.items() if other != name}
    algorithms = [*ALGORITHMS.values(), *SUMS.values(), *others]
    assert SCANS[name].algorithm not in algorithms
    rows = np.zeros(len(algorithms), SCAN_DTYPE)
    rows["size"], rows["room"], rows["range"], rows["output"] = 99, 99, 64, 64
    rows["algo"] = algorithms
    assert (launch(name, rows) == 0xCDCDCDCD).all()


def launch(name: str, rows: np.ndarray) -> np.ndarray:
    statuses = np.full(rows.size, 0xCDCDCDCD, np.uint32)
    arrays = rows.ctypes.data, rows.size, statuses.ctypes.data
    assert build.shared_library().lanes_launch(f"scan_{name}_32".encode(), *arrays) == 0
    return statuses


def test_layout(name):
    """Scans take the parameters of decoders."""
    assert SCAN_DTYPE.itemsize == PARAMS_DTYPE.itemsize
    for scanned, decoded in (
        ("size", "src_num_bytes"),
        ("room", "dst_num_bytes"),
        ("range", "src"),
        ("output", "dst"),
        ("algo", "algo"),
    ):
        assert SCAN_DTYPE.fields[scanned] == PARAMS_DTYPE.fields[decoded]


def test_a_file_of_the_reference(name):
    if name != "lz4":
        pytest.skip("one format is enough")
    content = (
        random.Random(13).randbytes(100_000) + bytes(200_000) + random.Random(14).randbytes(99_999)
    )
    options = {"block_linked": False, "block_checksum": True, "store_size": False}
    data = lz4.frame.compress(content, block_size=lz4.frame.BLOCKSIZE_MAX64KB, **options)
    (found,) = verify([Case(name, data, summed=True, entry=7)])
    assert found.stop == END
    assert len(found.records) == -(-len(content) // 65536)
    assert lz4_frame(b"")[-4:] == bytes(4)
