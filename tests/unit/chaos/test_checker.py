"""The checker finds what is wrong with a history, and nothing in a good one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from toymq_chaos import history
from toymq_chaos.checker import check
from toymq_chaos.history import Event, digest_of
from toymq_py.errors import DamagedData

MS = 1_000_000


def pub(t_ms: int, n: int, *, result: history.Result = "ok", msg_id: int | None = None, process: str = "p.1") -> Event:
    msg_id = n if msg_id is None and result in ("ok", "dup") else msg_id
    return Event(t_ms * MS, process, "pub", result, topic="t", key=f"k{n}", digest=digest_of(b"%d" % n), id=msg_id)


def deliver(t_ms: int, n: int, *, attempt: int = 1, msg_id: int | None = None, process: str = "c.1") -> Event:
    msg_id = n if msg_id is None else msg_id
    digest = digest_of(b"%d" % n)
    return Event(
        t_ms * MS, process, "deliver", topic="t", consumer="c", key=f"k{n}", digest=digest, id=msg_id, attempt=attempt
    )


def ack(t_ms: int, n: int, *, sync: bool | None = None) -> Event:
    return Event(t_ms * MS, "c.1", "ack", topic="t", consumer="c", id=n, sync=sync)


SUB = Event(0, "c.1", "sub", topic="t", consumer="c")
DRAINED = Event(10**12, "supervisor", "drained")


def kill(t_ms: int) -> Event:
    return Event(t_ms * MS, "broker", "kill")


GOOD = [
    SUB, pub(1, 0), pub(2, 1), deliver(3, 0), ack(4, 0, sync=True), deliver(5, 1), kill(6), pub(7, 2, result="unknown"),
    deliver(8, 1, attempt=2, process="c.2"), pub(9, 2, result="dup", process="p.2"), deliver(10, 2, process="c.2"), ack(11, 2),
    pub(12, 3, result="unknown"), deliver(13, 3, process="c.2"), pub(14, 4, result="err"), pub(15, 4, process="p.3"),
    deliver(16, 4, process="c.2"), ack(17, 4), kill(50), deliver(60, 4, attempt=2, process="c.3"), DRAINED,
]  # fmt: skip


def test_a_good_history_has_counts_and_no_violation() -> None:
    verdict = check(GOOD)
    assert verdict.ok, verdict.violations[0]
    assert (verdict.attempted, verdict.acknowledged, verdict.recovered, verdict.lost, verdict.unexpected) == (5, 4, 1, 0, 0)
    assert (verdict.delivered, verdict.acked, verdict.kills) == (7, 3, 2)
    assert sum(verdict.duplicated.values()) == 2


def without(op: str, msg_id: int) -> Callable[[list[Event]], list[Event]]:
    return lambda events: [event for event in events if not (event.op == op and event.id == msg_id)]


def changed(at: int, **fields: object) -> Callable[[list[Event]], list[Event]]:
    return lambda events: [replace(event, **fields) if n == at else event for n, event in enumerate(events)]  # type: ignore[arg-type]


def added(event: Event) -> Callable[[list[Event]], list[Event]]:
    return lambda events: sorted([*events, event], key=lambda one: one.t_ns)


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (without("deliver", 2), "an acknowledged message never came to c"),
        (changed(3, digest="0"), "a message was changed"),
        (changed(3, key="stranger"), "a message came that nobody published"),
        (added(deliver(70, 0, attempt=2)), "an acked message was delivered again although its ack was on the disk"),
        (added(deliver(170, 0, attempt=2)), "an acked message was delivered again although its ack was on the disk"),
        (lambda events: [*events, ack(70, 4), deliver(71, 4, attempt=3)], "an acked message was delivered again"),
        (added(deliver(70, 4, attempt=2, process="c.3")), "attempts fell"),
        (added(pub(70, 1, msg_id=9, process="p.9")), "one key was given two ids"),
        (added(pub(70, 9, msg_id=1, process="p.9")), "one id was given to two keys"),
        (added(deliver(70, 1, msg_id=9, process="c.9")), "one key was given two ids"),
        (added(pub(3, 8, msg_id=0)), "ids of one connection do not ascend"),
        (changed(15, result="err", id=None), "a refused message was delivered"),
        (added(deliver(11, 1, attempt=1, process="c.2")), "first deliveries of one connection do not ascend"),
    ],
    ids=map(str, range(13)),
)
def test_what_is_wrong_is_found(spoil: Callable[[list[Event]], list[Event]], promise: str) -> None:
    verdict = check(spoil(GOOD))
    assert promise in [violation.promise for violation in verdict.violations]
    for violation in verdict.violations:
        assert violation.evidence
        assert str(violation).startswith(violation.promise)


def test_without_a_drain_nothing_is_lost_yet() -> None:
    assert check([event for event in GOOD[:-1] if event.id != 2 or event.op != "deliver"]).lost == 0


def test_a_history_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history.write(path, GOOD)
    assert list(history.read(path)) == GOOD
    assert path.read_text().splitlines()[1] == (
        '{"t_ns": 1000000, "process": "p.1", "op": "pub", "result": "ok", "topic": "t", "key": "k0", '
        f'"digest": "{digest_of(b"0")}", "id": 0}}'
    )


@pytest.mark.parametrize("line", ["{", "[]", "1", '{"t_ns": 1}'])
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(GOOD[0].to_json() + "\n\n" + line + "\n")
    with pytest.raises(DamagedData, match="line 3"):
        list(history.read(path))
