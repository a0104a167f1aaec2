"""How long a broker may be silent before another one is tried, or a PING is sent."""

import pytest

from toymq.conversation import Conversation
from toymq.options import SILENT_S
from toymq.silence import Silence, judge

TIMEOUT_S = 30.0


class Talk(Conversation):
    """A connection on which one answer is due, or none."""

    def __init__(self, due_at: float | None) -> None:
        self._due_at = due_at

    @property
    def unanswered_count(self) -> int:
        return int(self._due_at is not None)

    def is_overdue(self, now: float) -> bool:
        return self._due_at is not None and self._due_at <= now


@pytest.mark.parametrize(
    ("silent_s", "asked_s", "timeout_s", "silence"),
    [
        (SILENT_S, SILENT_S, TIMEOUT_S, Silence.LEAVE),
        (SILENT_S - 0.1, SILENT_S - 0.1, TIMEOUT_S, Silence.NONE),
        (60.0, SILENT_S - 0.1, TIMEOUT_S, Silence.NONE),
        (2.0, 2.0, 2.0, Silence.LEAVE),
        (1.9, 1.9, 2.0, Silence.NONE),
        (SILENT_S / 2, None, TIMEOUT_S, Silence.ASK),
        (SILENT_S / 2 - 0.1, None, TIMEOUT_S, Silence.NONE),
        (1.0, None, 2.0, Silence.ASK),
        (60.0, None, TIMEOUT_S, Silence.ASK),
    ],
)
def test_a_silence_is_judged_by_what_is_due(
    silent_s: float, asked_s: float | None, timeout_s: float, silence: Silence
) -> None:
    """``asked_s``: how long ago the call was made whose answer is due."""
    now = 1000.0
    assert judge(Talk(None if asked_s is None else now - asked_s + timeout_s), silent_s, now, timeout_s) is silence
