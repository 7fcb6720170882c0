"""Objects with a buffer, contiguous ones and others."""

from __future__ import annotations

import array
import ctypes

import numpy as np


class Buffers:
    """Objects with a buffer, by name; all of them hold `data` in memory."""

    data = bytes(range(24))
    words = np.frombuffer(data, "<u4")

    contiguous = (
        ("bytes", lambda: Buffers.data),
        ("bytearray", lambda: bytearray(Buffers.data)),
        ("memoryview", lambda: memoryview(Buffers.data)),
        ("memoryview of words", lambda: memoryview(Buffers.data).cast("I")),
        ("memoryview of a part", lambda: memoryview(b"xx" + Buffers.data + b"yy")[2:-2]),
        ("array", lambda: array.array("I", Buffers.data)),
        ("ctypes array", lambda: (ctypes.c_ubyte * 24)(*Buffers.data)),
        ("ctypes structure", lambda: (ctypes.c_uint32 * 6).from_buffer_copy(Buffers.data)),
        ("read-only array", lambda: Buffers.words),
        ("writable array", lambda: Buffers.words.copy()),
        ("floats", lambda: Buffers.words.view(np.float64)),
        ("big-endian", lambda: Buffers.words.view(">i4")),
        ("complex", lambda: Buffers.words.view(np.complex64)),
        ("records", lambda: Buffers.words.view([("a", "u1"), ("b", "<u4"), ("c", "u1", 3)])),
        ("strings", lambda: Buffers.words.view("S6")),
        ("matrix", lambda: Buffers.words.reshape(2, 3)),
        ("cube of bytes", lambda: np.frombuffer(Buffers.data, np.uint8).reshape(2, 3, 4)),
        ("scalar array", lambda: Buffers.words.view("V24").reshape(())),
        ("row of a matrix", lambda: np.vstack([Buffers.words, Buffers.words])[1]),
    )

    scattered = (
        ("every other element", lambda: Buffers.words[::2]),
        ("backwards", lambda: Buffers.words[::-1]),
        ("column", lambda: Buffers.words.reshape(2, 3)[:, 1]),
        ("transposed", lambda: Buffers.words.reshape(2, 3).T),
        ("memoryview with a step", lambda: memoryview(Buffers.data)[::2]),
    )
