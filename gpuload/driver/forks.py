"""Objects of cuda.core in a forked child: they are the parent's, and must never be destroyed there.

A child made by fork has CUDA's state but not its threads. The destructors of cuda.core's buffers
and events call the driver all the same, which ends such a child with a segmentation fault (seen on
driver 580 with cuda.core 1.2). So what is alive at a fork is given one reference too many in the
child.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TypeVar

__all__ = ["shield"]

T = TypeVar("T")

_alive: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()


def shield(made: T) -> T:
    """Return an object of cuda.core, whose destructor will not run in forked children."""
    _alive[id(made)] = made
    return made


def _keep_for_ever() -> None:
    for made in list(_alive.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))


os.register_at_fork(after_in_child=_keep_for_ever)
