"""Whether NVRTC is found, and what is said where it is not."""

from __future__ import annotations

import sys

import pytest

from gpuload.errors import MissingDependencyError
from gpuload.kernels import compiler, nvrtc
from tests.helpers.fresh import fresh_python


@pytest.fixture(autouse=True)
def _ask_anew() -> None:
    yield
    nvrtc.lacking.cache_clear()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    """Let the library that is found be another one."""

    def replace(library: nvrtc.Nvrtc | None) -> None:
        monkeypatch.setattr(nvrtc, "find", lambda: library)
        nvrtc.lacking.cache_clear()

    return replace


def test_none(found) -> None:
    found(None)
    assert compiler.unavailable() == (
        "compiling GPU kernels needs nvidia-cuda-nvrtc: pip install 'gpuload[cuda]'"
    )
    with pytest.raises(MissingDependencyError, match=r"gpuload\[cuda\]") as caught:
        compiler.compile_codec("raw", "sm_90")
    assert caught.value.extra == "cuda"


def test_no_cuda_core(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setattr(nvrtc, "_installed", lambda module: module != "cuda.core")
    nvrtc.lacking.cache_clear()
    assert compiler.unavailable() == (
        "compiling GPU kernels needs cuda-core: pip install 'gpuload[cuda]'"
    )


def test_no_pathfinder(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc, "_installed", lambda module: module != "cuda.pathfinder")
    assert nvrtc.find.__wrapped__() is None


@pytest.mark.parametrize("version", [(12, 9), (14, 0)])
def test_another_version(found, version: tuple[int, int]) -> None:
    found(nvrtc.Nvrtc(version, (90,)))
    assert compiler.unavailable() == (
        "compiling GPU kernels needs NVRTC 13 (what was found is NVRTC {}.{}): "
        "pip install 'gpuload[cuda]'".format(*version)
    )


def test_the_version_that_is_wanted(found) -> None:
    found(nvrtc.Nvrtc((13, 0), (75, 90)))
    assert compiler.unavailable() == ""


def test_library_that_does_not_load(monkeypatch, tmp_path) -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="cuda-pathfinder is not installed")
    broken = tmp_path / "libnvrtc.so.13"
    broken.write_bytes(b"no library")

    class Found:
        abs_path = str(broken)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", lambda _: Found)
    assert nvrtc.find.__wrapped__() is None


def test_asking_imports_no_cuda_core() -> None:
    """That takes a third of a second, and compiling is another matter."""
    loaded = fresh_python(
        "import sys\n"
        "from gpuload.kernels import compiler\n"
        "assert 'cuda' not in sys.modules\n"
        "compiler.unavailable()\n"
        "print('cuda.core' in sys.modules)"
    )
    assert loaded == "False"
