"""Primary contexts that end, and what ends with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.streams import Context

#: Kinds of memory that belong to a context; created memory and pools belong to the process.
_OWNED_KINDS = ("device", "host", "registered")


def destroy(cuda: FakeDriver, context: Context) -> None:
    """End a context: its streams, events and memory are gone, also those still in use."""
    cuda.scheduler.synchronize_context(context)
    cuda.scheduler.orphan(context)
    cuda.libraries.orphan(context)
    for mapping in cuda.memory.mappings():
        owned = mapping.allocation.kind in _OWNED_KINDS
        if owned and mapping.allocation.context == context.handle:
            cuda.memory.unmap(mapping)
    context.retained = 0
    context.destroyed = True
