"""A history is the same after it was written and read, and an invalid line is named."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from toymq_chaos import history
from toymq_chaos.history import CONFIRM, Event, digest_of
from toymq_py.errors import DamagedData

EVENTS = [
    Event(0, "c.1", "sub", topic="t", consumer="c", sent_ns=0),
    Event(1_000_000, "p.1", "pub", "ok", topic="t", key="k0", digest=digest_of(b"0"), id=0),
    Event(2_000_000, "broker", "kill"),
]


def test_a_history_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history.write(path, EVENTS)
    assert list(history.read(path)) == EVENTS
    assert path.read_text().splitlines()[1] == (
        '{"t_ns": 1000000, "process": "p.1", "op": "pub", "result": "ok", "topic": "t", "key": "k0", '
        f'"digest": "{digest_of(b"0")}", "id": 0}}'
    )


def test_a_confirm_has_no_id(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    confirmed = replace(EVENTS[1], id=None, note=CONFIRM)
    history.write(path, [confirmed])
    assert list(history.read(path)) == [confirmed]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "no JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "'utf-8' codec can't decode byte"),
        (b'{"t_ns": 1}', "no process"),
        (b'{"t_ns": 1, "process": "p", "op": "explode"}', 'op cannot be "explode"'),
        (b'{"t_ns": 1, "process": "p", "op": ["pub"]}', 'op cannot be ["pub"]'),
        (b'{"t_ns": 1, "process": "p", "op": "kill", "result": "no"}', 'result cannot be "no"'),
        (b'{"t_ns": "1", "process": "p", "op": "kill"}', 't_ns cannot be "1"'),
        (b'{"t_ns": true, "process": "p", "op": "kill"}', "t_ns cannot be true"),
        (b'{"t_ns": 1, "process": "p", "op": "ack", "topic": "t", "id": 1}', "no consumer"),
        (b'{"t_ns": 1, "process": "p", "op": "pub", "topic": "t", "key": "k", "digest": "d"}', "no id"),
        (b'{"t_ns": -1, "process": "p", "op": "kill"}', "t_ns -1 is before that of the event above, 0"),
    ],
    ids=map(str, range(13)),
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: bytes, what: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(EVENTS[0].to_json().encode() + b"\n\n" + line + b"\n")
    with pytest.raises(DamagedData, match=re.escape(f"{path}:3: {what}")) as error:
        list(history.read(path))
    assert "\n" not in str(error.value)
