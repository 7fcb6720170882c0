"""Random content, cut anywhere, through reference encoders and back through gpuload."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gpuload
from gpuload import pipeline
from tests.helpers.encoders import ENCODERS
from tests.helpers.loading import NOISE, TEXT, decoded, written

quick = settings(
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def contents(draw: st.DrawFn) -> list[bytes]:
    """Draw the parts of a content: noise, repetitions and zeros of up to about 300 KiB."""
    pattern = draw(st.binary(max_size=200))
    content = b"".join(
        (
            pattern * draw(st.integers(0, 500)),
            NOISE[: draw(st.integers(0, 70_000))],
            bytes(draw(st.integers(0, 140_000))),
            pattern,
        )
    )
    cuts = draw(st.lists(st.integers(0, len(content)), max_size=12))
    edges = [0, *sorted(cuts), len(content)]
    return [content[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize("name", ENCODERS)
@given(
    parts=contents(),
    threads=st.sampled_from([1, 2, 5]),
    window=st.sampled_from([1, 4_096, 100_000, pipeline.WINDOW]),
)
@example(parts=[], threads=1, window=1)
@example(parts=[b""], threads=2, window=1)
@example(parts=[b"", b"", b"x", b""], threads=2, window=1)
@example(parts=[TEXT, NOISE] * 3, threads=3, window=65_536)
@quick
def test_comes_back(name, parts, threads, window, tmp_path):
    """Through memory and through files, with windows of any size."""
    file, content = ENCODERS[name](parts), b"".join(parts)
    if not file:
        return  # encoders of no parts make no file, which is of no format
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "WINDOW", window)
        assert decoded(file, threads=threads) == content
        assert written(file, tmp_path / "ordered", threads=threads) == content
        assert written(file, tmp_path / "any", positional=True, threads=threads) == content


@pytest.mark.parametrize("name", ENCODERS)
@given(parts=contents(), threads=st.sampled_from([1, 3]))
@quick
def test_verify_agrees(name, parts, threads):
    file = ENCODERS[name]([*parts, b"at least this"])
    with gpuload.open(file, threads=threads) as container:
        report = container.verify()
        assert report.failures == []
        assert report.raw_size == sum(map(len, parts)) + 13
        assert container.raw_size in (None, report.raw_size)
        assert container.raw_bound >= report.raw_size
        assert report.chunks == container.chunks.size


@pytest.mark.parametrize("name", ENCODERS)
@given(parts=contents(), extra=st.integers(-3, 3))
@quick
def test_out_has_to_fit(name, parts, extra):
    content = b"".join(parts) + b"at least this"
    file = ENCODERS[name]([*parts, b"at least this"])
    out = np.full(len(content) + extra, 0xAA, np.uint8)
    if extra:
        with pytest.raises(ValueError, match=rf"out holds {out.size} bytes, .* decodes to"):
            gpuload.load(file, out=out)
    else:
        assert np.shares_memory(gpuload.load(file, out=out), out)
        assert out.tobytes() == content


@pytest.mark.parametrize("name", ENCODERS)
@given(parts=contents(), less=st.integers(0, 2_000))
@quick
def test_max_output(name, parts, less):
    """A limit of the exact size lets it through, any smaller one does not."""
    content = b"".join(parts) + b"at least this"
    file = ENCODERS[name]([*parts, b"at least this"])
    limit = max(0, len(content) - less)
    if limit == len(content):
        assert decoded(file, max_output=limit) == content
    else:
        with pytest.raises(gpuload.errors.MemoryLimitError, match=r"max_output.*--max-output"):
            decoded(file, max_output=limit)


@pytest.mark.parametrize("name", ENCODERS)
def test_large(name):
    """Several windows of the real size, with chunks of all sizes."""
    content = (TEXT + NOISE + bytes(100_000)) * 12
    sizes = [1, 10, 1_000, 65_536, 65_535, 300_000, 1_500_000, 3]
    edges = np.cumsum([0, *sizes]).tolist() + [len(content)]
    parts = [content[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    file = ENCODERS[name](parts)
    assert decoded(file, threads=1) == decoded(file, threads=4) == content
