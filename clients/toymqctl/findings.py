"""The results of the checks of ``toymqctl doctor``."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

State = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; ``advice`` is "" when there is nothing to do."""

    check: str
    state: State
    found: str
    advice: str = ""


def noted(findings: Iterable[Finding], checks: Container[str], note: str) -> Iterator[Finding]:
    """Add a note to the findings of the checks named in ``checks``."""
    for finding in findings:
        yield replace(finding, found=finding.found + note) if finding.check in checks else finding
