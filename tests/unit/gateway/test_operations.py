"""The checks of every operation: its path, its parameters, and the web site that sends the request."""

import random
import re
from collections.abc import AsyncIterator

import pytest

from tests.support.http_rig import HttpRig, gateway, refused
from tests.support.sim_disk import SimDisk
from toymq_py.gateway.app import DIALECTS, OPERATIONS
from toymq_py.gateway.operations import PATTERN, PATTERN_OR_TOPIC, TOPIC, Operation, Parameter
from toymq_py.gateway.problems import STATUS

DIR = "/data/d"


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with gateway(DIR, fs=SimDisk(random.Random(1)), max_topics=200) as rig:
        yield rig


async def test_parameters_that_are_not_known_are_refused(rig: HttpRig) -> None:
    assert "colour" in refused(await rig.ask("GET", "/v1/topics?colour=red"), 422, "BAD_ARGUMENT")["detail"]
    refused(await rig.ask("GET", "/v1/topics?pattern=a&pattern=b"), 422, "BAD_ARGUMENT")


@pytest.mark.parametrize(
    ("parameter", "names"),
    [
        (TOPIC, ["orders", "orders#3", "orders#1023.dlq", "x" * 196 + "#1023.dlq"]),
        (PATTERN_OR_TOPIC, ["events.*", "events.>", "orders#3", "orders#*", "orders#*.dlq"]),
        (PATTERN, ["events.>", "orders#*"]),
    ],
    ids=["topic", "pattern or topic", "pattern"],
)  # fmt: skip
def test_the_schema_of_a_name_takes_what_the_broker_takes(parameter: Parameter[str], names: list[str]) -> None:
    """Found: a partition's name did not match the pattern in `/openapi.json`, so a generated client refused it."""
    for name in names:
        assert parameter.parse(name) == name
        assert re.search(parameter.schema["pattern"], name), name
        assert len(name) <= parameter.schema["maxLength"]
    for wrong in ("#3", "orders#", "orders#x", "a b"):
        assert not re.search(parameter.schema["pattern"], wrong), wrong
    assert "`%23`" in parameter.text


async def test_paths_and_methods_that_there_are_not(rig: HttpRig) -> None:
    refused(await rig.ask("GET", "/v2/topics"), 404, "UNKNOWN_COMMAND")
    answer = await rig.ask("POST", "/v1/topics")
    refused(answer, 405, "UNKNOWN_COMMAND")
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.provokes_bugs
async def test_a_bug_is_said_and_logged(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.broker, "describe", bug)
    refused(await rig.ask("GET", "/v1/topics"), 500, "INTERNAL")
    assert "RuntimeError: a bug" in caplog.text


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://localhost"}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"user-agent": "Mozilla/5.0"}, False),
        ({"user-agent": "Mozilla/5.0", "origin": "http://localhost"}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"host": "evil.example"}, False),
        ({"host": "evil.example:80"}, False),
    ],
)
async def test_pages_of_other_sites_change_nothing(rig: HttpRig, headers: dict[str, str], allowed: bool) -> None:
    answer = await rig.ask("POST", "/v1/topics/t/messages", content=b"x", headers=headers)
    if allowed:
        assert answer.status_code == 201
    else:
        refused(answer, 403, "FORBIDDEN")
        assert not rig.broker.topics


BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "accept": "image/avif,*/*"}
"""What an ``<img>`` of another page sends to an address that is not loopback, without TLS: no Origin, no Sec-Fetch."""
READS = [
    (dialect, operation) for dialect, operations in {"": OPERATIONS, **DIALECTS}.items() for operation in operations
    if operation.method == "GET" and not operation.safe
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "operation"), READS, ids=lambda one: getattr(one, "name", one))
async def test_no_image_of_a_page_takes_a_message(dialect: str, operation: Operation) -> None:
    """Found by trials: ``<img src="…/consume/orders?auto_ack=true">`` acked, on any page, without a token; and so did a link
    in a mail, which a browser calls ``none``, as if its user had typed it."""
    async with gateway(DIR, fs=SimDisk(random.Random(1)), dialects=[dialect] if dialect else []) as rig:
        await rig.publish("t", "x")
        path = re.sub(r"\{\w+(:\w+)?\}", "t", operation.path)
        path += "?consumer=c" if any(parameter.name == "consumer" for parameter in operation.parameters) else ""
        agent = {"user-agent": "Mozilla/4.0"}
        referer, language = {"user-agent": "", "referer": "http://evil.example/"}, {"user-agent": "", "accept-language": "de"}
        link = BROWSER | {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}
        for headers in (BROWSER, agent, referer, language, link):
            assert (await rig.ask(operation.method, path, headers=headers)).status_code == 403, headers
        assert rig.broker.topics["t"].consumers == {}
        page = {"x-requested-with": "page"}
        for headers in (BROWSER | page, link | page, BROWSER | {"sec-fetch-site": "same-origin"},
                        BROWSER | {"origin": "http://localhost"}, {"user-agent": "curl/8.5.0"}):  # fmt: skip
            assert (await rig.ask(operation.method, path, headers=headers)).status_code != 403, headers


def test_there_are_reads_that_take() -> None:
    """Otherwise the test above would have no operation to try."""
    assert {dialect for dialect, _ in READS} == {"", "mq", "tinymq"}


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/topics/t:purge"), ("PUT", "/v1/topics/t"), ("DELETE", "/v1/topics/t"), ("POST", "/v1/topics/t/messages"),
     ("GET", "/healthz"), ("POST", "/publish/t"), ("POST", "/t/messages"), ("DELETE", "/t")],
)  # fmt: skip
async def test_a_line_break_at_the_end_makes_another_path(method: str, path: str) -> None:
    """Found: a path with a line break at its end was taken for the path of a purge."""
    async with gateway(DIR, fs=SimDisk(random.Random(1)), dialects=["tinymq", "mq"]) as rig:
        await rig.publish("t", "x")
        refused(await rig.ask(method, f"{path}%0A", content=b"y"), 404, "UNKNOWN_COMMAND")
        assert [message["payload"] for message in await rig.lease("t", max=2)] == ["x"]


def test_what_an_operation_may_refuse_with_has_a_status() -> None:
    for operation in OPERATIONS:
        assert all(error.code in STATUS for error in operation.errors), operation.name
        assert operation.answers, operation.name
