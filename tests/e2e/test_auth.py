"""What a client may do with its token, over TCP against the real broker in this process.

Contract: clients.md (the auth file); protocol.md, "Errors"; ADR 0021.
"""

import asyncio
import json
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner

import toymq
from tests.support.in_process import AsyncWire, InProcess, serving
from tests.support.tokens import EVERYTHING, authority, grants, hello, table, token
from toymq_py.errors import AuthRequired
from toymq_py.protocol import header_lines
from toymqctl.cli import main as toymqctl


async def admitted(served: InProcess, name: str) -> AsyncWire:
    wire = await served.connect()
    answer = await wire.ask(hello(name))
    assert answer.startswith(b"HELLO 1 server="), answer
    return wire


PUBLISHER = table("publisher", 'publish = ["orders.*"]')
SUBSCRIBER = table("subscriber", 'subscribe = ["orders.>", "jobs"]')
ADMIN = table("admin", "admin = true")
OUTSIDER = table("outsider")
TABLES = (PUBLISHER, SUBSCRIBER, ADMIN, EVERYTHING, OUTSIDER)

COMMANDS = {
    "PUB": b"PUB {} - 1\nx\n",
    "SUB": b"SUB {} c\n",
    "PULL": b"PULL {} c 1\n",
    "ACK": b"ACK {} c 0\n",
    "NACK": b"NACK {} c 0\n",
    "TOUCH": b"TOUCH {} c 0\n",
    "FETCH": b"FETCH {} 0 1\n",
    "OFFSETS": b"OFFSETS {}\n",
    "DESCRIBE": b"DESCRIBE {}\n",
    "CREATE": b"CREATE {}\n",
    "CONFIG": b"CONFIG {} visibility=1000\n",
    "DELETE": b"DELETE {}\n",
    "PURGE": b"PURGE {}\n",
    "SEEK": b"SEEK {} c latest\n",
    "FORGET": b"FORGET {} c\n",
    "REDRIVE": b"REDRIVE {}\n",
}
SUBSCRIBES = {"SUB", "PULL", "ACK", "NACK", "TOUCH", "FETCH", "OFFSETS", "DESCRIBE"}
ADMINISTERS = {"CREATE", "CONFIG", "DELETE", "PURGE", "SEEK", "FORGET", "REDRIVE"}
FREE = {"HELLO", "UNSUB", "HELD", "PAUSE", "RESUME", "TOPICS", "STATS", "CLUSTER", "PING", "QUIT"}
"""They need a token, and no right."""


def test_every_verb_is_in_the_table() -> None:
    assert set(header_lines.VERBS) | {"PUB"} == COMMANDS.keys() | FREE


@pytest.mark.parametrize("verb", COMMANDS)
async def test_each_verb_needs_its_right(tmp_path: Path, verb: str) -> None:
    """The answer is the same whether the topic exists or not: a token must not find that out."""
    right = {"PUB": "publisher"} | dict.fromkeys(SUBSCRIBES, "subscriber") | dict.fromkeys(ADMINISTERS, "admin")
    may = {right[verb], "all"} | ({"admin"} if verb == "DESCRIBE" else set())
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        for name in ("publisher", "subscriber", "admin", "all", "outsider"):
            for topic in ("orders.eu", "jobs", "other"):
                patterns = {"publisher": {"orders.eu"}, "subscriber": {"orders.eu", "jobs"}}.get(name, {topic})
                wire = await admitted(served, name)
                answer = await wire.ask(COMMANDS[verb].replace(b"{}", topic.encode()))
                refused = answer.startswith(b"ERR FORBIDDEN ")
                expected = name not in may or topic not in patterns
                assert refused is expected, f"{name}, {verb} {topic}: {answer!r}"
                assert not answer.startswith(b"ERR INTERNAL")
                if refused:
                    assert await wire.ask(b"PING\n") == b"PONG", "it is not fatal"
                await wire.close()


async def test_a_refused_command_leaves_nothing_behind(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        wire = await admitted(served, "outsider")
        for command in COMMANDS.values():
            assert (await wire.ask(command.replace(b"{}", b"t"))).startswith(b"ERR FORBIDDEN")
        assert not served.broker.topics


@pytest.mark.parametrize(
    ("pattern", "refused"),
    [("orders.>", False), ("orders.*", False), (">", True), ("*", True), ("*.eu", True), ("jobs.*", True)],
)
async def test_a_pattern_has_to_be_covered_whole(tmp_path: Path, pattern: str, refused: bool) -> None:
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        wire = await admitted(served, "subscriber")
        for command in (f"SUB {pattern} c\n", f"PULL {pattern} c 1\n"):
            answer = await wire.ask(command.encode())
            assert answer.startswith(b"ERR FORBIDDEN") is refused, answer


async def test_what_a_token_sees(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        wire = await admitted(served, "all")
        for topic in (b"orders.eu", b"jobs", b"other"):
            assert await wire.ask(b"PUB %b - 1\nx\n" % topic) == b"OK 0"
        seen = {}
        for name in ("subscriber", "admin", "publisher", "outsider"):
            wire = await admitted(served, name)
            listed = json.loads(await wire.body(await wire.ask(b"TOPICS\n")))
            stats = json.loads(await wire.body(await wire.ask(b"STATS\n")))["topics"]
            assert listed == stats
            seen[name] = [topic["topic"] for topic in listed]
        everything = ["jobs", "orders.eu", "other"]
        assert seen == {"subscriber": ["jobs", "orders.eu"], "admin": everything, "publisher": [], "outsider": []}
        wire = await admitted(served, "subscriber")
        assert json.loads(await wire.body(await wire.ask(b"TOPICS other\n"))) == []


FIRST_LINES = {
    "nothing": (b"HELLO 1\n", b"AUTH_REQUIRED"),
    "a name alone": (b"HELLO 1 name=x\n", b"AUTH_REQUIRED"),
    "an unknown token": (b"HELLO 1 auth=wrong\n", b"AUTH_FAILED"),
    "the digest": (b"HELLO 1 auth=%b\n" % sha256(token("all").encode()).hexdigest().encode(), b"AUTH_FAILED"),
    "a longer one": (b"HELLO 1 auth=%bx\n" % token("all").encode(), b"AUTH_FAILED"),
    "another version": (hello("all").replace(b"HELLO 1", b"HELLO 2"), b"BAD_VERSION"),
    "another version, no token": (b"HELLO 2\n", b"AUTH_REQUIRED"),
    "a bad HELLO": (hello("all").replace(b"\n", b" more\n"), b"AUTH_REQUIRED"),
    "PING": (b"PING\n", b"AUTH_REQUIRED"),
    "PUB": (b"PUB t - 1\nx\n", b"AUTH_REQUIRED"),
    "an empty PUB": (b"PUB t - 0\n\n", b"AUTH_REQUIRED"),
    "a long PUB": (b"PUB t - 2000000\n" + b"x" * 4096, b"AUTH_REQUIRED"),
    "a PUB without end": (b"PUB t - 99999999999\n", b"AUTH_REQUIRED"),
    "an unknown verb": (b"FROB\n", b"AUTH_REQUIRED"),
    "an empty line": (b"\n", b"AUTH_REQUIRED"),
    "a long line": (b"x" * 5000, b"AUTH_REQUIRED"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"NOT_TCP"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", b"BAD_FRAMING"),
    "AMQP": (b"AMQP\0\0\x09\x01", b"BAD_FRAMING"),
}


@pytest.mark.parametrize("name", FIRST_LINES)
async def test_nothing_is_done_before_hello(tmp_path: Path, name: str) -> None:
    """The answer is one error, then the connection ends; nothing pipelined behind it is done, not even a good HELLO."""
    first, code = FIRST_LINES[name]
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        wire = await served.connect()
        wire.send(first + hello("all") + b"PUB t - 1\nx\nSUB t c\nPING\n")
        wire.writer.write_eof()
        answer = await wire.rest()
        assert answer.startswith(b"ERR %b " % code), answer
        assert answer.count(b"\n") == 1, answer
        assert not served.broker.topics


async def test_a_client_without_a_token_is_told_where_it_belongs(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        url = f"127.0.0.1:{served.port}"
        with pytest.raises(AuthRequired, match="toymq://TOKEN@host"):
            await toymq.connect(url)
        result = await asyncio.to_thread(CliRunner().invoke, toymqctl, ["--url", url, "topics"])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line == "toymqctl: AUTH_REQUIRED: this broker needs a token; set a token with TOYMQ_TOKEN or --token-file"


async def test_an_empty_list_says_that_the_token_sees_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        wire = await admitted(served, "all")
        assert await wire.ask(b"PUB other - 1\nx\n") == b"OK 0"

        async def ctl(name: str, *words: str) -> tuple[int, str]:
            env = {"TOYMQ_URL": f"127.0.0.1:{served.port}", "TOYMQ_TOKEN": token(name)}
            result = await asyncio.to_thread(CliRunner().invoke, toymqctl, words, env=env)
            return result.exit_code, result.stdout

        assert await ctl("outsider", "topics") == (0, "no topics that this token may see\n")
        assert await ctl("outsider", "dlq", "list") == (0, "no dead letters that this token may see\n")
        _, told = await ctl("outsider", "doctor")
        for line in (
            "ok    topics: 0, none degraded", "ok    lag: no consumer is behind by more than 1.0m", "ok    dead letters: none",
            "ok    retries: no message has had 5 attempts without an ack",
        ):
            assert f"{line} (of the topics that this token may see)\n" in told
        (limits,) = (line for line in told.splitlines() if line.startswith("ok    limits: "))
        assert limits.endswith(" (of the topics that this token may see)"), "0 of 10000 topics"
        _, told = await ctl("outsider", "stats")
        assert "0 that this token may see\n" in told
        assert "0, 0B (of the topics that this token may see)\n" in told
        assert await ctl("admin", "dlq", "list", "other") == (0, "no dead letters\n")
        assert await ctl("admin", "dlq", "redrive", "other") == (0, "sent back 0: other has no dead letters\n")


async def test_what_is_pipelined_behind_hello_is_done(tmp_path: Path) -> None:
    """A client need not wait for HELLO's answer, even when its bytes arrive one by one."""
    said = hello("all") + b"PUB t - 5\nhello\n" * 3 + b"SUB t c\nFETCH other 0 1\nQUIT\n"
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        for step in (len(said), 1, 7):
            wire = await served.connect()
            for at in range(0, len(said), step):
                wire.send(said[at : at + step])
                await asyncio.sleep(0)
            lines = [await wire.line() for _ in range(4)]
            assert [line.split(b" ")[0] for line in lines] == [b"HELLO", b"OK", b"OK", b"OK"], lines
            await wire.close()


async def test_a_second_hello_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        wire = await admitted(served, "outsider")
        assert (await wire.ask(hello("all"))).startswith(b"ERR BAD_ARGUMENT")
        assert (await wire.ask(b"CREATE t\n")).startswith(b"ERR FORBIDDEN")


async def test_every_pub_of_a_refused_run_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", authority=authority(*TABLES)) as served:
        wire = await admitted(served, "publisher")
        wire.send(b"PUB other - 1\nx\n" * 100 + b"PUB other p 1 seq=7\nx\n" * 2 + b"PUB orders.eu - 1\nx\n")
        answers = [await wire.line() for _ in range(103)]
        assert [answer[:13] for answer in answers] == [b"ERR FORBIDDEN"] * 102 + [b"OK 0"]


async def test_tokens_mean_nothing_without_an_auth_file(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        assert (await wire.ask(b"HELLO 1 auth=anything\n")).startswith(b"HELLO 1")


# -- a changed file


async def test_a_token_that_goes_ends_its_sessions(tmp_path: Path) -> None:
    tokens = authority(*TABLES)
    async with serving(tmp_path / "d", authority=tokens) as served:
        gone, stays = await admitted(served, "subscriber"), await admitted(served, "all")
        assert await gone.ask(b"SUB jobs c\n") == b"OK 1"
        tokens.replace(grants(EVERYTHING))
        assert await stays.ask(b"PUB jobs - 1\nx\n") == b"OK 0"
        assert await gone.line() == b"ERR AUTH_FAILED this token is no longer in the auth file"
        gone.send(b"ACK jobs c 0\n")
        assert await gone.rest() == b"", "no delivery, no answer"
        again = await served.connect()
        assert (await again.ask(hello("subscriber"))).startswith(b"ERR AUTH_FAILED")
        await stays.nothing_before_pong()


async def test_a_token_that_may_read_less_is_heard_no_more(tmp_path: Path) -> None:
    """The sessions of a token that lost a right end, after all replies they are owed; so do their waits. A client that
    reconnects gets FORBIDDEN."""
    tokens = authority(*TABLES)
    async with serving(tmp_path / "d", authority=tokens) as served:
        wire, waits = await admitted(served, "subscriber"), await admitted(served, "subscriber")
        pulls = await admitted(served, "subscriber")
        publisher = await admitted(served, "all")
        assert await publisher.ask(b"PUB jobs - 1\nx\n") == b"OK 0"
        assert await wire.ask(b"SUB jobs c\n") == b"OK 1"
        assert (await wire.message())[0] == 0
        waits.send(b"FETCH jobs 1 1 wait=3600000\nPING\n")
        pulls.send(b"PULL jobs d 1\nPULL jobs d 1 wait=3600000\nPING\n")
        assert (await pulls.message())[0] == 0
        assert await pulls.line() == b"OK 1"
        await asyncio.sleep(0)
        tokens.replace(grants(EVERYTHING, table("subscriber", 'subscribe = ["orders.>"]')))
        assert await publisher.ask(b"PUB jobs - 1\ny\n") == b"OK 1"
        assert await wire.rest() == b"", "the message that came later is not delivered"
        assert b"y" not in await waits.rest()
        assert await pulls.rest() == b"OK 0\nPONG\n"
        wire = await admitted(served, "subscriber")
        assert (await wire.ask(b"SUB jobs c\n")).startswith(b"ERR FORBIDDEN")


async def test_other_changes_hold_for_the_next_command(tmp_path: Path) -> None:
    tokens = authority(*TABLES)
    async with serving(tmp_path / "d", authority=tokens) as served:
        wire = await admitted(served, "publisher")
        assert await wire.ask(b"PUB orders.eu - 1\nx\n") == b"OK 0"
        tokens.replace(grants(table("publisher", 'publish = ["jobs"]\nadmin = true')))
        assert (await wire.ask(b"PUB orders.eu - 1\nx\n")).startswith(b"ERR FORBIDDEN")
        assert await wire.ask(b"PUB jobs - 1\nx\n") == b"OK 0"
        assert await wire.ask(b"CREATE new\n") == b"OK 0"
        tokens.replace(grants(table("publisher", 'publish = ["jobs"]')))
        assert (await wire.ask(b"DELETE new\n")).startswith(b"ERR FORBIDDEN")


async def test_a_token_takes_its_share_of_topics_and_consumers_and_an_admin_gets_in(tmp_path: Path) -> None:
    tokens = authority(table("app", 'publish = [">"]\nsubscribe = [">"]'), table("admin", 'admin = true\npublish = [">"]'))
    async with serving(tmp_path / "d", authority=tokens, max_topics=10, max_consumers=4) as served:
        app, admin = await admitted(served, "app"), await admitted(served, "admin")
        for n in range(5):
            assert await app.ask(b"PUB t%d - 1\nx\n" % n) == b"OK 0"
        for command in (b"PUB t5 - 1\nx\n", b"SUB t5 c\n", b"PULL t5 c 1\n"):
            assert (await app.ask(command)).startswith(b"ERR TOO_MANY_TOPICS 5 topics are the limit of the token app")
        for n in range(2):
            assert await app.ask(b"PULL t0 c%d 1 visibility=1\n" % n) != b""
            await app.read(2)
            assert await app.line() == b"OK 1"
        assert (await app.ask(b"PULL t0 c2 1\n")).startswith(b"ERR TOO_MANY_CONSUMERS 2 consumers of t0 are the limit of")
        for n in range(5, 10):
            assert await admin.ask(b"PUB t%d - 1\nx\n" % n) == b"OK 0"
        assert (await admin.ask(b"PUB t - 1\nx\n")).startswith(b"ERR TOO_MANY_TOPICS there are 10 topics")
        for topic in (b"t0", b"t9"):
            assert await admin.ask(b"DELETE %b\n" % topic) == b"OK 1"
        assert await app.ask(b"PUB t0 - 1\nx\n") == b"OK 0", "its share is free again"
