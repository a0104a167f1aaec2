"""Checks that the lines of a ledger are well formed. A ledger is a file in which test clients recorded their publishes and
deliveries (reliability.md, ``history.jsonl``).

The rules are those of ``toymq-chaos check``, as far as ``verify`` needs them: other fields and operations are ignored. Knows
nothing of Spark.
"""

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from toymq_py.errors import BadName, DamagedData
from toymq_py.names import check_name

OPS = (
    "connect", "disconnect", "pub", "sub", "pull", "deliver", "ack", "nack",
    "declare", "config", "settings", "redrive", "purge", "delete", "dropped",
    "start", "kill", "stop", "pause", "resume", "full", "free", "cut", "clock", "stalled",
    "drained",
)  # fmt: skip
"""All operations of a ledger. An unknown one is an error: it could be a misspelt publish."""
RESULTS = ("ok", "dup", "err", "unknown")
CONFIRMED = ("ok", "dup")
TEXTS = ("topic", "key", "digest", "consumer")
ID_MAX = 2**63 - 1
"""Largest number of a Spark column."""
SHOWN = 100


def complaint(line: bytes) -> str | None:
    """Return what is wrong with a line; None if it is well formed."""
    try:
        found: Any = json.loads(line.decode())
    except RecursionError:
        return "nested too deeply"
    except json.JSONDecodeError as error:
        return f"{error.msg} at column {error.colno}"
    except ValueError as error:
        return str(error)
    if not isinstance(found, dict):
        return "no JSON object"
    if "op" not in found:
        return "no op"
    for name, known in (("op", OPS), ("result", RESULTS)):
        if name in found and found[name] not in known:
            return _invalid(name, found[name])
    for name in TEXTS:
        if not isinstance(found.get(name), str | None):
            return _invalid(name, found[name])
    msg_id = found.get("id")
    if msg_id is not None and (type(msg_id) is not int or not 0 <= msg_id <= ID_MAX):  # True is not a number
        return _invalid("id", msg_id)
    return _missing(found) if found["op"] in ("pub", "deliver") else None


def _missing(found: dict[str, Any]) -> str | None:
    """Return the name of a missing field without which a publish or delivery cannot be looked up; None if all are there."""
    has_id = found["op"] == "deliver" or found.get("result", "ok") in CONFIRMED
    for name in ("topic", "digest", *(["id"] if has_id else [])):
        if found.get(name) is None:
            return f"no {name}"
    try:
        check_name("topic", found["topic"])
    except BadName as error:
        return f"{_invalid('topic', found['topic'])}: {error}"
    return None


def _invalid(name: str, value: object) -> str:
    return f"{name} cannot be {json.dumps(value)[:SHOWN]}"


def torn(path: str) -> int | None:
    """Check each line of a ledger, which may be compressed.

    Returns: the line number of an incomplete last line, whose writer was killed; else None.
    Raises: DamagedData, with file and line, for any other malformed line; OSError.
    """
    for number, line in enumerate(_lines(path), 1):
        wrong = complaint(line) if line.strip() else None
        if wrong is None:
            continue
        if not line.endswith(b"\n") and not _is_json(line):
            return number
        raise DamagedData(f"{path}:{number}: {wrong}")
    return None


def _lines(path: str) -> Iterator[bytes]:
    with pa.input_stream(path) as stream, io.BufferedReader(stream) as lines:
        yield from lines


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
