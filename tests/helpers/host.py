"""`gpuload.open` and `gpuload.load` for tests of the host, also where there is a GPU."""

from __future__ import annotations

from functools import partial

import gpuload

__all__ = ["load", "open"]

load = partial(gpuload.load, device="cpu")
open = partial(gpuload.open, device="cpu")  # noqa: A001 (the name it has in gpuload)
