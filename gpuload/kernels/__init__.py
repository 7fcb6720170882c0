"""Kernels of the SM engine: CUDA C++ sources, one a codec, and their compiler."""
