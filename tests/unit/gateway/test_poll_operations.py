"""Leases over HTTP: polls, acks, redeliveries, and their state after a restart."""

import errno

import pytest

from tests.support.http_rig import HttpRig, gateway, ids, refused
from tests.support.sim_disk import SimDisk

DIR = "/data/d"


async def test_a_message_is_leased_once_and_acked(rig: HttpRig) -> None:
    assert await rig.lease("t") == []
    await rig.publish("t", "a", "b", "c")
    (message,) = await rig.lease("t")
    assert (message["topic"], message["id"], message["attempt"], message["payload"]) == ("t", 0, 1, "a")
    assert ids(await rig.lease("t", max=10)) == [(1, 1), (2, 1)]
    assert await rig.lease("t", max=10) == []
    answer = await rig.ask("DELETE", "/v1/topics/t/messages/1?consumer=c")
    assert (answer.status_code, answer.content) == (204, b"")
    refused(await rig.ask("DELETE", "/v1/topics/t/messages/1?consumer=c"), 404, "NOT_LEASED")
    refused(await rig.ask("DELETE", "/v1/topics/t/messages/7?consumer=c"), 404, "NOT_LEASED")
    refused(await rig.ask("DELETE", "/v1/topics/t/messages/0?consumer=d"), 404, "NO_SUCH_CONSUMER")
    refused(await rig.ask("DELETE", "/v1/topics/u/messages/0?consumer=c"), 404, "NO_SUCH_TOPIC")


async def test_of_each_group_one_message_is_leased_at_a_time(rig: HttpRig) -> None:
    for text in ("a", "b"):
        await rig.ask("POST", "/v1/topics/t/messages", content=text, headers={"X-Header-Toymq-Group": "Ann"})
    await rig.publish("t", "c")
    assert ids(await rig.lease("t", max=10, mode="keyed")) == [(0, 1), (2, 1)]
    assert await rig.lease("t", max=10, mode="keyed") == []
    assert (await rig.ask("DELETE", "/v1/topics/t/messages/0?consumer=c")).status_code == 204
    assert ids(await rig.lease("t", max=10)) == [(1, 1)], "without a mode the consumer stays as it is"
    refused(await rig.ask("GET", "/v1/topics/t/messages?consumer=c&mode=exclusive"), 422, "BAD_ARGUMENT")


async def test_an_ack_that_was_answered_survives_a_power_cut(fs: SimDisk) -> None:
    async with gateway(DIR, fs=fs) as rig:
        await rig.publish("t", "a", "b", "c", "d")
        await rig.lease("t", max=4)
        assert (await rig.ask("DELETE", "/v1/topics/t/messages/0?consumer=c")).status_code == 204
        acked = await rig.ask("POST", "/v1/topics/t/messages:ack?consumer=c", json={"ids": ["2-3"]})
        assert (acked.status_code, acked.content, acked.headers["x-acked"]) == (204, b"", "2")
        after = fs.crash()
    async with gateway(DIR, fs=after) as rig:
        assert ids(await rig.lease("t", max=10)) in ([(1, 1)], [(1, 2)])


async def test_an_ack_that_the_disk_does_not_take_is_not_answered_with_success(rig: HttpRig, fs: SimDisk) -> None:
    await rig.publish("t", "a")
    await rig.lease("t")
    fs.fail("pwrite", 1, errno.ENOSPC, sticky=True, path="offsets.json")
    refused(await rig.ask("DELETE", "/v1/topics/t/messages/0?consumer=c"), 507, "DISK_FULL")
    fs.heal()


async def test_what_is_not_acked_comes_again_when_its_lease_ends(rig: HttpRig) -> None:
    await rig.publish("t", "a")
    assert ids(await rig.lease("t", visibility_s=0.02)) == [(0, 1)]
    assert ids(await rig.lease("t", wait_s=10, visibility_s=30)) == [(0, 2)]
    assert (await rig.ask("POST", "/v1/topics/t/messages/0:extend?consumer=c&visibility_s=0.02")).status_code == 204
    assert ids(await rig.lease("t", wait_s=10)) == [(0, 3)]


async def test_what_is_given_back_comes_again(rig: HttpRig) -> None:
    await rig.publish("t", "a")
    await rig.lease("t")
    assert (await rig.ask("POST", "/v1/topics/t/messages/0:nack?consumer=c&delay_s=0")).status_code == 204
    assert ids(await rig.lease("t")) == [(0, 2)]
    for verb in ("nack", "extend"):
        refused(await rig.ask("POST", f"/v1/topics/t/messages/9:{verb}?consumer=c"), 404, "NOT_LEASED")


async def test_a_lease_that_has_ended_does_not_act_on_the_next_one(rig: HttpRig) -> None:
    await rig.publish("t", "a")
    path = "/v1/topics/t/messages"
    first = (await rig.ask("GET", path, params={"consumer": "c", "visibility_s": 0.001})).json()["lease"]
    second = (await rig.ask("GET", path, params={"consumer": "c", "visibility_s": 3600, "wait_s": 10})).json()["lease"]
    assert first != second
    for verb in ("nack", "extend"):
        refused(await rig.ask("POST", f"{path}/0:{verb}?consumer=c&lease={first}"), 404, "NOT_LEASED")
    refused(await rig.ask("POST", f"{path}/0:nack?consumer=c&dead=true&lease={first}"), 404, "NOT_LEASED")
    refused(await rig.ask("POST", f"{path}/0:nack?consumer=c&lease=0"), 422, "BAD_ARGUMENT")
    assert (await rig.ask("POST", f"{path}/0:extend?consumer=c&lease={second}")).status_code == 204
    assert (await rig.ask("POST", f"{path}/0:nack?consumer=c&delay_s=0&lease={second}")).status_code == 204
    assert ids(await rig.lease("t")) == [(0, 3)]


async def test_a_message_that_waits_for_its_next_delivery_is_given_up_without_a_lease(rig: HttpRig) -> None:
    await rig.publish("t", "a", "b", "c")
    await rig.lease("t", max=2)
    path = "/v1/topics/t/messages"
    assert (await rig.ask("DELETE", f"{path}/1?consumer=c")).status_code == 204
    assert (await rig.ask("POST", f"{path}/0:nack?consumer=c&delay_s=3600")).status_code == 204
    for msg_id, why in (
        (0, "the lease has ended, and it waits for attempt 2; nack?dead=true without a lease gives it up"),
        (1, "it is acked, or a dead letter"), (2, "it was never delivered"), (3, "there is no such message"),
    ):  # fmt: skip
        answer = await rig.ask("POST", f"{path}/{msg_id}:nack?consumer=c")
        refused(answer, 404, "NOT_LEASED")
        assert answer.json()["detail"] == f"{msg_id} is not leased to c: {why}"
    assert (await rig.ask("POST", f"{path}/0:nack?consumer=c&dead=true&reason=bad")).status_code == 204
    await rig.until(lambda: "t.dlq" in rig.broker.topics and rig.broker.topics["t.dlq"].log.committed_id == 1)


async def test_a_dead_letter_and_its_way_back(rig: HttpRig) -> None:
    await rig.ask("POST", "/v1/topics/t/messages", content=b"bad", headers={"X-Header-Color": "red"})
    await rig.lease("t")
    path = "/v1/topics/t/messages/0:nack?consumer=c&dead=true"
    for body in ({"error": 7}, {"error": {"text": 7}}, {"error": {"kind": "x"}}, {"reason": ["x"]}, {"why": "x"}):
        refused(await rig.ask("POST", path, json=body), 422, "BAD_ARGUMENT")
    refused(await rig.ask("POST", f"{path[:-4]}yes"), 422, "BAD_ARGUMENT")
    error = {"type": "OSError", "text": "no such file:\nx\x1b", "traceback": "line 1\n  line 2"}
    assert (await rig.ask("POST", f"{path}&reason=two%20words", json={"error": error})).status_code == 204
    await rig.until(lambda: "t.dlq" in rig.broker.topics and rig.broker.topics["t.dlq"].log.committed_id == 1)
    (letter,) = (await rig.ask("GET", "/v1/topics/t.dlq/log")).json()["messages"]
    assert (letter["payload"], letter["headers"]["color"], letter["headers"]["toymq-reason"]) == ("bad", "red", "two words")
    assert [letter["headers"][f"toymq-{name}"] for name in ("error-type", "error", "traceback")] == [
        "OSError", "no such file: x", '"line 1\\n  line 2"',
    ]  # fmt: skip
    refused(await rig.ask("POST", "/v1/topics/t.dlq/messages", content=b"x"), 403, "FORBIDDEN")
    refused(await rig.ask("POST", "/v1/topics/t:redrive"), 422, "BAD_ARGUMENT")
    refused(await rig.ask("POST", "/v1/topics/t.dlq:redrive", json={"max": 0}), 422, "BAD_ARGUMENT")
    assert (await rig.ask("POST", "/v1/topics/t.dlq:redrive", json={"ids": [7]})).json() == {"redriven": 0}
    assert (await rig.ask("POST", "/v1/topics/t.dlq:redrive", json={"ids": ["0-3"], "max": 5})).json() == {"redriven": 1}
    assert ids(await rig.lease("t")) == [(1, 1)]


async def test_the_attempt_that_was_given_back_counts_after_a_power_cut(fs: SimDisk) -> None:
    async with gateway(DIR, fs=fs) as rig:
        await rig.publish("t", "a")
        await rig.lease("t")
        assert (await rig.ask("POST", "/v1/topics/t/messages/0:nack?consumer=c")).status_code == 204
        after = fs.crash()
    async with gateway(DIR, fs=after) as rig:
        assert ids(await rig.lease("t")) == [(0, 2)]


async def test_a_pattern_takes_from_every_topic(rig: HttpRig) -> None:
    await rig.publish("events.a", "1")
    await rig.publish("events.b", "2")
    await rig.publish("other", "3")
    assert sorted(message["topic"] for message in await rig.lease("events.*", max=10)) == ["events.a", "events.b"]


@pytest.mark.parametrize(
    "query",
    [
        "", "consumer=.c", "consumer=c&max=0", "consumer=c&max=1001", "consumer=c&max=x", "consumer=c&wait_s=61",
        "consumer=c&wait_s=-1", "consumer=c&wait_s=1e1", "consumer=c&wait_s=.5", "consumer=c&visibility_s=0",
        "consumer=c&visibility_s=99999999999",
    ],
)  # fmt: skip
async def test_polls_that_make_no_sense(rig: HttpRig, query: str) -> None:
    answer = await rig.ask("GET", f"/v1/topics/t/messages?{query}")
    refused(answer, 422, "BAD_NAME" if "=.c" in query else "BAD_ARGUMENT")
    assert not rig.broker.topics


@pytest.mark.parametrize("body", ['{"ids": []}', '{"ids": 7}', '{"ids": ["3-1"]}', '{"ids": [-1]}', '{"ids": ["a"]}', "{}",
                                  '{"ids": [1.5]}', '{"ids": [true]}', '{"id": [1]}'])  # fmt: skip
async def test_ids_that_are_none(rig: HttpRig, body: str) -> None:
    await rig.publish("t", "a")
    await rig.lease("t")
    refused(await rig.ask("POST", "/v1/topics/t/messages:ack?consumer=c", content=body), 422, "BAD_ARGUMENT")


async def test_of_many_acks_one_has_to_be_of_a_lease(rig: HttpRig) -> None:
    await rig.publish("t", "a", "b")
    await rig.lease("t")
    path = "/v1/topics/t/messages:ack?consumer=c"
    refused(await rig.ask("POST", path, json={"ids": ["1-9"]}), 404, "NOT_LEASED")
    assert (await rig.ask("POST", path, json={"ids": ["0-9"]})).headers["x-acked"] == "1"
    refused(await rig.ask("POST", path, json={"ids": ["0-9"]}), 404, "NOT_LEASED")


async def test_a_consumer_is_described_moved_and_forgotten(rig: HttpRig) -> None:
    await rig.publish("t", "a", "b", "c")
    path = "/v1/topics/t/consumers/c"
    refused(await rig.ask("GET", path), 404, "NO_SUCH_CONSUMER")
    refused(await rig.ask("PUT", path, json={"seek": 2, "create": False}), 404, "NO_SUCH_CONSUMER")
    refused(await rig.ask("PUT", path, json={"seek": 2, "create": "no"}), 422, "BAD_ARGUMENT")
    refused(await rig.ask("GET", path), 404, "NO_SUCH_CONSUMER")
    made = await rig.ask("PUT", path, json={"seek": 2})
    assert (made.status_code, made.json()["backlog"]) == (200, 1)
    assert ids(await rig.lease("t", max=10)) == [(2, 1)]
    assert (await rig.ask("PUT", path, json={"seek": "earliest", "create": False})).json()["backlog"] == 3
    assert (await rig.ask("GET", path)).json()["ready"] == 3
    refused(await rig.ask("PUT", path, json={"seek": 4}), 416, "OUT_OF_RANGE")
    refused(await rig.ask("PUT", path, json={"seek": "soon"}), 422, "BAD_ARGUMENT")
    seconds = await rig.ask("PUT", path, json={"seek": "@1795410933"})
    refused(seconds, 422, "BAD_ARGUMENT")
    assert seconds.json()["detail"].endswith("@1795410933 is before 2001: write milliseconds, @1795410933000, or earliest")
    refused(await rig.ask("PUT", path, json={}), 422, "BAD_ARGUMENT")
    assert (await rig.ask("DELETE", path)).status_code == 204
    refused(await rig.ask("DELETE", path), 404, "NO_SUCH_CONSUMER")
