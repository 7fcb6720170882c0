"""What loads to the double of a device keep for one another."""

from __future__ import annotations

import gc
import threading

import pytest

from gpuload import driver, lease
from gpuload.device_array import close_pools
from gpuload.errors import DriverError
from gpuload.lease import MARGIN, Lease, Shape
from gpuload.memory import copy
from tests.helpers.device_loads import new_stream, read, run_alone, write
from tests.helpers.fakecuda import Code

MIB = 1 << 20
SMALL, OTHER = Shape(3, 4 * MIB, 4, MIB), Shape(2, 2 * MIB, 2, MIB)


@pytest.fixture(autouse=True)
def _device():
    driver.device(0).set_current()
    yield
    lease.release()
    close_pools()


# --- Shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [3, 6, 24, 48])
@pytest.mark.parametrize("limit", [1, MIB, 16 * MIB, 60 * MIB, 100 * MIB, 256 * MIB, 4 << 30])
def test_shapes_keep_to_the_limit(limit, slots):
    """On the host and on the device, each by itself."""
    shape = Shape.within(limit, slots)
    if shape is None:
        assert limit < 256 * MIB or slots > 24
        return
    assert shape.on_device <= limit
    assert shape.on_host <= limit
    assert shape.landings >= 2
    assert shape.slots == slots
    # Readers look at pieces, of which ranges have a whole number.
    assert shape.landing_size % shape.slot_size == 0
    assert shape.landing_size > 0
    assert shape.slot_size % 4096 == 0


def test_the_default_has_a_shape():
    assert Shape.within(256 * MIB, 24) is not None


# --- Sets -----------------------------------------------------------------------------------------


def test_memory_of_a_set(cuda):
    with lease.lease(0, SMALL) as held:
        assert (held.ring.slots, held.ring.slot_size) == (4, MIB)
        assert len(held.landings) == 3
        assert held.device_id == 0
        for landing in held.landings:
            # The margin in front of it, and the place behind it, are its own.
            write(landing.address - MARGIN, b"start", landing.stream)
            write(landing.address + SMALL.landing_size - 3, b"end", landing.stream)
            assert read(landing.address - MARGIN, 5, landing.stream) == b"start"
            assert read(landing.address + SMALL.landing_size - 3, 3, landing.stream) == b"end"
        assert len({int(landing.stream.handle) for landing in held.landings}) == 3
    lease.release()
    assert cuda.leaks() == []


def test_sizes_are_for_the_device_and_the_host():
    with lease.lease(0, SMALL) as held:
        landing = held.landings[0]
        use = landing.begin()
        first = landing.actual(use, 10)
        assert landing.actual(use, 10) is first
        assert first.size >= 40
        larger = landing.actual(use, 1 << 20)
        assert larger.size >= 4 << 20
        assert landing.host_bytes >= 4 << 20
        assert landing.actual(use, 5) is larger


def test_uses_of_a_place_do_not_share_what_the_host_reads():
    with lease.lease(0, SMALL) as held:
        landing = held.landings[0]
        uses = [landing.begin() for _ in range(lease.USES)]
        assert len(set(uses)) == lease.USES > 1
        assert len({id(landing.actual(use, 10)) for use in uses}) == lease.USES
        assert landing.begin() == uses[0]


def test_events_are_used_again(cuda):
    with lease.lease(0, SMALL) as held:
        landing = held.landings[0]
        use = landing.begin()
        first, second = landing.mark(use, 0), landing.mark(use, 1)
        made = cuda.recorder.calls["cuEventCreate"]
        for _ in range(5):
            assert landing.mark(use, 0) is first
            assert landing.mark(use, 1) is second
        assert cuda.recorder.calls["cuEventCreate"] == made
        second.sync()
        assert second - first <= 0 or first.is_done


def test_engines_are_used_again():
    with lease.lease(0, SMALL) as held:
        engine = held.engine("sm", 1000)
        assert engine.name == "sm"
        assert held.engine("sm", 1000) is engine
        assert held.engine("hardware", 1000).name == "hardware"
    with lease.lease(0, SMALL) as held:
        assert held.engine("sm", 1000) is engine


# --- Lending --------------------------------------------------------------------------------------


def test_a_set_is_lent_again(cuda):
    with lease.lease(0, SMALL) as first:
        pass
    before = cuda.recorder.calls["cuMemCreate"]
    with lease.lease(0, SMALL) as second:
        assert second is first
    assert cuda.recorder.calls["cuMemCreate"] == before


def test_sets_that_are_lent_are_nobody_elses():
    with lease.lease(0, SMALL) as first, lease.lease(0, SMALL) as second:
        assert first is not second
    with lease.lease(0, SMALL) as one, lease.lease(0, SMALL) as other:
        assert {id(one), id(other)} == {id(first), id(second)}


def test_another_shape_is_another_set():
    with lease.lease(0, SMALL) as first:
        pass
    with lease.lease(0, OTHER) as second:
        assert second is not first
        assert len(second.landings) == 2


def test_few_are_kept(cuda):
    shapes = [Shape(1, MIB, 1, MIB * size) for size in (1, 2, 3, 4)]
    for shape in shapes:
        with lease.lease(0, shape):
            pass
    assert len(lease._kept._idle) == 2
    with lease.lease(0, shapes[-1]) as last:
        assert last.shape == shapes[-1]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_one_that_an_error_went_through_is_not_lent_again(cuda, error):
    with pytest.raises(error), lease.lease(0, SMALL) as first:
        raise error
    assert cuda.leaks() == []
    with lease.lease(0, SMALL) as second:
        assert second is not first


def test_closing_waits_for_the_work(cuda):
    held = Lease(0, SMALL)
    one, other = held.landings[:2]
    copy(one.address, other.address, MIB, one.stream)
    held.close()
    assert cuda.complaints() == []
    assert cuda.leaks() == []


def test_release(cuda):
    with lease.lease(0, SMALL):
        lease.release()
        assert cuda.leaks()
    lease.release()
    assert cuda.leaks() == []
    lease.release()


def test_threads():
    stay, seen, errors = threading.Barrier(4), [], []

    def work():
        try:
            driver.device(0).set_current()
            with lease.lease(0, OTHER) as held:
                seen.append(id(held))
                stay.wait(30)
        except Exception as error:  # noqa: BLE001 (to be looked at)
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(set(seen)) == 4
    assert len(lease._kept._idle) == 2


# --- Faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "cuMemCreate",
        "cuMemMap",
        "cuMemAddressReserve",
        "cuStreamCreateWithPriority",
        "cuEventCreate",
        "cuMemSetAccess",
    ],
)
def test_a_set_that_cannot_be_made(cuda, name):
    """Whichever step fails, the steps before it are taken back."""
    before = cuda.recorder.calls[name]
    Lease(0, SMALL).close()
    times = cuda.recorder.calls[name] - before
    assert times
    for after in range(times):
        cuda.fail_next(name, Code.INVALID_VALUE, after=after)
        with pytest.raises(DriverError):
            Lease(0, SMALL)
        gc.collect()
        assert cuda.leaks() == []
    Lease(0, SMALL).close()


def test_waiting_may_fail_when_it_is_closed(cuda):
    """All the rest is freed."""
    held = Lease(0, SMALL)
    for landing in held.landings:
        landing.mark(landing.begin(), 3)
        landing.actual(0, 5)
    cuda.fail_next("cuStreamSynchronize", Code.INVALID_VALUE)
    with pytest.raises(DriverError, match="cuStreamSynchronize"):
        held.close()
    assert not [leak for leak in cuda.leaks() if "stream" in leak or "event" in leak]


def test_a_fork():
    """Neither lending nor giving back does anything in the child, at its end neither."""
    said = run_alone(
        """
        import os, sys, warnings
        from gpuload import driver, lease
        from gpuload.errors import DriverError
        warnings.simplefilter("ignore", DeprecationWarning)
        driver.device(0).set_current()
        shape = lease.Shape(1, 1 << 20, 1, 1 << 20)
        with lease.lease(0, shape):
            pass
        lease._kept._lock.acquire()  # as a thread might that is not in the child
        child = os.fork()
        if not child:
            try:
                with lease.lease(0, shape):
                    print("lent")
            except DriverError as error:
                print("forked" in str(error), flush=True)
            lease.release()
            sys.exit(0)
        lease._kept._lock.release()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        with lease.lease(0, shape):
            pass
        lease.release()
        print(cuda.complaints() + cuda.leaks())
        """
    )
    assert said.splitlines() == ["True", "0", "[]"]


def test_the_end_of_the_process():
    said = run_alone(
        """
        import atexit
        atexit.register(lambda: print(cuda.complaints() + cuda.leaks()))
        from gpuload import driver, lease
        driver.device(0).set_current()
        with lease.lease(0, lease.Shape(1, 1 << 20, 1, 1 << 20)) as held:
            landing = held.landings[0]
            landing.mark(landing.begin(), 0)
        del held, landing
        """
    )
    assert said == "[]"


def test_streams_of_users_are_left_alone(cuda):
    stream = new_stream()
    with lease.lease(0, SMALL):
        pass
    lease.release()
    stream.sync()
    stream.close()
