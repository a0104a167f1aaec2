"""What programs written for TinyMQ rely on: its command line ``tmq``, its Go client, its documentation. The original passes
each case, and a program written for it breaks without it."""

import asyncio
import errno
from uuid import UUID

import pytest

from tests.support.broker_rig import DIR
from tests.support.http_rig import TIMEOUT_S, HttpRig, gateway
from tests.support.sim_disk import SimDisk
from tests.support.tinymq_client import get, post, publish, texts
from toymq_py.gateway.tinymq import messages, names
from toymq_py.gateway.tinymq.names import shown_id

DIALECT = "tinymq"


# -- ids


async def test_the_first_eight_characters_of_an_id_tell_messages_apart(rig: HttpRig) -> None:
    """``tmq tail`` prints only the first eight characters of an id, and fails on a shorter one."""
    ids = await publish(rig, "t", b"a", b"b")
    assert len({each[:8] for each in ids}) == 2
    assert all(UUID(each).version == 8 for each in ids)
    assert [message["id"] for message in (await get(rig, "/consume/t?limit=2"))[1]] == ids


async def test_an_id_belongs_to_one_topic_and_one_group(rig: HttpRig) -> None:
    """No id is given twice: programs keep the ids of what they have handled, of all topics in one place."""
    (of_t,), (of_u,) = await publish(rig, "t", b"a"), await publish(rig, "u", b"a")
    of_g = (await get(rig, "/consume/t?group=g"))[1]["id"]
    assert len({of_t, of_u, of_g}) == 3
    assert len({each[:8] for each in (of_t, of_u, of_g)}) == 1
    assert await post(rig, f"/ack/t/{of_u}") == (404, {"status": "error", "message": "Message not found"})
    for number in (2**32 - 1, 2**32, 2**48 + 1, 2**64 - 1):
        each = shown_id("t", None, number)
        assert UUID(each).version == 8
        assert messages.message_id(rig.broker.topics["t"], each) == (number, None, True)
        assert messages.message_id(rig.broker.topics["t"], shown_id("t", "g", number)) == (number, "g", True)
    for none in (of_t.upper(), of_t[:-1], of_t + "0", shown_id("t", "h", 0)):
        assert (await post(rig, f"/ack/t/{none}"))[0] == 404, none
    assert (await post(rig, "/ack/t/0"))[0] == 200, "a plain number does, too"


# -- acks


async def test_a_message_that_was_only_peeked_at_is_acked(fs: SimDisk) -> None:
    """A peeked message can be acked. Programs for TinyMQ mainly ack this way, since there a consumed message is removed."""
    async with gateway(DIR, fs=fs, dialects=["tinymq"]) as rig:
        await publish(rig, "t", b"a", b"b", b"c", b"d")
        _, peeked = await get(rig, "/consume/t?peek=true&limit=10")
        assert await post(rig, f"/ack/t/{peeked[1]['id']}") == (200, {"status": "success", "message": "Message acknowledged"})
        assert (await post(rig, f"/ack/t/{peeked[1]['id']}"))[0] == 404, "once"
        _, peeked = await get(rig, "/api/queues/peek?queue=t")
        assert texts(peeked) == ["a", "c", "d"]
        assert (await post(rig, f"/ack/t/{peeked[2]['id']}"))[0] == 200
        assert (await post(rig, "/ack/t/4"))[0] == 404, "that there never was"
        _, peeked = await get(rig, "/consume/t?peek=true&group=g&limit=9")
        assert texts(peeked) == ["a", "b", "c", "d"], "a group's are its own"
        after = fs.crash()
    async with gateway(DIR, fs=after, dialects=["tinymq"]) as rig:
        assert texts((await get(rig, "/consume/t?limit=10"))[1]) == ["a", "c"], "also after a power cut"


@pytest.mark.parametrize("query", ["peek=true", "filter_key=n&filter_val=1"])
@pytest.mark.parametrize("path", ["/ack/t/{}", "/ack/t/{}?group=g", "/ack/t::g/{}", "/ack/t%3A%3Ag/{}"])
async def test_what_a_group_that_is_not_made_yet_was_shown_is_acked(rig: HttpRig, query: str, path: str) -> None:
    """Found: an ack of a message peeked at for a new group was 404, because the id names a consumer that did not exist yet."""
    await publish(rig, "t", {"n": 1}, {"n": 2})
    _, shown = await get(rig, f"/consume/t?{query}&group=g")
    assert "g" not in rig.broker.topics["t"].consumers, "it was only shown"
    assert (await post(rig, path.format(shown["id"])))[0] == 200
    assert (await post(rig, path.format(shown["id"])))[0] == 404, "once"
    assert texts((await get(rig, "/consume/t?group=g&limit=9"))[1]) == ['{"n": 2}'], "the group has what was not acked"
    assert len((await get(rig, "/consume/t?limit=9"))[1]) == 2, "and no other consumer is meant"


async def test_an_ack_makes_no_group_that_its_id_does_not_name(rig: HttpRig) -> None:
    await publish(rig, "t", b"a")
    _, shown = await get(rig, "/consume/t?peek=true&group=g")
    for path in (f"/ack/t/{shown['id']}?group=h", "/ack/t/0?group=h", "/ack/t::h/0", f"/ack/t/{shown['id'][:-1]}z"):
        assert (await post(rig, path))[0] == 404, path
    assert not rig.broker.topics["t"].consumers


async def test_the_groups_that_were_shown_something_and_are_not_made_are_bounded(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "UNMADE_MAX", 2)
    names._unmade.clear()
    await publish(rig, "t", b"a")
    shown = [(await get(rig, f"/consume/t?peek=true&group=g{n}"))[1] for n in (1, 2, 1, 3)]
    assert [(await post(rig, f"/ack/t/{each['id']}"))[0] for each in shown[1:]] == [404, 200, 200]
    assert (await post(rig, f"/ack/t::g2/{shown[1]['id']}"))[0] == 200, "it is named"


async def test_a_delayed_message_that_was_peeked_at_is_acked(rig: HttpRig) -> None:
    await publish(rig, "t", b"a", delay="1h")
    _, peeked = await get(rig, "/consume/t?peek=true")
    assert (await post(rig, f"/ack/t/{peeked['id']}"))[0] == 200
    assert (await get(rig, "/consume/t?peek=true"))[0] == 204


async def test_an_ack_says_by_its_id_or_its_topic_whose_it_is(rig: HttpRig) -> None:
    """TinyMQ keeps a topic of its own for each group's queue, ``topic::group``, and its messages carry that name."""
    await publish(rig, "a/b", b"x")
    found = {group: (await get(rig, f"/consume/a/b?group={group}"))[1] for group in ("g", "h")}
    assert [found[group]["topic"] for group in found] == ["a/b::g", "a/b::h"]
    channels = rig.broker.topics["a.b"].channels
    assert (await post(rig, f"/ack/a/b/{found['g']['id']}"))[0] == 200
    assert [channels[group].consumer.floor for group in ("g", "h")] == [1, 0]
    assert (await post(rig, f"/ack/{found['h']['topic']}/{found['h']['id']}"))[0] == 200
    assert channels["h"].consumer.floor == 1
    _, peeked = await get(rig, "/consume/a/b?peek=true")
    assert peeked["topic"] == "a/b"
    assert (await post(rig, f"/ack/a/b/{peeked['id']}"))[0] == 200
    assert channels["tinymq"].consumer.floor == 1
    assert (await get(rig, "/consume/a/b::i"))[1]["group"] == "i", "and what a virtual topic is asked for"
    assert (await get(rig, "/consume/a/b::i?group=k"))[0] == 400
    assert (await get(rig, "/consume/a/b::.i"))[0] == 400


async def test_an_ack_ends_no_lease_of_a_group_for_who_peeked(rig: HttpRig) -> None:
    await publish(rig, "t", b"x")
    await get(rig, "/consume/t?group=g")
    _, peeked = await get(rig, "/consume/t?peek=true")
    assert (await post(rig, f"/ack/t/{peeked['id']}"))[0] == 200
    assert rig.broker.topics["t"].consumers["g"].is_inflight(0)


# -- dead letters


async def test_a_dead_letter_is_there_when_the_requeue_is_answered(rig: HttpRig) -> None:
    """Found: the last requeue was answered 202 before the dead letter was stored, and a peek right after it found none."""
    await publish(rig, "t", b"a", b"b")
    for _ in range(3):
        _, found = await get(rig, "/consume/t")
        assert (await post(rig, "/requeue", found))[0] == 202
    assert texts((await get(rig, "/api/queues/peek?queue=t.dlq"))[1]) == ["a"]


async def test_a_requeue_whose_dead_letter_cannot_be_stored_is_no_202(
    rig: HttpRig, fs: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BURIAL_S", 0.01)
    await publish(rig, "t", b"a")
    for _ in range(2):
        assert (await post(rig, "/requeue", (await get(rig, "/consume/t"))[1]))[0] == 202
    _, found = await get(rig, "/consume/t")
    fs.fail("open", 1, errno.ENOSPC, sticky=True, path="t.dlq")
    fs.fail("pwrite", 1, errno.ENOSPC, sticky=True, path="t.dlq")
    status, text = await post(rig, "/requeue", found)
    assert (status, "dead letter" in text) == (503, True)
    fs.heal()


# -- queues


async def test_a_queue_is_made_as_the_clients_say_it(rig: HttpRig) -> None:
    """``{"policy": "", "retain": ""}`` is what a Go program sends that sets neither."""
    assert (await post(rig, "/api/topics", {"name": "t", "policy": "", "retain": ""}))[0] == 201
    assert rig.broker.topics["t"].settings.to_json() == {"max_attempts": 3, "backlog_max_messages": 100_000}
    assert (await post(rig, "/api/topics", {"name": "u", "policy": "reject", "retain": "100ms"}))[0] == 201
    assert rig.broker.topics["u"].settings.ttl == 100


async def test_retain_is_how_long_a_message_is_there(rig: HttpRig) -> None:
    """Found: ``retain`` was a retention of whole segments, so a quiet queue never lost its messages. A message's own ttl takes
    precedence."""
    assert (await post(rig, "/api/topics", {"name": "t", "retain": "1ms"}))[0] == 201
    await publish(rig, "t", b"a")
    await publish(rig, "t", b"b", ttl="1h")
    run, row, _ = rig.broker.topics["t"].log.read(0, 1)
    assert run is not None
    await rig.until(lambda: rig.gateway is not None and rig.gateway.clock.wall_ns() > run.ts_ns[row] + 2_000_000)
    assert texts((await get(rig, "/consume/t?limit=10"))[1]) == ["b"]


async def test_a_peek_of_a_queue_that_there_is_not(rig: HttpRig) -> None:
    missing = {"status": "not_found", "message": "Topic does not exist"}
    assert await get(rig, "/consume/none?peek=true") == (404, missing)
    assert await get(rig, "/api/queues/peek?queue=none") == (200, [])
    assert not rig.broker.topics, "and none is made"
    assert (await post(rig, "/api/topics", {"name": "none"}))[0] == 201
    assert await get(rig, "/consume/none?peek=true") == (204, None)


async def test_more_than_a_thousand_are_a_thousand(rig: HttpRig) -> None:
    await publish(rig, "t", b"a")
    assert len((await get(rig, "/consume/t?limit=5000"))[1]) == 1


async def test_what_a_publish_by_json_answers(rig: HttpRig) -> None:
    status, answer = await post(rig, "/api/queues/publish", {"queue": "a/b", "payload": "x", "ttl": "", "delay": ""})
    assert (status, answer) == (202, {"status": "accepted", "queue": "a/b", "id": shown_id("a.b", None, 0)})


async def test_there_is_no_cluster(rig: HttpRig) -> None:
    """``tmq cluster status`` asks for this path."""
    assert await get(rig, "/api/cluster/status") == (200, {"clustering_enabled": False})


@pytest.mark.parametrize("path", ["/publish/t", "/v1/topics/t/messages"])
async def test_a_body_that_is_not_read_to_its_end_closes_the_connection_and_says_so(listener: HttpRig, path: str) -> None:
    """Without the header a client would send its next request on a connection that is about to close. The answer arrives,
    whatever the client sends."""
    size = 3_000_000 if path.startswith("/publish") else 70_000_000
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    async with asyncio.timeout(TIMEOUT_S):
        writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())
        writer.write(bytes(500_000))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 413 ")
        assert b"\r\nconnection: close\r\n" in head
        await reader.read()  # the broker closes
    writer.close()
