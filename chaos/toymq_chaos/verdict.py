"""The verdict of the checker on a history, in Jepsen's terms."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from toymq_chaos.history import Event


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise, and the fewest events that show it."""

    promise: str
    evidence: tuple[Event, ...]

    def __str__(self) -> str:
        return "\n  ".join([self.promise, *map(str, self.evidence)])


@dataclass(slots=True)
class Verdict:
    """The counts of a history in Jepsen's words, and its violations; without any, every promise was kept."""

    attempted: int = 0
    acknowledged: int = 0
    recovered: int = 0
    """Delivered although the publisher does not know the outcome."""
    lost: int = 0
    unexpected: int = 0
    delivered: int = 0
    acked: int = 0
    duplicated: Counter[str] = field(default_factory=Counter)
    """Deliveries beyond the first of a message to a consumer, by cause."""
    kills: int = 0
    violations: list[Violation] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations

    def broken(self, promise: str, *evidence: Event) -> None:
        self.violations.append(Violation(promise, evidence))

    def add(self, other: "Verdict") -> None:
        """Add the counts and violations of another verdict, except its number of kills."""
        for name in ("attempted", "acknowledged", "recovered", "lost", "unexpected", "delivered", "acked"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.duplicated += other.duplicated
        self.violations += other.violations

    def as_dict(self) -> dict[str, Any]:
        """Convert the verdict for JSON; its events have only the fields that are set."""
        found = {name: getattr(self, name) for name in Verdict.__slots__}
        found["duplicated"] = dict(self.duplicated)
        found["violations"] = [
            {"promise": violation.promise, "evidence": [json.loads(event.to_json()) for event in violation.evidence]}
            for violation in self.violations
        ]
        return found
