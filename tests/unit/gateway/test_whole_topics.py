"""Requests about a partitioned topic, with one process; ``tests/e2e/test_partitions_http.py`` has two."""

import asyncio
import socket
from pathlib import Path

import pytest

from tests.support.http_rig import HttpRig, refused
from toymq_py.gateway import neighbours
from toymq_py.gateway.neighbours import Neighbours
from toymq_py.placement import Placement, worker_of


async def test_the_description_is_of_all_partitions(rig: HttpRig) -> None:
    made = await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 3, "ttl": 60_000})
    assert (made.status_code, made.json()["partitions"]) == (201, 3)
    await rig.publish("orders", *"abcd")
    found = (await rig.ask("GET", "/v1/topics/orders")).json()
    assert ([part["messages"] for part in found["parts"]], found["settings"]) == ([2, 1, 1], {"ttl": 60_000})
    assert found["messages"] == 4
    assert (await rig.ask("POST", "/v1/topics/orders:purge")).json() == {"purged": 4}


async def test_a_consumer_is_that_of_all_partitions(rig: HttpRig) -> None:
    await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 3})
    await rig.publish("orders", *"abcd")
    refused(await rig.ask("GET", "/v1/topics/orders/consumers/c"), 404, "NO_SUCH_CONSUMER")
    moved = {"seek": "latest", "create": False}
    refused(await rig.ask("PUT", "/v1/topics/orders/consumers/c", json=moved), 404, "NO_SUCH_CONSUMER")
    assert (await rig.ask("PUT", "/v1/topics/orders/consumers/c", json={"seek": "earliest"})).json()["backlog"] == 4
    assert (await rig.ask("DELETE", "/v1/topics/orders/consumers/c")).status_code == 204
    refused(await rig.ask("DELETE", "/v1/topics/orders/consumers/c"), 404, "NO_SUCH_CONSUMER")


async def test_alerts_and_webhooks_take_the_pattern(rig: HttpRig) -> None:
    await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 3})
    rule = {"when": "lag", "topic": "orders", "threshold": 1, "to": "alerts"}
    detail = refused(await rig.ask("PUT", "/v1/alerts/late", json=rule), 422, "BAD_ARGUMENT")["detail"]
    assert detail == "orders is partitioned: write orders#*, or one of its partitions"
    assert (await rig.ask("PUT", "/v1/alerts/late", json={**rule, "topic": "orders#*"})).status_code == 201


@pytest.mark.parametrize(("method", "path", "body"), [
    ("POST", ":purge", None), ("PATCH", "?partitions=8", {"ttl": 5000}),
    ("DELETE", "?partitions=8", None), ("PUT", "/consumers/c", {"seek": "earliest"}),
    ("DELETE", "/consumers/c", None), ("POST", ".dlq:redrive", None),
])  # fmt: skip
async def test_nothing_is_changed_before_all_workers_answer(
    method: str, path: str, body: object, rig: HttpRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the change was made at this worker, and not at the other one."""
    monkeypatch.setattr(neighbours, "REACH_S", 0.02)
    await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 8})
    await rig.publish("orders", *"abcdefgh")
    await rig.ask("PUT", "/v1/topics/orders/consumers/c", json={"seek": "latest"})
    here = next(number for number in range(8) if worker_of(f"orders#{number}", 2) == 0)
    before = (await rig.ask("GET", f"/v1/topics/orders%23{here}")).json()
    assert rig.gateway is not None
    rig.broker.placement = placement = Placement(0, ("a", "b"), (), (str(tmp_path / "0"), str(tmp_path / "1")))
    rig.gateway.neighbours = Neighbours(placement)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "1"))
        silent.listen()
        more = {"json": body} if body is not None else {}
        reply = await rig.ask(method, f"/v1/topics/orders{path}", **more)
        refused(reply, 503, "PLACEMENT_UNKNOWN")
        assert reply.json()["detail"] == "worker 1 does not answer (in time); nothing was done: repeat it"
        silent.setblocking(False)
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(9999).startswith(b"GET /healthz "), "nor is it done there later"
    assert (await rig.ask("GET", f"/v1/topics/orders%23{here}")).json() == before


async def test_a_worker_that_ends_within_a_change_leaves_it_done_in_part_and_that_is_said(rig: HttpRig, tmp_path: Path) -> None:
    await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 8})
    await rig.publish("orders", *"abcdefgh")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /healthz "):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    assert rig.gateway is not None
    rig.broker.placement = placement = Placement(0, ("a", "b"), (), (str(tmp_path / "0"), str(tmp_path / "1")))
    rig.gateway.neighbours = Neighbours(placement)
    async with await asyncio.start_unix_server(answer, tmp_path / "1"):
        detail = refused(await rig.ask("POST", "/v1/topics/orders:purge"), 503, "PLACEMENT_UNKNOWN")["detail"]
    assert detail == "worker 1 does not answer (it ended before it answered); part of it may be done: repeat it"


@pytest.mark.parametrize(("method", "path", "body"), [
    ("PUT", "", {"partitions": 8}), ("PATCH", "?partitions=8", {"ttl": 5000}), ("PUT", "/consumers/c", {"seek": "earliest"}),
])  # fmt: skip
async def test_a_worker_that_ends_behind_a_change_that_was_made_is_no_refusal(
    method: str, path: str, body: object, rig: HttpRig, tmp_path: Path
) -> None:
    """Found: 15 of 15 such changes, which all workers had made, were answered that nothing was done, "try again"."""
    await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 8})

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        if not asked.startswith(b"GET /v1/"):  # all but the description
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    assert rig.gateway is not None
    rig.broker.placement = placement = Placement(0, ("a", "b"), (), (str(tmp_path / "0"), str(tmp_path / "1")))
    rig.gateway.neighbours = Neighbours(placement)
    async with await asyncio.start_unix_server(answer, tmp_path / "1"):
        reply = await rig.ask(method, f"/v1/topics/orders{path}", json=body)
    detail = refused(reply, 503, "PLACEMENT_UNKNOWN")["detail"]
    assert detail.startswith("the change was made everywhere, and the answer cannot be: worker 1 does not answer (")


@pytest.mark.parametrize("said", ["#3/messages/17?consumer=c", "#3/consumers/c", "#3", "?partitions=3", ""])
async def test_a_path_that_a_client_cut_off_at_its_hash_changes_no_whole_topic(said: str, rig: HttpRig) -> None:
    """Found: clients do not send what is behind a `#` in a URL, so a DELETE meant for a message of one partition deleted the
    whole topic."""
    await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 4})
    await rig.publish("orders", "a")
    detail = "4 partitions of orders, orders#0 to orders#3: name one, or all by ?partitions=4; in a path # is written %23"
    for method, more in (("DELETE", {}), ("PATCH", {"json": {"retain_max_age": 1000}})):
        assert refused(await rig.ask(method, f"/v1/topics/orders{said}", **more), 409, "PARTITIONED")["detail"] == detail
    found = (await rig.ask("GET", "/v1/topics/orders")).json()
    assert (found["messages"], found["settings"], len(found["parts"])) == (1, {}, 4)


async def test_the_number_of_partitions_means_all_of_them(rig: HttpRig) -> None:
    await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 4})
    changed = await rig.ask("PATCH", "/v1/topics/orders?partitions=4", json={"ttl": 5000})
    assert (changed.status_code, changed.json()["settings"]) == (200, {"ttl": 5000})
    assert (await rig.ask("DELETE", "/v1/topics/orders?partitions=4")).status_code == 204
    refused(await rig.ask("DELETE", "/v1/topics/orders?partitions=4"), 404, "NO_SUCH_TOPIC")


async def test_a_plain_topic_has_no_number_of_partitions(rig: HttpRig) -> None:
    await rig.ask("PUT", "/v1/topics/t")
    detail = refused(await rig.ask("DELETE", "/v1/topics/t?partitions=4"), 422, "BAD_ARGUMENT")["detail"]
    assert detail == "t is not partitioned: leave out partitions=4"
    assert (await rig.ask("PATCH", "/v1/topics/t", json={"ttl": 5000})).status_code == 200
    assert (await rig.ask("DELETE", "/v1/topics/t")).status_code == 204
