"""Questions to a CUDA driver whose answers the double must repeat.

Every question is asked of libcuda.so.1 by its C ABI alone, so that the same code asks a real
driver and the double. On a machine with a GPU::

    python -m tests.double.probe > tests/double/recorded.json

Each group of questions runs in a process of its own, since some are asked of a driver that may
crash on them. The test compares the recorded file with what the double says.
"""
