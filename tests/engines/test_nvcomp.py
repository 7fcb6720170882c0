"""What the nvCOMP engine does without a device: finding the library, refusing rows, planning."""

from __future__ import annotations

import _ctypes
import ctypes
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpuload.chunks import Codec, make_table
from gpuload.engines import nvcomp_abi, nvcomp_library
from gpuload.engines.base import Batch
from gpuload.engines.nvcomp_abi import METHODS, Arrays, signatures, status_name
from gpuload.engines.nvcomp_library import Library, load, unavailable
from gpuload.engines.nvcomp_plan import make_plan
from gpuload.engines.nvcomp_refusals import refusals
from gpuload.errors import DriverError, EngineUnavailableError, MemoryLimitError
from tests.helpers.fakecuda.build import compiler
from tests.helpers.fakenvcomp import build

INSTALL = "pip install 'gpuload[nvcomp]'"


@pytest.fixture
def candidates(monkeypatch):
    """Return a list of what will be looked at for nvCOMP."""
    found = []
    monkeypatch.setattr(nvcomp_library, "_candidates", lambda: found)
    nvcomp_library._find.cache_clear()
    yield found
    nvcomp_library._find.cache_clear()


@pytest.fixture
def built(tmp_path_factory):
    """Return a function that gives a library of some version: its calls answer with 10000."""
    if compiler() is None:
        pytest.skip("g++ builds the double of nvCOMP and is not installed")
    folder = tmp_path_factory.getbasetemp() / "nvcomp"
    return lambda version: str(build.library(folder, version))


# --- Finding the library --------------------------------------------------------------------------


def test_nothing_is_installed(candidates):
    candidates.append("libnvcomp.so.4711")
    assert unavailable() == f"nvCOMP is not installed: {INSTALL}"
    with pytest.raises(EngineUnavailableError) as caught:
        load()
    assert str(caught.value) == f"the nvcomp engine cannot run: {unavailable()}"


def test_a_file_that_is_no_library(candidates, tmp_path):
    path = tmp_path / "libnvcomp.so.6"
    path.write_bytes(b"no library")
    candidates.append(str(path))
    assert unavailable().startswith(f"nvCOMP does not load: {path}: ")
    assert unavailable().endswith(INSTALL)


def test_another_library(candidates):
    candidates.append(_ctypes.__file__)
    assert "undefined symbol: nvcompGetProperties" in unavailable()
    assert unavailable().endswith(INSTALL)


@pytest.mark.parametrize("version", [5100, 5200, 5300, 6000, 6100])
def test_versions_that_fit(candidates, built, version):
    candidates.append(built(version))
    assert unavailable() == ""
    assert load().version == (version // 1000, version % 1000 // 100)


@pytest.mark.parametrize(
    ("version", "spelt"), [(4200, "4.2"), (5000, "5.0"), (7000, "7.0"), (12300, "12.3")]
)
def test_versions_that_do_not_fit(candidates, built, version, spelt):
    candidates.append(built(version))
    assert unavailable() == (
        f"nvCOMP {spelt} is installed, 5.1 or newer before 7 is needed: {INSTALL}"
    )
    with pytest.raises(EngineUnavailableError, match=f"nvCOMP {spelt} is installed"):
        load()


def test_the_first_library_that_fits(candidates, built):
    candidates += ["libnvcomp.so.4711", built(7000), built(6000), built(5100)]
    assert load().version == (6, 0)


def test_candidates_of_the_installed_package_come_first(monkeypatch, tmp_path):
    folder = tmp_path / "nvidia" / "libnvcomp"
    for name in ("lib64/libnvcomp.so.5", "lib64/libnvcomp.so.6", "lib64/libnvcomp_cpu.so.6"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "__init__.py").write_text("raise AssertionError('nobody needs to import this')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("nvidia", "nvidia.libnvcomp"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert list(nvcomp_library._candidates()) == [
        str(folder / "lib64" / "libnvcomp.so.6"),
        str(folder / "lib64" / "libnvcomp.so.5"),
        "libnvcomp.so.6",
        "libnvcomp.so.5",
    ]


def test_looking_for_it_imports_no_cuda():
    script = (
        "import sys\n"
        "from gpuload.engines.nvcomp_library import unavailable\n"
        "unavailable()\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    assert "cuda" not in done.stdout.split()


# --- Its calls ------------------------------------------------------------------------------------


def test_structures():
    """Sizes as nvCOMP's headers declare them, for 64-bit systems."""
    assert ctypes.sizeof(nvcomp_abi.Options) == 64
    assert ctypes.sizeof(nvcomp_abi.Alignments) == 24
    assert ctypes.sizeof(nvcomp_abi.Properties) == 8
    assert bytes(nvcomp_abi.Options(2)) == b"\2" + bytes(63)


def test_signatures():
    old, new = signatures("LZ4", (5, 3)), signatures("LZ4", (6, 0))
    assert old["temp_size"][0] == "nvcompBatchedLZ4DecompressGetTempSizeAsync"
    assert new["temp_size"][0] == "nvcompBatchedLZ4DecompressGetTempSize"
    assert new["temp_size"][1] == [*old["temp_size"][1], ctypes.c_void_p]
    for key in ("alignments", "decompress"):
        assert old[key] == new[key]
    assert len(new["decompress"][1]) == 11


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "nvcompSuccess"),
        (10, "nvcompErrorInvalidValue"),
        (12, "nvcompErrorCannotDecompress"),
        (17, "nvcompErrorAlignment"),
        (18, "nvcompErrorChunkSizeTooLarge"),
        (1000, "nvcompErrorCudaError"),
        (10000, "nvcompErrorInternal"),
        (25, "nvcompStatus_t 25"),
    ],
)
def test_names_of_statuses(code, name):
    assert status_name(code) == name


def test_arrays_behind_others():
    arrays = Arrays(0, 1000, 2000, 3000, 4000, 5000)
    assert arrays.behind(10) == (80, 1080, 2080, 3080, 4080, 5040)
    assert arrays.behind(0) == arrays


@pytest.mark.parametrize(
    ("version", "suffix", "text"),
    [(5100, "Async", ""), (5200, "Async", ": some status"), (6000, "", ": some status")],
)
@pytest.mark.parametrize("codec", METHODS)
def test_failures(built, codec, version, suffix, text):
    library, method = Library(built(version)), f"nvcompBatched{METHODS[codec].name}Decompress"
    calls = {
        f"{method}GetRequiredAlignments": lambda: library.alignments(codec),
        f"{method}GetTempSize{suffix}": lambda: library.temp_size(codec, 1, 1, 1),
        f"{method}Async": lambda: library.decompress(codec, 1, Arrays(*[0] * 6), (0, 0), 0),
    }
    for name, call in calls.items():
        message = rf"^{name} failed: nvcompErrorInternal \(10000\){text}"
        with pytest.raises(DriverError, match=message):
            call()


def test_the_installed_library():
    """The calls that need no device."""
    if unavailable():
        pytest.skip(unavailable())
    library = load()
    for codec in METHODS:
        needed = library.alignments(codec)
        for alignment in (needed.input, needed.output, needed.temp):
            assert alignment in (1, 2, 4, 8, 16, 32)
        sizes = [
            library.temp_size(codec, count, 65536, count * 65536) for count in range(1, 3000, 50)
        ]
        assert sizes == sorted(sizes), "the splitting of batches relies on it"


# --- Refusals -------------------------------------------------------------------------------------


class StandIn:
    """A library with needs of its own: 1000 bytes a chunk, and the decoded bytes."""

    def __init__(self, *, alignment=1, output=1, temp=lambda count, total: 1000 * count + total):
        self.needed = SimpleNamespace(input=alignment, output=output, temp=8)
        self.temp = temp

    def alignments(self, codec):
        return self.needed

    def temp_size(self, codec, count, largest, total, stream=0):
        assert count * largest >= total >= largest
        return self.temp(count, total)


def refused(rows, library=None, limit=1 << 40):
    """Return for each reason that holds for any row, which rows."""
    found = refusals(rows, library or StandIn(), limit)
    assert all(mask.dtype == np.bool_ and mask.shape == rows.shape for mask in found.values())
    return {reason: np.flatnonzero(mask).tolist() for reason, mask in found.items() if mask.any()}


def table(codec, *, prefix_size=2, stored_size=40, raw_size=100, **columns):
    sizes = {"prefix_size": prefix_size, "stored_size": stored_size, "raw_size": raw_size}
    return make_table(range(np.size(codec)), codec=codec, **sizes, **columns)


def test_codecs():
    assert refused(table(list(Codec))) == {
        "one serial stream": [Codec.GZIP],
        "nvCOMP does not decode the codec": [Codec.BLOSC],
    }


def test_chains_and_dictionaries():
    rows = table([Codec.LZ4] * 5, chained=[0, 0, 1, 0, 0], dictionary=[0, 0, 0, 0, 1])
    assert refused(rows) == {
        "linked to other chunks": [1, 2],
        "a dictionary is needed": [4],
    }


def test_snappy_without_its_length():
    rows = table([Codec.SNAPPY, Codec.SNAPPY, Codec.LZ4], prefix_size=[0, 3, 0])
    assert refused(rows) == {"the length is not before the elements, where nvCOMP wants it": [0]}


def test_nothing_is_stored():
    codecs = [Codec.LZ4, Codec.LZ4, Codec.RAW, Codec.SNAPPY]
    rows = table(codecs, stored_size=0, raw_size=[100, 0, 100, 100])
    assert refused(rows) == {"nothing is stored": [0]}


@pytest.mark.parametrize("side", ["stored_size", "raw_size"])
@pytest.mark.parametrize(
    ("codec", "limit"),
    [
        (Codec.DEFLATE, 2**32),
        (Codec.GDEFLATE, 2**32 + 289),
        (Codec.LZ4, 2**32),
        (Codec.SNAPPY, 2**31),
        (Codec.ZSTD, 2**31),
    ],
)
def test_the_largest_chunks(codec, limit, side):
    """nvcomp<method>DecompressionMaxAllowedChunkSize is one less; a Snappy preamble counts."""
    most = limit - 1 - 2 * (codec == Codec.SNAPPY and side == "stored_size")
    rows = table([codec] * 4, **{side: [100, most, most + 1, 2**63]})
    assert refused(rows) == {"longer than nvCOMP takes": [2, 3]}


def test_raw_rows_may_be_of_any_size():
    assert refused(table([Codec.RAW], stored_size=2**40, raw_size=2**40), limit=1) == {}


def test_more_scratch_memory_than_the_limit():
    rows = table([Codec.LZ4] * 4, raw_size=[1560, 1561, 5000, 0])
    reason = "one chunk takes more than 2560 bytes of scratch memory (memory_limit)"
    assert refused(rows, limit=2560) == {reason: [1, 2]}


def test_scratch_memory_for_sources_that_may_have_to_be_moved():
    rows = table([Codec.DEFLATE] * 3, stored_size=[1040, 1041, 9000], raw_size=100)
    library = StandIn(alignment=4, temp=lambda count, total: 0)
    reason = "one chunk takes more than 1040 bytes of scratch memory (memory_limit)"
    assert refused(rows, library, limit=1040) == {reason: [1, 2]}


def test_refuses_nothing_of_nothing():
    assert refused(make_table([])) == {}


# --- Plans ----------------------------------------------------------------------------------------


def batch(codec, *, src=None, dst=None, **columns):
    rows = table(codec, **columns)
    places = 4096 * np.arange(1, rows.size + 1)
    src, dst = (places if given is None else np.array(given) for given in (src, dst))
    return Batch(rows, src, dst)


def plan(made, library=None, limit=1 << 40, which=None):
    which = np.arange(made.rows.size) if which is None else np.array(which)
    return make_plan(made, which, library or StandIn(), limit)


def test_codec_by_codec_and_the_largest_first():
    codecs = [Codec.ZSTD, Codec.LZ4, Codec.ZSTD, Codec.LZ4, Codec.LZ4]
    made = plan(batch(codecs, raw_size=[5, 50, 500, 60, 50]))
    assert made.rows.tolist() == [3, 1, 4, 2, 0]
    assert made.capacities.tolist() == [60, 50, 50, 500, 5]
    assert made.targets.tolist() == [4096 * (row + 1) for row in made.rows]
    assert [(part.codec, part.first, part.last) for part in made.parts] == [
        (Codec.LZ4, 0, 3),
        (Codec.ZSTD, 3, 5),
    ]


def test_only_the_rows_that_are_asked_for():
    made = plan(batch([Codec.LZ4] * 5, stored_size=[1, 2, 3, 4, 5]), which=[1, 4])
    assert made.rows.tolist() == [1, 4]
    assert made.source_sizes.tolist() == [2, 5]
    assert made.sources.tolist() == [8192, 20480]


def test_no_rows():
    made = plan(batch([]))
    assert made.parts == []
    assert made.scratch_size == 0


def test_snappy_starts_at_its_length():
    codecs = [Codec.SNAPPY, Codec.SNAPPY, Codec.LZ4]
    made = plan(batch(codecs, prefix_size=[1, 3, 3], stored_size=[10, 20, 30]))
    assert made.sources.tolist() == [4096 - 1, 8192 - 3, 3 * 4096]
    assert made.source_sizes.tolist() == [11, 23, 30]


@pytest.mark.parametrize("limit", [2048, 5000, 20_000, 300_000])
def test_parts_are_as_large_as_the_limit_lets_them_be(limit):
    rng = np.random.default_rng(1)
    made = batch([Codec.LZ4] * 300, raw_size=rng.integers(1, 1000, 300))
    split = plan(made, StandIn(), limit)
    assert [part.first for part in split.parts] == [0, *(part.last for part in split.parts[:-1])]
    assert split.parts[-1].last == 300
    for part in split.parts:
        count = part.last - part.first
        assert part.temp_size == 1000 * count + split.capacities[part.first : part.last].sum()
        assert part.temp_size <= part.size <= limit
    for part, after in pairwise(split.parts):
        more = part.temp_size + 1000 + split.capacities[after.first]
        assert -(-more // 256) * 256 > limit, "another chunk would have fitted"
    assert split.scratch_size == max(part.size for part in split.parts)


def test_sources_that_are_moved():
    """Behind the temporary memory, at multiples of 16, not on each other, and only if they must."""
    src = [4096 * n + n % 7 for n in range(1, 50)]
    made = batch([Codec.DEFLATE] * 49, src=src, stored_size=[3 * n + 1 for n in range(49)])
    split = plan(made, StandIn(alignment=4), 10_000)
    assert len(split.parts) > 5
    for part in split.parts:
        mine = slice(part.first, part.last)
        places, sizes = split.places[mine], split.source_sizes[mine]
        moved = places >= 0
        assert moved.tolist() == [src[row] % 4 != 0 for row in split.rows[mine]]
        assert not (places[moved] % 16).any()
        spans = [(0, part.temp_size), *zip(places[moved], (places + sizes)[moved], strict=True)]
        spans.append((part.size, part.size))
        assert all(end <= start for (_, end), (start, _) in pairwise(sorted(spans)))
        assert part.size <= 10_000


def test_a_row_that_takes_more_than_the_limit():
    made = batch([Codec.LZ4] * 3, raw_size=[10, 9000, 20])
    message = (
        "^nvCOMP takes 10240 bytes of scratch memory for a chunk of 9000 bytes, and memory_limit "
        "is 10000: raise it, or use another engine$"
    )
    with pytest.raises(MemoryLimitError, match=message):
        plan(made, StandIn(), 10_000)


def test_slots_at_addresses_that_nvcomp_can_not_write():
    made = batch([Codec.LZ4] * 3, dst=[16, 32, 35])
    with pytest.raises(DriverError, match="multiples of 4 only, and a slot is at 0x23"):
        plan(made, StandIn(output=4))
    assert plan(made, StandIn(output=4), which=[0, 1]).rows.size == 2


def test_every_method_has_a_line_of_its_own():
    """A codec that nvCOMP decodes besides takes a name and a limit, no code."""
    names = {method.name for method in METHODS.values()}
    assert names == {"Deflate", "Snappy", "LZ4", "Zstd", "Gdeflate"}
    sources = Path(nvcomp_library.__file__).parent.glob("nvcomp*.py")
    spelt = [path.name for path in sources if '"Deflate"' in path.read_text()]
    assert spelt == ["nvcomp_abi.py"]
