"""What every reader has to fulfil, as a class of tests to inherit.

A reader's test module subclasses `ContainerTests` and says what to read::

    from gpuload.containers import lz4
    from tests.containers.container_tests import ContainerTests

    class TestLz4Contract(ContainerTests):
        reader = lz4  # has is_magic() and read()
        good: ClassVar = {"one block": FRAME, "two frames": FRAME + FRAME}
        large = LARGE_FRAME  # at least 1 MiB, in chunks of 32 KiB or more
        whole_prefixes: ClassVar = {"two frames": [len(FRAME)]}  # cut there, it is a file as well

`good` holds small well-formed files (up to a few KiB: they are cut at every byte) that
`reader.read` takes with `options` and without a warning. `whole_prefixes` names, for a file of
`good`, the lengths to which it can be cut so that the rest still is (or to a reader of headers
looks like) a file; any container of ints will do, such as a range. Every other cut, also to
nothing, must raise FormatError. `may_warn` names the files of `good` that give warnings.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuload.chunks import CHUNK_DTYPE, SPAN_DTYPE, UNKNOWN, Checksum, Codec
from gpuload.containers.base import Index
from gpuload.errors import FormatError, GpuloadError
from gpuload.options import Options
from gpuload.sources import BytesSource, LocalFile

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

#: A reader that reads more than this share of a file of large chunks reads payload.
HEADER_SHARE = 0.01

#: Inherited tests run with several classes, which Hypothesis takes for a mistake.
fuzz = settings(
    deadline=None,
    derandomize=True,
    max_examples=300,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


class WatchedSource(BytesSource):
    """Bytes that count how much of them is read, and end a reader that makes no progress.

    Parameters
    ----------
    data : bytes
        The content.
    size : int, optional
        The size that the source had when it was opened, if it shrank since.
    """

    def __init__(self, data: bytes, size: int | None = None) -> None:
        super().__init__(data, "watched")
        self.size = len(data) if size is None else size
        self.reads = 0
        self.bytes_read = 0

    def readinto(self, offset: int, view: memoryview) -> int:
        self.reads += 1
        if self.reads > 4 * self.size + 64:
            raise RuntimeError("the reader does not end")
        if not 0 <= offset < 2**63:
            raise RuntimeError(f"no file can be read at {offset}")
        got = super().readinto(offset, view)
        self.bytes_read += got
        return got


@st.composite
def mutations(draw: st.DrawFn, files: list[bytes]) -> bytes:
    """Draw a file of `files` with bits flipped, bytes replaced or removed, or cut short."""
    data = bytearray(draw(st.sampled_from(files)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        patch = draw(st.binary(max_size=8))
        match draw(st.sampled_from(["flip", "replace", "insert", "remove"])):
            case "flip" if data:
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "replace":
                data[place : place + len(patch)] = patch
            case "insert":
                data[place:place] = patch
            case _:
                del data[place : place + len(patch)]
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def check_rows(index: Index) -> None:
    """Check that rows lie inside the source, in order, and that their columns make sense."""
    rows = index.chunks
    assert rows.dtype == CHUNK_DTYPE
    assert set(rows["source"].tolist()) <= {0}
    assert set(rows["asset"].tolist()) <= set(range(len(index.assets)))
    assert set(rows["codec"].tolist()) <= set(Codec)
    assert set(rows["checksum_kind"].tolist()) <= set(Checksum)
    begins = [int(row["offset"]) - int(row["prefix_size"]) for row in rows]
    ends = [int(row["offset"]) + int(row["stored_size"]) for row in rows]
    bounds = [0, *(bound for pair in zip(begins, ends, strict=True) for bound in pair)]
    assert [*bounds, index.source.size] == sorted([*bounds, index.source.size])
    assert not rows["chained"][:1].any(), "the first row has no row before it"
    assert index.serial or not rows["chained"].any(), "serial has to say why rows are chained"
    raw = rows[rows["codec"] == Codec.RAW]
    assert raw["exact"].all()
    assert raw["raw_size"].tolist() == raw["stored_size"].tolist()


def check_places(index: Index) -> None:
    """Check that `dst_offset` is the running sum of `raw_size` in each asset."""
    for asset in range(len(index.assets)):
        rows = index.chunks[index.chunks["asset"] == asset]
        sizes = [int(size) for size in rows["raw_size"]]
        assert rows["dst_offset"].tolist() == [sum(sizes[:i]) for i in range(len(sizes))]


def check_spans(index: Index) -> None:
    """Check that spans follow one another over rows that exist."""
    assert index.spans.dtype == SPAN_DTYPE
    done = 0
    for span in index.spans:
        first, count = int(span["first"]), int(span["count"])
        assert done <= first
        done = first + count
        assert int(span["offset"]) < index.source.size
        assert int(span["checksum_kind"]) in set(Checksum)
        assert span["checksum_kind"] != Checksum.NONE or span["raw_size"] != UNKNOWN
    assert done <= len(index.chunks)


def check_index(index: Index) -> None:
    """Check everything that holds for any index, also one of a damaged file."""
    assert isinstance(index, Index)
    check_rows(index)
    check_places(index)
    check_spans(index)
    assert all(type(warning) is str for warning in index.warnings)
    assert json.loads(json.dumps(index.details)) == index.details, "plain values only"


class ContainerTests:
    """The contract of readers; see the module's docstring for how to inherit it."""

    reader: ClassVar[Any]
    good: ClassVar[Mapping[str, bytes]]
    large: ClassVar[bytes]
    whole_prefixes: ClassVar[Mapping[str, Container[int]]] = {}
    may_warn: ClassVar[Container[str]] = ()
    options: ClassVar[Options] = Options()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test that asks for a `file` once for every file of `good`."""
        if "file" in metafunc.fixturenames:
            metafunc.parametrize("file", list(self.good))

    def index(self, data: bytes) -> Index:
        """Read the index of `data`."""
        return self.reader.read(WatchedSource(data), self.options)

    def test_index_of_a_good_file(self, file: str) -> None:
        index = self.index(self.good[file])
        check_index(index)
        assert bool(index.warnings) == (file in self.may_warn)

    def test_a_file_gives_the_table_that_bytes_give(self, file: str, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(self.good[file])
        with LocalFile(path) as source:
            index = self.reader.read(source, self.options)
        expected = self.index(self.good[file])
        assert index.chunks.tolist() == expected.chunks.tolist()
        assert index.spans.tolist() == expected.spans.tolist()

    def test_strict_changes_nothing_without_warnings(self, file: str) -> None:
        if file in self.may_warn:
            with pytest.raises(FormatError):
                self._read_strictly(self.good[file])
        else:
            index = self._read_strictly(self.good[file])
            assert index.chunks.tolist() == self.index(self.good[file]).chunks.tolist()

    def _read_strictly(self, data: bytes) -> Index:
        options = Options(
            strict=True,
            dictionary=self.options.dictionary,
            window_limit=self.options.window_limit,
        )
        index = self.reader.read(WatchedSource(data), options)
        assert index.strict
        return index

    def test_cut_anywhere(self, file: str) -> None:
        data = self.good[file]
        whole = self.whole_prefixes.get(file, ())
        for size in range(len(data)):
            if size in whole:
                check_index(self.index(data[:size]))
                continue
            with pytest.raises(FormatError):
                pytest.fail(f"cut to {size} bytes: {self.index(data[:size])}")

    def test_shrunk_since_it_was_opened(self, file: str) -> None:
        data = self.good[file]
        for size in range(len(data)):
            source = WatchedSource(data[:size], len(data))
            with contextlib.suppress(FormatError):
                check_index(self.reader.read(source, self.options))

    def test_headers_only_are_read(self) -> None:
        assert len(self.large) >= 1 << 20
        source = WatchedSource(self.large)
        check_index(self.reader.read(source, self.options))
        assert source.bytes_read < HEADER_SHARE * len(self.large)

    @fuzz
    @given(data=st.data())
    def test_mutated_bytes_give_an_index_or_an_error_of_ours(self, data: st.DataObject) -> None:
        mutant = data.draw(mutations(list(self.good.values())))
        with contextlib.suppress(GpuloadError):
            check_index(self.index(mutant))

    @fuzz
    @given(first=st.binary(max_size=16))
    def test_is_magic_takes_any_bytes(self, first: bytes) -> None:
        assert self.reader.is_magic(first) in (True, False)


def columns(index: Index, *names: str) -> list[tuple[Any, ...]]:
    """Return the named columns of the chunk table as a list of rows of plain values."""
    parts: list[npt.NDArray[np.generic]] = [index.chunks[name] for name in names]
    return list(zip(*(part.tolist() for part in parts), strict=True))
