"""Decides at which of several workers or groups the loss of a session counts an attempt. ADR 0256.

A subscription to a pattern or a partitioned topic has a session at each of these places, and each would count an attempt of its
own lowest message. The client was working on one of these messages: the one that it got first. So each place is asked for its
message (HELD), and all but one are told that no application worked on it (``UNSUB … uncounted=1``).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from toymq_py.placement import Place
from toymq_py.protocol import Held, Unsubscribe
from toymq_py.session.in_hand import Ask, Heard
from toymq_py.session.spread_subscription import SpreadSubscription

PATIENCE_S = 1.0
"""How long the leases of a session wait for all places at most; a place that does not answer counts by itself."""


class LostSession:
    """The decision for one lost session; ``begin`` makes it. Belongs to the loop."""

    def __init__(
        self, subscriptions: Sequence[SpreadSubscription], ask: Ask, loop: asyncio.AbstractEventLoop, done: Callable[[], None]
    ) -> None:
        """``done`` is called once, when the workers or groups may take the session's leases back."""
        self.done = done
        self.withdrawn: list[Place] = []
        """The places where none counts: the session is no longer subscribed there."""
        self._subscriptions = subscriptions
        self._ask = ask
        self._loop = loop
        self._awaited: dict[tuple[Place, str], Heard] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_done(self) -> bool:
        """Whether ``done`` was called."""
        return self._timer is None

    def begin(self, *, uncounted: bool = False) -> None:
        """Ask all workers or groups which message they have; with ``uncounted`` end all subscriptions at once: the broker ends,
        which counts no attempt (ADR 0088)."""
        self._timer = self._loop.call_later(PATIENCE_S, self._end)
        for subscription in self._subscriptions:
            answers: dict[Place, bytes] = {}
            places = list(subscription.joined)
            for place in places:
                if uncounted or subscription.in_hand.uncounted:
                    self._withdraw(place, subscription)
                    continue
                held = Held(subscription.command.topic, subscription.command.consumer, uncounted=False)
                self._await(place, held, partial(self._heard, subscription, places, answers, place))
        self._end_if_done()

    def gone(self, place: Place) -> None:
        """Note that the connection to a worker or group is lost."""
        for key in [key for key in self._awaited if key[0] == place]:
            self._answered(key, b"")

    def _await(self, place: Place, command: Held | Unsubscribe, heard: Heard, *, ends: str | None = None) -> None:
        key = (place, command.topic)
        self._awaited[key] = heard
        self._ask(place, command, partial(self._answered, key), ends=ends)

    def _answered(self, key: tuple[Place, str], answer: bytes) -> None:
        if (heard := self._awaited.pop(key, None)) is not None:
            heard(answer)
            self._end_if_done()

    def _heard(
        self, subscription: SpreadSubscription, places: list[Place], answers: dict[Place, bytes], place: Place, answer: bytes
    ) -> None:
        answers[place] = answer
        if len(answers) == len(places):
            for other in subscription.without_first(answers):
                self._withdraw(other, subscription)

    def _withdraw(self, place: Place, subscription: SpreadSubscription) -> None:
        topic, consumer = subscription.command.topic, subscription.command.consumer
        self.withdrawn.append(place)
        self._await(place, Unsubscribe(topic, consumer, uncounted=True), lambda answer: None, ends=topic)

    def _end_if_done(self) -> None:
        if not self._awaited:
            self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._awaited.clear()
            self.done()
