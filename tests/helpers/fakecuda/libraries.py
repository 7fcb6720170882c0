"""What is loaded: libraries of kernels, their kernels, and the functions of contexts.

They belong to the process and outlive contexts, so :meth:`FakeDriver.reset` lets them be.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from tests.helpers.fakecuda.codes import Code, CudaError
from tests.helpers.fakecuda.scheduler import BadHandleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.fakecuda.cubin import Entry, Image
    from tests.helpers.fakecuda.streams import Context

_MOST_THREADS = 1024


@dataclass(eq=False)
class Library:
    """What was loaded, and those of its kernels that somebody asked for.

    Attributes
    ----------
    image : Image or None
        None for what is no machine code of a GPU.
    """

    handle: int
    image: Image | None
    kernels: dict[str, Kernel] = field(default_factory=dict)


@dataclass(eq=False)
class Kernel:
    """A kernel of a library.

    Attributes
    ----------
    functions : dict
        The handle of its function in each context that it was asked for, by the context's.
    text : ctypes array
        The name, where pointers to it point.
    """

    handle: int
    entry: Entry
    image: Image
    library: Library
    text: ctypes.Array[ctypes.c_char]
    functions: dict[int, int] = field(default_factory=dict)

    @property
    def most_threads(self) -> int:
        """How many threads a block may have."""
        return self.entry.max_threads or _MOST_THREADS


class Libraries:
    """All that is loaded."""

    def __init__(self, new_handle: Callable[[], int]) -> None:
        self._new_handle = new_handle
        self._libraries: dict[int, Library] = {}
        self._kernels: dict[int, Kernel] = {}
        self._gone: dict[int, str] = {}

    def load(self, image: Image | None) -> Library:
        """Enter what was loaded."""
        made = Library(self._new_handle(), image)
        self._libraries[made.handle] = made
        return made

    def unload(self, library: Library) -> None:
        """Forget a library, and every handle of its kernels."""
        del self._libraries[library.handle]
        self._gone[library.handle] = "unloaded"
        for handle in [h for h, one in self._kernels.items() if one.library is library]:
            self._forget(handle, "unloaded")

    def orphan(self, context: Context) -> None:
        """Forget the functions of a context that is destroyed; kernels belong to the process."""
        for kernel in tuple(self._kernels.values()):
            handle = kernel.functions.pop(context.handle, None)
            if handle is not None:
                self._forget(handle, "destroyed with its context")

    def library(self, handle: int) -> Library:
        """Return the library of a handle."""
        return self._libraries.get(handle) or self._unknown("library", handle)

    def find(self, library: Library, image: Image, name: str) -> Kernel:
        """Return a kernel of a library, whose image is given, by its name."""
        known = library.kernels.get(name)
        if known is not None:
            return known
        entry = image.entries.get(name)
        if entry is None:
            raise CudaError(Code.NOT_FOUND, f"{name!r} is none of {list(image.entries)}")
        text = ctypes.create_string_buffer(name.encode())
        made = Kernel(self._new_handle(), entry, image, library, text)
        library.kernels[name] = self._kernels[made.handle] = made
        return made

    def kernel(self, handle: int) -> Kernel:
        """Return the kernel of a handle, which may be a function's."""
        return self._kernels.get(handle) or self._unknown("kernel", handle)

    def kernel_of(self, function: int) -> Kernel:
        """Return the kernel of a function's handle; a kernel's own is refused."""
        kernel = self.kernel(function)
        if kernel.handle == function:
            raise CudaError(Code.INVALID_HANDLE, f"{kernel.entry.name}: a kernel, no function")
        return kernel

    def function(self, kernel: Kernel, context: Context) -> int:
        """Return the handle of a kernel's function in a context."""
        if context.handle not in kernel.functions:
            made = kernel.functions[context.handle] = self._new_handle()
            self._kernels[made] = kernel
        return kernel.functions[context.handle]

    def _forget(self, handle: int, fate: str) -> None:
        del self._kernels[handle]
        self._gone[handle] = fate

    def _unknown(self, what: str, handle: int) -> NoReturn:
        raise BadHandleError(what, handle, self._gone.get(handle, "never made"))
