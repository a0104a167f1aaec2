"""A malformed line of a ledger is named by file and number; a line that a killed writer left unfinished is not."""

import gzip
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from toymq_chaos import history
from toymq_py.errors import DamagedData
from toymq_spark import ledgers

GOOD: dict[str, Any] = {"op": "pub", "result": "ok", "topic": "t", "key": "k", "digest": "d", "id": 4}


def line(**other: Any) -> bytes:
    """Return a good line with other fields; ``...`` removes one."""
    return json.dumps({name: value for name, value in {**GOOD, **other}.items() if value is not ...}).encode()


MALFORMED = [
    (b"not json", "Expecting value at column 1"),
    (b"123", "no JSON object"),
    (b"[" * 100_000, "nested too deeply"),
    (b"\xff", "'utf-8' codec can't decode byte"),
    (line()[:-1], "Expecting ',' delimiter"),
    (line() + line(), "Extra data"),
    (line().replace(b'"', b"'"), "Expecting property name"),
    (line(op=...), "no op"),
    (line(op="pubb"), 'op cannot be "pubb"'),
    (line(op=["pub"]), 'op cannot be ["pub"]'),
    (line(result="OK"), 'result cannot be "OK"'),
    (line(result=None), "result cannot be null"),
    (line(id=...), "no id"),
    (line(id=..., result="dup"), "no id"),
    (line(id=..., result=...), "no id"),
    (line(id=..., op="deliver", result="unknown"), "no id"),
    (line(id=-3), "id cannot be -3"),
    (line(id="77"), 'id cannot be "77"'),
    (line(id=7.5), "id cannot be 7.5"),
    (line(id=1e30), "id cannot be 1e+30"),
    (line(id=2**63), "id cannot be 9223372036854775808"),
    (line(id=True), "id cannot be true"),
    (line(digest=...), "no digest"),
    (line(digest=..., op="deliver"), "no digest"),
    (line(topic=...), "no topic"),
    (line(topic=7), "topic cannot be 7"),
    (line(topic="t/x"), 'topic cannot be "t/x": topic name must be'),
    (line(key=5), "key cannot be 5"),
    (line(key={"a": "b"}), 'key cannot be {"a": "b"}'),
]
WELL_FORMED = [
    line(key=None), line(key=...), line(key='{"key": 5}'), line(result="unknown", id=None), line(result="err", id=...),
    line(result=...), line(op="deliver", consumer="c", attempt=1), line(topic=f"{'t' * 196}.dlq"), line(id=0),
    b'{"op": "kill", "note": {"at": "roll"}}', b'  {"op":"ack","id":3}\r',
]  # fmt: skip


@pytest.mark.parametrize(("malformed", "what"), MALFORMED, ids=map(str, range(len(MALFORMED))))
def test_a_line_that_is_not_well_formed_is_named(malformed: bytes, what: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"%b\n\n%b\n%b\n" % (line(), malformed, line()))
    with pytest.raises(DamagedData, match=re.escape(f"{ledger}:3: {what}")) as error:
        ledgers.torn(str(ledger))
    assert "\n" not in str(error.value)


def test_what_the_rules_allow(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"\n \t\n" + b"\n".join(WELL_FORMED))
    assert ledgers.torn(str(ledger)) is None, "the last line is whole, if without an end"


def test_a_last_line_that_broke_off_is_told_apart(tmp_path: Path) -> None:
    """A line without an end and without valid JSON was cut by a kill of its writer; a line with an end was written so, and
    valid JSON was not cut."""
    ledger = tmp_path / "ledger.jsonl"
    for at in range(1, len(line())):
        ledger.write_bytes(b"%b\n%b" % (line(), line()[:at]))
        assert ledgers.torn(str(ledger)) == 2
    for last in (line()[:9] + b"\n", line(id=-1), b"123"):
        ledger.write_bytes(b"%b\n%b" % (line(), last))
        with pytest.raises(DamagedData, match=re.escape(f"{ledger}:2: ")):
            ledgers.torn(str(ledger))
    packed = tmp_path / "ledger.jsonl.gz"
    packed.write_bytes(gzip.compress(line() + b"\n" + line()[:9]))
    assert ledgers.torn(str(packed)) == 2, "Spark reads it, too"


def test_words_are_those_of_the_harness() -> None:
    assert get_args(history.Op) == ledgers.OPS
    assert get_args(history.Result) == ledgers.RESULTS
