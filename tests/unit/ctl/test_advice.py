"""A remedy fits its cause: every place that raises a code which toymqctl gives advice for."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from toymq_py.errors import REQUEST_ERRORS
from toymqctl.advice import ADVICE, ADVICE_OF_CAUSES, remedy_of

ROOT = Path(__file__).parents[3]
CODES = {REQUEST_ERRORS[code].__name__: code for code in (*ADVICE, *ADVICE_OF_CAUSES)}
GAP = "…"
RAISED_BY_CLASS = {"toymq_py/auth/quotas.py": ("TOO_MANY_TOPICS", "TOO_MANY_CONSUMERS")}
"""The file has a function that raises the class it is given, as ``error(text)``."""
TEXTS: dict[str, dict[str, str]] = {
    "AUTH_FAILED": dict.fromkeys((
        "certificates do not stand for it any more", "the password has 5000 bytes, 4096 are the most",
        "the client's certificate stands for a, not for b", "this token is not in the auth file",
        "the token app expired at 2026-01-01T00:00:00Z", "this token is no longer in the auth file",
        "the client's certificate (a) names no token that has certificate = true", "this login has ended: log in again",
        "this token or login was revoked or has expired: log in again",
    ), "set another token"),
    "AUTH_REQUIRED": dict.fromkeys((
        "a token is required: send Authorization: Bearer <token>", "no HELLO with a token within 5 s",
        "invalid Authorization header: write Authorization: Bearer <token>",
        "this broker needs a token: connect to toymq://TOKEN@host, or send HELLO 1 auth=TOKEN first",
    ), "set a token"),
    "DISK_FULL": {
        "no space left on the disk": "make room", "no space left on the disk; publish later": "make room",
        "no file descriptor left": "open files", "no file descriptor left; publish later": "open files",
    },
    "DISK_LOW": {"the disk has 1 byte; publish later": "make room"},
    "MODE_CONFLICT": {"c on t is consumed with mode=shared: subscribe with mode=shared, or as another consumer": "--mode"},
    "MOVED": dict.fromkeys((
        "h:1 (worker 1) has the topic t", "h:1 (worker 1) has the topic t, and it ended", "h:1", "-", "a/b",
    ), "the address that it names"),
    "NOT_ENOUGH_REPLICAS": {"1 of 2 copies are in sync": "start the nodes"},
    "NOT_LEADER": {"h:1": "connect to the node that leads"},
    "NO_SUCH_CONSUMER": dict.fromkeys((
        "no partition of t has a consumer c", "no partition of t with this worker has such a consumer", "c on t was deleted",
        "t has no consumer c: it has d", "t has no consumer c: it has d; --create makes it",
    ), "`toymqctl consumers TOPIC`"),
    "NO_SUCH_TOPIC": {
        **dict.fromkeys(("there is no topic t", "there is no topic t with partitions", "no topic t in the bucket",
                         "no topic t in /data"), "`toymqctl topics`"),
        **dict.fromkeys(("t is being deleted", "the topic is being deleted", "t was deleted",
                         "t was made anew: its incarnation is 1, and not 2",
                         "there is no partition t#1: t is not partitioned; create it with a number of partitions"), ""),
    },
    "PAYLOAD_TOO_LARGE": {
        "the body has 9 bytes, the limit is 8 (--max-payload)": "a larger --max-payload",
        "9 bytes with headers; this broker takes at most 8 (--max-payload)": "a larger --max-payload",
        "a record of 358 bytes, and the backlog of t may have 100 (backlog_max_bytes)": "`toymqctl config`",
        "the body is too large: at most 9 bytes are accepted": "",
        "a line has more than 9 bytes: send payload_base64, or fewer bytes": "",
    },
    "QUEUE_FULL": {
        "the backlog of t has reached 3 messages (backlog_max_messages); publish later": "`toymqctl config`",
        "app holds 9 bytes of bodies and replies, its share of --max-held-bytes; try again later": "a larger --max-held-bytes",
        "9 bytes of bodies and replies are held, the limit (--max-held-bytes); try again later": "a larger --max-held-bytes",
        "9 bytes of bodies and replies are held, the limit (an eighth of --memory-max); try again later": "--memory-max",
        "the broker's memory is at its limit (--memory-max); publish again later": "a larger --memory-max",
        "queue capacity reached (max 5 messages)": "",
    },
    "SHUTTING_DOWN": {
        **dict.fromkeys((
            "the broker is shutting down", "the broker is shutting down: try again later",
            "the broker is shutting down: change it again later", "the broker is shutting down; send it again to the next one",
            "some of t may be deleted, and the broker is shutting down: its next start deletes the rest",
        ), "when it is back"),
        "worker 1 ended before it answered: the outcome is unknown": "",
    },
    "STORAGE_FAILED": {
        "the disk failed: Input/output error": "look at the broker's log and disk",
        "t could not be opened when it was moved: damaged": "look at the broker's log and disk",
        "t could not be opened when the broker started: damaged": "look at the broker's log and disk",
        "a write failed: publishing to t stays refused until a restart": "reading goes on",
        "t: its log is gone; publishing is refused until a restart": "reading goes on",
        "LOCK is gone: publishing to t is refused, and the broker ends": "restore the directory",
        "LOCK is gone: what is published would not be kept, the broker ends": "restore the directory",
        "a damaged segment is being examined; try again in a moment": "",
        "t is stored here, too, where it stays closed: h:1; copy what you need": "",
        "t could not be deleted (full): it is tried again every 5 s: make room": "",
        "t could not be deleted (EIO): a restart of the broker completes it": "",
        "t stays closed: restart its node": "",
        "alerts.json cannot be read: damaged; no alert fires until `toymq repair`": "",
        "webhooks.json cannot be read: damaged; nothing is pushed until `toymq repair`": "",
        "the dead letter of 1 of t is not stored yet; the broker goes on trying": "",
    },
    "TIER_AWAY": {"the bucket has these records, and they are being fetched; try again in a moment": "the bucket of --tier"},
    "TIER_BEHIND": {"9 bytes wait for the bucket; publish later": "the bucket of --tier"},
    "TOO_MANY_CONNECTIONS": {
        "5 connections are the limit of 10.0.0.1 (--address-percent)": "a larger --max-connections or --address-percent",
        "5 connections are the limit (--max-connections)": "a larger --max-connections",
        "the connection was closed to make room for another": "a larger --max-connections",
        "5 connections are the limit of the token app (--token-percent)": "a larger --max-connections or --token-percent",
        "5 connections are the limit, the others are for admins (--admin-reserve)": "a smaller --admin-reserve",
        "the broker is shutting down": "",
    },
    "TOO_MANY_CONSUMERS": {
        "there are 5 consumers of t, the limit (--max-consumers)": "a larger --max-consumers",
        "5 consumers of t are the limit of the token app (--token-percent of --max-consumers)": "or --token-percent",
        "there are 5 consumers of t; the last 2 are for admins (--admin-reserve)": "a smaller --admin-reserve",
        "the broker's memory is at its limit (--memory-max): there is no room for a new consumer": "a larger --memory-max",
    },
    "TOO_MANY_TOPICS": {
        "there are 5 topics, the limit (--max-topics)": "a larger --max-topics",
        "5 topics are the limit of the token app (--token-percent of --max-topics)": "or --token-percent",
        "there are 5 topics; the last 2 are for admins (--admin-reserve)": "a smaller --admin-reserve",
    },
    "UNKNOWN_COMMAND": dict.fromkeys(("no such path: /docs lists the API", "unknown command X"), "of another version"),
}  # fmt: skip
"""By code each text, with a part of its remedy; "" where the text has its own, or toymqctl does not get it."""
MADE_ELSEWHERE = {
    ("DISK_FULL", "toymq_py/disk_errors.py"), ("MOVED", "toymq_py/cluster/group_views.py"), ("MOVED", "toymq_py/placement.py"),
    ("NOT_ENOUGH_REPLICAS", "toymq_py/broker.py"), ("NOT_LEADER", "toymq_py/cluster/standby.py"),
    ("STORAGE_FAILED", "toymq_py/broker.py"), ("STORAGE_FAILED", "toymq_py/data_directory.py"),
    ("STORAGE_FAILED", "toymq_py/disk_errors.py"), ("STORAGE_FAILED", "toymq_py/partitioned_topics.py"),
    ("TIER_AWAY", "toymq_py/disk_errors.py"),
}  # fmt: skip
"""Places whose whole text comes from elsewhere: those were looked at by hand."""


def shape(text: ast.expr) -> str:
    """A text with a gap for each value."""
    match text:
        case ast.Constant(value=str(part)):
            return part
        case ast.JoinedStr(values=parts):
            return "".join(map(shape, parts))
        case _:
            return GAP


def places_of(path: str, code_of: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[text, *_]) if name in code_of:
                for code in code_of[name]:
                    yield code, path, shape(text)


@cache
def places() -> list[tuple[str, str, str]]:
    """Code, file and shape of the text of every place that makes one of these errors."""
    of_class = {name: (code,) for name, code in CODES.items()}
    files = (str(path.relative_to(ROOT)) for part in ("toymq_py", "clients") for path in (ROOT / part).rglob("*.py"))
    return [
        found
        for path in sorted(files)
        for found in places_of(path, of_class | ({"error": RAISED_BY_CLASS[path]} if path in RAISED_BY_CLASS else {}))
    ]


def fits(shaped: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, shaped.split(GAP))), text) is not None


def test_each_place_that_raises_a_code_with_advice_is_known() -> None:
    """A new one needs a line in ``TEXTS``, with the remedy of its cause."""
    assert len(places()) > 80
    for code, path, shaped in places():
        if shaped == GAP:
            assert (code, path) in MADE_ELSEWHERE, f"{path}: which texts of {code} come from here, and what is their remedy?"
        else:
            assert any(fits(shaped, text) for text in TEXTS[code]), f"{path}: what is the remedy of {code} {shaped!r}?"


@pytest.mark.parametrize("code", sorted(TEXTS))
def test_each_text_has_the_remedy_of_its_cause(code: str) -> None:
    for text, remedy in TEXTS[code].items():
        advice = remedy_of(REQUEST_ERRORS[code](text))
        assert remedy in advice if remedy else advice == "", f"{code} {text}"
    shapes = [shaped for found, _, shaped in places() if found == code]
    assert all(any(fits(shaped, text) for shaped in shapes) for text in TEXTS[code]), "each text is raised"


def test_each_code_has_one_remedy_or_one_for_each_cause() -> None:
    assert not set(ADVICE) & set(ADVICE_OF_CAUSES)
    assert set(ADVICE) | set(ADVICE_OF_CAUSES) == set(TEXTS)
    for code, causes in ADVICE_OF_CAUSES.items():
        for sign, advice in causes.items():
            assert any(sign in text and remedy and remedy in advice for text, remedy in TEXTS[code].items()), f"{code} {sign}"
