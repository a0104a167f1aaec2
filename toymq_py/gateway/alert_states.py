"""The states of an alert rule for each topic: none, in trouble since a time, or firing; and the notices to send. Pure.

Contract: gateway.md; ADR 0149. A state begins when the threshold is reached, fires when that has lasted for ``for_ms``, and
ends at ``clear``. Each pair of rule and topic has one state, and at most one waiting notice: a newer one replaces it. So
neither an outage of the receiver nor many alerts at once make a queue grow.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from toymq_py.config.alerts import Alert
from toymq_py.units import counted

TROUBLES_MAX = 1000
"""Most topics of a rule that are in trouble at a time; further ones are counted, and have no notices."""
DISK = ""
"""The subject of a rule on the disk. No topic has this name."""

State = Literal["firing", "resolved", "test"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A measured value, and the consumer that has it, if it is a consumer's. ``given_back``: the messages of a backlog that
    wait for their redelivery."""

    value: int
    consumer: str | None = None
    given_back: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice to send. ``number`` counts the notices of one alert, from 1. ``reading`` is None when the topic is gone."""

    state: State
    subject: str
    reading: Reading | None
    since_ms: int
    at_ms: int
    number: int

    def message_id(self, name: str) -> str:
        """The id of the notice, the same at each attempt to send it."""
        if self.state == "test":
            return f"alert:{name}:test:{self.since_ms}"
        return f"alert:{name}:{self.subject or 'disk'}:{self.since_ms}:{self.state}:{self.number}"

    def to_json(self, name: str, alert: Alert) -> dict[str, Any]:
        """The JSON body of the notice. Its member ``text`` is a one-line summary: chat tools show a member of this name."""
        reading = self.reading
        return {
            "alert": name,
            "state": self.state,
            "when": alert.when,
            "topic": self.subject or None,
            "consumer": None if reading is None else reading.consumer,
            "value": None if reading is None else reading.value,
            "threshold": alert.threshold,
            "clear": alert.clear,
            "unit": alert.unit,
            "since_ms": self.since_ms,
            "at_ms": self.at_ms,
            "text": self._text(name, alert),
        }

    def _text(self, name: str, alert: Alert) -> str:
        if self.state == "test":
            return f"toymq alert {name}: this is a test, nothing is wrong"
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        said = f"topic {self.subject} is gone" if self.reading is None else _said(alert, self.subject, self.reading)
        limit = f"threshold {alert.shown(alert.threshold)}"
        return f"toymq alert {name} {self.state}: {said} ({limit}, since {since})"


def _said(alert: Alert, subject: str, reading: Reading) -> str:
    value, what = alert.shown(reading.value), f"consumer {reading.consumer} of {subject}" if reading.consumer else f"{subject}"
    match alert.when:
        case "lag":
            resting = f", {reading.given_back} of them given back to be delivered again later" if reading.given_back else ""
            return f"{what} has a backlog of {value}{resting}"
        case "age":
            return f"the oldest unacked message of {what} has waited {value}"
        case "retrying":
            return f"{what} has {value} to retry after a failed delivery"
        case "letters":
            return f"{subject} has {counted(reading.value, 'dead letter')}"
        case "unattached":
            return f"{what} has {value} to deliver and nothing attached" if reading.value else f"{subject} is attended to"
        case "disk":
            return f"{value} are free on the disk"


@dataclass(slots=True)
class Trouble:
    """A topic whose value has reached the threshold. Times are monotonic seconds, ``since_ms`` is Unix milliseconds."""

    since: float
    since_ms: int
    reading: Reading
    firing: bool = False
    noticed_at: float = 0.0
    notices: int = 0
    told: bool = False
    """Whether a notice of the trouble may have arrived: then one that ends it is due."""
    seen: int = 0
    """The number of the pass that saw it last."""


class AlertStates:
    """All states of one rule. An evaluation calls ``look`` for each matching topic, then ``end_pass``."""

    def __init__(self, alert: Alert) -> None:
        self.alert = alert
        self.troubles: dict[str, Trouble] = {}
        self.beyond = 0
        """Topics in trouble that found no room in the last pass."""
        self._pass = 0
        self._beyond = 0
        self._due: dict[str, Notice] = {}

    @property
    def firing(self) -> int:
        """The number of topics for which the rule fires."""
        return sum(trouble.firing for trouble in self.troubles.values())

    def look(self, subject: str, reading: Reading, now: float, now_ms: int) -> Notice | None:
        """Update a topic's state with a measured value. Returns: the notice if the rule fires or is resolved, for the log."""
        alert = self.alert
        trouble = self.troubles.get(subject)
        if trouble is None:
            if not alert.reached(reading.value):
                return None
            if len(self.troubles) >= TROUBLES_MAX:
                self._beyond += 1
                return None
            trouble = self.troubles[subject] = Trouble(now, now_ms, reading)
        trouble.seen, trouble.reading = self._pass, reading
        if trouble.firing:
            if alert.cleared(reading.value):
                return self._resolve(subject, trouble, reading, now_ms)
            if alert.repeat_ms and (now - trouble.noticed_at) * 1000 >= alert.repeat_ms:
                self._notify(subject, trouble, now, now_ms)
            return None
        if not alert.reached(reading.value):
            del self.troubles[subject]
            return None
        if (now - trouble.since) * 1000 < alert.for_ms:
            return None
        trouble.firing = True
        return self._notify(subject, trouble, now, now_ms)

    def keep(self, subject: str) -> None:
        """Keep the state of a topic that cannot be measured now."""
        if (trouble := self.troubles.get(subject)) is not None:
            trouble.seen = self._pass

    def end_pass(self, now_ms: int) -> Iterator[Notice]:
        """Resolve the alerts of topics that are gone. Yields: their notices, for the log."""
        for subject, trouble in list(self.troubles.items()):
            if trouble.seen != self._pass:
                if trouble.firing:
                    yield self._resolve(subject, trouble, None, now_ms)
                else:
                    del self.troubles[subject]
        self._pass += 1
        self.beyond, self._beyond = self._beyond, 0

    def _notify(self, subject: str, trouble: Trouble, now: float, now_ms: int) -> Notice:
        trouble.noticed_at = now
        trouble.notices += 1
        notice = Notice("firing", subject, trouble.reading, trouble.since_ms, now_ms, trouble.notices)
        before = self._due.get(subject)
        trouble.told |= before is not None and before.state == "resolved"  # the end of an earlier one is owed still
        self._due[subject] = notice
        return notice

    def _resolve(self, subject: str, trouble: Trouble, reading: Reading | None, now_ms: int) -> Notice:
        del self.troubles[subject]
        notice = Notice("resolved", subject, reading, trouble.since_ms, now_ms, trouble.notices + 1)
        self._due.pop(subject, None)
        if trouble.told:  # else the beginning was never sent: there is nothing to take back
            self._due[subject] = notice
        return notice

    # -- sending

    @property
    def due(self) -> int:
        """The number of waiting notices."""
        return len(self._due)

    def next_due(self) -> Notice | None:
        """The notice to send next; None for none. From now on the receiver may have it."""
        for subject, notice in self._due.items():
            if (trouble := self.troubles.get(subject)) is not None and notice.state == "firing":
                trouble.told = True
            return notice
        return None

    def is_due(self, notice: Notice) -> bool:
        """Whether a notice is still the newest of its topic."""
        return self._due.get(notice.subject) is notice

    def settle(self, notice: Notice) -> None:
        """Note that a notice was sent or given up; does nothing if a newer one has taken its place."""
        if self.is_due(notice):
            del self._due[notice.subject]
