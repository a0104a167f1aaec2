"""Decides when a client sends PING to a silent broker, and when it leaves that broker for another address. For both clients.

Pure: no clock, no connection. A client with one address sends no PING: it has nowhere else to go.
"""

import enum

from toymq import options
from toymq.conversation import Conversation


class Silence(enum.Enum):
    """What a client does about a silent broker."""

    NONE = "it is short, or an answer may take as long"
    ASK = "nothing is due, so nothing shows that the broker lives: ask for a sign of life"
    LEAVE = "an answer has been due for so long that another broker may do better"


def judge(conversation: Conversation, silent_s: float, now: float, timeout_s: float) -> Silence:
    """Decide what to do after a silence of ``silent_s`` seconds. ``timeout_s``: how long a call waits for its answer."""
    patience_s = min(options.SILENT_S, timeout_s)
    if silent_s >= patience_s and conversation.is_overdue(now + timeout_s - patience_s):
        return Silence.LEAVE
    if silent_s >= patience_s / 2 and not conversation.unanswered_count:
        return Silence.ASK
    return Silence.NONE
