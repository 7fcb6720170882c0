"""A double of the NVIDIA driver: libcuda.so.1 at the C ABI, for machines without a GPU.

Unmodified cuda.core and cuda.bindings (``_v2.driver`` too) run on it. It must be loaded before
either is imported; tests/double/conftest.py does that when ``GPULOAD_FAKE_CUDA=1`` is set, and
gives every test there a fresh double as the fixture ``cuda``::

    GPULOAD_FAKE_CUDA=1 python -m pytest tests/double

Outside pytest::

    from tests.helpers import fakecuda
    cuda = fakecuda.load()          # before `import cuda.core`
    from cuda.core import Device
    Device(0).set_current()

What a test can do with it (all fields are in :class:`~tests.helpers.fakecuda.driver.Settings`)::

    cuda.settings.algorithm_mask = 0               # a GPU without an engine: NOT_SUPPORTED
    cuda.settings.maximum_length = 64 << 10
    cuda.settings.total_memory = 32 << 20          # small enough to be OUT_OF_MEMORY
    cuda.settings.driver_version = 12060           # cuGetProcAddress no longer finds newer calls
    cuda.settings.corruption = "overrun"           # or "short" (default), "sticky"
    cuda.settings.overrun = 4096                   # how far "overrun" writes behind the slot
    cuda.fail_next("cuMemCreate", Code.OUT_OF_MEMORY, after=2)
    cuda.schedule = "eager"                        # default "lazy": work runs when waited for
    cuda.leaks()             what was made and not destroyed
    cuda.complaints()        violations, calls that are not modelled, exceptions of the double
    cuda.recorder.calls["cuMemCreate"]             how often a call was made
    cuda.recorder.take_violations()                the test expected them
    cuda.batches             sizes of the accepted decompression batches
    cuda.refusals            why a decompression operation was refused
    cuda.overruns            writes beyond a slot or an allocation by the engine
    cuda.pageable_copies     copies that were not asynchronous since host memory was not pinned

The fixture fails the test on complaints and on leaks at its end.

An older driver's *library* also lacks ``cuMemBatchDecompressAsync`` as an exported symbol; that
cannot change within a process, so such a test runs a child process with
``GPULOAD_FAKE_CUDA_VERSION=12060`` set, where :func:`load` builds and loads such a library.

How streams run, what memory is, and which answers of a real driver are copied, is said in the
modules: streams.py, space.py and memory.py, decompress.py, and tests/double/test_fake_driver.py.
"""

from tests.helpers.fakecuda.codes import Access, Code, Codec
from tests.helpers.fakecuda.driver import FakeDriver, Settings
from tests.helpers.fakecuda.loading import load

__all__ = ["Access", "Code", "Codec", "FakeDriver", "Settings", "load"]
