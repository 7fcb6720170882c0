"""Threads that take turns."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuload.turns import StoppedError, Turns

#: Seconds after which a test has hung.
TIMEOUT = 30


@pytest.mark.parametrize("threads", [1, 2, 9])
def test_in_the_order_of_their_numbers(threads):
    turns, had = Turns(), []
    numbers = iter(range(300))

    def work():
        for number in numbers:
            with turns.turn(number):
                had.append(number)

    with ThreadPoolExecutor(threads) as pool:
        for worker in [pool.submit(work) for _ in range(threads)]:
            worker.result(TIMEOUT)
    assert had == list(range(300))


def test_one_at_a_time():
    turns, inside, most = Turns(), set(), []
    order = random.Random(1).sample(range(40), 40)

    def work(number):
        with turns.turn(number):
            inside.add(number)
            most.append(len(inside))
            inside.discard(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert most == [1] * 40


def test_stop_ends_all_waiting():
    turns = Turns()
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(turns.turn(number).__enter__) for number in range(1, 6)]
        turns.stop()
        for worker in waiting:
            assert isinstance(worker.exception(TIMEOUT), StoppedError)


def test_no_turns_after_stop():
    turns = Turns()
    with turns.turn(0):
        turns.stop()
    for number in (1, 7):
        with pytest.raises(StoppedError), turns.turn(number):
            pass
    with pytest.raises(StoppedError):
        turns.check()


def test_a_turn_that_fails_is_not_over():
    turns = Turns()
    with pytest.raises(KeyError), turns.turn(0):
        raise KeyError
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(turns.turn(1).__enter__)
        with pytest.raises(TimeoutError):
            second.result(0.05)
        turns.stop()
        assert isinstance(second.exception(TIMEOUT), StoppedError)
