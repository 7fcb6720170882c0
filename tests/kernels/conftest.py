"""Kernels to compile, a cache of each test's own, and a count of what is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuload.kernels import compiler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of compiled kernels, which does not exist yet."""
    monkeypatch.setenv("GPULOAD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes the compiler forget what this process compiled."""

    def forget() -> None:
        monkeypatch.setattr(compiler, "_compiled", {})
        monkeypatch.setattr(compiler, "_kernels", {})

    forget()
    return forget


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return a folder with the source of one kernel and what it includes.

    Its name has what an option could trip over.
    """
    folder = tmp_path / "sources, and 'more' \u4e2d"
    folder.mkdir()
    (folder / "tiny.cu").write_text(
        '#include "add.cuh"\nextern "C" __global__ void tiny_32(int* x) { *x = add(*x); }\n'
    )
    (folder / "add.cuh").write_text(
        '#pragma once\n#include "one.cuh"\n__device__ int add(int x) { return x + ONE; }\n'
    )
    (folder / "one.cuh").write_text("#define ONE 1\n")
    return folder


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the architectures of the compilations from now on."""
    done: list[str] = []
    compile_source = compiler._compile

    def counted(source: str, options: object) -> bytes:
        done.append(options.arch)
        return compile_source(source, options)

    monkeypatch.setattr(compiler, "_compile", counted)
    return done
