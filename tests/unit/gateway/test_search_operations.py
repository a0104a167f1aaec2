"""Search of the log over HTTP within its bounds, and one message's state at each consumer."""

import asyncio
import json
import random
from typing import Any

import pytest

from tests.support.http_rig import HttpRig, gateway, lines, refused
from tests.support.http_tokens import bearer, grants, three_tokens
from tests.support.sim_disk import SimDisk
from toymq_py import broker as broker_module
from toymq_py.gateway import search_operations as module
from toymq_py.gateway.message_operations import message_json
from toymq_py.gateway.search_turns import RUNNING_OF_ONE, WAITING_OF_ONE
from toymq_py.records import Records

DIR = "/data/d"
PATH = "/v1/topics/t/messages:search"


def disk() -> SimDisk:
    return SimDisk(random.Random(1))


async def filled(rig: HttpRig, *messages: dict[str, Any]) -> None:
    answer = await rig.ask("POST", "/v1/topics/t/messages:batch", content=lines(*messages),
                           headers={"content-type": "application/x-ndjson"})  # fmt: skip
    assert answer.status_code == 201, answer.text


async def found(rig: HttpRig, **query: Any) -> tuple[list[int], int | None]:
    """Return the ids, and the id to continue from."""
    answer = await rig.ask("GET", PATH, params=query)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    return [message["id"] for message in content["messages"]], content["next"]


async def test_by_key_header_text_id_and_all_together() -> None:
    async with gateway(DIR, fs=disk()) as rig:
        await filled(
            rig, {"payload": "Two PIZZAS", "key": "order-1", "headers": {"color": "red"}},
            {"payload": "tea", "key": "order-2", "headers": {"color": "blue", "table": "7"}},
            {"payload_base64": "/3BpenphAA==", "headers": {"note": "Cold"}}, {"payload": "gr\u00fcn"},
        )  # fmt: skip
        for query, ids in (
            ({}, [3, 2, 1, 0]), ({"text": "pizza"}, [2, 0]), ({"text": "COLD"}, [2]), ({"text": "order-"}, [1, 0]),
            ({"text": "gr\u00fcn"}, [3]), ({"key": "order-2"}, [1]), ({"key": "order"}, []), ({"header": "color"}, [1, 0]),
            ({"header": "color:red"}, [0]), ({"header": "color:re"}, []), ({"id": 2}, [2]), ({"id": 9}, []),
            ({"text": "order", "header": "table:7"}, [1]), ({"id": 0, "text": "tea"}, []), ({"max": 1}, [3]),
            ({"before": 2}, [1, 0]),
        ):  # fmt: skip
            assert (await found(rig, **query))[0] == ids, query
        for wrong in ({"text": ""}, {"text": "x" * 201}, {"header": ":red"}, {"max": 101}, {"key": ""}, {"since_ms": -1}):
            refused(await rig.ask("GET", PATH, params=wrong), 422, "BAD_ARGUMENT")
        refused(await rig.ask("GET", "/v1/topics/u/messages:search"), 404, "NO_SUCH_TOPIC")


async def test_by_time() -> None:
    async with gateway(DIR, fs=disk()) as rig:
        await filled(rig, *[{"payload": str(n)} for n in range(3)])
        log = (await rig.ask("GET", "/v1/topics/t/log")).json()["messages"]
        first_ms, last_ms = log[0]["time_ms"], log[-1]["time_ms"]
        assert (await found(rig, since_ms=last_ms + 1000))[0] == []
        assert (await found(rig, since_ms=first_ms - 1000, until_ms=last_ms + 1000))[0] == [2, 1, 0]
        assert (await found(rig, until_ms=first_ms))[0] == []


async def test_a_request_looks_so_far_and_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKED_MAX", 10)
    monkeypatch.setattr(module, "CHUNK", 4)
    async with gateway(DIR, fs=disk()) as rig:
        await filled(rig, *[{"payload": "needle" if n in (0, 20) else "hay"} for n in range(30)])
        content = (await rig.ask("GET", PATH, params={"text": "needle"})).json()
        assert [message["id"] for message in content["messages"]] == [20]
        assert (content["looked"], content["looked_down_to"], content["next"]) == (12, 18, 18)
        pages, before = [], content["next"]
        while before is not None:
            ids, before = await found(rig, text="needle", before=before)
            pages.append(ids)
        assert pages == [[], [0]], "an empty page that has not looked everywhere is not the end"


async def test_a_full_page_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 8)
    async with gateway(DIR, fs=disk()) as rig:
        await filled(rig, *[{"payload": "x"} for _ in range(30)])
        seen: list[int] = []
        before: int | None = 30
        while before is not None:
            ids, before = await found(rig, max=7, before=before)
            assert len(ids) <= 7
            seen += ids
        assert seen == list(range(29, -1, -1))


async def test_large_messages_are_read_in_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES_MAX", 5000)
    monkeypatch.setattr(module, "LOOKED_BYTES_MAX", 20_000)
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 7000)
    async with gateway(DIR, fs=disk()) as rig:
        small, large = [{"payload": "s"}] * 60, [{"payload": "L" * 3000}] * 12
        await filled(rig, *small, *large, *small)
        seen: list[int] = []
        before: int | None = 132
        requests = 0
        while before is not None:
            answer = (await rig.ask("GET", PATH, params={"text": "l", "before": before})).json()
            assert len(json.dumps(answer["messages"])) < 2 * 7000
            seen += [message["id"] for message in answer["messages"]]
            assert answer["next"] is None or answer["next"] < before, "each request goes on"
            before, requests = answer["next"], requests + 1
        assert seen == list(range(71, 59, -1))
        assert requests > 3


async def test_a_token_that_searches_much_waits_in_turn_or_is_refused() -> None:
    async with gateway(DIR, fs=disk(), authority=three_tokens()) as rig:
        await rig.ask("PUT", "/v1/topics/orders.new", headers=bearer("operator"))
        lines_of_ids = lines(*[{"payload": "x"}] * 300)
        await rig.ask("POST", "/v1/topics/orders.new/messages:batch", content=lines_of_ids,
                      headers=bearer("billing") | {"content-type": "application/x-ndjson"})  # fmt: skip
        path = "/v1/topics/orders.new/messages:search?text=y"
        answers = await asyncio.gather(*[rig.ask("GET", path, headers=bearer("billing")) for _ in range(16)])
        late = [answer for answer in answers if answer.status_code != 200]
        assert len(late) == 16 - RUNNING_OF_ONE - WAITING_OF_ONE
        for answer in late:
            refused(answer, 429, "TOO_MANY_SEARCHES")
            assert answer.headers["retry-after"] == "1"
        assert (await rig.ask("GET", path, headers=bearer("billing"))).status_code == 200, "every turn came back"


async def test_a_search_that_waited_has_the_rights_of_its_turn() -> None:
    authority = three_tokens()
    async with gateway(DIR, fs=disk(), authority=authority) as rig:
        await rig.ask("PUT", "/v1/topics/orders.new", headers=bearer("operator"))
        assert rig.gateway is not None
        async with rig.gateway.searches.turn("token billing"):
            path = "/v1/topics/orders.new/messages:search"
            waits = asyncio.ensure_future(rig.ask("GET", path, headers=bearer("billing")))
            await rig.until(lambda: len(rig.gateway.waiting) == 1)
            authority.replace(grants("operator"))
        refused(await waits, 401, "AUTH_FAILED")


async def test_other_tasks_get_a_turn_after_a_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(DIR, fs=disk()) as rig:
        assert rig.gateway is not None
        await filled(rig, *[{"payload": "x" * 3000}] * 40, *[{"payload": "x"}] * 400)
        tested: list[int] = [0]
        bytes_tested: list[int] = [0]
        pause, has_text = rig.gateway.waiting.turn, module._has_text

        async def counted_pause() -> None:
            tested.append(0)
            bytes_tested.append(0)
            await pause()

        def counted_test(text: bytes, run: Records, row: int) -> bool:
            tested[-1] += 1
            bytes_tested[-1] += len(run.payloads[row])
            return has_text(text, run, row)

        monkeypatch.setattr(rig.gateway.waiting, "turn", counted_pause)
        monkeypatch.setattr(module, "_has_text", counted_test)
        assert await found(rig, text="y") == ([], None)
        assert sum(tested) == 440
        assert max(tested) <= module.SLICE_ROWS
        assert max(bytes_tested) <= module.SLICE_BYTES + 3000


async def test_what_does_not_fit_the_answer_is_not_written_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(DIR, fs=disk()) as rig:
        await filled(rig, *[{"payload": "x"}] * 30)
        written: list[int] = []

        def counted(topic: str, run: Records, row: int) -> dict[str, Any]:
            written.append(run.ids[row])
            return message_json(topic, run, row)

        monkeypatch.setattr(module, "message_json", counted)
        assert await found(rig, max=2) == ([29, 28], 28)
        assert written == [29, 28]


async def test_what_retention_dropped_and_an_empty_topic() -> None:
    async with gateway(DIR, fs=disk()) as rig:
        await rig.ask("PUT", "/v1/topics/t")
        assert await found(rig) == ([], None)
        await filled(rig, {"payload": "a"}, {"payload": "b"})
        assert (await rig.ask("POST", "/v1/topics/t:purge")).status_code == 200
        await filled(rig, {"payload": "c"})
        assert await found(rig) == ([2], None)
        refused(await rig.ask("GET", "/v1/topics/t/messages/0"), 416, "OUT_OF_RANGE")


async def test_the_state_of_a_message_at_each_consumer() -> None:
    async with gateway(DIR, fs=disk()) as rig:
        await rig.publish("t", "a", "b")
        assert [message["id"] for message in await rig.lease("t", "holds")] == [0]
        for name, path, query in (
            ("acks", "", {}), ("waits", ":nack", {"delay_s": 60, "reason": "no-such-customer"}),
            ("again", ":nack", {"delay_s": 0}),
        ):  # fmt: skip
            await rig.lease("t", name)
            method = "POST" if path else "DELETE"
            answer = await rig.ask(method, f"/v1/topics/t/messages/0{path}", params={"consumer": name, **query})
            assert answer.status_code == 204
        await rig.ask("PUT", "/v1/topics/t/consumers/new", json={"seek": "earliest"})
        described = (await rig.ask("GET", "/v1/topics/t/messages/0")).json()
        states = {each["consumer"]: (each["state"], each["attempts"]) for each in described["consumers"]}
        assert states == {
            "holds": ("inflight", 1), "acks": ("acked", None), "waits": ("scheduled", 1),
            "again": ("ready", 1), "new": ("ready", 0),
        }  # fmt: skip
        (failure,) = [each["failure"] for each in described["consumers"] if "failure" in each]
        assert failure["reason"] == "no-such-customer"
        assert described["message"]["payload"] == "a"
        assert "settled" not in described
        refused(await rig.ask("GET", "/v1/topics/t/messages/2"), 416, "OUT_OF_RANGE")


async def test_a_dead_letter_is_named_and_not_called_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a dead-lettered message was shown as acked, so an operator who searched for it believed that it was handled."""
    monkeypatch.setattr(broker_module, "LETTER_KEYS", 2)

    async def states(rig: HttpRig, msg_id: int) -> list[Any]:
        described = (await rig.ask("GET", f"/v1/topics/t/messages/{msg_id}")).json()
        return [(each["state"], each.get("letter")) for each in described["consumers"]]

    async with gateway(DIR, fs=disk(), dedupe_keys=0) as rig:
        await rig.publish("t", "a", "b", "c", "d", "e")
        (message,) = await rig.lease("t")
        await rig.ask("DELETE", "/v1/topics/t/messages/0", params={"consumer": "c"})
        assert await states(rig, 0) == [("acked", None)]
        for count in (1, 2):
            (message,) = await rig.lease("t")
            await rig.ask("POST", f"/v1/topics/t/messages/{message['id']}:nack", params={"consumer": "c", "dead": "true"})
            await rig.until(lambda count=count: rig.broker.has("t.dlq") and rig.broker.topic("t.dlq").next_id == count)
        assert await states(rig, 0) == [("acked", None)], "all letters are known"
        assert await states(rig, 1) == [("dead", {"topic": "t.dlq", "id": 0, "settled": False})]
        await rig.ask("POST", "/v1/topics/t.dlq:discard", json={"ids": [1]})
        assert await states(rig, 2) == [("dead", {"topic": "t.dlq", "id": 1, "settled": True})]
        (message,) = await rig.lease("t")
        await rig.ask("POST", f"/v1/topics/t/messages/{message['id']}:nack", params={"consumer": "c", "dead": "true"})
        await rig.until(lambda: rig.broker.topic("t.dlq").next_id == 3)
        assert await states(rig, 1) == [("acked_or_dead", None)], "its letter's key is forgotten"
        assert await states(rig, 3) == [("dead", {"topic": "t.dlq", "id": 2, "settled": False})]
        assert await states(rig, 4) == [("ready", None)]


async def test_a_dead_letter_tells_its_attempts_and_its_failure() -> None:
    async with gateway(DIR, fs=disk()) as rig:
        await rig.publish("t", "a", "b")
        for msg_id, query in ((0, {"delay_s": 0}), (0, {"dead": "true", "reason": "bad sku"}), (1, {"dead": "true"})):
            await rig.lease("t")
            answer = await rig.ask("POST", f"/v1/topics/t/messages/{msg_id}:nack", params={"consumer": "c", **query})
            assert answer.status_code == 204
        await rig.until(lambda: rig.broker.has("t.dlq") and rig.broker.topic("t.dlq").next_id == 2)

        async def told(msg_id: int) -> tuple[object, ...]:
            (found,) = (await rig.ask("GET", f"/v1/topics/t/messages/{msg_id}")).json()["consumers"]
            failure = found.get("failure", {})
            return found["state"], found["attempts"], failure.get("reason"), "at_ms" in failure

        assert await told(0) == ("dead", 2, "bad sku", True)
        assert await told(1) == ("dead", 1, "rejected", False), "no NACK gave a reason"
        assert (await rig.ask("POST", "/v1/topics/t.dlq:purge")).status_code == 200
        assert (await told(0))[:3] == ("dead", None, None)


async def test_a_letter_is_discarded_and_stays_so() -> None:
    on = disk()
    async with gateway(DIR, fs=on) as rig:
        await rig.publish("t", "a", "b", "c")
        for _ in range(3):
            (message,) = await rig.lease("t")
            await rig.ask("POST", f"/v1/topics/t/messages/{message['id']}:nack", params={"consumer": "c", "dead": "true"})
        letters = "/v1/topics/t.dlq"
        await rig.until(lambda: "t.dlq" in rig.broker.topics and rig.broker.topics["t.dlq"].log.messages() == 3)
        answer = await rig.ask("POST", f"{letters}:discard", json={"ids": [1, "2-900"]})
        assert (answer.status_code, answer.json()) == (200, {"discarded": 2})
        assert (await rig.ask("POST", f"{letters}:discard", json={"ids": [1]})).json() == {"discarded": 0}
        assert (await rig.ask("GET", f"{letters}/messages/1")).json()["settled"] is True
        assert (await rig.ask("GET", f"{letters}/messages/0")).json()["settled"] is False
        described = (await rig.ask("GET", letters)).json()
        assert (described["letters"], described["messages"], described["redriven_total"]) == (1, 3, 0)
        refused(await rig.ask("POST", "/v1/topics/t:discard", json={"ids": [1]}), 422, "BAD_ARGUMENT")
        refused(await rig.ask("POST", f"{letters}:discard", json={}), 422, "BAD_ARGUMENT")
    async with gateway(DIR, fs=on.kill()) as rig:
        assert (await rig.ask("GET", letters)).json()["letters"] == 1, "after a kill, too"
        assert (await rig.ask("POST", f"{letters}:redrive", json={})).json() == {"redriven": 1}
        await rig.ask("POST", f"{letters}:discard", json={"ids": ["0-900"]})
        await rig.publish("t", "d")
        (message,) = [each for each in await rig.lease("t", max=9) if each["payload"] == "d"]
        await rig.ask("POST", f"/v1/topics/t/messages/{message['id']}:nack", params={"consumer": "c", "dead": "true"})
        await rig.until(lambda: rig.broker.topics["t.dlq"].log.messages() == 4)
        assert (await rig.ask("GET", letters)).json()["letters"] == 1, "a letter to come was not discarded with those that were"


async def test_rights() -> None:
    async with gateway(DIR, fs=disk(), authority=three_tokens()) as rig:
        await rig.ask("PUT", "/v1/topics/orders.new", headers=bearer("operator"))
        path = "/v1/topics/orders.new/messages"
        for asked in (f"{path}:search", f"{path}/0"):
            refused(await rig.ask("GET", asked), 401, "AUTH_REQUIRED")
            refused(await rig.ask("GET", asked, headers=bearer("outsider")), 403, "FORBIDDEN")
        assert (await rig.ask("GET", f"{path}:search", headers=bearer("billing"))).status_code == 200
        answer = await rig.ask("POST", "/v1/topics/orders.new.dlq:discard", json={"ids": [0]}, headers=bearer("billing"))
        refused(answer, 403, "FORBIDDEN")
