"""When something of a topic is due: leases, backoffs, what was published with a delay. One deadline for all topics.

Contract: delivery.md, "Visibility timeout" (one ticker, driven by ``tick(now)``). Knows neither clock nor loop.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from toymq_py.consumer import Consumer
from toymq_py.topic.topic import Topic


class Ticker:
    """Who wants to be looked at, and when: the earliest time of each."""

    def __init__(self, earlier: Callable[[float], None]) -> None:
        """``earlier``: told when ``tick`` must run before it was said."""
        self._earlier = earlier
        self._due: list[tuple[float, int, Topic, Consumer | Topic]] = []
        self._armed: dict[Consumer | Topic, tuple[float, Topic]] = {}
        self._ticket = count()

    def arm(self, topic: Topic, who: Consumer | Topic, at: float) -> None:
        """Look at ``who`` at a monotonic time, in seconds: a consumer of the topic, or the topic itself for its schedule."""
        armed = self._armed.get(who)
        if armed is not None and armed[0] <= at:
            return
        self._armed[who] = (at, topic)
        if len(self._due) > 2 * len(self._armed) + 64:  # entries that an earlier deadline made void
            self._due = [(when, next(self._ticket), of, each) for each, (when, of) in self._armed.items()]
            heapify(self._due)
            self._earlier(self._due[0][0])
            return
        earliest = not self._due or at < self._due[0][0]
        heappush(self._due, (at, next(self._ticket), topic, who))
        if earliest:
            self._earlier(at)

    def tick(self, now: float) -> float | None:
        """Do all that is due at ``now``. Returns: when there is something to do next, None for never."""
        due = self._due
        while due and due[0][0] <= now:
            at, _, topic, who = heappop(due)
            if self._armed.get(who) == (at, topic):
                del self._armed[who]
                if isinstance(who, Topic):
                    topic.schedule_due()
                else:
                    topic.consumer_due(who, now)
        return due[0][0] if due else None
