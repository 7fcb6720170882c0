"""A source that is walked over while its pieces arrive."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from gpuload.resident import ResidentSource
from gpuload.sources import BytesSource
from gpuload.turns import StoppedError

DATA = random.Random(3).randbytes(10_000)
PIECE = 1000
#: Seconds after which a test has hung.
TIMEOUT = 30


class Counting(BytesSource):
    """A source that counts its peeks."""

    peeks = cancels = 0

    def peek(self, offset, size):
        self.peeks += 1
        return super().peek(offset, size)

    def cancel(self):
        self.cancels += 1


class Pieces:
    """Publishes pieces, and notes which are released."""

    def __init__(self, source):
        self.source, self.released = source, []

    def publish(self, *numbers):
        for number in numbers:
            start = number * PIECE
            view = np.frombuffer(DATA, np.uint8)[start : start + PIECE]
            self.source.publish(start, view, lambda number=number: self.released.append(number))


@pytest.fixture
def wrapped():
    return Counting(DATA, "name")


@pytest.fixture
def source(wrapped):
    made = ResidentSource(wrapped)
    made.expect(PIECE)
    return made


@pytest.fixture
def pieces(source):
    return Pieces(source)


def in_thread(call):
    """Start a call in a thread; return the thread and a list for its result or error."""
    results = []

    def run():
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 (to be looked at)
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def test_is_the_source(source, wrapped):
    assert (source.name, source.size) == ("name", len(DATA))
    view = bytearray(100)
    assert source.readinto(5, memoryview(view)) == 100
    assert bytes(view) == DATA[5:105]
    source.cancel()
    assert wrapped.cancels == 1


def test_looks_at_what_has_arrived(source, pieces, wrapped):
    pieces.publish(0, 1, 2)
    assert source.peek(10, 50) == DATA[10:60]
    assert source.peek(0, PIECE) == DATA[:PIECE]
    view, start = source.resident(2500)
    assert (bytes(view), start) == (DATA[2000:3000], 2000)
    assert source.peek(2999, 1) == DATA[2999:3000]
    assert wrapped.peeks == 0


def test_over_the_edge_of_a_piece_it_asks_the_source(source, pieces, wrapped):
    pieces.publish(0, 1)
    assert source.peek(990, 20) == DATA[990:1010]
    assert wrapped.peeks == 1
    assert source.peek(1010, 5) == DATA[1010:1015]
    assert wrapped.peeks == 1


def test_what_is_passed_is_released(source, pieces):
    pieces.publish(0, 1, 2, 3)
    source.resident(0)
    assert pieces.released == []
    source.resident(1500)
    assert pieces.released == [0]
    source.resident(3500)
    assert sorted(pieces.released) == [0, 1, 2]
    source.finish()
    assert sorted(pieces.released) == [0, 1, 2, 3]


def test_what_arrives_too_late_is_released_at_once(source, pieces):
    pieces.publish(3)
    source.resident(3500)
    pieces.publish(1, 2)
    assert pieces.released == [1, 2]
    pieces.publish(4)
    assert pieces.released == [1, 2]
    source.finish()
    assert sorted(pieces.released) == [1, 2, 3, 4]
    pieces.publish(5)
    assert sorted(pieces.released) == [1, 2, 3, 4, 5]


def test_what_was_passed_comes_from_the_source(source, pieces, wrapped):
    pieces.publish(3)
    source.resident(3000)
    assert source.peek(10, 5) == DATA[10:15]
    assert wrapped.peeks == 1
    assert source.resident(10)[1] == 3000


def test_the_end_of_the_source(source, pieces):
    pieces.publish(9)
    assert source.peek(len(DATA) - 3, 10) == DATA[-3:]
    assert source.peek(len(DATA), 10) == b""
    assert source.peek(len(DATA) + 50, 10) == b""


def test_waits_for_a_piece(source, pieces):
    thread, results = in_thread(lambda: source.peek(5500, 4))
    pieces.publish(0, 4, 6)
    thread.join(0.05)
    assert thread.is_alive()
    pieces.publish(5)
    thread.join(TIMEOUT)
    assert results == [DATA[5500:5504]]
    assert sorted(pieces.released) == [0, 4]


def test_stop_ends_the_wait(source, pieces):
    thread, results = in_thread(lambda: source.peek(5500, 4))
    source.stop()
    thread.join(TIMEOUT)
    assert isinstance(results[0], StoppedError)
    pieces.publish(7)
    assert pieces.released == [7]
    with pytest.raises(StoppedError):
        source.resident(8000)


def test_stop_keeps_what_is_looked_at(source, pieces):
    """Whoever looks at it lets go of it."""
    pieces.publish(0, 1)
    source.resident(0)
    source.stop()
    assert pieces.released == []
    source.finish()
    assert sorted(pieces.released) == [0, 1]


def test_all_are_released_even_if_one_fails(source, pieces):
    def fail():
        raise OSError("no")

    pieces.publish(0)
    source.publish(1000, np.zeros(PIECE, np.uint8), fail)
    pieces.publish(2)
    source.resident(0)
    with pytest.raises(OSError, match="no"):
        source.resident(3000)
    assert sorted(pieces.released) == [0, 2]


def test_without_pieces_the_source_is_looked_at(wrapped):
    source = ResidentSource(wrapped)
    source.expect(0)
    assert source.resident(4000)[0] == b""
    assert source.peek(4000, 6) == DATA[4000:4006]
    assert source.peek(0, 6) == DATA[:6]
    source.finish()


def test_a_walk_over_all_of_it(source, pieces):
    """Looks of any size, in order, while pieces arrive in another order."""
    rng, position, found, wanted = random.Random(5), 0, [], []
    order = list(range(10))
    looks = []
    while position < len(DATA):
        size = rng.randrange(1, 300)
        looks.append((position, size))
        wanted.append(DATA[position : position + size])
        position += rng.randrange(1, 900)

    thread, _ = in_thread(lambda: found.extend(source.peek(*look) for look in looks))
    for first in range(0, 10, 2):
        pieces.publish(*reversed(order[first : first + 2]))
    thread.join(TIMEOUT)
    assert found == wanted
    source.finish()
    assert sorted(pieces.released) == order
