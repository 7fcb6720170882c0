"""Sources become machine code, once; what fails says why. Nothing here needs a GPU."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from gpuload import driver
from gpuload.errors import DriverError, UnsupportedCodecError
from gpuload.kernels import compiler, nvrtc
from tests.helpers.fresh import fresh_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(compiler.unavailable()), reason=compiler.unavailable())

#: From the oldest that is supported to the newest there are: Turing, Ampere (data centre and
#: others), Ada, Hopper, Blackwell (data centre and others).
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("codec", compiler.SOURCES)
def test_every_kernel(codec: str, arch: str) -> None:
    compiled = compiler.compile_codec(codec, arch)
    lanes = 4 if codec.startswith("xxh") else 128 if codec in compiler.FILTERS else 32
    assert compiled.code.code.startswith(b"\x7fELF")
    assert f"\0.text.{codec}_{lanes}\0".encode() in compiled.code.code


class TestCache:
    def test_second_time(self, sources, compilations) -> None:
        first = compiler.compile_codec("tiny", "sm_90", folder=sources)
        assert compiler.compile_codec("tiny", "sm_90", folder=sources) is first
        assert (first.cached, first.problem, compilations) == (False, "", ["sm_90"])
        assert first.seconds > 0

    def test_second_process(self, sources, compilations, new_process) -> None:
        first = compiler.compile_codec("tiny", "sm_90", folder=sources)
        new_process()
        second = compiler.compile_codec("tiny", "sm_90", folder=sources)
        assert (second.cached, second.problem, compilations) == (True, "", ["sm_90"])
        assert second.code.code == first.code.code

    def test_another_architecture(self, sources, compilations) -> None:
        for arch in ("sm_90", "sm_75"):
            compiler.compile_codec("tiny", arch, folder=sources)
        assert compilations == ["sm_90", "sm_75"]

    @pytest.mark.parametrize("name", ["tiny.cu", "add.cuh", "one.cuh"])
    def test_changed_source(self, sources, compilations, new_process, name: str) -> None:
        first = compiler.compile_codec("tiny", "sm_90", folder=sources)
        path = sources / name
        path.write_text(path.read_text().replace("ONE 1", "ONE 2").replace("x + ", "x - "))
        if name == "tiny.cu":
            path.write_text(path.read_text().replace("add(*x)", "add(add(*x))"))
        new_process()
        second = compiler.compile_codec("tiny", "sm_90", folder=sources)
        assert compilations == ["sm_90", "sm_90"]
        assert second.code.code != first.code.code

    def test_content_counts_and_not_place(
        self, sources, compilations, new_process, tmp_path
    ) -> None:
        compiler.compile_codec("tiny", "sm_90", folder=sources)
        new_process()
        moved = sources.rename(tmp_path / "moved")
        assert compiler.compile_codec("tiny", "sm_90", folder=moved).cached

    def test_another_compiler(self, sources, compilations, new_process, monkeypatch) -> None:
        keys = pytest.importorskip("cuda.core.utils._program_cache._keys")
        compiler.compile_codec("tiny", "sm_90", folder=sources)
        new_process()
        monkeypatch.setattr(keys, "_nvrtc_version", lambda: (13, 99))
        compiler.compile_codec("tiny", "sm_90", folder=sources)
        assert compilations == ["sm_90", "sm_90"]

    def test_damaged(self, sources, compilations, new_process, cache) -> None:
        first = compiler.compile_codec("tiny", "sm_90", folder=sources)
        (entry,) = (path for path in cache.rglob("*") if path.is_file())
        entry.write_bytes(entry.read_bytes()[:-100])
        for cached in (False, True):
            new_process()
            again = compiler.compile_codec("tiny", "sm_90", folder=sources)
            assert (again.code.code, again.cached) == (first.code.code, cached)
        assert compilations == ["sm_90", "sm_90"]

    def test_no_folder_to_write(self, sources, compilations, new_process, cache) -> None:
        cache.parent.write_bytes(b"a file where the folder should be")
        for _ in range(2):
            new_process()
            compiled = compiler.compile_codec("tiny", "sm_90", folder=sources)
            assert not compiled.cached
            assert str(cache) in compiled.problem
        assert compilations == ["sm_90", "sm_90"]


class TestAtTheSameTime:
    def test_threads(self, sources, compilations) -> None:
        together = threading.Barrier(8)

        def ask(_: int) -> compiler.Compiled:
            together.wait()
            return compiler.compile_codec("tiny", "sm_90", folder=sources)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(8)))
        assert compilations == ["sm_90"]
        assert all(answer is answers[0] for answer in answers)

    def test_processes(self, sources) -> None:
        script = (
            "import hashlib, pathlib, sys\n"
            "from gpuload.kernels import compiler\n"
            "made = compiler.compile_codec('tiny', 'sm_90', folder=pathlib.Path(sys.argv[1]))\n"
            "print(hashlib.sha256(made.code.code).hexdigest(), made.problem)"
        )
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: fresh_python(script, sources), range(3)))
        assert len(set(answers)) == 1
        assert compiler.compile_codec("tiny", "sm_90", folder=sources).cached

    def test_fork_during_a_compilation(self, sources) -> None:
        """The child has no thread that would ever release the parent's lock."""
        fresh_python(
            "import os, pathlib, sys\n"
            "from gpuload.kernels import compiler\n"
            "compiler._lock.acquire()\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    compiler.compile_codec('tiny', 'sm_90', folder=pathlib.Path(sys.argv[1]))\n"
            "    os._exit(7)\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7",
            sources,
        )


class TestRefused:
    @pytest.mark.parametrize("codec", ["zstd", "", "nul\0", "../kernels/raw"])
    def test_unknown_codec(self, codec: str) -> None:
        with pytest.raises(
            UnsupportedCodecError, match=r"there are bit_unshuffle, .*, raw, .*, snappy"
        ):
            compiler.compile_codec(codec, "sm_90")

    @pytest.mark.parametrize("arch", ["sm_70", "sm_999", "90", "", "sm_90 --x"])
    def test_unknown_architecture(self, arch: str) -> None:
        with pytest.raises(DriverError, match=r"does not compile for .*, but for sm_75, sm_80,"):
            compiler.compile_codec("raw", arch)

    def test_source(self, sources) -> None:
        (sources / "one.cuh").write_text("#define ONE unheard_of\n")
        with pytest.raises(DriverError) as caught:
            compiler.compile_codec("tiny", "sm_90", folder=sources)
        message = str(caught.value)
        assert message.startswith(f"{nvrtc.find()} failed to compile tiny.cu for sm_90: ")
        assert message.endswith('add.cuh(3): error: identifier "unheard_of" is undefined')
        assert message.isprintable()

    def test_log_without_a_marked_error(self, sources, monkeypatch) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("it\n\n  went\twrong\n\0")

        monkeypatch.setattr("cuda.core.Program", fail)
        with pytest.raises(DriverError, match=r"for sm_90: it; went wrong$"):
            compiler.compile_codec("tiny", "sm_90", folder=sources)

    def test_long_log(self, sources) -> None:
        errors = "wrong;\n" * 5000
        (sources / "tiny.cu").write_text(errors)
        with pytest.raises(DriverError, match=r"tiny\.cu\(1\): error:") as caught:
            compiler.compile_codec("tiny", "sm_90", folder=sources)
        assert len(str(caught.value)) < 2000
        assert str(caught.value).endswith(" [...]")

    def test_mended_source(self, sources) -> None:
        """A failure is not kept."""
        kept = (sources / "one.cuh").read_text()
        (sources / "one.cuh").write_text("")
        with pytest.raises(DriverError):
            compiler.compile_codec("tiny", "sm_90", folder=sources)
        (sources / "one.cuh").write_text(kept)
        compiler.compile_codec("tiny", "sm_90", folder=sources)


class TestDevices:
    @pytest.fixture
    def device(self, monkeypatch) -> SimpleNamespace:
        """Stand for a device; the test may change what it answers."""
        device = SimpleNamespace(name="a GPU", compute_capability=(9, 0), driver_version=(13, 0))
        monkeypatch.setattr(driver, "capabilities", lambda number: device)
        return device

    @pytest.mark.parametrize(
        ("capability", "arch"), [((7, 5), "sm_75"), ((9, 0), "sm_90"), ((12, 0), "sm_120")]
    )
    def test_architecture(self, device, capability: tuple[int, int], arch: str) -> None:
        device.compute_capability = capability
        assert compiler.refusal(0) == ""
        assert compiler.architecture(0) == arch

    def test_too_old(self, device) -> None:
        device.compute_capability = (7, 0)
        reason = "a GPU has compute capability 7.0; the kernels need 7.5 or newer"
        assert compiler.refusal(0) == reason
        with pytest.raises(DriverError, match=f"device 0 can't run kernels: {reason}"):
            compiler.architecture(0)

    def test_too_new(self, device) -> None:
        device.compute_capability = (99, 1)
        assert "does not compile for 'sm_991', but for sm_75," in compiler.refusal(0)

    def test_old_driver(self, device) -> None:
        device.driver_version = (12, 8)
        assert compiler.refusal(0) == (
            f"{nvrtc.find()} compiles for drivers of CUDA 13.0 and newer, and this driver is of "
            "CUDA 12.8: update the driver"
        )

    def test_newer_driver(self, device) -> None:
        device.driver_version = (14, 1)
        assert compiler.refusal(0) == ""


class TestKernel:
    """Loading, with a stand-in for the driver."""

    @pytest.fixture(autouse=True)
    def device(self, monkeypatch) -> None:
        @contextlib.contextmanager
        def on_device(number: int) -> Iterator[None]:
            yield

        monkeypatch.setattr(driver, "on_device", on_device)
        monkeypatch.setattr(driver, "claim", lambda: None)
        monkeypatch.setattr(driver, "calling", lambda name, purpose: contextlib.nullcontext())
        monkeypatch.setattr(compiler, "architecture", lambda number: f"sm_{80 + number}")

    @pytest.fixture(autouse=True)
    def loaded(self, monkeypatch) -> list[tuple[str, str]]:
        """Return the architectures and names of the kernels that were asked for."""
        asked: list[tuple[str, str]] = []

        class Code:
            def __init__(self, arch: str) -> None:
                self.arch = arch

            def get_kernel(self, name: str) -> Code:
                asked.append((self.arch, name))
                return Code(name)

        monkeypatch.setattr(
            compiler, "compile_codec", lambda codec, arch: SimpleNamespace(code=Code(arch))
        )
        return asked

    def test_once_each(self, loaded) -> None:
        wanted = [(0, "raw", 32), (0, "lz4", 32), (0, "lz4", 8), (1, "lz4", 8)]
        first = [compiler.kernel(*each) for each in wanted]
        assert [compiler.kernel(*each) for each in wanted] == first
        assert len(set(first)) == 4
        assert loaded == [
            ("sm_80", "raw_32"),
            ("sm_80", "lz4_32"),
            ("sm_80", "lz4_8"),
            ("sm_81", "lz4_8"),
        ]

    def test_threads(self, loaded) -> None:
        together = threading.Barrier(8)

        def ask(_: int) -> object:
            together.wait()
            return compiler.kernel(0, "raw", 32)

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(ask, range(8)))) == 1

    def test_forked_child(self, loaded, monkeypatch) -> None:
        """The parent's kernels are of no use there."""

        def refuse() -> None:
            raise DriverError("forked")

        compiler.kernel(0, "raw", 32)
        monkeypatch.setattr(driver, "claim", refuse)
        with pytest.raises(DriverError, match="forked"):
            compiler.kernel(0, "raw", 32)


def test_warm_up(compilations: list[str], cache: Path) -> None:
    rows = compiler.warm_up("sm_90")
    assert [row.codec for row in rows] == list(compiler.SOURCES)
    assert {row.architecture for row in rows} == {"sm_90"}
    assert compilations == ["sm_90"] * len(rows)
    assert len([path for path in cache.rglob("*") if path.is_file()]) == len(rows)
