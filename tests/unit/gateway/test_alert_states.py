"""States of an alert rule: when it fires, repeats and is resolved, and which notices are pending."""

import json

import pytest

from toymq_py.config.alerts import Alert
from toymq_py.gateway import alert_states
from toymq_py.gateway.alert_states import DISK, AlertStates, Notice, Reading

ALERT = Alert("lag", ">", 100, 80, for_ms=60_000, repeat_ms=3600_000, url="http://a/")


class Passes:
    """Evaluates topics at given times; ``said`` has the states that were logged, by time."""

    def __init__(self, alert: Alert = ALERT) -> None:
        self.states = AlertStates(alert)
        self.said: list[tuple[float, str, str]] = []

    def at(self, now: float, **values: int) -> None:
        now_ms = round(now * 1000)
        notices = [self.states.look(topic, Reading(value, "c"), now, now_ms) for topic, value in values.items()]
        notices += list(self.states.end_pass(now_ms))
        self.said += [(now, notice.subject, notice.state) for notice in notices if notice is not None]

    def sent(self) -> list[tuple[str, str, int]]:
        """Send all due notices. Returns: them."""
        found = []
        while (notice := self.states.next_due()) is not None:
            self.states.settle(notice)
            found.append((notice.subject, notice.state, notice.number))
        return found


def test_it_fires_when_the_threshold_has_held_for_its_time_and_once() -> None:
    passes = Passes()
    passes.at(0, t=100)
    passes.at(59, t=5000)
    assert passes.sent() == []
    for now in (60, 70, 80):
        passes.at(now, t=100)
    assert passes.sent() == [("t", "firing", 1)]
    assert passes.said == [(60, "t", "firing")]


def test_a_value_that_comes_back_in_time_begins_anew() -> None:
    passes = Passes()
    for now, value in ((0, 100), (50, 99), (60, 100), (110, 100)):
        passes.at(now, t=value)
    assert (passes.said, passes.states.troubles["t"].since) == ([], 60)


def test_it_is_resolved_at_clear_and_not_between() -> None:
    passes = Passes()
    for now, value in ((0, 100), (60, 100)):
        passes.at(now, t=value)
    passes.sent()
    for now, value in ((70, 99), (80, 101), (90, 81)):
        passes.at(now, t=value)
    assert passes.sent() == [], "a value around the threshold says nothing"
    passes.at(100, t=80)
    assert passes.sent() == [("t", "resolved", 2)]
    assert passes.states.troubles == {}


def test_it_is_repeated_while_it_fires() -> None:
    passes = Passes()
    for now in (0, 60, 3659, 3660, 3670, 7260):
        passes.at(now, t=100)
        passes.states.settle(passes.states.next_due() or Notice("test", "t", None, 0, 0, 0))
    assert passes.states.troubles["t"].notices == 3
    silent = Passes(Alert("lag", ">", 100, 80, for_ms=0, repeat_ms=0, url="http://a/"))
    for now in (0, 10_000, 10_000_000):
        silent.at(now, t=100)
    assert silent.sent() == [("t", "firing", 1)]


def test_a_disk_fires_below() -> None:
    passes = Passes(Alert("disk", None, 100, 120, for_ms=0, url="http://a/"))
    passes.at(0, **{DISK: 101})
    passes.at(1, **{DISK: 100})
    assert passes.sent() == [(DISK, "firing", 1)]
    passes.at(2, **{DISK: 119})
    passes.at(3, **{DISK: 120})
    assert passes.sent() == [(DISK, "resolved", 2)]


def test_a_topic_that_is_gone_is_resolved() -> None:
    passes = Passes()
    passes.at(0, t=100, pending=0)
    passes.at(60, t=100, pending=100)
    passes.sent()
    passes.at(70)
    assert passes.said[-1] == (70, "t", "resolved")
    assert (passes.sent(), passes.states.troubles) == ([("t", "resolved", 2)], {})


def test_what_cannot_be_measured_stays_as_it_is() -> None:
    passes = Passes()
    passes.at(0, t=100)
    passes.states.keep("t")
    passes.states.keep("other")
    passes.at(10)
    passes.at(60, t=100)
    assert passes.said == [(60, "t", "firing")]


def test_what_was_never_sent_needs_no_end() -> None:
    """The trouble was over before its first notice was sent: the receiver gets neither."""
    passes = Passes()
    for now, value in ((0, 100), (60, 100), (70, 0)):
        passes.at(now, t=value)
    assert [state for _, _, state in passes.said] == ["firing", "resolved"], "the log has both"
    assert passes.sent() == []


def test_an_attempt_that_failed_may_have_arrived_so_the_end_is_sent() -> None:
    passes = Passes()
    for now in (0, 60):
        passes.at(now, t=100)
    failed = passes.states.next_due()
    assert failed is not None
    passes.at(70, t=0)
    assert passes.states.next_due() is not failed, "the newer notice takes its place"
    passes.states.settle(failed)
    assert passes.sent() == [("t", "resolved", 2)]


def test_an_end_that_waits_is_owed_also_when_a_new_trouble_takes_its_place() -> None:
    """Found: a receiver was told that a rule fires; before the end could be sent a second trouble began and ended, and the
    receiver never got an end."""
    passes = Passes(Alert("lag", ">", 100, 80, for_ms=0, url="http://a/"))
    passes.at(0, t=100)
    assert passes.sent() == [("t", "firing", 1)]
    for now, value in ((10, 0), (20, 100), (30, 0)):
        passes.at(now, t=value)
    assert [state for _, state, _ in passes.sent()] == ["resolved"]


def test_at_most_one_notice_of_a_topic_waits() -> None:
    passes = Passes(Alert("lag", ">", 100, 80, for_ms=0, repeat_ms=60_000, url="http://a/"))
    for now in range(0, 6000, 60):
        passes.at(now, t=100, u=100)
    assert passes.sent() == [("t", "firing", 100), ("u", "firing", 100)]


def test_a_storm_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_states, "TROUBLES_MAX", 3)
    passes = Passes()
    for now in (0, 60):
        passes.at(now, **{f"t{n}": 100 for n in range(10)})
    assert (passes.states.firing, passes.states.beyond, len(passes.sent())) == (3, 7, 3)
    passes.at(70, **{f"t{n}": 0 if n < 3 else 100 for n in range(10)})
    assert (passes.states.firing, len(passes.states.troubles), passes.states.beyond) == (0, 3, 4), "there is room again"


@pytest.mark.parametrize(
    ("alert", "reading", "text"),
    [
        (ALERT, Reading(120, "billing"), "consumer billing of orders has a backlog of 120 messages (threshold 100 messages"),
        (ALERT, Reading(130, "billing", 94),
         "consumer billing of orders has a backlog of 130 messages, 94 of them given back to be delivered again"
         " later (threshold"),
        (Alert("retrying", ">", 10, 8, url="http://a/"), Reading(94, "b"),
         "consumer b of orders has 94 messages to retry after a failed delivery (threshold 10 messages"),
        (Alert("age", ">", 60_000, 1, url="http://a/"), Reading(65_000, "b"),
         "the oldest unacked message of consumer b of orders has waited 65s (threshold 1m"),
        (Alert("letters", ">", 1, 0, url="http://a/"), Reading(3), "orders has 3 dead letters (threshold 1 message,"),
        (Alert("unattached", ">", 1, 0, url="http://a/"), Reading(3, "b"),
         "consumer b of orders has 3 messages to deliver and nothing attached"),
        (Alert("unattached", ">", 1, 0, url="http://a/"), Reading(0), "orders is attended to"),
        (ALERT, None, "topic orders is gone"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_notice_says_it_all_in_a_line(alert: Alert, reading: Reading | None, text: str) -> None:
    body = Notice("firing", "orders", reading, 1_700_000_000_000, 1_700_000_060_000, 1).to_json("late", alert)
    assert body["text"].startswith(f"toymq alert late firing: {text}")
    assert body["text"].endswith("since 2023-11-14 22:13:20 UTC)")
    assert json.loads(json.dumps(body)) == body


def test_the_disk_has_no_topic_and_a_test_says_so() -> None:
    disk = Alert("disk", None, 10 << 30, 12 << 30, url="http://a/")
    notice = Notice("firing", DISK, Reading(5 << 30), 0, 0, 2)
    body = notice.to_json("full", disk)
    assert (body["topic"], body["unit"], notice.message_id("full")) == (None, "bytes", "alert:full:disk:0:firing:2")
    assert "5GiB are free on the disk (threshold 10GiB" in body["text"]
    test = Notice("test", DISK, None, 7, 7, 1)
    assert test.message_id("late") == "alert:late:test:7", "of whatever rule"
    assert test.to_json("full", disk)["text"].endswith("this is a test, nothing is wrong")
