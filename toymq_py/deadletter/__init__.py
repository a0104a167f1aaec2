"""Dead letters: messages that no consumer could process, moved to a topic of their own, and back. Contract: delivery.md."""

from toymq_py.deadletter.dead_letters import DeadLetters
from toymq_py.deadletter.redrive import RedriveDone
from toymq_py.deadletter.transfer import LETTER_KEYS

__all__ = ["LETTER_KEYS", "DeadLetters", "RedriveDone"]
