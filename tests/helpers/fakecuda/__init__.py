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

What a test can do with it (all settings are in :class:`~tests.helpers.fakecuda.Settings`)::

    cuda.settings.algorithm_mask = 0               # a GPU without an engine: NOT_SUPPORTED
    cuda.settings.maximum_length = 64 << 10
    cuda.settings.total_memory = 32 << 20          # small enough to be OUT_OF_MEMORY
    cuda.settings.driver_version = 12060           # cuGetProcAddress no longer finds newer calls
    cuda.settings.be_h200()                        # the GPU whose answers are recorded
    cuda.settings.corruption = "overrun"           # or "short" (default), "sticky"
    cuda.settings.overrun = 4096                   # how far "overrun" writes behind the slot
    cuda.fail_next("cuMemCreate", Code.OUT_OF_MEMORY, after=2)
    cuda.queue_fault(stream)                       # work that ends the context when it runs
    cuda.schedule = "eager"                        # default "lazy": work runs when waited for
    cuda.leaks()             what was made and not destroyed
    cuda.complaints()        violations, calls that are not modelled, exceptions of the double
    cuda.recorder.calls["cuMemCreate"]             how often a call was made
    cuda.recorder.take_violations()                the test expected them
    cuda.batches             sizes of the accepted decompression batches
    cuda.refusals            why decompression calls were refused
    cuda.launches            kernel and operations of each accepted launch
    cuda.overruns            writes beyond a slot or an allocation by the engine
    cuda.pageable_copies     copies that were not asynchronous since host memory was not pinned
    cuda.forked.names()      calls that a forked child made; all are refused

The fixture fails the test on complaints and on leaks at its end.

An older driver's *library* also lacks ``cuMemBatchDecompressAsync`` as an exported symbol; that
cannot change within a process, so such a test runs a child process with
``GPULOAD_FAKE_CUDA_VERSION=12060`` set, where :func:`load` builds and loads such a library.

Kernels are loaded from the cubins that NVRTC compiles, which needs no GPU, and looked up in them; a
launch runs the same sources, compiled by g++ (tests/helpers/lanes). So only gpuload's own kernels
run, and what is loaded outlives :meth:`FakeDriver.reset`. A test for another device than the one
before it has to empty ``gpuload.kernels.compiler._kernels``.

Not modelled, answered with NOT_SUPPORTED and reported: PTX and other kernels, launches with
attributes, modules, graphs, arrays, managed memory, peer access, and the CUDA runtime, which asks
the driver for undocumented tables. In cuda.core that is ``Device.sync`` and ``Device.uuid``; wait
for streams instead.

Where the answers come from: tests/double/probe asks a driver by its C ABI, recorded.json beside
it holds what a real one said, and tests/double/test_recorded_answers.py compares. How streams
run, what memory is, how the engine goes wrong and what a launch does is said in scheduler.py,
space.py, decompress.py and launches.py.
"""

from tests.helpers.fakecuda.codes import Access, Code, Codec
from tests.helpers.fakecuda.driver import FakeDriver
from tests.helpers.fakecuda.loading import load
from tests.helpers.fakecuda.settings import Settings

__all__ = ["Access", "Code", "Codec", "FakeDriver", "Settings", "load"]
