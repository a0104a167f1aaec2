"""No order of commands, no pipelining and no split of the bytes evades a token. Contract: clients.md; ADR 0021."""

import json
import logging
import random

import pytest

from tests.support.sim_served import SimServed
from tests.support.tokens import authority, grants, hello, table
from toymq_py.server import EXPIRY_CHECK_S
from toymq_py.session.session import LINGER_S

TOPICS = ("a", "a.x", "b", "b.x", "c")
PATTERNS = ("a", "b", "c", "a.*", "b.>", "*", ">", "*.x")
BEGINNINGS = {
    "HELLO": hello("t"), "HELLO wrong": hello("other"), "HELLO nothing": b"HELLO 1 name=x\n", "PUB": b"PUB a - 1\nx\n",
    "FROB": b"FROB\n", "PING": b"PING\n",
}  # fmt: skip


def matched(patterns: list[str], topic: str) -> bool:
    """Whether one of some patterns matches a topic: an implementation apart from the broker's own, for this test's words
    only."""
    words = topic.split(".")
    for pattern in patterns:
        parts = pattern.split(".")
        if parts[-1] == ">":
            if len(words) >= len(parts) and all(p in ("*", w) for p, w in zip(parts[:-1], words, strict=False)):
                return True
        elif len(words) == len(parts) and all(p in ("*", w) for p, w in zip(parts, words, strict=True)):
            return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_only_what_a_token_allows_is_done(seed: int) -> None:
    """Random rights and random commands, pipelined, on a network that splits bytes at will; a session that does not begin with
    a good HELLO has no effect, whatever follows. (No SUB: its deliveries would stand between the answers.)"""
    rng = random.Random(seed)
    publish = rng.sample(PATTERNS, rng.randrange(4))
    subscribe = rng.sample(PATTERNS, rng.randrange(4))
    admin = rng.random() < 0.5
    rights = f"publish = {publish}\nsubscribe = {subscribe}\nadmin = {str(admin).lower()}"
    begins = "HELLO" if seed % 2 else rng.choice(list(BEGINNINGS))
    said, expected = [BEGINNINGS[begins]], []
    published: dict[str, int] = {}
    created: set[str] = set()
    for _ in range(60):
        topic = rng.choice(TOPICS)
        verbs = ("PUB", "PUB", "PUB", "PUB seq", "ACK", "NACK", "TOUCH", "FETCH", "CREATE", "SEEK", "PING", "HELLO", "FROB")
        verb = rng.choice(verbs)
        match verb:
            case "PUB" | "PUB seq":
                count, may = rng.randrange(1, 9), matched(publish, topic)
                for _ in range(count):
                    key, option = ("-", "") if verb == "PUB" else (f"p{len(said)}", " seq=1")
                    said.append(f"PUB {topic} {key} 3{option}\nxyz\n".encode())
                expected += ["OK" if may else "FORBIDDEN"] * count
                if may:
                    published[topic] = published.get(topic, 0) + count
            case "ACK" | "NACK" | "TOUCH" | "FETCH":
                count = 1 if verb == "FETCH" else rng.randrange(1, 4)
                said += [f"{verb} {topic} {'0 1' if verb == 'FETCH' else f'c {row}'}\n".encode() for row in range(count)]
                expected += ["read" if matched(subscribe, topic) else "FORBIDDEN"] * count
            case "CREATE" | "SEEK":
                said.append(f"{verb} {topic}{' c latest' if verb == 'SEEK' else ''}\n".encode())
                expected.append("done" if admin else "FORBIDDEN")
                if verb == "CREATE" and admin:
                    created.add(topic)
            case "PING":
                said.append(b"PING\n")
                expected.append("PONG")
            case "HELLO":
                said.append(hello("t"))
                expected.append("BAD_ARGUMENT")
            case _:
                said.append(b"FROB\n")
                expected.append("UNKNOWN_COMMAND")
    with SimServed(authority=authority(table("t", rights)), seed=seed) as served:
        client = served.client(b"".join(said))
        served.advance(2 * LINGER_S + 1)
        answers = [line for line in client.lines() if line.split(b" ")[0] in (b"OK", b"ERR", b"PONG", b"HELLO", b"BATCH")]
        if begins != "HELLO":
            code = "AUTH_FAILED" if begins == "HELLO wrong" else "AUTH_REQUIRED"
            assert [answer.split(b" ")[1].decode() for answer in answers] == [code]
            assert not served.broker.topics
            assert client.at_end
            return
        assert answers[0].startswith(b"HELLO 1")
        assert len(answers) == 1 + len(expected)
        for answer, wanted in zip(answers[1:], expected, strict=True):
            words = answer.decode().split(" ")
            got = words[1] if words[0] == "ERR" else words[0]
            if wanted in ("read", "done"):
                assert got not in ("FORBIDDEN", "AUTH_REQUIRED", "AUTH_FAILED", "INTERNAL"), answer
            else:
                assert got == wanted, answer
        found = {name: topic.log.committed_id for name, topic in served.broker.topics.items()}
        assert found == dict.fromkeys(created, 0) | published


def test_an_expired_token_is_refused_at_the_next_command_and_to_who_comes_later() -> None:
    now = [0]
    tokens = authority(table("t", 'publish = ["t"]\nexpires = 1970-01-01T00:01:00Z'), wall_ns=lambda: now[0])
    with SimServed(authority=tokens) as served:
        client, idle = served.client(hello("t") + b"PUB t - 1\nx\n"), served.client(hello("t"))
        served.advance(1)
        assert client.lines()[-1] == b"OK 0"
        now[0] = 60 * 10**9
        client.send(b"PUB t - 1\nx\nPUB t - 1\nx\n")
        late = served.client(hello("t"))
        served.advance(LINGER_S + 1)
        said = b"ERR AUTH_FAILED the token t expired at 1970-01-01T00:01:00Z"
        assert client.lines()[-1] == said
        assert client.at_end
        assert late.lines() == [said]
        served.advance(EXPIRY_CHECK_S)
        assert idle.lines()[-1].startswith(b"ERR AUTH_FAILED")
        assert served.broker.topics["t"].log.committed_id == 1


@pytest.mark.parametrize("appears", ["at the start", "at a reload", "after a leap of the clock"])
def test_who_only_listens_is_ended_when_the_token_expires(appears: str) -> None:
    """Found by a trial: such a session went on receiving, until the next SIGHUP."""
    now = [0]
    expiring = table("r", 'subscribe = ["t"]\nexpires = 1970-01-01T00:01:00Z')
    lasting = table("r", 'subscribe = ["t"]')
    tokens = authority(lasting if appears == "at a reload" else expiring, table("w", 'publish = ["t"]'), wall_ns=lambda: now[0])
    with SimServed(authority=tokens) as served:
        listener, writer = served.client(hello("r") + b"SUB t c\n"), served.client(hello("w"))
        served.advance(1)
        if appears == "at a reload":
            tokens.replace(grants(expiring, table("w", 'publish = ["t"]')))
        if appears != "after a leap of the clock":
            now[0] = 59 * 10**9
            served.advance(EXPIRY_CHECK_S)
            assert not listener.at_end
        now[0] = 60 * 10**9
        served.advance(EXPIRY_CHECK_S)
        writer.send(b"PUB t - 6\nsecret\n")
        served.advance(LINGER_S + 1)
        assert writer.lines()[-1] == b"OK 0"
        assert listener.lines()[-1] == b"ERR AUTH_FAILED the token r expired at 1970-01-01T00:01:00Z"
        assert listener.at_end


def test_stats_tell_when_tokens_expire() -> None:
    expiring = "expires = 2999-01-01"
    tokens = authority(
        table("a", f'publish = ["t"]\n{expiring}'), table("b", expiring), table("ops", "admin = true"), table("none", "")
    )
    shown = {"a": ["a"], "b": ["b"], "ops": ["a", "b"], "none": []}
    with SimServed(authority=tokens) as served:
        for name, names in shown.items():
            client = served.client(hello(name) + b"STATS\n")
            served.advance(1)
            stats = json.loads(client.lines()[-1])
            assert [row["name"] for row in stats.get("tokens", [])] == names
            assert all(row["expires_ms"] == 32_472_144_000_000 for row in stats.get("tokens", []))


FORBIDDEN_RUN = b"".join(b"PUB t %0480d 0 seq=1\n\n" % number for number in range(1000))
"""Producers that may not publish there."""


@pytest.mark.parametrize("run", [FORBIDDEN_RUN, FORBIDDEN_RUN.replace(b"seq=1", b"seq=1 hdr=9")])
def test_producers_without_the_right_take_no_memory(run: bytes) -> None:
    """A token without any right took 40 MB with each connection, which counted for no limit."""
    with SimServed(authority=authority(table("t"))) as served:
        client = served.client(hello("t") + run)
        served.advance(1)
        assert len(client.lines()) == 1001
        assert served.broker.quotas.held_bytes == 0
        (session,) = served.server._sessions
        assert session._refused.held_bytes == 0


@pytest.mark.parametrize(("after", "ends"), [
    ("publish = ['u']", False), ("publish = ['u']\nadmin = true", False), ("publish = ['>']", True),
])  # fmt: skip
def test_a_forbidden_producer_connects_again_when_its_token_may_publish(
    after: str, ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has sent behind the refused publish would be stored, and that one's repetition be taken for a duplicate."""
    caplog.set_level(logging.INFO, "toymq_py.session")
    tokens = authority(table("t", "publish = ['u']"))
    with SimServed(authority=tokens) as served:
        client, other = served.client(hello("t") + b"PUB t p 1 seq=1\nx\n"), served.client(hello("t") + b"PUB t - 1\nx\n")
        served.advance(0.1)
        assert client.lines()[-1].startswith(b"ERR FORBIDDEN")
        tokens.replace(grants(table("t", after)))
        client.send(b"PUB t p 1 seq=2\nx\n")
        served.advance(LINGER_S + 1)
        assert client.at_end is ends
        assert ("the token of t may publish more now" in caplog.text) is ends
        assert "t" not in served.broker.topics
        assert not other.at_end, "it has no sequence to keep"


def test_refused_producers_count_as_held_bytes() -> None:
    names = [b"%0400d" % number for number in range(1000)]
    with SimServed(authority=authority(table("t", "publish = ['t']"))) as served:
        client = served.client(hello("t") + b"".join(b"PUB t %b 0 seq=1 hdr=9\n\n" % name for name in names))
        served.advance(1)
        (session,) = served.server._sessions
        assert served.broker.quotas.held_bytes == session._refused.held_bytes > 400 * len(names)
        client.close()
        served.advance(1)
        assert served.broker.quotas.held_bytes == 0
