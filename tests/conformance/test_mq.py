"""The dialect ``mq`` of HTTP, row by row as dialects.md lists it, and what the original server lost."""

import errno
import re

import httpx
import pytest

from tests.support.broker_rig import DIR
from tests.support.http_rig import HttpRig, gateway
from tests.support.sim_disk import SimDisk
from toymq_py.gateway.mq import RESERVED

DIALECT = "mq"


async def status(rig: HttpRig, method: str, path: str, body: bytes = b"") -> int:
    return (await rig.ask(method, path, content=body)).status_code


async def get(rig: HttpRig, queue: str) -> tuple[int, bytes, str | None]:
    answer: httpx.Response = await rig.ask("GET", f"/{queue}/messages")
    return answer.status_code, answer.content, answer.headers.get("x-message-id")


async def test_queues(rig: HttpRig) -> None:
    assert await status(rig, "GET", "/queue001") == 404
    assert await status(rig, "PUT", "/queue001") == 201
    assert await status(rig, "PUT", "/queue001") == 201, "twice is fine"
    assert await status(rig, "GET", "/queue001") == 200
    assert await status(rig, "POST", "/queue001/messages", b"x") == 201
    assert await status(rig, "DELETE", "/queue001") == 200
    assert await status(rig, "GET", "/queue001") == 404
    assert await status(rig, "DELETE", "/queue001") == 404
    assert await status(rig, "PUT", "/queue001") == 201
    assert await get(rig, "queue001") == (204, b"", None), "with all its messages"


async def test_messages(rig: HttpRig) -> None:
    assert await get(rig, "queue001") == (404, (await rig.ask("GET", "/queue001/messages")).content, None)
    assert await status(rig, "POST", "/queue001/messages", b"x") == 404
    await rig.ask("PUT", "/queue001")
    assert await get(rig, "queue001") == (204, b"", None)
    for n in range(3):
        answer = await rig.ask("POST", "/queue001/messages", content=bytes([n, 255]))
        assert (answer.status_code, answer.headers["x-message-id"]) == (201, str(n))
    for n in range(3):
        assert await get(rig, "queue001") == (200, bytes([n, 255]), str(n)), "first in, first out"
    assert await get(rig, "queue001") == (204, b"", None), "all are leased"
    assert await status(rig, "DELETE", "/queue001/messages/1") == 202
    assert await status(rig, "DELETE", "/queue001/messages/1") == 202
    assert await status(rig, "DELETE", "/queue002/messages/1") == 404
    for none in ("abc", "-1", "1.5", "9" * 30, "3"):
        assert await status(rig, "DELETE", f"/queue001/messages/{none}") == 404, none


async def test_a_message_that_was_never_got_is_deleted(fs: SimDisk) -> None:
    """Found: DELETE of a message that had never been delivered was answered 202, and the message was delivered all the same."""
    async with gateway(DIR, fs=fs, dialects=["mq"]) as rig:
        await rig.ask("PUT", "/q")
        for n in range(4):
            await rig.ask("POST", "/q/messages", content=b"%d" % n)
        assert await status(rig, "DELETE", "/q/messages/2") == 202, "before anything was got"
        assert await get(rig, "q") == (200, b"0", "0")
        assert await status(rig, "DELETE", "/q/messages/1") == 202
        assert await status(rig, "DELETE", "/q/messages/1") == 202
        after = fs.crash()
    async with gateway(DIR, fs=after, dialects=["mq"]) as rig:
        assert [(await get(rig, "q"))[2] for _ in range(3)] == ["0", "3", None], "also after a power cut"


async def test_what_is_not_deleted_comes_again(rig: HttpRig) -> None:
    assert rig.gateway is not None
    rig.gateway.mq_delay_s = 0.02
    await rig.ask("PUT", "/q")
    await rig.ask("POST", "/q/messages", content=b"a")
    assert await get(rig, "q") == (200, b"a", "0")
    await rig.until(lambda: rig.broker.topics["q"].consumers["mq"].counts(1).ready == 1)
    rig.gateway.mq_delay_s = 10
    assert await get(rig, "q") == (200, b"a", "0")


async def test_a_message_comes_again_for_ever(rig: HttpRig) -> None:
    """A message is redelivered without a limit: the original has no dead letters, and no queue name of this dialect leads to
    any."""
    await rig.ask("PUT", "/q")
    await rig.ask("POST", "/q/messages", content=b"a")
    for _ in range(25):
        assert await get(rig, "q") == (200, b"a", "0")
        rig.broker.topics["q"].nack("mq", [(0, 0)], 0.0)
    assert set(rig.broker.topics) == {"q"}


async def test_a_topic_that_is_there_keeps_its_settings(rig: HttpRig) -> None:
    assert (await rig.ask("PUT", "/v1/topics/q", json={"max_attempts": 3})).status_code == 201
    assert await status(rig, "PUT", "/q") == 201
    assert rig.broker.topics["q"].settings.max_attempts == 3


@pytest.mark.parametrize("dialects", [["mq"], ["mq", "tinymq"], ["tinymq", "mq"]], ids="+".join)
@pytest.mark.parametrize("name", sorted(RESERVED))
async def test_names_that_mean_something_else(fs: SimDisk, name: str, dialects: list[str]) -> None:
    async with gateway(DIR, fs=fs, dialects=dialects) as rig:
        for method in ("PUT", "DELETE"):
            assert await status(rig, method, f"/{name}") == 409, method
        taken = dict.fromkeys(("metrics", "healthz", "readyz", "leader", "docs"), 200)
        if dialects[-1] == "tinymq":
            taken["ws"] = 426
        assert await status(rig, "GET", f"/{name}") == taken.get(name, 409)
        assert name not in rig.broker.topics


async def test_every_path_that_could_be_a_queue_is_a_reserved_name(fs: SimDisk) -> None:
    """Found: `PUT /leader` was 405, because the path was added later than the list of reserved names. The first word of every
    path is reserved in every dialect."""
    async with gateway(DIR, fs=fs, dialects=["mq", "tinymq"]) as rig:
        paths = (await rig.ask("GET", "/openapi.json")).json()["paths"]
        words = {path.split("/")[1] for path in (*paths, "/docs")}
    assert {word for word in words if re.fullmatch("[a-z0-9]+", word)} == RESERVED


@pytest.mark.parametrize("name", ["Queue", "a.b", "a-b", "%2e%2e", "a%00", "x" * 197])
async def test_names_that_are_none(rig: HttpRig, name: str) -> None:
    assert await status(rig, "PUT", f"/{name}") == 400
    assert not rig.broker.topics


async def test_what_could_not_be_stored_is_503_and_not_there(rig: HttpRig, fs: SimDisk) -> None:
    """A publish whose fsync fails is refused; the original ignored the failure."""
    await rig.ask("PUT", "/q")
    await rig.ask("POST", "/q/messages", content=b"a")
    fs.fail("sync", 1, errno.EIO, path=".log")
    answer = await rig.ask("POST", "/q/messages", content=b"b")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert [(await get(rig, "q"))[0] for _ in range(2)] == [200, 204]


async def test_a_message_to_a_queue_that_there_is_not_is_not_stranded(rig: HttpRig) -> None:
    """A message to a missing queue is refused; the original stored it in a place where no consumer found it."""
    assert await status(rig, "POST", "/q/messages", b"a") == 404
    await rig.ask("PUT", "/q")
    assert await get(rig, "q") == (204, b"", None)


async def test_what_is_leased_survives_a_power_cut(fs: SimDisk) -> None:
    """A leased message is delivered again after a power cut; the original left it in its delay folder at a restart."""
    async with gateway(DIR, fs=fs, dialects=["mq"]) as rig:
        await rig.ask("PUT", "/q")
        for payload in (b"a", b"b"):
            await rig.ask("POST", "/q/messages", content=payload)
            await get(rig, "q")
        assert await status(rig, "DELETE", "/q/messages/0") == 202
        after = fs.crash()
    async with gateway(DIR, fs=after, dialects=["mq"]) as rig:
        assert await get(rig, "q") == (200, b"b", "1")
        assert await get(rig, "q") == (204, b"", None), "what was deleted stays deleted"


async def test_ours_is_still_there(rig: HttpRig) -> None:
    await rig.ask("PUT", "/q")
    await rig.ask("POST", "/v1/topics/q/messages", content=b"a")
    assert await get(rig, "q") == (200, b"a", "0")
    for path in ("/healthz", "/metrics", "/docs", "/openapi.json", "/"):
        assert await status(rig, "GET", path) == 200, path


async def test_without_the_dialect_its_paths_are_not_there(fs: SimDisk) -> None:
    async with gateway(DIR, fs=fs) as rig:
        assert await status(rig, "PUT", "/queue001") == 404
