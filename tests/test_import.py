"""What ``import gpuload`` costs and offers, each case in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpuload

HEAVY = ["torch", "zarr", "cupy", "dask", "h5py", "fsspec", "cuda", "click", "numpy"]
CODECS = ["cramjam", "zstandard", "deflate", "lz4", "isal", "xxhash", "google_crc32c"]
#: A gzip member that holds nothing, built after RFC 1952.
EMPTY = "bytes.fromhex('1f8b08000000000000ff 0300 00000000 00000000')"


def fresh(*statements: str) -> str:
    """Run statements in a new interpreter; return what they print."""
    script = "\n".join(["import sys", *statements])
    command = [sys.executable, "-W", "error", "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_imports_nothing_heavy():
    loaded = fresh("import gpuload", "print(*{name.partition('.')[0] for name in sys.modules})")
    assert not set(HEAVY + CODECS) & set(loaded.split())


def test_imports_only_itself():
    loaded = fresh("import gpuload", "print(*sys.modules)").split()
    assert [name for name in loaded if name.startswith("gpuload")] == ["gpuload"]


def test_loading_imports_no_integrations():
    heavy = {"torch", "zarr", "cupy", "dask", "h5py", "fsspec", "click"}
    loaded = fresh(
        "import gpuload",
        f"gpuload.load({EMPTY})",
        "print(*{name.partition('.')[0] for name in sys.modules})",
    )
    assert not heavy & set(loaded.split())


def test_loading_on_the_host_initialises_no_cuda():
    loaded = fresh("import gpuload", f"gpuload.load({EMPTY}, device='cpu')", "print(*sys.modules)")
    assert "cuda" not in loaded.split()


@pytest.mark.parametrize("name", gpuload.__all__)
def test_public_names(name):
    assert fresh("import gpuload", f"print(gpuload.{name} is gpuload.{name})") == "True"


def test_public_names_can_be_imported():
    fresh("from gpuload import *", "print(Array, Container, Options, compress, errors, load, open)")


def test_dir_lists_them():
    listed = fresh("import gpuload", "print(*dir(gpuload))").split()
    assert set(gpuload.__all__) <= set(listed)
    assert listed == sorted(listed)


@pytest.mark.parametrize("name", ["nonsense", "numpy", "Checksum"])
def test_unknown_names(name):
    with pytest.raises(AttributeError, match=f"module 'gpuload' has no attribute '{name}'"):
        getattr(gpuload, name)


def test_unknown_names_cannot_be_imported():
    message = fresh(
        "try:",
        "    from gpuload import nonsense",
        "except ImportError as error:",
        "    print(error)",
    )
    assert "nonsense" in message


@pytest.mark.parametrize(
    "first",
    [
        "import gpuload.compression",
        "from gpuload import compression",
        "import gpuload.loader, gpuload.errors, gpuload.options",
        "import gpuload.containers.lz4, gpuload.codecs.gzip, gpuload.engines.host",
    ],
)
def test_submodules_do_not_hide_functions(first):
    """A function whose module had its name would be replaced by the module."""
    fresh(
        "import gpuload",
        first,
        "assert callable(gpuload.compress), gpuload.compress",
        "assert callable(gpuload.load), gpuload.load",
        "assert callable(gpuload.open), gpuload.open",
        "assert gpuload.errors.GpuloadError",
    )


@pytest.mark.parametrize("name", ["compress", "load", "open"])
def test_no_module_has_the_name_of_a_function(name):
    message = fresh(
        "try:",
        f"    import gpuload.{name}",
        "except ModuleNotFoundError as error:",
        "    print(error.name)",
    )
    assert message == f"gpuload.{name}"


def test_errors_form_one_tree():
    names = [name for name in gpuload.errors.__all__ if name.endswith("Error")]
    assert len(names) >= 8
    for name in names:
        assert issubclass(getattr(gpuload.errors, name), gpuload.errors.GpuloadError)
    assert issubclass(gpuload.errors.ChecksumError, gpuload.errors.DecompressError)
    assert issubclass(gpuload.errors.MissingDependencyError, ImportError)
    assert issubclass(gpuload.errors.FormatWarning, UserWarning)


def test_version():
    assert fresh("import gpuload", "print(gpuload.__version__)").count(".") == 2


def test_cli_is_a_separate_package():
    loaded = fresh("import gpuload", f"gpuload.load({EMPTY})", "print(*sys.modules)").split()
    assert not [name for name in loaded if name.startswith(("gpuload_cli", "click"))]
