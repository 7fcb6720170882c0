"""File systems of fsspec that hold one object and fail on demand, without a network."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any, Self

import pytest

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
asyn = pytest.importorskip("fsspec.asyn", reason="fsspec is not installed")

__all__ = ["KINDS", "AsyncFiles", "Files"]


class _Object:
    """What both kinds share.

    Attributes
    ----------
    content : bytes
        The object, whatever its path.
    faults : deque
        For the next requests for ranges: an exception to raise, a function of the right bytes, or
        "stall".
    ranges : list of (int, int)
        Starts and ends of the ranges that were asked for.
    most : int
        Most requests that ran at a time.
    """

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return a file system of a content; its constructor would make a hash of the content."""
        files = cls()
        files.content = content
        return files

    def __init__(self) -> None:
        super().__init__()
        self.content = b""
        self.faults: deque[Any] = deque()
        self.ranges: list[tuple[int, int]] = []
        self.running = self.most = 0
        self.counting = threading.Lock()
        self.closing = threading.Event()

    def entry(self, path: str) -> dict[str, Any]:
        return {"name": path, "size": len(self.content), "type": "file"}

    def begin(self, start: int, end: int) -> object:
        with self.counting:
            self.ranges.append((start, end))
            self.running += 1
            self.most = max(self.most, self.running)
            return self.faults.popleft() if self.faults else None

    def end(self) -> None:
        with self.counting:
            self.running -= 1

    def answer(self, fault: object, start: int, end: int) -> bytes:
        if isinstance(fault, BaseException):
            raise fault
        data = self.content[start:end]
        return fault(data) if callable(fault) else data


class Files(_Object, fsspec.AbstractFileSystem):
    """A synchronous file system."""

    cachable = False

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        return self.entry(path)

    def cat_file(self, path: str, start: int = 0, end: int = 0, **more: Any) -> bytes:
        fault = self.begin(start, end)
        try:
            if fault == "stall":
                self.closing.wait(60)
            return self.answer(fault, start, end)
        finally:
            self.end()


class AsyncFiles(_Object, asyn.AsyncFileSystem):
    """An asynchronous file system."""

    cachable = False

    async def _info(self, path: str, **more: Any) -> dict[str, Any]:
        return self.entry(path)

    async def _cat_file(self, path: str, start: int = 0, end: int = 0, **more: Any) -> bytes:
        fault = self.begin(start, end)
        try:
            await asyncio.sleep(60 if fault == "stall" else 0.001)
            return self.answer(fault, start, end)
        finally:
            self.end()


KINDS = [Files, AsyncFiles]
