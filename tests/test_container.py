"""Containers: limits, what they say of their files, warnings, checksums and lifetimes."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import inspect
import json
import os
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import numpy as np
import pytest
import zstandard

import gpuload
from gpuload import container
from gpuload.errors import (
    DecompressError,
    FormatError,
    FormatWarning,
    MemoryLimitError,
    UnsupportedCodecError,
)
from gpuload.sources import BytesSource
from tests.helpers import host
from tests.helpers.encoders import ENCODERS
from tests.helpers.handmade import bgzf_block
from tests.helpers.loading import MIB, NOISE, TEXT, allocating_at_most, decoded, written

CONTENT = TEXT[:100_000] + NOISE
PARTS = [CONTENT[at : at + 60_000] for at in range(0, len(CONTENT), 60_000)]
FILE = lz4.frame.compress(CONTENT, block_linked=False, content_checksum=True, block_size=4)
#: A file that states its decoded size, and one that does not.
EXACT = zstandard.ZstdCompressor().compress(CONTENT)
INEXACT = gzip.compress(CONTENT)
GARBAGE = INEXACT + b"garbage"

every_format = pytest.mark.parametrize("name", ENCODERS)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "content.lz4"
    path.write_bytes(FILE)
    return path


class TestLimits:
    def test_max_output_before_allocating(self, monkeypatch):
        """Where the size is stated, it is compared before any memory is taken."""
        monkeypatch.setattr(container, "allocate", lambda *_: pytest.fail("allocated"))
        message = rf"{len(CONTENT)} bytes.*{len(CONTENT) - 1}; raise max_output \(--max-output\)"
        with pytest.raises(MemoryLimitError, match=message):
            host.load(EXACT, max_output=len(CONTENT) - 1)

    @pytest.mark.parametrize("file", [FILE, INEXACT], ids=["lz4", "gzip"])
    def test_max_output_while_decoding(self, file, tmp_path):
        """Where it is not, decoding stops at the limit."""
        for limit in (0, 1, len(CONTENT) - 1):
            with pytest.raises(MemoryLimitError, match=r"max_output \(--max-output\)"):
                host.load(file, max_output=limit)
            with pytest.raises(MemoryLimitError, match=r"max_output \(--max-output\)"):
                written(file, tmp_path / "out", max_output=limit)
            assert (tmp_path / "out").stat().st_size <= limit

    @every_format
    def test_max_output_holds_for_every_way(self, name, tmp_path):
        file = ENCODERS[name](PARTS)
        with host.open(file, max_output=1_000) as container:
            with pytest.raises(MemoryLimitError, match="max_output"):
                container.load()
            with pytest.raises(MemoryLimitError, match="max_output"):
                container.verify()
            with pytest.raises(MemoryLimitError, match="max_output"):
                container.load(out=bytearray(len(CONTENT)))

    def test_default_max_output(self):
        """The default lets pass 1 GiB, so that a bomb of more stops there, in little memory."""
        bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB)) * 17
        with host.open(bomb) as container:
            assert container.raw_bound > 1 << 30
            with allocating_at_most(64 * MIB), pytest.raises(MemoryLimitError, match="1073741824"):
                container.verify()

    @every_format
    @pytest.mark.parametrize("memory_limit", [4 * MIB, MIB, 100_000, 10_000, 1])
    def test_memory_limit(self, name, memory_limit, tmp_path):
        """A file is decoded within the limit or refused, never taken for broken."""
        file = ENCODERS[name](PARTS)
        for way in (lambda **o: decoded(file, **o), lambda **o: written(file, tmp_path / "o", **o)):
            try:
                outcome = way(memory_limit=memory_limit, threads=3)
            except MemoryLimitError as error:
                outcome = str(error)
            assert outcome == CONTENT or "memory_limit" in str(outcome)


class TestContainer:
    FORMATS = (
        ("lz4 linked blocks", "lz4", False),
        ("lz4 independent blocks", "lz4", True),
        ("zstd frames", "zstd", True),
        ("zstd blocks", "zstd", False),
        ("gzip members", "gzip", False),
        ("bgzf", "bgzf", True),
        ("snappy", "snappy", True),
    )

    @pytest.mark.parametrize(("name", "form", "batchable"), FORMATS)
    def test_says_what_it_is(self, name, form, batchable):
        with host.open(ENCODERS[name](PARTS)) as container:
            assert container.format == form
            assert container.batchable is batchable
            assert bool(container.serial) is not batchable
            assert form in repr(container)
            assert [asset.name for asset in container.assets] == [""]
            assert container.warnings == []

    @pytest.mark.parametrize(("name", "form", "batchable"), FORMATS)
    @pytest.mark.parametrize("verify", ["auto", True, False])
    def test_explains(self, name, form, batchable, verify):
        with host.open(ENCODERS[name](PARTS), threads=3, verify=verify) as container:
            (explanation,) = container.explain()
        assert explanation.asset == ""
        assert explanation.engine == "host"
        assert ("3 threads" in explanation.reason) is batchable
        assert ("one thread" in explanation.reason) is not batchable
        assert ("not checked" in explanation.checksums) is (verify is False)
        known = {"lz4": "xxHash-32", "zstd": "xxHash-64", "snappy": "CRC-32C"}
        assert known.get(form, "CRC-32") in explanation.checksums

    def test_explains_that_there_are_no_checksums(self):
        with host.open(zstandard.ZstdCompressor(write_checksum=False).compress(TEXT)) as file:
            assert file.explain()[0].checksums == "the file has none"

    @every_format
    @pytest.mark.parametrize("verify", ["auto", True, False])
    def test_counts_checksums(self, name, verify):
        """Each checksum is either verified or named as unverified, never both."""
        with host.open(ENCODERS[name](PARTS), verify=verify) as container:
            report = container.verify()
        if verify is False:
            assert report.verified == {}
        else:
            assert report.unverified == {}
            assert bool(report.verified) is ("without" not in name and "legacy" not in name)

    @every_format
    def test_loads_again_and_again(self, name):
        with host.open(ENCODERS[name](PARTS)) as container:
            first, second = container.load(), container.load()
            assert bytes(first) == bytes(second) == CONTENT
            assert not np.shares_memory(first, second)

    @every_format
    def test_loads_in_several_threads_at_once(self, name):
        with host.open(ENCODERS[name](PARTS), threads=2) as container:
            with ThreadPoolExecutor(4) as pool:
                loads = [pool.submit(lambda: bytes(container.load())) for _ in range(8)]
            assert {load.result() for load in loads} == {CONTENT}

    def test_reports(self):
        with host.open(FILE, threads=2) as container:
            report = container.verify()
        assert (report.raw_size, report.stored_size) == (len(CONTENT), len(FILE))
        assert report.engine == "host"
        assert report.chunks == 4
        assert 1 <= report.threads <= 2
        assert report.seconds > 0

    def test_collects_every_failure(self):
        blocks = [bytearray(bgzf_block(part)) for part in PARTS]
        for number in (0, 2):
            blocks[number][-8] ^= 1
        with host.open(b"".join(blocks), threads=3) as container:
            report = container.verify()
        assert [failure.chunk for failure in report.failures] == [0, 2]
        assert [failure.expected_size for failure in report.failures] == [60_000, 60_000]
        assert report.verified == {"crc32": 2}

    @every_format
    def test_failures_are_plain_values(self, name):
        """Sizes that came out, None where nothing did, and no types of NumPy."""
        file = bytearray(ENCODERS[name](PARTS))
        file[len(file) // 3] ^= 0xFF
        with host.open(bytes(file)) as container:
            failures = container.verify().failures
        assert failures or "without" in name or "legacy" in name
        for failure in failures:
            fields = dataclasses.asdict(failure)
            assert json.loads(json.dumps(fields)) == fields
            assert failure.actual_size != 0, "None stands for a size that is not known"

    def test_close(self, path):
        container = host.open(path)
        loaded = container.load()
        container.close()
        container.close()
        assert bytes(loaded) == CONTENT, "what was loaded stays valid"
        assert container.explain()

    @pytest.mark.parametrize(
        "use",
        [
            lambda container: container.load(),
            lambda container: container.load(out=np.empty(len(CONTENT), np.uint8)),
            lambda container: container.verify(),
            lambda container: container.write_to(-1),
        ],
    )
    def test_use_after_close(self, path, use):
        for source in (path, FILE):
            container = host.open(source)
            container.close()
            with pytest.raises(ValueError, match=f"^{container.name}: the container is closed"):
                use(container)

    def test_leaves_the_file_when_it_ends(self, path):
        with host.open(path) as container:
            assert len(os.listdir("/proc/self/fd")) >= 1
        with pytest.raises(ValueError, match="the container is closed"):
            container.verify()

    def test_progress(self):
        """Told from the calling thread, with numbers that grow and stay within the sizes."""
        told, go_on = [], threading.Event()

        class Slow(BytesSource):
            patient = False

            def readinto(self, offset, view):
                # Until the first call, decoding stands still.
                if self.patient:
                    go_on.wait(30)
                return super().readinto(offset, view)

        def progress(raw, stored):
            told.append((raw, stored, threading.get_ident()))
            go_on.set()

        source = Slow(FILE)
        with host.open(source) as container:
            source.patient = True
            container.verify(progress=progress)
        assert told
        assert {ident for _, _, ident in told} == {threading.get_ident()}
        assert told == sorted(told)
        assert all(raw <= len(CONTENT) and stored <= len(FILE) for raw, stored, _ in told)


class TestWarnings:
    def test_on_load(self):
        with pytest.warns(FormatWarning, match=f"byte {len(INEXACT)}") as caught:
            assert bytes(host.load(GARBAGE)) == CONTENT
        assert len(caught) == 1

    def test_points_to_the_caller(self):
        """The line that is shown is the user's, not one of gpuload's."""
        with pytest.warns(FormatWarning) as caught:
            gpuload.load(GARBAGE, device="cpu")
        with gpuload.open(GARBAGE) as container, pytest.warns(FormatWarning) as again:
            container.load(device="cpu")
        assert [w.filename for w in (*caught, *again)] == [inspect.getfile(type(self))] * 2

    def test_once_for_each_load(self):
        """A file that is loaded twice does not deviate twice."""
        with host.open(GARBAGE) as container, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                container.load()
            container.verify()
            assert len(container.warnings) == 1
        assert len(caught) == 3

    def test_strict(self):
        with pytest.raises(FormatError, match=f"byte {len(INEXACT)}"):
            host.load(GARBAGE, strict=True)

    def test_found_when_opened(self):
        with host.open(bgzf_block(b"no end")) as container:
            assert len(container.warnings) == 1
        with pytest.raises(FormatError, match="end-of-file block"):
            host.open(bgzf_block(b"no end"), strict=True)

    def test_writing_and_verifying_do_not_warn_but_note(self):
        with host.open(GARBAGE) as container:
            container.verify()
            assert len(container.warnings) == 1


class TestVerify:
    @pytest.mark.parametrize("name", ["lz4 linked blocks", "gzip members", "bgzf", "snappy"])
    def test_off(self, name, tmp_path):
        """Without it a wrong checksum goes unnoticed, and the report says that it was not read."""
        file = bytearray(ENCODERS[name]([b"some content"]))
        place = {"lz4 linked blocks": -1, "gzip members": -8, "bgzf": -36, "snappy": 24}[name]
        file[place] ^= 1
        with pytest.raises(gpuload.errors.ChecksumError):
            decoded(bytes(file))
        assert decoded(bytes(file), verify=False) == b"some content"
        assert written(bytes(file), tmp_path / "out", verify=False) == b"some content"

    def test_off_for_zstd(self):
        """The same holds where the library would compare the checksum by itself."""
        file = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(b"some content"))
        file[-1] ^= 1
        with pytest.raises(gpuload.errors.ChecksumError):
            decoded(bytes(file))
        assert decoded(bytes(file), verify=False) == b"some content"

    def test_off_still_checks_sizes(self):
        """A size is no checksum."""
        file = bytearray(zstandard.ZstdCompressor(write_checksum=False).compress(TEXT[:300]))
        assert file[4] >> 6 == 1, "the content size takes two bytes"
        file[5] ^= 1
        with pytest.raises(gpuload.errors.DecompressError):
            decoded(bytes(file), verify=False)


def test_missing_dictionary_names_the_option(corpus):
    with pytest.raises(UnsupportedCodecError, match="--dictionary"):
        host.open(corpus / "zstd/dictionary_needed.zst")


def damaged(name: str, chunk: int) -> bytes:
    """Return a file of PARTS with a byte in the middle of one chunk's payload changed."""
    file = bytearray(ENCODERS[name](PARTS))
    row = host.open(bytes(file)).chunks[chunk]
    file[int(row["offset"]) + int(row["stored_size"]) // 2] ^= 0xFF
    return bytes(file)


class TestOnError:
    EXACT = ("bgzf", "snappy", "snappy chunks", "zstd frames")

    @pytest.mark.parametrize("name", EXACT)
    @pytest.mark.parametrize("threads", [1, 3])
    def test_skip(self, name, threads):
        """A chunk of known size that fails becomes zeros, a warning and a failure in the report."""
        file, first = damaged(name, 2), 2 * 60_000
        size = int(host.open(file).chunks["raw_size"][2])
        with host.open(file, on_error="skip", threads=threads) as container:
            with pytest.warns(FormatWarning, match="chunk 2"):
                found = bytes(container.load())
            assert [failure.chunk for failure in container.report.failures] == [2]
        assert found == CONTENT[:first] + bytes(size) + CONTENT[first + size :]

    @pytest.mark.parametrize("name", EXACT)
    def test_skip_while_writing(self, name, tmp_path):
        file, first = damaged(name, 2), 2 * 60_000
        size = int(host.open(file).chunks["raw_size"][2])
        for positional in (True, False):
            found = written(file, tmp_path / "out", positional=positional, on_error="skip")
            assert found == CONTENT[:first] + bytes(size) + CONTENT[first + size :]

    @pytest.mark.parametrize("name", ["lz4 independent blocks", "zstd blocks", "gzip members"])
    def test_skip_where_sizes_are_not_known(self, name):
        """Nobody knows how many zeros to put there."""
        with pytest.raises(DecompressError):
            decoded(damaged(name, 0), on_error="skip")

    @pytest.mark.parametrize("name", EXACT)
    @pytest.mark.parametrize("on_error", ["raise", "retry-host"])
    def test_others_raise(self, name, on_error):
        with pytest.raises(DecompressError, match="chunk 2"):
            decoded(damaged(name, 2), on_error=on_error)


class TestLifetime:
    @pytest.fixture(autouse=True)
    def without_collector(self):
        """Memory of results must not wait for the cyclic garbage collector."""
        gc.collect()
        gc.disable()
        yield
        gc.enable()

    @every_format
    def test_results_are_freed_with_their_last_reference(self, name):
        out = np.empty(len(CONTENT), np.uint8)
        gone = weakref.ref(out)
        host.load(ENCODERS[name](PARTS), out=out)
        del out
        assert gone() is None

    @every_format
    def test_sources_are_let_go(self, name):
        """A buffer can be resized once its container is closed, although that is still there."""
        file = bytearray(ENCODERS[name](PARTS))
        with host.open(file) as container:
            container.load()
        file.append(0)
        assert container.format
