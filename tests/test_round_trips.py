"""Random content, cut anywhere, through reference encoders and back through gpuload."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gpuload
from gpuload import pipeline
from tests.helpers import host
from tests.helpers.encoders import ENCODERS
from tests.helpers.loading import NOISE, TEXT, decoded, written

quick = settings(
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Content:
    """A content by how it is made, so that a failing example can be read."""

    pattern: bytes = b""
    times: int = 0
    noise: int = 0
    zeros: int = 0
    cuts: tuple[int, ...] = ()

    def parts(self) -> list[bytes]:
        """Return the content, cut at `cuts` (modulo its size)."""
        content = self.pattern * self.times + NOISE[: self.noise] + bytes(self.zeros) + self.pattern
        cuts = sorted(cut % (len(content) + 1) for cut in self.cuts)
        return [content[a:b] for a, b in pairwise([0, *cuts, len(content)])]


contents = st.builds(
    Content,
    pattern=st.binary(max_size=200),
    times=st.integers(0, 500),
    noise=st.integers(0, 70_000),
    zeros=st.integers(0, 140_000),
    cuts=st.lists(st.integers(0, 300_000), max_size=12).map(tuple),
)
LARGE = Content(pattern=b"not quite random", times=9_000, noise=90_000, cuts=(3, 70_003, 140_003))


@pytest.mark.parametrize("name", ENCODERS)
@given(
    content=contents,
    threads=st.sampled_from([1, 2, 5]),
    window=st.sampled_from([1, 4_096, 100_000, pipeline.WINDOW]),
)
@example(content=Content(), threads=1, window=1)
@example(content=Content(b"x", cuts=(0, 0, 1)), threads=2, window=1)
@example(content=LARGE, threads=3, window=65_536)
@quick
def test_comes_back(name, content, threads, window, tmp_path):
    """Through memory and through files, with windows of any size."""
    file, raw = ENCODERS[name](content.parts()), b"".join(content.parts())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "WINDOW", window)
        assert decoded(file, threads=threads) == raw
        assert written(file, tmp_path / "ordered", threads=threads) == raw
        assert written(file, tmp_path / "any", positional=True, threads=threads) == raw


@pytest.mark.parametrize("name", ENCODERS)
@given(content=contents, threads=st.sampled_from([1, 3]))
@quick
def test_verify_agrees(name, content, threads):
    parts = content.parts()
    file = ENCODERS[name](parts)
    with host.open(file, threads=threads) as container:
        report = container.verify()
        assert report.failures == []
        assert report.raw_size == sum(map(len, parts))
        assert container.raw_size in (None, report.raw_size)
        assert container.raw_bound >= report.raw_size
        assert report.chunks == container.chunks.size


@pytest.mark.parametrize("name", ENCODERS)
@given(content=contents, extra=st.integers(-3, 3))
@quick
def test_out_has_to_fit(name, content, extra):
    raw = b"".join(content.parts())
    file = ENCODERS[name](content.parts())
    out = np.full(max(0, len(raw) + extra), 0xAA, np.uint8)
    if out.size != len(raw):
        with pytest.raises(ValueError, match=rf"out holds {out.size} bytes, .* decodes to"):
            host.load(file, out=out)
    else:
        host.load(file, out=out)
        assert out.tobytes() == raw


@pytest.mark.parametrize("name", ENCODERS)
@given(content=contents, less=st.integers(0, 2_000))
@quick
def test_max_output(name, content, less):
    """A limit of the exact size lets it through, any smaller one does not."""
    raw = b"".join(content.parts())
    file = ENCODERS[name](content.parts())
    limit = max(0, len(raw) - less)
    if limit == len(raw):
        assert decoded(file, max_output=limit) == raw
    else:
        with pytest.raises(gpuload.errors.MemoryLimitError, match=r"max_output.*--max-output"):
            decoded(file, max_output=limit)


@pytest.mark.parametrize("name", ENCODERS)
def test_large(name):
    """Several windows of the real size, with chunks of all sizes."""
    content = (TEXT + NOISE + bytes(100_000)) * 12
    sizes = [1, 10, 1_000, 65_536, 65_535, 300_000, 1_500_000, 3]
    edges = [*np.cumsum([0, *sizes]).tolist(), len(content)]
    parts = [content[a:b] for a, b in itertools.pairwise(edges)]
    file = ENCODERS[name](parts)
    assert decoded(file, threads=1) == decoded(file, threads=4) == content
