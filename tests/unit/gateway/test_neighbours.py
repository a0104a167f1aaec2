"""The data of other workers in a worker's lists, figures and metrics."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_receiver import receiving
from tests.support.tokens import table, token
from tests.support.worker_processes import serving
from tests.unit.gateway.test_forwarding import HERE, OPEN, THERE, Curl
from toymq_py.errors import PlacementUnknown, ShuttingDown
from toymq_py.gateway import neighbours as neighbours_module
from toymq_py.gateway.neighbours import Neighbours, labelled_metrics
from toymq_py.heartbeat import standstill
from toymq_py.placement import Placement

TOPICS = [f"orders.{name}" for name in "abcdef"]


def test_lists_figures_and_metrics_are_of_all_workers(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2, *OPEN) as workers:
        workers.ready(2)
        for worker in (0, 1):
            with Curl(workers.http(worker)) as curl:
                for topic in TOPICS:
                    assert curl.ask("POST", f"/v1/topics/{topic}/messages", b"x")[0] == 201
                assert [found["topic"] for found in curl.ask("GET", "/v1/topics")[1]["topics"]] == TOPICS
                found = curl.ask("GET", "/v1/topics?pattern=orders.c")[1]["topics"]
                assert [one["topic"] for one in found] == ["orders.c"]
                assert curl.ask("GET", "/v1/stats")[1]["publish_total"] == len(TOPICS) * (worker + 1)
                curl.connection.request("GET", "/metrics", headers={"accept": "application/openmetrics-text"})
                text = curl.connection.getresponse().read().decode()
                rows = re.findall(r'^toymq_topic_messages\{worker="(\d)",topic="(.*)"\} (\d+)', text, re.MULTILINE)
                assert sorted(topic for _, topic, _ in rows) == TOPICS
                assert {worker for worker, _, _ in rows} == {"0", "1"}
                assert text.count("# TYPE toymq_topic_messages ") == 1
                curl.connection.request("GET", "/v1/events")
                event = curl.connection.getresponse()
                assert event.readline() == b"event: snapshot\n"
                snapshot = json.loads(event.readline().removeprefix(b"data: "))
                assert [one["topic"] for one in snapshot["topics"]] == TOPICS
                assert snapshot["stats"]["publish_total"] == len(TOPICS) * (worker + 1)


def test_a_token_sees_of_other_workers_what_it_may(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    boss = table("boss", 'admin = true\npublish = [">"]\nsubscribe = [">"]')
    tokens.write_text(boss + table("reader", 'subscribe = ["orders.a", "orders.b", "orders.c"]'))
    tokens.chmod(0o600)
    with serving(tmp_path / "data", 2, *OPEN, "--auth-file", str(tokens)) as workers:
        workers.ready(2)
        with workers.wire(0) as wire:
            assert wire.ask(f"HELLO 1 auth={token('boss')}\n".encode()).startswith(b"HELLO")
            for topic in TOPICS:
                assert wire.ask(f"PUB {topic} - 1\nx\n".encode()) == b"OK 0"
            wire.ask(b"CLUSTER\n")
            address = json.loads(wire.line())["workers"][0][1].removesuffix("/")
        with workers.wire(0) as wire:
            assert wire.ask(f"HELLO 1 auth={token('reader')}\n".encode()).startswith(b"HELLO")
            wire.ask(b"TOPICS\n")
            assert [one["topic"] for one in json.loads(wire.line())] == TOPICS[:3]
        with Curl(address) as curl:
            reader = f"Bearer {token('reader')}"
            listed = curl.ask("GET", "/v1/topics", Authorization=reader)[1]["topics"]
            assert [one["topic"] for one in listed] == TOPICS[:3]
            assert curl.ask("GET", "/v1/topics", toymq_forwarded="http - 0 *")[0] == 401, "a client says that it is a worker"


async def test_a_webhook_pushes_the_topics_of_every_worker_or_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2, *OPEN, "--private-webhooks") as workers:
        workers.ready(2)
        async with receiving() as receiver:
            hook = {"url": f"http://127.0.0.1:{receiver.port}/"}
            with Curl(workers.http(0)) as here, Curl(workers.http(1)) as there:

                def put(curl: Curl, topic: str) -> tuple[int, Any]:
                    return curl.ask("PUT", "/v1/webhooks/mine", json.dumps(hook | {"topic": topic}))

                def publish(topic: str) -> None:
                    assert here.ask("POST", f"/v1/topics/{topic}/messages", b"x")[0] == 201

                status, refusal = put(here, THERE)
                assert (status, refusal["code"]) == (421, "MOVED")
                assert refusal["detail"].startswith(f"127.0.0.1:{workers.ports[1]} ")
                assert put(here, ">")[0] == 201
                for topic in (HERE, THERE):
                    publish(topic)
                assert {(await receiver.next())[0]["x-topic"], (await receiver.next())[0]["x-topic"]} == {HERE, THERE}
                assert put(there, ">")[0] == 200, "it is there, too"
                assert put(there, THERE)[0] == 200
                assert here.ask("GET", "/v1/webhooks/mine")[0] == 404, "the name now is for a topic of the other worker"
                publish(HERE)
                publish(THERE)
                assert (await receiver.next())[0]["x-topic"] == THERE
                assert put(here, ">")[0] == 201
                assert there.ask("DELETE", "/v1/webhooks/mine")[0] == 204
                assert here.ask("GET", "/v1/webhooks/mine")[0] == 404, "deleted at every worker"


async def test_one_that_does_not_answer(tmp_path: Path) -> None:
    placement = Placement(0, ("a", "b"), (), (str(tmp_path / "0"), str(tmp_path / "1")))
    neighbours = Neighbours(placement)
    with pytest.raises(PlacementUnknown, match="worker 1 does not answer"):
        await neighbours.topics()
    answer = json.dumps({"topics": [{"topic": "t", "consumers": []}]}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + answer)
        writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "1")
    assert await neighbours.topics() == (await neighbours.stats_of(1))[1] == [{"topic": "t", "consumers": []}]
    server.close()
    (tmp_path / "1").unlink()

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(die, tmp_path / "1")
    with pytest.raises(PlacementUnknown, match="it ended before it answered"):
        await neighbours.topics()
    server.close()
    (tmp_path / "1").unlink()
    with pytest.raises(PlacementUnknown, match="worker 1 does not answer"):
        await neighbours.stats_of(1)


def test_metrics_are_one_text() -> None:
    one = b'# HELP a What.\n# TYPE a counter\na 1\na{x="}"} 2 # {trace="t"} 1\n# HELP b B.\n# TYPE b gauge\nb{} 3\n'
    two = b"# HELP a What.\n# TYPE a counter\na 4\n# HELP c C.\n# TYPE c gauge\nc 5\n# EOF\n"
    assert labelled_metrics([one, two]).decode().splitlines() == [
        "# HELP a What.", "# TYPE a counter", 'a{worker="0"} 1', 'a{worker="0",x="}"} 2 # {trace="t"} 1', 'a{worker="1"} 4',
        "# HELP b B.", "# TYPE b gauge", 'b{worker="0"} 3', "# HELP c C.", "# TYPE c gauge", 'c{worker="1"} 5', "# EOF",
    ]  # fmt: skip


async def test_one_that_is_known_to_stand_still_is_not_asked(tmp_path: Path) -> None:
    """Found: each request for the topics of a worker that hangs waited 20 s, and a list 5 s."""
    still: set[int] = {1}
    sockets = (str(tmp_path / "0"), str(tmp_path / "1"))  # none is there: a try would say so
    neighbours = Neighbours(Placement(0, ("h:1", "h:2"), (), sockets, pids=[76, 77], stands_still=still.__contains__))
    problem = re.escape(f"worker 1 {standstill(77)}")
    for ask in (neighbours.reach(1), neighbours.connect(1), neighbours.ask("/v1/stats"), neighbours.change("PUT", "/v1/x")):
        with pytest.raises(PlacementUnknown, match=f"^{problem}$"):
            await ask
    with pytest.raises(PlacementUnknown, match=f"^{problem}; part of it may be done: repeat it$"):
        await neighbours._exchange(1, "/v1/x", "PUT")
    still.clear()
    with pytest.raises(PlacementUnknown, match="does not answer"):
        await neighbours.reach(1)


async def test_one_that_is_found_to_stand_still_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The outcome of a request that was sent to it is unknown; one that was not sent was not done."""
    monkeypatch.setattr(neighbours_module, "LOOK_AT_BEATS_S", 0.0)
    still: set[int] = set()
    sockets = (str(tmp_path / "0"), str(tmp_path / "1"))
    neighbours = Neighbours(Placement(0, ("h:1", "h:2"), (), sockets, pids=[76, 77], stands_still=still.__contains__))

    async def stop_at_the_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if asked:
            still.add(1)
            await reader.read()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        asked.append(b"")
        writer.close()
        await writer.wait_closed()
        ended.release()

    asked: list[bytes] = []
    ended = asyncio.Semaphore(0)
    problem = re.escape(f"worker 1 {standstill(77)}")
    async with await asyncio.start_unix_server(stop_at_the_second, sockets[1]):
        with pytest.raises(ShuttingDown, match=f"^{problem}: the outcome is unknown$"):
            await neighbours.post(1, "/v1/topics/t/messages:batch", b"{}")
        still.clear()
        with pytest.raises(PlacementUnknown, match=f"^{problem}$"):
            await neighbours.reach(1, 0.0)
        for _ in range(3):
            await ended.acquire()
