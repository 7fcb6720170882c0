"""Kernels on the CPU: the CUDA C++ sources, compiled by g++ and run in warps of lanes.

`lanes.h` is what the sources see of CUDA; `build` compiles them, `cases` runs them.
"""

from tests.helpers.lanes.build import shared_library

__all__ = ["shared_library"]
