"""Blocks of a remote object that are kept for small reads.

Readers look at a few bytes at a time, mostly from the front to the back, and a request takes tens
of milliseconds. So small reads get whole blocks, and where the block before was read too, the next
ones are requested before they are asked for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuload.sources.attempts import Request

__all__ = ["BLOCK", "ReadAhead"]

#: Bytes of a block.
BLOCK = 1 << 20
#: Blocks that are kept; more than are requested ahead.
KEPT = 16
#: Blocks that are requested ahead.
AHEAD = 6


class ReadAhead:
    """The blocks of one object, safe from several threads.

    Parameters
    ----------
    request : callable
        ``request(start, end)`` returns the request for a range.
    size : int
        Bytes of the object.
    """

    def __init__(self, request: Callable[[int, int], Request], size: int) -> None:
        self._request = request
        self._size = size
        self._blocks: OrderedDict[int, Request] = OrderedDict()
        self._lock = threading.Lock()

    def holds(self, start: int, end: int) -> bool:
        """Return whether a range can be read without a request."""
        with self._lock:
            found = [self._blocks.get(number) for number in _numbers(start, end)]
        return all(block and block.done for block in found)

    def read(self, start: int, end: int) -> bytes:
        """Return a range of at least one byte."""
        numbers = _numbers(start, end)
        skipped = start - numbers[0] * BLOCK
        if len(numbers) == 1:
            return self._block(numbers[0])[skipped : skipped + end - start]
        data = b"".join(map(self._block, numbers))
        return data[skipped : skipped + end - start]

    def keep_done(self) -> None:
        """Forget the blocks that have not come yet."""
        with self._lock:
            for number in [n for n, block in self._blocks.items() if not block.done]:
                del self._blocks[number]

    def clear(self) -> None:
        """Forget all blocks."""
        with self._lock:
            self._blocks.clear()

    def _block(self, number: int) -> bytes:
        block = self._find(number)
        try:
            data: bytes = block.result()
        except BaseException:
            self._forget(number, block)
            raise
        return data

    def _find(self, number: int) -> Request:
        """Return the request for a block, with those for the next ones under way."""
        with self._lock:
            ahead = AHEAD if number - 1 in self._blocks else 0
            for wanted in range(number, number + 1 + ahead):
                start = wanted * BLOCK
                if wanted not in self._blocks and start < self._size:
                    self._blocks[wanted] = self._request(start, min(start + BLOCK, self._size))
            self._blocks.move_to_end(number)
            while len(self._blocks) > KEPT:
                self._blocks.popitem(last=False)
            return self._blocks[number]

    def _forget(self, number: int, block: Request) -> None:
        with self._lock:
            if self._blocks.get(number) is block:
                del self._blocks[number]


def _numbers(start: int, end: int) -> range:
    return range(start // BLOCK, (end - 1) // BLOCK + 1)
