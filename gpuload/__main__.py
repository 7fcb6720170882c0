"""``python -m gpuload`` is the command line."""

from __future__ import annotations

import importlib

if __name__ == "__main__":
    # By its name: the command line stands above the library, which does not import it.
    importlib.import_module("gpuload_cli").main()
