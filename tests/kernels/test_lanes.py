"""The CPU's stand-in for a GPU: toys that behave, and toys that must be caught.

Expected values come from the CUDA C++ programming guide's text, worked out by hand in Python.
"""

from __future__ import annotations

import ctypes
import random
import re
import struct
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from gpuload.batch import PARAMS_DTYPE
from gpuload.chunks import Codec
from tests.helpers.lanes import build, cases
from tests.helpers.lanes.cases import Case, LanesError

TOYS = Path(__file__).parent / "toys"
ORDERS = ("ascending", "descending", "random")
ALL = 0xFFFFFFFF
rng = random.Random(5)


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *(value & ALL for value in values))


def need(kind: build.Build) -> None:
    if reason := build.missing(kind):
        pytest.skip(reason)


@pytest.fixture(autouse=True, scope="module")
def _compiler():
    need(build.WARPS)


def run(kernel: str, *asked: Case, **options) -> list[bytes]:
    outcomes = cases.run(kernel, asked, kernels=TOYS, **options)
    assert {outcome.status for outcome in outcomes} == {cases.OK}
    return [outcome.decoded for outcome in outcomes]


def answers(kernel: str, *asked: Case, **options) -> list[tuple[int, ...]]:
    decoded = run(kernel, *asked, **options)
    return [struct.unpack(f"<{len(answer) // 4}I", answer) for answer in decoded]


def case(*values: int, capacity: int = 128, **places: int) -> Case:
    return Case(Codec.LZ4, words(*values), capacity, **places)


def caught(kernel: str, *asked: Case, **options) -> LanesError:
    with pytest.raises(LanesError) as error:
        cases.run(kernel, asked, kernels=TOYS, **options)
    return error.value


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


REDUCTIONS = {
    0: lambda values: int(any(values)),
    1: lambda values: int(all(values)),
    2: lambda values: sum(1 << lane for lane, value in enumerate(values) if value),
    3: sum,
    4: min,
    5: max,
    6: lambda values: min(map(signed, values)),
    7: lambda values: max(map(signed, values)),
    8: lambda values: reduce(int.__and__, values),
    9: lambda values: reduce(int.__or__, values),
    10: lambda values: reduce(int.__xor__, values),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", REDUCTIONS)
def test_votes_and_reductions(number, order):
    sets = [[rng.choice((0, 1, rng.getrandbits(32))) for _ in range(32)] for _ in range(20)]
    sets += [[0] * 32, [1] * 32, [0] * 31 + [1 << 31]]
    asked = [case(number, 32, *values, *[0] * 32) for values in sets]
    expected = [(REDUCTIONS[number](values) & ALL,) * 32 for values in sets]
    assert answers("collective_32", *asked, order=order) == expected


def source(kind: str, lane: int, argument: int, width: int) -> int:
    """Return the lane that a shuffle reads from (programming guide, "Warp Shuffle Functions")."""
    first = lane // width * width
    if kind == "idx":
        return first + argument % width
    other = {"up": lane - argument, "down": lane + argument, "xor": lane ^ argument}[kind]
    if kind == "xor":  # earlier groups of lanes can be reached, later ones not
        return other if other < first + width else lane
    return other if first <= other < first + width else lane


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize(("number", "kind"), [(11, "idx"), (12, "up"), (13, "down"), (14, "xor")])
def test_shuffles(number, kind, width):
    asked, expected = [], []
    for argument in range(32):
        values = [rng.getrandbits(32) for _ in range(32)]
        own = [rng.randrange(64) if kind == "idx" else argument for _ in range(32)]
        asked.append(case(number, width, *values, *own))
        sources = [source(kind, lane, own[lane], width) for lane in range(32)]
        expected.append(tuple(values[lane] for lane in sources))
    assert answers("collective_32", *asked) == expected


def test_groups_do_not_mix():
    values = [[rng.getrandbits(32) for _ in range(8)] for _ in range(13)]
    expected = [tuple(group[1:] + group[:1]) for group in values]
    assert answers("neighbour_8", *[case(*group, capacity=32) for group in values]) == expected


@pytest.mark.parametrize("order", ORDERS)
def test_groups_of_a_warp_go_on_independently(order):
    asked = [rng.randrange(200) for _ in range(40)]
    counted = answers("countdown_8", *[case(n, capacity=4) for n in asked], order=order)
    assert counted == [(n,) for n in asked]


@pytest.mark.parametrize("order", ORDERS)
def test_prefix_sums(order):
    values = [[rng.getrandbits(32) for _ in range(32)] for _ in range(10)]
    expected = [tuple(np.cumsum(v, dtype=np.uint64).astype(np.uint32).tolist()) for v in values]
    assert answers("prefix_32", *[case(*v) for v in values], order=order) == expected


@pytest.mark.parametrize("kind", [build.WARPS, build.PORTABLE, build.PLAIN, build.RACES])
@pytest.mark.parametrize("order", ORDERS)
def test_shared_memory(order, kind):
    need(kind)
    texts = [rng.randbytes(32) for _ in range(20)]
    asked = [Case(Codec.LZ4, text, 32, rng.randrange(16), rng.randrange(16)) for text in texts]
    assert run("reverse_32", *asked, order=order, build=kind) == [text[::-1] for text in texts]


@pytest.mark.parametrize("kind", [build.WARPS, build.PORTABLE, build.RACES])
@pytest.mark.parametrize("order", ORDERS)
def test_shared_memory_of_a_block(order, kind):
    need(kind)
    texts = [rng.randbytes(128) for _ in range(10)]
    asked = [Case(Codec.LZ4, text, 128, rng.randrange(16), rng.randrange(16)) for text in texts]
    assert run("mirror_128", *asked, order=order, build=kind) == [text[::-1] for text in texts]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("lanes", "yes", "votes"),
    [(128, 128, (128, 1, 1)), (128, 127, (127, 0, 1)), (40, 0, (0, 0, 0)), (33, 99, (33, 1, 1))],
)
def test_votes_of_a_block(lanes, yes, votes, order):
    assert answers("block_128", case(lanes, yes, capacity=12), order=order) == [votes]


def test_atomics():
    values = [[rng.getrandbits(24) for _ in range(32)] for _ in range(9)]
    expected = [(sum(v), min(v), max(v), reduce(int.__or__, v)) for v in values]
    assert answers("atomics_32", *[case(*v, capacity=16) for v in values]) == expected


def _bits(function: int, a: int, b: int, c: int) -> int:
    wide = b << 32 | a
    turned = f"{wide:064b}"[::-1]
    chosen = [wide >> 8 * (c >> 4 * i & 7) & 255 for i in range(4)]
    return [
        a.bit_count(),
        wide.bit_count(),
        (a & -a).bit_length(),
        (wide & -wide).bit_length(),
        32 - a.bit_length(),
        64 - wide.bit_length(),
        int(f"{a:032b}"[::-1], 2),
        int(turned, 2) >> 16,
        wide << c % 32 >> 32,
        wide << min(c, 32) >> 32,
        wide >> c % 32,
        wide >> min(c, 32),
        int.from_bytes(bytes(chosen), "little"),
        a * b >> 32,
        min(a, b),
        max(signed(a), signed(b)),
        min(a, b),
    ][function] & ALL


def _operands(function: int) -> list[tuple[int, int, int]]:
    edges = (0, 1, 1 << 31, ALL, 0x7FFFFFFF, rng.getrandbits(32))
    last = (0, 1, 8, 31, 32, 33, 1000) if function != 12 else (0, 0x3210, 0x7654, 0x4040, 0x6521)
    return [(a, b, c) for a in edges for b in edges for c in last]


@pytest.mark.parametrize("function", range(17))
def test_bits(function):
    operands = _operands(function)
    asked = [case(function, *three, capacity=4) for three in operands]
    expected = [(_bits(function, *three),) for three in operands]
    for kind in (build.WARPS, build.ALONE):
        assert answers("bits_1", *asked, build=kind) == expected


def test_operations_of_other_codecs_are_left_alone():
    asked = [Case(codec, b"", 8) for codec in (Codec.LZ4, Codec.RAW, Codec.SNAPPY, Codec.LZ4)]
    outcomes = cases.run("choosy_32", asked, kernels=TOYS)
    untouched = (cases.UNTOUCHED, cases.UNTOUCHED)
    assert [outcome[:2] for outcome in outcomes] == [(3, 0), untouched, untouched, (3, 0)]


@pytest.mark.parametrize("kernel", ["racy_32", "voted_32", "unordered_32", "careless_128"])
def test_races_are_seen(kernel):
    need(build.RACES)
    error = caught(kernel, Case(Codec.LZ4, bytes(128), 128), build=build.RACES)
    assert error.exit_status == cases.SANITIZER
    assert "data race" in str(error)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("kernel", "lanes"), [("racy_32", 32), ("careless_128", 128)])
def test_a_missing_sync_shows_as_wrong_bytes(kernel, lanes, order):
    text = bytes(range(1, lanes + 1))
    assert run(kernel, Case(Codec.LZ4, text, lanes), order=order) != [text[::-1]]


UNDEFINED = {
    0: r"__(any|ballot)_sync\(0xffffffff\), but lane \d+ waits in __(any|ballot)_sync",
    1: r"__syncwarp\(0xf.*\), but lane \d+ waits in __syncwarp|does not name the calling lane",
    2: "the mask does not name the calling lane",
    3: "lanes 0x00000020,? (which )?have returned",
    4: r"__syncwarp\(0x\w+\), but lane \d+ waits in __syncwarp",
    5: "does not end",
    6: r"width (16|32), but lane \d+ has (16|32)",
    7: "width 12 is no power of two",
    8: "lane mask or distance 32 is above 31",
    9: "bit 3 of a selector",
    10: "have returned",
    11: "__syncthreads: only kernels for groups of more than a warp",
}


@pytest.mark.parametrize(
    ("kind", "order"), [*((build.WARPS, order) for order in ORDERS), (build.PLAIN, "random")]
)
@pytest.mark.parametrize("what", UNDEFINED)
def test_undefined_calls_are_refused(what, order, kind):
    fine = case(99)
    error = caught("undefined_32", fine, fine, case(what), fine, order=order, build=kind)
    assert error.exit_status == cases.REFUSED
    assert "lanes: case 2: block 0, warp 2, lane " in str(error)
    assert re.search(UNDEFINED[what], str(error))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        (0, r"lanes of the block wait in __syncthreads\w* and in __syncthreads"),
        (
            1,
            r"__syncwarp\(0xffffffff\), but lane \d+ waits in __syncthreads|no lane can go",
        ),
    ],
)
def test_undefined_calls_of_a_block_are_refused(what, message, order):
    error = caught("unblocked_128", case(99), case(what), case(99), order=order)
    assert error.exit_status == cases.REFUSED
    assert "lanes: case 1: block 1, " in str(error)
    assert re.search(message, str(error))


def test_values_of_lanes_outside_of_a_mask_are_noise():
    values = [
        value for answer in answers("foreign_8", *[case(capacity=32)] * 4) for value in answer
    ]
    assert len(set(values)) == 32
    assert not set(values) & set(range(32))


SIZE = 24  # bytes of src of the accesses below, and of dst


@pytest.mark.parametrize("place", [0, 7, 13])
@pytest.mark.parametrize("what", [0, 1, 9], ids=["read", "write", "write to src"])
def test_accesses_behind_a_buffer_are_seen(what, place):
    for index in (SIZE, SIZE + 70_000, 0x7FFFFFFF, -70_000, -(2**31), -1 - place % 8):
        asked = case(what, index, *[0] * 4, capacity=SIZE, src_at=place, dst_at=place)
        error = caught("outside_32", asked)
        assert error.exit_status == cases.SANITIZER, index
        assert "case 0: a sanitizer stopped it" in str(error)


def test_the_last_bytes_of_buffers_may_be_accessed():
    for place in range(16):
        for what in (0, 1):
            asked = case(what, SIZE - 1, *[0] * 4, capacity=SIZE, src_at=place, dst_at=place)
            assert len(run("outside_32", asked)) == 1
            assert len(run("outside_32", asked, build=build.EXACT)) == 1


@pytest.mark.parametrize("what", [0, 1], ids=["read", "write"])
def test_the_byte_before_an_aligned_buffer_is_seen(what):
    for place in (0, 8):
        asked = case(what, -1, *[0] * 4, capacity=SIZE, src_at=place, dst_at=place)
        assert caught("outside_32", asked).exit_status == cases.SANITIZER


@pytest.mark.parametrize("place", range(16))
def test_exact_bounds(place):
    """Right before and right behind a buffer, at any alignment."""
    need(build.EXACT)
    for what, index in [(0, -1), (1, -1), (0, SIZE), (1, SIZE)]:
        asked = case(what, index, *[0] * 4, capacity=SIZE, src_at=place, dst_at=place)
        error = caught("outside_32", asked, build=build.EXACT)
        assert error.exit_status == cases.SANITIZER
        assert ("read", "write")[what] + " outside of a buffer" in str(error)


@pytest.mark.parametrize(
    ("what", "index", "report"),
    [
        (2, 32, "insufficient space|global-buffer-overflow"),
        (2, -1, "insufficient space|global-buffer-overflow"),
        (3, 16, "insufficient space|stack-buffer-overflow"),
        (3, -1, "insufficient space|stack-buffer-(over|under)flow"),
        (4, 128, "heap-buffer-overflow"),
        (5, 1, "misaligned address"),
        (6, 32, "shift exponent 32"),
        (7, 1, "use-after-poison"),
        (8, 64, "use-after-poison"),
    ],
)
def test_other_accesses_and_operations_are_seen(what, index, report):
    error = caught("outside_32", case(what, index, *[0] * 4))
    assert error.exit_status == cases.SANITIZER
    assert re.search(report, str(error))
    assert "case 0: a sanitizer stopped it" in str(error)
    assert "bad.cu" in str(error), "the report says where in the source it was"


@pytest.mark.parametrize("kind", [build.WARPS, build.PLAIN, build.EXACT])
def test_a_stack_that_overflows_reaches_no_other(kind):
    assert len(run("deep_32", case(20), build=kind)) == 1
    error = caught("deep_32", case(100_000), build=kind)
    assert error.exit_status == cases.SANITIZER
    assert "lanes: case 0: " in str(error)


def test_a_lane_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setenv("LANES_PATIENCE", "1")
    error = caught("endless_32", case(), case())
    assert error.exit_status == cases.SLOW
    assert "case 0: it does not end" in str(error)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("untidy_1", "bytes of the slot behind the decoded ones were written to"),
        ("silent_1", "no status was written"),
    ],
)
def test_outcomes_are_checked(kernel, message):
    error = caught(kernel, case())
    assert error.exit_status == cases.WRONG
    assert f"case 0: {message}" in str(error)


def test_vectors_must_be_aligned():
    text = bytes(range(16))
    assert run("vectors_1", Case(Codec.LZ4, text, 16)) == [text]
    error = caught("vectors_1", Case(Codec.LZ4, text, 16, src_at=8))
    assert "misaligned" in str(error)


def test_a_kernel_that_is_not_there():
    assert caught("nothing_32", case()).exit_status == cases.USAGE


# The shared library


def launch(kernel: str, stored: bytes, capacity: int) -> tuple[int, int, bytes]:
    source, target = (ctypes.create_string_buffer(size) for size in (len(stored), capacity))
    source.raw = stored
    actual, status = ctypes.c_uint(), ctypes.c_uint(cases.UNTOUCHED)
    params = np.zeros(1, PARAMS_DTYPE)
    params["src_num_bytes"], params["dst_num_bytes"] = len(stored), capacity
    params["src"], params["dst"] = ctypes.addressof(source), ctypes.addressof(target)
    params["dst_act_bytes"], params["algo"] = ctypes.addressof(actual), 4
    library = build.shared_library(TOYS)
    state = ctypes.addressof(status)
    answer = library.lanes_launch(kernel.encode(), params.ctypes.data, 1, state)
    return answer, status.value, target.raw[: actual.value]


def test_launched_from_python():
    text = rng.randbytes(32)
    assert launch("reverse_32", text, 32) == (0, cases.OK, text[::-1])


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("nothing_32", b"no kernel nothing_32"),
        ("lanes_launch", b"no kernel lanes_launch"),
        ("undefined_32", b"undefined_32: block 0, warp 0, lane "),
    ],
)
def test_launches_that_fail(kernel, reason):
    assert launch(kernel, words(2), 128)[0] == -1
    assert reason in build.shared_library(TOYS).lanes_error()
    assert launch("reverse_32", bytes(range(32)), 32)[0] == 0, "and the next one works"


def test_a_launch_of_another_shape():
    """A grid that is too small leaves operations alone, as it would on a GPU."""
    library = build.shared_library(TOYS)
    status = np.full(3, cases.UNTOUCHED, np.uint32)
    actual = np.zeros(3, np.uint32)
    params = np.zeros(3, PARAMS_DTYPE)
    params["dst_act_bytes"] = actual.ctypes.data + 4 * np.arange(3)
    params["algo"] = 4
    arguments = (params.ctypes.data, 3, status.ctypes.data)
    assert library.lanes_launch_grid(b"choosy_32", 1, 64, *arguments) == 0
    assert status.tolist() == [3, 3, cases.UNTOUCHED]
