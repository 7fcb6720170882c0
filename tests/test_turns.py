"""Threads that take turns."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuload.turns import StoppedError, Turns, interruptible, join

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


class TimeUpError(Exception):
    """What a handler of SIGALRM may raise."""


def raising(error):
    def handler(*_):
        raise error

    return handler


@pytest.fixture
def alarm():
    """Return a function that has a signal's handler raise an error soon, twice."""
    before = signal.getsignal(signal.SIGALRM)

    def start(error):
        signal.signal(signal.SIGALRM, raising(error))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.1)

    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


errors = pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), TimeUpError()])


@errors
def test_what_a_handler_raises_comes_after_the_end_of_the_work(alarm, error):
    cancelled, ended = threading.Event(), threading.Event()

    def work():
        cancelled.wait(TIMEOUT)
        time.sleep(0.3)
        ended.set()

    alarm(error)
    with pytest.raises(type(error)):
        interruptible(work, cancelled.set)
    assert ended.is_set()


@errors
def test_threads_are_joined_before_what_a_handler_raises(alarm, error):
    told, ended = threading.Event(), threading.Event()

    def work():
        told.wait(TIMEOUT)
        time.sleep(0.3)
        ended.set()

    with ThreadPoolExecutor(1) as pool:
        workers = [pool.submit(work)]
        alarm(error)
        with pytest.raises(type(error)):
            join(pool, workers, told.set)
        assert ended.is_set()
