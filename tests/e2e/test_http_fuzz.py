"""Any request gets a documented answer: no 5xx, and no status that /openapi.json does not name for its operation."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.broker_process import BrokerProcess, environment
from tests.support.http_rig import HttpRig, gateway
from tests.support.requirements import require
from tests.support.shares import examples
from tests.support.sim_disk import SimDisk
from toymq_py.gateway.app import DIALECTS, OPERATIONS
from toymq_py.gateway.openapi import document
from toymq_py.gateway.operations import Operation

ALL = tuple({(each.method, each.path): each for each in (*OPERATIONS, *DIALECTS["tinymq"], *DIALECTS["mq"])}.values())
"""What is served with both dialects: the last of one method and path."""
ENDLESS = {"events", "stream", "tinymqStream"}
STATUSES = {
    described["operationId"]: set(described["responses"])
    for methods in document(ALL)["paths"].values()
    for described in methods.values()
}

NAMES = st.sampled_from(["t", "t.dlq", "q", "a.b", "..", ".x", "*", "a.>", "a b", "\x00", "x" * 200, "%2e", "é", ""])
NUMBERS = st.sampled_from(["0", "1", "7", "-1", "1e3", "99999999999999999999999", "x", "1.5", ""])
WORDS = st.one_of(NAMES, NUMBERS, st.sampled_from(["earliest", "@1", "true", "1s", "auto"]), st.text(max_size=5))
MEMBERS = st.sampled_from(["payload", "ids", "seek", "topic", "url", "name", "queue", "ttl", "key"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def runner() -> Iterator[tuple[asyncio.Runner, HttpRig]]:
    async def enter() -> tuple[HttpRig, AsyncExitStack]:
        stack = AsyncExitStack()
        fs = SimDisk(random.Random(1))
        return await stack.enter_async_context(gateway("/data/d", fs=fs, dialects=["tinymq", "mq"])), stack

    with asyncio.Runner() as runner:
        rig, stack = runner.run(enter())
        yield runner, rig
        runner.run(stack.aclose())


@settings(max_examples=examples(400, 8), derandomize=True, deadline=None)
@given(data=st.data())
def test_any_request_gets_a_documented_answer(runner: tuple[asyncio.Runner, HttpRig], data: st.DataObject) -> None:
    loop, rig = runner
    operation: Operation = data.draw(st.sampled_from([each for each in ALL if each.name not in ENDLESS]), "operation")
    path = operation.path.replace(":slashes}", "}")
    query, headers = {}, {}
    for parameter in operation.parameters:
        value = data.draw(NAMES if parameter.where == "path" and parameter.name != "id" else WORDS, parameter.name)
        if parameter.where == "path":
            path = path.replace(f"{{{parameter.name}}}", quote(value, safe="").replace(".", "%2E") or "%20")
        elif parameter.name not in ("wait_s", "timeout") and data.draw(st.booleans()):
            if parameter.where == "query":
                query[parameter.name] = value
            elif "*" not in parameter.name:
                headers[parameter.name] = value.encode()
    body = data.draw(st.one_of(st.binary(max_size=20), JSON), "body") if operation.body is not None else b""
    if operation.body is not None:
        media = [*operation.body.content, "text/plain", "multipart/mixed; boundary=b"]
        headers["content-type"] = data.draw(st.sampled_from(media), "media").encode()
    more: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    try:
        answer = loop.run(rig.ask(operation.method, path, params=query, headers=headers, **more))
    except ValueError:
        return  # no HTTP client sends that
    assert answer.status_code < 500, f"{operation.name}: {answer.status_code} {answer.text}"
    elsewhere = "%2F" in path or "\x00" in path or path.endswith("%0A")
    known = STATUSES[operation.name] | ({"404", "405", "422"} if elsewhere else set())
    assert str(answer.status_code) in known, f"{operation.name} answers {answer.status_code}: {answer.text}"


@pytest.mark.torture
@require("schemathesis")
def test_schemathesis_finds_no_5xx_and_nothing_undocumented(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d", "--http", "127.0.0.1:0", "--dialect", "tinymq", "--dialect", "mq") as broker:
        endless = ("/v1/events", "/v1/topics/{topic}/stream", "/stream/{topic}")
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        done = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{broker.http}openapi.json",
                "--max-examples", "50", "--seed", "1",
                "--request-timeout", "90", "--checks", checks, *(f"--exclude-path={path}" for path in endless),
            ],
            env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
