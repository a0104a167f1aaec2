"""The audit trail: each event is one line, whatever text a client sends."""

import errno
import json
import logging
import random
import re
from pathlib import Path
from typing import get_args

import pytest

from tests.support.broker_process import ROOT, run_program
from tests.support.fake_clock import FakeClock
from tests.support.http_rig import gateway
from tests.support.sim_disk import SimDisk
from tests.support.sim_served import SimServed
from tests.support.tokens import EVERYTHING, authority, grants, hello, table, token
from tests.support.worker_processes import topic_of
from toymq_py.auth import audit
from toymq_py.cli.log_output import JsonFormatter, Repeats, TextFormatter
from toymq_py.placement import Placement
from toymq_py.session.authorization import GREETING_S

LOGGER = "toymq_py.audit"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOGGER)
    return caplog


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    caplog.clear()
    return found


def test_each_command_that_changes_something_has_a_line(lines: pytest.LogCaptureFixture) -> None:
    with SimServed() as served:
        client = served.client(
            b"PUB t - 1\nx\nSUB t c\nACK t c 0\nCREATE u ttl=5\nCONFIG t ttl=1000\nCONFIG t\nSEEK t c latest\nFORGET t c\n"
            b"PURGE t\n"
        )
        served.advance(1)
        client.send(b"DELETE t\n")
        served.advance(1)
        client.send(b"DELETE t\nPING\n")
        served.advance(1)
        assert client.lines()[-1] == b"PONG"
    assert sorted(said(lines)) == sorted(
        f"action={action} token=- address=127.0.0.1 via=tcp result={result}"
        for action, result in (
            ("create topic=u", "OK"), ("config topic=t", "OK"), ("seek topic=t consumer=c", "OK"),
            ("forget topic=t consumer=c", "OK"), ("purge topic=t", "OK"), ("delete topic=t", "OK"),
            ("delete topic=t", "NO_SUCH_TOPIC"),
        )
    )  # fmt: skip


def test_a_program_that_embeds_a_broker_and_sets_up_no_log_has_no_trail_on_its_stderr(tmp_path: Path) -> None:
    """Found: each refused call of ``toymq.open`` printed a line on stderr beside the exception."""
    program = (
        "import toymq.sync\n"
        "with toymq.sync.open('queue') as mq:\n"
        "    try:\n"
        "        mq.delete('nothing')\n"
        "    except toymq.RequestError as error:\n"
        "        print(error)\n"
    )
    done = run_program(program, tmp_path, preloaded=("toymq.sync.client", "toymq_py.embedded.blocking"))
    assert (done.stdout, done.stderr) == ("there is no topic nothing\n", "")


def test_who_was_refused_over_tcp(lines: pytest.LogCaptureFixture) -> None:
    with SimServed(authority=authority(EVERYTHING, table("reader", 'subscribe = ["t"]'))) as served:
        served.client(hello("outsider"))
        served.client(b"PUB t - 1\nx\n")
        served.client(hello("reader") + b"PUB t - 1\nx\nDELETE t\nSUB t c\n")
        served.client(hello("all") + b"CREATE t\n")
        served.advance(1)
    assert sorted(said(lines)) == [
        "action=create topic=t token=all address=127.0.0.1 via=tcp result=OK",
        "action=delete topic=t token=reader address=127.0.0.1 via=tcp result=FORBIDDEN",
        "action=hello token=- address=127.0.0.1 via=tcp result=AUTH_FAILED",
        "action=publish topic=t token=reader address=127.0.0.1 via=tcp result=FORBIDDEN",
        "action=rejected token=- address=127.0.0.1 via=tcp result=AUTH_REQUIRED",
    ]


def test_a_redirect_is_neither_done_nor_refused(lines: pytest.LogCaptureFixture) -> None:
    with SimServed() as served:
        served.broker.placement = Placement(0, ("host:1", "host:2"))
        client = served.client(f"CLUSTER moved=1\nSEEK {topic_of(1, 2)} c latest\n".encode())
        served.advance(1)
        assert client.lines()[-1].startswith(b"ERR MOVED host:2 ")
        assert served.broker.metrics.error_total == 0
    assert not said(lines)


def test_who_says_no_token_in_time_and_whose_token_is_gone_has_a_line(lines: pytest.LogCaptureFixture) -> None:
    """Found: a client without a token in time, and one whose token was removed, were told why their connection ended, and the
    trail had no line."""
    reader = table("reader", 'subscribe = ["t"]')
    tokens = authority(EVERYTHING, reader)
    with SimServed(authority=tokens) as served:
        listener = served.client(hello("reader"))
        served.advance(1)
        tokens.replace(grants(EVERYTHING))
        served.client()
        served.advance(GREETING_S + 1)
        assert listener.lines()[-1].startswith(b"ERR AUTH_FAILED")
    assert said(lines) == [
        "action=hello token=reader address=127.0.0.1 via=tcp result=AUTH_FAILED",
        "action=hello token=- address=127.0.0.1 via=tcp result=AUTH_REQUIRED",
    ]


async def test_a_host_that_is_not_allowed_has_a_line(lines: pytest.LogCaptureFixture) -> None:
    """Found: such a request was refused before the operations, which wrote the trail, so it had no line."""
    async with gateway("/d", fs=SimDisk(random.Random(1))) as rig:
        assert (await rig.ask("GET", "/v1/topics", headers={"host": "evil.example"})).status_code == 403
    assert said(lines) == ["action=request token=- address=127.0.0.1 via=http result=FORBIDDEN"]


EXPIRED = table("old", "admin = true\nexpires = 1970-01-01")


def test_an_expired_token_is_named_over_tcp(lines: pytest.LogCaptureFixture) -> None:
    """Found by a trial: the client was told the token's name, and the trail had ``token=-``."""
    with SimServed(authority=authority(EXPIRED, wall_ns=lambda: 1)) as served:
        served.client(hello("old"))
        served.advance(1)
    assert said(lines) == ["action=hello token=old address=127.0.0.1 via=tcp result=AUTH_FAILED"]


async def test_an_expired_token_is_named_over_http(lines: pytest.LogCaptureFixture) -> None:
    async with gateway("/d", fs=SimDisk(random.Random(1)), authority=authority(EXPIRED, wall_ns=lambda: 1)) as rig:
        await rig.ask("DELETE", "/v1/topics/t", headers={"authorization": f"Bearer {token('old')}"})
        await rig.ask("POST", "/v1/login", json={"token": token("old")})
    assert [line.split(" address=")[0] for line in said(lines)] == [
        "action=deleteTopic topic=t token=old", "action=login token=old"
    ]


async def test_who_asked_over_http(lines: pytest.LogCaptureFixture) -> None:
    tokens = authority(EVERYTHING, table("reader", 'subscribe = ["t"]'))
    async with gateway("/d", fs=SimDisk(random.Random(1)), authority=tokens) as rig:
        admin, reader = ({"authorization": f"Bearer {token(name)}"} for name in ("all", "reader"))
        await rig.ask("PUT", "/v1/topics/t", headers=admin)
        await rig.ask("GET", "/v1/topics/t", headers=admin)
        await rig.ask("DELETE", "/v1/topics/u", headers=admin)
        await rig.ask("DELETE", "/v1/topics/t", headers=reader)
        await rig.ask("GET", "/v1/topics", headers={"authorization": "Bearer guess"})
        await rig.ask("POST", "/v1/login", json={"token": "guess"})
        await rig.ask("GET", "/v1/topics")
        await rig.ask("DELETE", "/v1/webhooks/gone", headers=admin)
        await rig.ask("DELETE", "/v1/topics/t%0A%1b[31m=%22", headers=reader)
        await rig.ask("GET", "/healthz")
    assert said(lines) == [
        "action=createTopic topic=t token=all address=127.0.0.1 via=http result=OK",
        "action=deleteTopic topic=u token=all address=127.0.0.1 via=http result=NO_SUCH_TOPIC",
        "action=deleteTopic topic=t token=reader address=127.0.0.1 via=http result=FORBIDDEN",
        "action=listTopics token=- address=127.0.0.1 via=http result=AUTH_FAILED",
        "action=login token=- address=127.0.0.1 via=http result=AUTH_FAILED",
        "action=listTopics token=- address=127.0.0.1 via=http result=AUTH_REQUIRED",
        "action=deleteWebhook name=gone token=all address=127.0.0.1 via=http result=NO_SUCH_WEBHOOK",
        r'action=deleteTopic topic="t\n\u001b[31m=\"" token=reader address=127.0.0.1 via=http result=FORBIDDEN',
    ]


@pytest.mark.parametrize("value", ["a b", "a\nb", "\x1b[2J", 'x" result="OK', "a=b", "é\u2028", "-", "", "x" * 5000, "\ud800"])
def test_no_value_begins_a_line_or_a_field(lines: pytest.LogCaptureFixture, value: str) -> None:
    audit.record("delete", "FORBIDDEN", token=None, address="::1", via="http", about={"topic": value})
    (record,) = lines.records
    text = TextFormatter().format(record)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 1500
    shown = record.getMessage().removeprefix("action=delete topic=").removesuffix(
        " token=- address=::1 via=http result=FORBIDDEN"
    )
    assert (json.loads(shown) if shown.startswith('"') else shown) == value[: audit.VALUE_CHARS_MAX]
    assert json.loads(JsonFormatter().format(record))["audit"] == {
        "action": "delete", "topic": value[: audit.VALUE_CHARS_MAX], "token": None, "address": "::1", "via": "http",
        "result": "FORBIDDEN",
    }  # fmt: skip


def test_what_was_done_is_never_left_out_and_refusals_are_counted(lines: pytest.LogCaptureFixture) -> None:
    """A flood of wrong tokens must not fill the disk, so refusals are counted; a thousand deletes are a thousand lines."""
    clock = FakeClock()
    repeats = Repeats(clock)
    for n in range(1000):
        audit.record("delete", "OK", token="ops", address="198.51.100.7", via="tcp", about={"topic": f"t{n % 3}"})
        audit.record("hello", "AUTH_FAILED", token=None, address=f"198.51.100.{n % 250}", via="tcp")
    written = [line for record in lines.records for line in repeats.said(record)]
    assert sum("result=OK" in line.getMessage() for line in written) == 1000
    assert sum("AUTH_FAILED" in line.getMessage() for line in written) <= 200
    assert sum("more like it were suppressed" in line.getMessage() for line in repeats.overdue(clock.monotonic() + 60)) > 0


async def test_each_topic_that_a_request_makes_has_a_line(lines: pytest.LogCaptureFixture) -> None:
    """Found by a trial: topics that were created implicitly had no line in the trail."""
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), dialects=["tinymq", "mq"]) as rig:
        for method, path, content in (
            ("PUT", "/v1/topics/put", b""), ("POST", "/v1/topics/published/messages", b"x"), ("GET", "/consume/polled", b""),
            ("GET", "/v1/topics/leased/messages?consumer=c", b""), ("POST", "/publish/a/b", b"x"), ("PUT", "/queue", b""),
            ("POST", "/v1/topics/published/messages", b"again"), ("GET", "/v1/topics/absent", b""),
        ):  # fmt: skip
            await rig.ask(method, path, content=content)
        rig.broker.topic_or_new("by.no.request")
        made = [line for line in said(lines) if line.startswith("action=createTopic")]
    assert made == [
        f"action=createTopic topic={name} token=- address=127.0.0.1 via=http result=OK"
        for name in ("put", "published", "polled", "leased", "a.b", "queue")
    ]


def test_each_topic_that_a_command_makes_has_a_line(lines: pytest.LogCaptureFixture) -> None:
    commands = b"PUB a - 1\nx\nPUB a - 1\ny\nSUB b c\nPULL d c 1\nSUB e.* c\nCREATE g\nFETCH h 0 1\n"
    with SimServed(authority=authority(EVERYTHING)) as served:
        served.client(hello("all") + commands)
        served.advance(1)
    made = [f"action=create topic={name} token=all address=127.0.0.1 via=tcp result=OK" for name in "abdg"]
    assert sorted(said(lines)) == made
    with SimServed() as served:
        served.client(commands)
        served.advance(1)
    assert said(lines) == ["action=create topic=g token=- address=127.0.0.1 via=tcp result=OK"], "by name"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/topics/t", b'{"ttl": 5}'),
        ("PUT", "/t", b""),
        ("POST", "/api/queues", b'{"name": "t"}'),
    ],
)
async def test_a_topic_that_cannot_be_stored_has_one_line_and_its_error(
    lines: pytest.LogCaptureFixture, method: str, path: str, body: bytes
) -> None:
    """Found: the trail had an OK for the topic and an error for the request."""
    disk = SimDisk(random.Random(1))
    async with gateway("/data/d", fs=disk, dialects=["tinymq", "mq"]) as rig:
        disk.fail("mkdir", 1, errno.EIO, path="topics/t")
        answer = await rig.ask(method, path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code >= 500
        answer = await rig.ask(method, path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 201
    assert said(lines) == [
        f"action=createTopic topic=t token=- address=127.0.0.1 via=http result={result}" for result in ("STORAGE_FAILED", "OK")
    ]


def test_the_page_names_every_transport() -> None:
    """Found: the page did not mention AMQP."""
    (row,) = re.findall(r"^\| `via` \| (.*) \|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    assert row == ", ".join(f"`{via}`" for via in get_args(audit.Via))
