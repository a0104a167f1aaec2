"""The checker on further fates of a message: which events excuse a loss or a repeat, and that nothing else does."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from toymq_chaos.checker import check
from toymq_chaos.history import Event, Op, Result, digest_of

MS = 1_000_000
DIGEST = digest_of(b"x")


def of(t_ms: int, op: Op, process: str = "broker", result: Result = "ok", **fields: object) -> Event:
    return Event(t_ms * MS, process, op, result, **fields)  # type: ignore[arg-type]


def pub(t_ms: int, n: int, *, result: Result = "ok", sent_ms: int | None = None, **fields: object) -> Event:
    sent_ns = (t_ms if sent_ms is None else sent_ms) * MS
    msg_id = n if result == "ok" else None
    return of(t_ms, "pub", "p.1", result, topic="t", key=f"k{n}", digest=DIGEST, id=msg_id, sent_ns=sent_ns, **fields)


def sub(t_ms: int, process: str, consumer: str = "c", topic: str = "t") -> Event:
    return of(t_ms, "sub", process, topic=topic, consumer=consumer, sent_ns=t_ms * MS)


def deliver(t_ms: int, n: int, process: str = "c.1", attempt: int = 1, **fields: object) -> Event:
    told: dict[str, object] = {"topic": "t", "consumer": "c", "key": f"k{n}", "digest": DIGEST} | fields
    return of(t_ms, "deliver", process, id=n, attempt=attempt, **told)


def ack(t_ms: int, n: int, process: str = "c.1", op: Op = "ack", **fields: object) -> Event:
    told: dict[str, object] = {"topic": "t", "consumer": "c", "sent_ns": t_ms * MS} | fields
    return of(t_ms, op, process, id=n, **told)


def letter(t_ms: int, n: int, origin: int, count: int = 3, **fields: object) -> Event:
    told: dict[str, object] = {"topic": "t.dlq", "consumer": "r", "key": f"dlq:t:c:{origin}:1:1"} | fields
    return deliver(t_ms, n, "r.1", origin_id=origin, origin_consumer="c", count=count, note=f"k{origin}", **told)


def back(t_ms: int, n: int, of_letter: int, process: str = "c.1", **fields: object) -> Event:
    return deliver(t_ms, n, process, key=f"redrive:t.dlq:{of_letter}:1", **({"origin_consumer": "c"} | fields))  # type: ignore[arg-type]


START = [of(0, "start", visibility_ms=1000), sub(0, "c.1"), sub(0, "r.1", "r", "t.dlq")]
DRAINED = of(10_000, "drained", "supervisor")
MOST = of(0, "config", "o.1", topic="t", key="max_attempts", note="3")
DEAD = [MOST, pub(1, 0), deliver(2, 0), ack(3, 0, op="nack", dead=True)]
READ = ack(6, 0, "r.1", topic="t.dlq", consumer="r")
MADE_ANEW = [
    of(0, "declare", topic="t", note="delete"), pub(1, 0), deliver(2, 0), of(4, "delete", "o.1", topic="t", sent_ns=3 * MS),
    replace(pub(7, 1, sent_ms=6), id=0),
]  # fmt: skip


def promises(events: Sequence[Event]) -> list[str]:
    return [violation.promise for violation in check([*START, *events, DRAINED]).violations]


@pytest.mark.parametrize(
    "events",
    [
        [pub(1, 0, delay_ms=100), deliver(102, 0), ack(103, 0)],
        [pub(1, 0, delay_ms=5000), of(2, "clock", ahead_ns=5000 * MS), deliver(3, 0), ack(4, 0)],
        [pub(1, 0, delay_ms=100), pub(2, 1), deliver(3, 1), ack(4, 1), deliver(102, 0), ack(103, 0)],
        [pub(1, 0, ttl_ms=100)],
        [pub(1, 0, ttl_ms=100), deliver(90, 0), ack(300, 0)],
        [of(0, "declare", topic="t", note="drop"), pub(1, 0)],
        [pub(1, 0), of(2, "purge", "o.1", topic="t", sent_ns=2 * MS)],
        [pub(3, 0, sent_ms=1), of(2, "purge", "o.1", topic="t", sent_ns=2 * MS)],
        [*DEAD, letter(5, 0, 0), READ, back(7, 1, 0), ack(8, 1)],
        [of(0, "config", topic="t", key="x", note="1"), of(1, "settings", topic="t", key="x", note="1")],
        [of(0, "config", result="unknown", topic="t", key="x", note="1"), of(1, "settings", topic="t", key="x", note="2")],
        [*MADE_ANEW, ack(8, 0)],
    ],
    ids=[
        "delay", "clock", "order", "expired", "in time", "dropped", "purged", "perhaps", "dead", "set", "perhaps set",
        "a namesake",
    ],
)
def test_what_is_excused(events: list[Event]) -> None:
    assert promises(events) == []


@pytest.mark.parametrize(
    ("events", "promise"),
    [
        ([pub(1, 0, delay_ms=100), deliver(50, 0), ack(51, 0)], "a message came before its time"),
        ([pub(1, 0, ttl_ms=60_000)], "an acknowledged message never came to c"),
        (
            [pub(1, 0, ttl_ms=100), ack(500, 9, sent_ns=490 * MS), deliver(501, 0), ack(502, 0)],
            "a message came after it had expired",
        ),
        (
            [of(0, "declare", topic="t", note="drop"), pub(1, 0), pub(2, 1), of(3, "dropped", topic="t", count=1)],
            "2 messages of t are missing, and 1 were counted",
        ),
        ([of(1, "purge", "o.1", topic="t", sent_ns=MS), pub(3, 0, sent_ms=2)], "an acknowledged message never came to c"),
        (
            [pub(1, 0), of(3, "purge", "o.1", topic="t", sent_ns=2 * MS), ack(5, 9, sent_ns=4 * MS), deliver(6, 0), ack(7, 0)],
            "a message came that had been removed",
        ),
        ([*DEAD, letter(5, 0, 0), READ], "a dead letter never came back"),
        ([*DEAD], "a message was never acked, and did not come again"),
        (
            [*DEAD, letter(5, 0, 0), READ, letter(7, 1, 0), ack(8, 1, "r.1", topic="t.dlq", consumer="r"),
             back(9, 1, 0), ack(9, 1), back(9, 2, 1), ack(9, 2)],
            "a message became two dead letters",
        ),
        ([MOST, pub(1, 0), deliver(2, 0), letter(5, 0, 0, count=1), READ, back(7, 1, 0), ack(8, 1)],
         "a message became a dead letter before its last attempt"),
        ([*DEAD, letter(5, 0, 0), READ, back(7, 1, 0), ack(8, 1), back(9, 2, 0), ack(9, 2)], "a dead letter came back twice"),
        ([*DEAD, letter(5, 0, 0), READ, back(7, 1, 0, digest="0"), ack(8, 1)], "a dead letter was changed on its way back"),
        ([*DEAD, letter(5, 0, 0, digest="0"), READ, back(7, 1, 0, digest="0"), ack(8, 1)], "a dead letter was changed"),
        ([*DEAD, letter(5, 0, 0), READ, back(7, 1, 0, origin_consumer="d"), ack(8, 1)],
         "a dead letter came back to another consumer"),
        ([back(7, 1, 0), ack(8, 1)], "a dead letter came back that was never delivered"),
        ([MOST, pub(1, 0), deliver(2, 0, attempt=1), deliver(1100, 0, attempt=4), ack(1101, 0)],
         "a message was delivered more often than max_attempts"),
        ([of(0, "config", topic="t", key="x", note="1"), of(1, "settings", topic="t", key="x", note="2")],
         "a setting is not what it was set to"),
        ([*MADE_ANEW, ack(5, 0)], "an acknowledged message never came to c"),
        ([*MADE_ANEW, ack(8, 0, "c.2")], "an acknowledged message never came to c"),
    ],
    ids=map(str, range(19)),
)  # fmt: skip
def test_what_nothing_excuses(events: list[Event], promise: str) -> None:
    assert promise in promises(events)


SHARED = [of(0, "declare", topic="t", consumer="c", note="share"), sub(0, "c.2"), pub(1, 0), deliver(2, 0)]


def test_two_workers_have_no_message_within_one_visibility_timeout() -> None:
    again = [deliver(500, 0, "c.2", 2), ack(600, 9, sent_ns=550 * MS), ack(700, 0, "c.2"), ack(701, 0)]
    assert promises([*SHARED, *again]) == ["a message came again before its visibility timeout, without a nack"]
    late = [deliver(1100, 0, "c.2", 2), ack(1200, 0, "c.2"), ack(1201, 0)]
    assert promises([*SHARED, *late]) == []


def test_what_a_worker_read_late_blames_nobody() -> None:
    """For all the checker knows, the delivery was sent before another worker's ack."""
    assert promises([*SHARED, ack(3, 0), deliver(4, 0, "c.2", 1), ack(5, 0, "c.2")]) == []
    asked = ack(500, 9, "c.2", sent_ns=490 * MS)
    assert promises([*SHARED, ack(3, 0), asked, deliver(501, 0, "c.2", 2), ack(502, 0, "c.2")]) == [
        "an acked message was delivered again"
    ]
