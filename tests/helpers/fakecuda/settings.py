"""What a test may choose of the double."""

from __future__ import annotations

from dataclasses import dataclass, field

ALL_CODECS = 7


@dataclass
class Settings:
    """What a test may choose; `FakeDriver.reset` brings the defaults back.

    Attributes
    ----------
    driver_version : int
        What cuDriverGetVersion says; symbols of newer versions are not found.
    algorithm_mask, maximum_length : int
        The device's decompression attributes; both 0 for a GPU without an engine.
    total_memory : int
        Bytes of device memory; allocations beyond it are OUT_OF_MEMORY.
    corruption : str
        What a corrupt chunk does when it is decoded: "short" (a short count), "overrun"
        (bytes are written behind the slot) or "sticky" (the context ends).
    overrun : int
        How many bytes "overrun" writes behind the slot.
    attributes : dict
        Overrides of device attributes by number.
    """

    driver_version: int = 13000
    device_count: int = 1
    compute_capability: tuple[int, int] = (10, 0)
    algorithm_mask: int = ALL_CODECS
    maximum_length: int = 4 << 20
    total_memory: int = 4 << 30
    host_numa_id: int = 0
    corruption: str = "short"
    overrun: int = 4096
    attributes: dict[int, int] = field(default_factory=dict)

    def be_h200(self) -> None:
        """Be the GPU whose answers are recorded, which has no decompression engine."""
        self.compute_capability = (9, 0)
        self.algorithm_mask = self.maximum_length = 0
        self.total_memory = 139 << 30
