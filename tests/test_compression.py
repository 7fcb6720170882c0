"""compress: sources, destinations, threads and failures; formats are tested in tests/writers."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import random
import threading
import time

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.compression import compress
from gpuload.errors import FormatError
from gpuload.sources import BytesSource, open_source


def unzstd(file):
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(file), read_across_frames=True)
    return reader.read()


REFERENCE = {
    "lz4": lz4.frame.decompress,
    "gzip": gzip.decompress,
    "zstd": unzstd,
    "snappy": lambda file: bytes(cramjam.snappy.decompress(file)),
}

NOISE = random.Random(2).randbytes(1 << 20)
#: Several groups of chunks of every codec, with a short last one.
DATA = b"".join([b"words and words " * 70_000, NOISE, bytes(1 << 20), NOISE[:77_777]])


def packed(source, **options):
    out = io.BytesIO()
    compress(source, out, **options)
    return out.getvalue()


class FailingSource(BytesSource):
    """A source that breaks in the middle."""

    def __init__(self, data, error):
        super().__init__(data)
        self.error = error

    def readinto(self, offset, view):
        if offset >= self.size // 2:
            raise self.error
        return super().readinto(offset, view)


@pytest.mark.parametrize("codec", REFERENCE)
class TestEveryCodec:
    @pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one byte", "large"])
    def test_the_reference_reads_it(self, codec, data):
        assert REFERENCE[codec](packed(data, codec=codec)) == data

    def test_bytes_do_not_depend_on_threads(self, codec):
        files = {packed(DATA, codec=codec, threads=threads) for threads in (1, 2, 5)}
        assert len(files) == 1

    def test_path_to_path(self, codec, tmp_path):
        source, dest = tmp_path / "source", tmp_path / "dest"
        source.write_bytes(DATA)
        report = compress(source, str(dest), codec=codec)
        assert REFERENCE[codec](dest.read_bytes()) == DATA
        assert report.stored_size == dest.stat().st_size
        assert sorted(os.listdir(tmp_path)) == ["dest", "source"]

    def test_no_more_of_the_source_than_needed_is_in_memory(self, codec):
        ahead = []
        source = BytesSource(DATA * 3)
        reads = []

        def readinto(offset, view):
            reads.append(len(view))
            return BytesSource.readinto(source, offset, view)

        source.readinto = readinto
        compress(
            source,
            io.BytesIO(),
            codec=codec,
            threads=2,
            progress=lambda done, total: ahead.append(sum(reads) - done),
        )
        # Four groups in flight, and one that was just handed out.
        assert max(ahead) <= 5 << 20
        assert max(reads) <= 1 << 20


@pytest.mark.parametrize(("codec", "level"), [("lz4", 9), ("gzip", 10), ("zstd", 6), ("zstd", 12)])
def test_bytes_do_not_depend_on_threads_at_other_levels(codec, level):
    options = {"codec": codec, "level": level}
    assert packed(DATA, threads=1, **options) == packed(DATA, threads=3, **options)


class TestReport:
    def test_fields(self, tmp_path):
        path = tmp_path / "source"
        path.write_bytes(DATA)
        out = io.BytesIO()
        report = compress(path, out, codec="zstd", chunk_size=100_000, level=5)
        assert report.codec == "zstd"
        assert report.source == str(path)
        assert report.raw_size == len(DATA)
        assert report.stored_size == len(out.getvalue())
        assert report.chunks == -(-len(DATA) // 100_000)
        assert (report.chunk_size, report.level) == (100_000, 5)
        assert report.seconds >= 0
        assert report.ratio == len(DATA) / len(out.getvalue())

    def test_defaults_are_spelled_out(self):
        report = compress(b"data", io.BytesIO(), codec="lz4")
        assert (report.chunk_size, report.level, report.chunks) == (65536, 1, 1)

    def test_snappy_has_no_level(self):
        assert compress(b"data", io.BytesIO(), codec="snappy").level is None

    def test_ratio_of_nothing(self):
        assert compress(b"", io.BytesIO(), codec="snappy").ratio == 0


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"codec": "rar"}, "codec must be one of lz4, gzip, zstd, snappy"),
            ({"codec": "lz4", "chunk_size": 1000}, "chunk_size of lz4 must be one of 65536"),
            ({"codec": "gzip", "level": 13}, "level of gzip must be 0 to 12"),
            ({"codec": "snappy", "level": 1}, "level of snappy must be left out"),
            ({"codec": "lz4", "threads": 0}, "threads must be at least 1, not 0"),
        ],
    )
    def test_refused_before_anything_is_written(self, tmp_path, options, message):
        with pytest.raises(ValueError, match=message):
            compress(b"data", tmp_path / "dest", **options)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("dest", [io.StringIO(), 7, None, object()])
    def test_destinations_that_are_none(self, dest):
        with pytest.raises(TypeError, match="dest must be a path or a binary file, not"):
            compress(b"data", dest, codec="lz4")

    def test_too_many_chunks_for_a_seek_table(self, tmp_path):
        source = BytesSource(b"")
        source.size = (1024 << 27) + 1
        with pytest.raises(ValueError, match="at least 1025 bytes"):
            compress(source, tmp_path / "dest", codec="zstd", chunk_size=1024)
        assert os.listdir(tmp_path) == []


class TestSources:
    def test_an_open_source_stays_open(self, tmp_path):
        path = tmp_path / "source"
        path.write_bytes(b"data")
        with open_source(path) as source:
            assert gzip.decompress(packed(source, codec="gzip")) == b"data"
            assert source.peek(0, 4) == b"data"

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_bytes(self, kind):
        assert gzip.decompress(packed(kind(b"data"), codec="gzip")) == b"data"

    def test_missing_source(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            compress(tmp_path / "missing", tmp_path / "dest", codec="lz4")
        assert os.listdir(tmp_path) == []

    def test_source_and_destination_may_be_one_file(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(DATA)
        compress(path, path, codec="gzip")
        assert gzip.decompress(path.read_bytes()) == DATA

    def test_a_source_that_shrinks(self, tmp_path):
        path, dest = tmp_path / "source", tmp_path / "dest"
        path.write_bytes(DATA)
        dest.write_bytes(b"old")
        with open_source(path) as source:
            os.truncate(path, len(DATA) - 10)
            with pytest.raises(FormatError, match="10 bytes too early"):
                compress(source, dest, codec="lz4")
        assert dest.read_bytes() == b"old"
        assert sorted(os.listdir(tmp_path)) == ["dest", "source"]

    def test_a_source_that_grows_is_read_as_it_was_opened(self, tmp_path):
        path = tmp_path / "source"
        path.write_bytes(DATA)
        with open_source(path) as source, path.open("ab") as file:
            file.write(b"more")
            file.flush()
            assert gzip.decompress(packed(source, codec="gzip")) == DATA


class TestDestinations:
    def test_a_file_object_stays_open_and_keeps_its_position(self, tmp_path):
        with (tmp_path / "dest").open("w+b") as file:
            file.write(b"before")
            compress(b"data", file, codec="gzip")
            file.seek(0)
            assert file.read(6) == b"before"
            assert gzip.decompress(file.read()) == b"data"

    def test_a_raw_file_that_takes_little_at_a_time(self):
        class Reluctant(io.RawIOBase):
            taken = b""

            def write(self, view):
                self.taken += view[:100]
                return min(len(view), 100)

        with Reluctant() as dest:
            compress(NOISE[:10_000], dest, codec="gzip")
            assert gzip.decompress(dest.taken) == NOISE[:10_000]

    def test_a_raw_file_that_would_block(self):
        class Full(io.RawIOBase):
            def write(self, view):
                return None

        with Full() as dest, pytest.raises(OSError, match="took none"):
            compress(b"data", dest, codec="gzip")

    def test_an_object_whose_write_returns_nothing(self):
        class Teller:
            def __init__(self):
                self.parts = []

            def write(self, data):
                self.parts.append(bytes(data))

        dest = Teller()
        compress(b"data", dest, codec="gzip")
        assert gzip.decompress(b"".join(dest.parts)) == b"data"

    def test_another_compressor(self, tmp_path):
        with bz2.open(tmp_path / "dest", "wb") as file:
            compress(DATA, file, codec="lz4")
        with bz2.open(tmp_path / "dest") as file:
            assert lz4.frame.decompress(file.read()) == DATA

    def test_null_device(self):
        assert compress(DATA, "/dev/null", codec="lz4").stored_size > 0

    def test_an_existing_file_may_be_protected(self, tmp_path):
        dest = tmp_path / "dest"
        dest.write_bytes(b"old")
        with pytest.raises(FileExistsError):
            compress(b"data", dest, codec="lz4", overwrite=False)
        assert dest.read_bytes() == b"old"

    def test_missing_directory(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            compress(b"data", tmp_path / "missing" / "dest", codec="lz4")

    def test_a_full_disk(self):
        if not os.path.exists("/dev/full"):
            pytest.skip("there is no /dev/full here")
        with pytest.raises(OSError, match="No space left"):
            compress(DATA, "/dev/full", codec="lz4")


class TestProgress:
    def test_calls(self):
        calls, callers = [], set()

        def progress(done, total):
            calls.append((done, total))
            callers.add(threading.get_ident())

        compress(DATA, io.BytesIO(), codec="lz4", threads=3, progress=progress)
        done = [call[0] for call in calls]
        assert done == [*range(1 << 20, len(DATA), 1 << 20), len(DATA)]
        assert {call[1] for call in calls} == {len(DATA)}
        assert callers == {threading.get_ident()}


class TestFailures:
    @pytest.mark.parametrize("error", [OSError("broken"), KeyboardInterrupt(), MemoryError()])
    def test_in_a_worker(self, tmp_path, error):
        dest = tmp_path / "dest"
        with pytest.raises(type(error)):
            compress(FailingSource(DATA, error), dest, codec="lz4", threads=2)
        assert os.listdir(tmp_path) == []

    def test_in_the_calling_thread(self, tmp_path):
        def interrupt(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            compress(DATA, tmp_path / "dest", codec="zstd", progress=interrupt)
        assert os.listdir(tmp_path) == []

    def test_what_waits_is_dropped(self):
        started = []

        class Slow(BytesSource):
            def readinto(self, offset, view):
                started.append(offset)
                if offset == 0:
                    raise OSError("broken")
                time.sleep(0.01)
                return super().readinto(offset, view)

        with pytest.raises(OSError, match="broken"):
            compress(Slow(DATA * 10), io.BytesIO(), codec="lz4", threads=1)
        assert len(started) <= 2

    def test_no_thread_is_left(self):
        before = threading.active_count()
        with pytest.raises(OSError, match="broken"):
            compress(FailingSource(DATA, OSError("broken")), io.BytesIO(), codec="lz4", threads=4)
        assert threading.active_count() == before


@settings(max_examples=30)
@given(
    codec=st.sampled_from(sorted(REFERENCE)),
    parts=st.lists(st.tuples(st.binary(max_size=64), st.integers(1, 9000)), max_size=6),
    threads=st.integers(1, 4),
)
def test_any_data_comes_back(codec, parts, threads):
    data = b"".join(piece * count for piece, count in parts)
    assert REFERENCE[codec](packed(data, codec=codec, threads=threads)) == data
