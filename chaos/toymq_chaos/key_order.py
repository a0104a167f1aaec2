"""Checks the order per key of consumers with mode=keyed. Contract: delivery.md, "mode".

Pure, a part of ``checker``. A message is delivered when the one before it of its group is acked or dead, and not earlier: so a
client had sent the ack of that one before any client read this one. A kill may lose the ack, not that it was sent. The topics
have neither delays, nor ttls, nor dead letters.
"""

from itertools import pairwise

from toymq_chaos.history import Event
from toymq_chaos.verdict import Verdict

Message = tuple[str, str, int]
"""Topic, consumer and id."""


class KeyOrder:
    """Checks the order per key: takes the events of keyed consumers; ``judge`` at the end."""

    def __init__(self) -> None:
        self._keyed: set[tuple[str, str]] = set()  # declared: topic and consumer
        self._groups: dict[tuple[str, str], set[int]] = {}  # by topic and group: ids that were stored
        self._first: dict[Message, Event] = {}  # first delivery
        self._acked_ns: dict[Message, int] = {}  # when the first ack was sent, whatever became of it

    def declare(self, topic: str, consumer: str) -> None:
        """Note that a consumer is keyed all the time."""
        self._keyed.add((topic, consumer))

    def stored(self, event: Event) -> None:
        """Note a "pub" with a certain id, or a "deliver"."""
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
        """Check each message against the one before it of its group. A history that was cut off may lack an ack that was sent:
        an answer is recorded when it is read."""
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
