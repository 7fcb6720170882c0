"""What the double saw: calls, violations, calls it has no model for, and faults to inject."""

from __future__ import annotations

import collections
import traceback
from dataclasses import dataclass, field

from tests.helpers.fakecuda.codes import Code


@dataclass
class Injection:
    """A call that will be answered with an error."""

    code: int
    after: int
    times: int


@dataclass
class Recorder:
    """Everything that a test may ask for afterwards.

    Attributes
    ----------
    calls : collections.Counter
        How often each call was made, by its name in cuda.h.
    log : collections.deque
        The latest calls with their arguments and their answer.
    violations : list of str
        What a correct program never does: use after free, a leak of access rights, host access
        to memory of a device. Each fails the test at its end unless it was expected.
    unmodelled : list of str
        Calls that the driver has and the double does not model.
    internal : list of str
        Tracebacks of exceptions inside the double.
    """

    calls: collections.Counter[str] = field(default_factory=collections.Counter)
    log: collections.deque[tuple[str, tuple[int, ...], int]] = field(
        default_factory=lambda: collections.deque(maxlen=4096)
    )
    violations: list[str] = field(default_factory=list)
    unmodelled: list[str] = field(default_factory=list)
    internal: list[str] = field(default_factory=list)
    _injections: dict[str, list[Injection]] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything."""
        for noted in (self.calls, self.log, self.violations, self.unmodelled, self.internal):
            noted.clear()
        self._injections.clear()

    def take_violations(self) -> list[str]:
        """Return the violations so far and forget them: the test expected them."""
        taken = list(self.violations)
        self.violations.clear()
        return taken

    def fail_next(self, name: str, code: int, *, after: int = 0, times: int = 1) -> None:
        """Answer a later call of `name` with `code`; `after` calls pass before it."""
        self._injections.setdefault(name, []).append(Injection(int(code), after, times))

    def pending_injections(self) -> list[str]:
        """Return the names of calls whose injected fault has not happened yet."""
        return sorted(self._injections)

    def injected(self, name: str) -> int | None:
        """Return the code that this call of `name` must answer with, if any."""
        waiting = self._injections.get(name)
        if not waiting:
            return None
        first = waiting[0]
        if first.after > 0:
            first.after -= 1
            return None
        first.times -= 1
        if first.times == 0:
            waiting.pop(0)
        if not waiting:
            del self._injections[name]
        return first.code

    def violation(self, text: str) -> None:
        """Note that the program did what no correct program does."""
        self.violations.append(text)

    def not_modelled(self, name: str) -> int:
        """Note a call that the double has no model for, and return its answer."""
        self.unmodelled.append(name)
        return Code.NOT_SUPPORTED

    def exception(self, name: str, error: BaseException) -> int:
        """Note an exception inside the double, and return the call's answer."""
        text = "".join(traceback.format_exception(error))
        self.internal.append(f"{name}:\n{text}")
        return Code.UNKNOWN

    def complaints(self) -> list[str]:
        """Return all that must be empty at the end of a test."""
        unmodelled = [f"not modelled: {name}" for name in self.unmodelled]
        return self.violations + unmodelled + self.internal
