"""What DESCRIBE says of a topic, against a model with a row per id and consumer, over anything that may happen to it.

``Model`` is the whole truth in the plainest form. A feature that changes what counts adds a field or a state to ``Row`` and a
rule to the machine; ``Model.described`` is what every number is compared with after every step.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.support.broker_rig import BrokerRig
from tests.support.shares import examples
from toymq_py.consumer_options import Start
from toymq_py.storage.record import FRAME_OVERHEAD
from toymq_py.topic import Subscription

VISIBILITY_S = 10
PAYLOAD = bytes(300)  # all records equally long: then a limit in bytes is exact, too, and a segment has a dozen of them
FRAME = FRAME_OVERHEAD + len(PAYLOAD)
NAMES = st.sampled_from(["a", "b", "c"])
IDS = st.integers(0, 80)
RARELY = st.sampled_from([False] * 5 + [True])  # what empties a topic: mostly there should be something in it


@dataclass
class Row:
    state: str = "ready"  # ready, inflight, scheduled, acked
    delivered: bool = False
    until: float = 0.0  # of the lease, or of the backoff


@dataclass
class Model:
    first_id: int = 0
    at: list[float] = field(default_factory=list)  # when each id was published
    rows: dict[str, list[Row]] = field(default_factory=dict)  # of each consumer, by id
    acking: dict[str, bool] = field(default_factory=dict)  # whether it has acked anything
    dropped: int = 0
    limit: int | None = None
    drops: bool = False

    def backlog(self) -> list[int]:
        ids = range(self.first_id, len(self.at))
        return [i for i in ids if not self.rows or any(rows[i].state != "acked" for rows in self.rows.values())]

    def room(self) -> int:
        return 1 << 30 if self.limit is None or self.drops else max(self.limit - len(self.backlog()), 0)

    def gone(self, ids: list[int]) -> None:
        for rows in self.rows.values():
            for i in ids:
                rows[i].state = "acked"

    def trim(self) -> None:
        waiting = self.backlog()
        if self.limit is not None and self.drops and (over := len(waiting) - self.limit) > 0:
            self.gone(waiting[:over])
            self.dropped += over
            self.first_id = self.first_id if self.rows else waiting[over - 1] + 1

    def forget_all(self) -> None:
        self.gone(list(range(len(self.at))))
        self.first_id = len(self.at)

    def described(self, name: str, now: float) -> dict[str, Any]:
        rows = self.rows[name]
        count = [row.state for row in rows].count
        waiting = [i for i, row in enumerate(rows) if row.state != "acked"]
        floor = waiting[0] if waiting else len(rows)
        acked = self.acking[name] and floor > 0
        due = [i for i in waiting if rows[i].state != "scheduled"]
        return {
            "ready": count("ready"), "inflight": count("inflight"), "scheduled": count("scheduled"), "backlog": len(due),
            "has_acked": acked, "last_acked": floor - 1 if acked else 0,
            "oldest_unacked_age_s": now - self.at[due[0]] if due else 0.0,
        }  # fmt: skip


class TopicNumbers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = BrokerRig(visibility_ms=VISIBILITY_S * 1000, segment_bytes=4096)
        self.rig.change("create", "t")
        self.model = Model()
        self.sessions: dict[str, Subscription] = {}
        self.maybe_below: dict[str, int] = {}

    @property
    def topic(self) -> Any:
        return self.rig.broker.topic("t")

    @property
    def now(self) -> float:
        return self.rig.clock.monotonic()

    def near(self, number: int) -> int:
        """Return an id that exists or comes next, chosen by a number from ``IDS``: mostly a retained one."""
        model = self.model
        return max(len(model.at) - number % (len(model.at) - model.first_id + 3), 0)

    @initialize(count=st.integers(0, 20), names=st.sets(NAMES), limit=st.none() | st.integers(20, 40), drops=RARELY)
    def begin(self, count: int, names: set[str], limit: int | None, drops: bool) -> None:
        """Publish, and let consumers take messages: most of what can go wrong needs consumers that hold some."""
        self.limit(limit, drops, in_bytes=False)
        for name in sorted(names):
            self.subscribe(name, latest=False)
        if count:
            self.publish(count)
        for name in sorted(names):
            for _ in range(4):
                self.deliver(name, 4)

    @rule(count=st.integers(1, 20))
    def publish(self, count: int) -> None:
        outcomes = self.rig.publish("t", *[PAYLOAD] * count)
        stored = sum(outcome.count for outcome in outcomes if outcome.error is None)
        assert stored == min(count, self.model.room())
        self.model.at += [self.now] * stored
        for rows in self.model.rows.values():
            rows += [Row() for _ in range(stored)]
        self.model.trim()

    @rule(name=NAMES, latest=st.booleans())
    def subscribe(self, name: str, latest: bool) -> None:
        model = self.model
        self.leave(name)
        self.sessions[name] = self.rig.subscribe(
            "t", name, window=15, start="latest" if latest else "earliest", visibility_s=VISIBILITY_S
        )
        if name not in model.rows:
            below = len(model.at) if latest else model.first_id
            model.rows[name] = [Row("acked" if i < below else "ready") for i in range(len(model.at))]
            model.acking[name] = False
            model.trim()

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        if name in self.sessions:
            self.sessions.pop(name).close()
            for row in self.model.rows[name]:
                row.state = "ready" if row.state == "inflight" else row.state

    @rule(name=NAMES, chunk=st.integers(1, 4))
    def deliver(self, name: str, chunk: int) -> None:
        if name not in self.sessions or (delivery := self.sessions[name].take(chunk * len(PAYLOAD))) is None:
            return
        for msg_id in range(delivery.first_id, delivery.last_id + 1):
            row = self.model.rows[name][msg_id]
            assert row.state == "ready"
            row.state, row.delivered, row.until = "inflight", True, self.now + VISIBILITY_S

    @rule(name=NAMES, rows=st.lists(st.booleans(), max_size=15))
    def work(self, name: str, rows: list[bool]) -> None:
        """Ack some of the inflight messages."""
        if name in self.model.rows:
            self.deliver(name, 4)
            inflight = [i for i, row in enumerate(self.model.rows[name]) if row.state == "inflight"]
            for msg_id, acked in zip(inflight, rows, strict=False):
                if acked:
                    self.ack(name, len(self.model.at) - msg_id, 0)

    @rule(name=NAMES, first=IDS, width=st.integers(0, 8))
    def ack(self, name: str, first: int, width: int) -> None:
        if name in self.model.rows:
            first = self.near(first)
            rows = self.model.rows[name][first : first + width + 1]
            early = max(self.maybe_below.get(name, 0) - first, 0)  # an earlier life may have delivered so many of them
            taken = [row for i, row in enumerate(rows) if (row.delivered or i < early) and row.state != "acked"]
            assert self.topic.ack(name, [(first, first + width)]) == len(taken)
            self.model.acking[name] |= bool(taken)
            for row in taken:
                row.state = "acked"

    @rule(name=NAMES, first=IDS, width=st.integers(0, 8), delay_s=st.sampled_from([0.0, 3.0]))
    def nack(self, name: str, first: int, width: int, delay_s: float) -> None:
        if name in self.model.rows:
            first = self.near(first)
            taken = [row for row in self.model.rows[name][first : first + width + 1] if row.state == "inflight"]
            assert self.topic.nack(name, [(first, first + width)], delay_s) == len(taken)
            for row in taken:
                row.state, row.until = "scheduled" if delay_s else "ready", self.now + delay_s

    @rule(seconds=st.integers(1, 7))
    def wait(self, seconds: int) -> None:
        self.rig.advance(seconds)
        for rows in self.model.rows.values():
            for row in rows:
                if row.state in ("inflight", "scheduled") and row.until <= self.now:
                    row.state = "ready"

    @rule(name=NAMES, to=IDS)
    def seek(self, name: str, to: int) -> None:
        model, to = self.model, self.near(to)
        if model.first_id <= to:
            self.leave(name)
            self.topic.seek(name, Start("id", to))
            model.rows[name] = [Row("acked" if i < to else "ready") for i in range(len(model.at))]
            model.acking[name] = False
            self.maybe_below.pop(name, None)
            model.trim()

    @rule(name=NAMES, sure=RARELY)
    def forget(self, name: str, sure: bool) -> None:
        if sure and name in self.model.rows:
            self.leave(name)
            self.topic.forget(name)
            del self.model.rows[name], self.model.acking[name]
            self.maybe_below.pop(name, None)
            self.model.trim()

    @rule(limit=st.none() | st.integers(1, 40), drops=RARELY, in_bytes=st.booleans())
    def limit(self, limit: int | None, drops: bool, in_bytes: bool) -> None:
        value = "default" if limit is None else str(limit * FRAME if in_bytes else limit)
        names = ("backlog_max_bytes", "backlog_max_messages") if in_bytes else ("backlog_max_messages", "backlog_max_bytes")
        changes = {names[0]: value, names[1]: "default", "when_full": "drop-oldest" if drops else "default"}
        assert self.rig.change("configure", "t", **changes) == "OK"
        self.model.limit, self.model.drops = limit, drops
        self.model.trim()

    @rule(sure=RARELY)
    def purge(self, sure: bool) -> None:
        if not sure:
            return
        assert self.rig.purge("t") == len(self.model.at) - self.model.first_id
        self.model.forget_all()

    @rule(sure=RARELY)
    def outlive(self, sure: bool) -> None:
        """Let all messages exceed the topic's ``retain_max_age``."""
        if not sure:
            return
        assert self.rig.change("configure", "t", retain_max_age="1000") == "OK"
        self.wait(5)
        assert self.rig.change("configure", "t", retain_max_age="default") == "OK"
        self.model.dropped += len(self.model.backlog())
        self.model.forget_all()

    @precondition(lambda self: self.model.at)
    @rule(power_cut=st.booleans())
    def restart(self, power_cut: bool) -> None:
        """Restart with the offsets on the disk: acks that a kill may lose are the matter of other tests."""
        self.rig.flush("t")
        self.rig.reopen(power_cut=power_cut)
        self.sessions.clear()
        self.maybe_below = dict.fromkeys(self.model.rows, len(self.model.at))
        self.model.dropped = 0
        for rows in self.model.rows.values():
            for row in rows:
                row.state = "ready" if row.state in ("inflight", "scheduled") else row.state

    @invariant()
    def numbers_agree(self) -> None:
        self.rig.loop.advance(0)
        said, model = self.rig.numbers("t"), self.model
        assert (said["first_id"], said["next_id"]) == (model.first_id, len(model.at))
        assert (said["messages"], said["lost"], said["state"]) == (len(model.at) - model.first_id, 0, "ok")
        assert said["dropped_total"] == model.dropped
        assert self.topic.backlog.messages(model.first_id, len(model.at)) == len(model.backlog())
        files = [len(data) for path, data in self.rig.disk.snapshot().items() if path.endswith(".log")]
        assert (said["segments"], said["bytes"]) == (len(files), sum(files))
        assert said["consumers"].keys() == model.rows.keys()
        for name, consumer in said["consumers"].items():
            wanted = model.described(name, self.now)
            assert {key: consumer[key] for key in wanted} == wanted, name
            assert consumer["sessions"] == (name in self.sessions)


@pytest.mark.hypothesis
def test_every_number_is_that_of_the_model() -> None:
    run_state_machine_as_test(
        TopicNumbers,
        settings=settings(
            max_examples=examples(90), stateful_step_count=40, deadline=None, derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
