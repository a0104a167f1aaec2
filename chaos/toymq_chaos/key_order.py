"""Checks the order per key of consumers with mode=keyed. Contract: delivery.md, "mode".

Pure, a part of ``checker``. A keyed consumer gets a message only when the preceding message of the same group is acked or a
dead letter: so a client had sent that ack before any client read the message. A kill may lose the ack, but the history shows
that it was sent. The topics checked here have neither delays, nor ttls, nor dead letters.
"""

from itertools import pairwise

from toymq_chaos.history import Event
from toymq_chaos.verdict import Verdict

Message = tuple[str, str, int]
"""Topic, consumer and id."""


class KeyOrder:
    """Checks the order per key: give it the events of keyed consumers in order, then call ``judge``."""

    def __init__(self) -> None:
        self._keyed: set[tuple[str, str]] = set()  # declared: topic and consumer
        self._groups: dict[tuple[str, str], set[int]] = {}  # by topic and group: ids that were stored
        self._first: dict[Message, Event] = {}  # first delivery
        self._acked_ns: dict[Message, int] = {}  # when the first ack was sent, whatever became of it

    def declare(self, topic: str, consumer: str) -> None:
        """Note that a consumer has mode=keyed in the whole history."""
        self._keyed.add((topic, consumer))

    def stored(self, event: Event) -> None:
        """Note a "pub" whose id is certain, or a "deliver": its message was stored."""
        if event.group is not None and event.id is not None:
            self._groups.setdefault((event.topic or "", event.group), set()).add(event.id)

    def delivered(self, event: Event) -> None:
        if (event.topic, event.consumer) in self._keyed:
            self.stored(event)
            self._first.setdefault(_message(event), event)

    def acked(self, event: Event) -> None:
        sent_ns = event.t_ns if event.sent_ns is None else event.sent_ns
        message = _message(event)
        self._acked_ns[message] = min(self._acked_ns.get(message, sent_ns), sent_ns)

    def judge(self, verdict: Verdict, *, drained: bool) -> None:
        """Check each message against its predecessor in the same group. A history without "drained" may lack an ack that was
        sent, since an ack is recorded only when its answer is read."""
        for topic, consumer in self._keyed:
            for (of, _), ids in self._groups.items():
                ordered = sorted(ids) if of == topic else []
                for before, msg_id in pairwise(ordered):
                    event = self._first.get((topic, consumer, msg_id))
                    if event is None:
                        continue
                    acked_ns = self._acked_ns.get((topic, consumer, before))
                    if drained if acked_ns is None else acked_ns > event.t_ns:
                        earlier = self._first.get((topic, consumer, before))
                        verdict.broken(
                            "a message came before the ack of the one before it of its group",
                            *([] if earlier is None else [earlier]), event,
                        )  # fmt: skip


def _message(event: Event) -> Message:
    return (event.topic or "", event.consumer or "", event.id or 0)
