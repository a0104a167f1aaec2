"""The verdict as text and as JSON."""

import json

from toymq_chaos.history import Event
from toymq_chaos.verdict import Verdict


def test_a_broken_promise_names_its_evidence() -> None:
    verdict = Verdict(attempted=1)
    assert verdict.ok
    event = Event(5, "c.1", "ack", topic="t", consumer="c", id=7)
    verdict.broken("an acked message was lost", event)
    assert not verdict.ok
    assert str(verdict.violations[0]).splitlines() == ["an acked message was lost", "  " + event.to_json()]


def test_json_has_all_counts_and_of_events_only_what_is_set() -> None:
    verdict = Verdict(attempted=1, kills=2)
    verdict.duplicated["the broker ended before it was acked"] += 3
    verdict.broken("a promise", Event(5, "broker", "kill"))
    found = json.loads(json.dumps(verdict.as_dict()))
    assert (found["attempted"], found["kills"], found["duplicated"]) == (1, 2, {"the broker ended before it was acked": 3})
    assert found["violations"] == [
        {"promise": "a promise", "evidence": [{"t_ns": 5, "process": "broker", "op": "kill", "result": "ok"}]}
    ]
