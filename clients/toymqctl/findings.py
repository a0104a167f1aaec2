"""What a check of ``toymqctl doctor`` found."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check; ``advice`` is "" when there is nothing to do."""

    check: str
    state: State
    found: str
    advice: str = ""
