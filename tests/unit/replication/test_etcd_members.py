"""Which member is asked, and the effect of its failure: the next one for a repeatable call, "unknown" for a transaction."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.support.fake_etcd import (
    FakeEtcd,
    Respond,
    always,
    chunked,
    closing,
    fake_etcd,
    header,
    in_turn,
    silent,
    whole,
)
from toymq_py.errors import ConfigError, EtcdError, LeaseLost
from toymq_py.replication.etcd_http import Endpoint
from toymq_py.replication.etcd_members import EtcdMembers, parse_endpoint

GOOD = whole({"header": header(), "a": 1})
NO_LEASE = whole({"error": "etcdserver: requested lease not found", "code": 5}, 404)
FAILURES: dict[str, tuple[Respond, str]] = {
    "no answer": (silent, "no answer in time"),
    "closed": (closing, "ended within an answer"),
    "no leader": (always(whole({"error": "etcdserver: no leader", "code": 14}, 503)), "HTTP 503, 'etcdserver: no leader'"),
    "a page": (always(whole(b"<html>", 502)), "HTTP 502, b'<html>'"),
    "no words": (always(whole({"error": {"a": 1}}, 500)), "HTTP 500"),
    "not found": (always(whole(b"404 page not found", 404)), "HTTP 404"),
    "half": (always(GOOD[:-3], then_close=True), "ended within an answer"),
    "1 GiB": (always(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n"), "1073741824 bytes"),
    "no HTTP": (always(b"ERR NOT_TCP x\r\n"), "no HTTP status"),
    "no JSON": (always(whole(b"{")), "not understood"),
    "a list": (always(whole([])), "not understood"),
    "no header": (always(whole({"a": 1})), "not understood"),
    "nested": (always(whole(b"[" * 100_000)), "not understood"),
}
failing = pytest.mark.parametrize("failure", FAILURES)


def patience_s(failure: str) -> float:
    """Return the time for a call: long where an answer is expected, so that a busy machine's pause does not count as
    silence."""
    return 0.3 if failure == "no answer" else 10


@asynccontextmanager
async def serving(*responds: Respond) -> AsyncIterator[tuple[EtcdMembers, list[FakeEtcd]]]:
    """Yield a client of several members."""
    async with AsyncExitStack() as stack, asyncio.timeout(20):
        fakes = [await stack.enter_async_context(fake_etcd(respond)) for respond in responds]
        members = EtcdMembers([parse_endpoint(fake.url) for fake in fakes], None)
        stack.callback(members.close)
        yield members, fakes


def number(answer: dict[str, Any]) -> int:
    return int(answer["a"])


@failing
async def test_what_may_be_done_twice_goes_to_the_next_member(failure: str) -> None:
    respond, _ = FAILURES[failure]
    async with serving(respond, always(GOOD)) as (members, fakes):
        for _ in range(3):
            assert await members.call("/a", {"b": 2}, patience_s(failure), number, twice=True) == 1
        assert [len(fake.asked) for fake in fakes] == [1, 3], "the member that answered is asked first"
        assert fakes[1].asked[0] == ("/a", {"b": 2})


@failing
async def test_a_transaction_that_left_is_not_sent_again(failure: str) -> None:
    respond, words = FAILURES[failure]
    async with serving(respond, always(GOOD)) as (members, fakes):
        with pytest.raises(EtcdError) as caught:
            await members.call("/a", {}, patience_s(failure), number, twice=False)
        assert words in str(caught.value)
        assert fakes[0].url in str(caught.value)
        assert not isinstance(caught.value, LeaseLost)
        assert [len(fake.asked) for fake in fakes] == [1, 0]
        assert await members.call("/a", {}, 10, number, twice=False) == 1, "the next call goes to the next member"


@failing
async def test_without_a_member_that_answers_the_error_names_each(failure: str) -> None:
    respond, words = FAILURES[failure]
    async with serving(respond, respond) as (members, fakes):
        began = asyncio.get_running_loop().time()
        with pytest.raises(EtcdError) as caught:
            await members.call("/a", {}, patience_s(failure), number, twice=True)
        assert asyncio.get_running_loop().time() - began < 2
        assert str(caught.value).count(words) == 2
        assert all(fake.url in str(caught.value) for fake in fakes)


async def test_a_transaction_that_has_not_left_goes_to_the_next_member() -> None:
    async with fake_etcd(silent) as gone:
        pass
    async with fake_etcd(always(GOOD)) as fake:
        members = EtcdMembers([parse_endpoint(gone.url), parse_endpoint(fake.url)], None)
        assert await members.call("/a", {}, 1, number, twice=False) == 1
        members.close()


async def test_a_lost_lease_is_no_failure_of_the_member() -> None:
    async with serving(always(NO_LEASE), always(GOOD)) as (members, fakes):
        with pytest.raises(LeaseLost):
            await members.call("/a", {}, 1, number, twice=True)
        assert members.asked.url == fakes[0].url


async def test_what_the_caller_does_not_accept_is_a_failure_of_the_member() -> None:
    def accept(answer: dict[str, Any]) -> int:
        if answer["a"] == 1:
            raise EtcdError("not this one")
        return int(answer["a"])

    async with serving(always(GOOD), always(whole({"header": header(), "a": 2}))) as (members, _):
        assert await members.call("/a", {}, 1, accept, twice=True) == 2
        with pytest.raises(EtcdError, match="not this one"):
            await members.call("/a", {}, 1, lambda _: accept({"a": 1}), twice=False)


async def test_another_etcd_cluster_is_an_error() -> None:
    other = whole({"header": header(cluster_id="9"), "a": 2})
    async with serving(in_turn(GOOD, other)) as (members, _):
        assert await members.call("/a", {}, 1, number, twice=True) == 1
        with pytest.raises(EtcdError, match="another etcd cluster answers: '9', and '3249"):
            await members.call("/a", {}, 1, number, twice=True)


async def test_a_connection_is_used_again_unless_its_answer_was_late_or_says_close() -> None:
    async with serving(always(GOOD)) as (members, (fake,)):
        for _ in range(3):
            await members.call("/a", {}, 1, number, twice=True)
        assert fake.connections == 1
        await asyncio.gather(*(members.call("/a", {}, 1, number, twice=True) for _ in range(3)))
        assert 1 < fake.connections <= 3
    async with serving(always(GOOD.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n"))) as (members, (fake,)):
        for _ in range(3):
            await members.call("/a", {}, 1, number, twice=True)
        assert fake.connections == 3


async def test_a_late_answer_is_not_that_of_the_next_call() -> None:
    """A call that was given up must not leave its connection to the next one."""
    asked = 0

    async def respond(_: str, __: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        answer = whole({"header": header(), "a": asked})
        if asked == 1:
            asyncio.get_running_loop().call_later(0.1, writer.write, answer)
        else:
            writer.write(answer)

    async with serving(respond) as (members, _):
        with pytest.raises(EtcdError):
            await members.call("/a", {}, 0.05, number, twice=False)
        assert await members.call("/a", {}, 1, number, twice=False) == 2
        await asyncio.sleep(0.1)
        assert await members.call("/a", {}, 1, number, twice=False) == 3
        task = asyncio.ensure_future(members.call("/a", {}, 1, number, twice=False))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert await members.call("/a", {}, 1, number, twice=False) >= 4


async def test_a_hanging_member_leaves_time_for_the_others() -> None:
    async with serving(silent, silent, always(GOOD)) as (members, _):
        assert await members.call("/a", {}, 0.6, number, twice=True) == 1


async def test_close_ends_what_is_under_way() -> None:
    async with serving(silent) as (members, (fake,)):
        waiting = asyncio.ensure_future(members.call("/a", {}, 5, number, twice=True))
        await fake.was_asked.wait()
        members.close()
        with pytest.raises(EtcdError, match="ended within"):
            await waiting
        with pytest.raises(EtcdError, match="the client is closed"):
            await members.call("/a", {}, 5, number, twice=True)


# -- streams


async def test_a_stream_begins_at_the_next_member_and_ends_with_an_error() -> None:
    stream_answer = chunked({"result": {"header": header(), "b": 1}})
    refuses = always(whole({"error": "etcdserver: no leader", "code": 14}, 503))
    async with serving(silent, refuses, always(stream_answer)) as (members, fakes):
        stream = await members.open_stream("/v3/watch", {}, 0.6)
        assert stream.endpoint.url == fakes[2].url == members.asked.url
        assert (await stream.next())["b"] == 1
        with pytest.raises(OSError, match="ended the answer"):
            await stream.next()
        stream.close()


async def test_an_error_within_a_stream() -> None:
    async with serving(always(chunked({"error": {"message": "etcdserver: no leader"}}))) as (members, _):
        stream = await members.open_stream("/v3/watch", {}, 1)
        with pytest.raises(EtcdError, match="no leader"):
            await stream.next()


async def test_a_stream_that_no_member_begins() -> None:
    async with serving(silent, closing) as (members, fakes):
        with pytest.raises(EtcdError) as caught:
            await members.open_stream("/v3/watch", {}, 0.2)
        assert all(fake.url in str(caught.value) for fake in fakes)


# -- URLs


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://e1:2379", Endpoint("e1", 2379, "http://e1:2379")),
        ("https://e1", Endpoint("e1", 2379, "https://e1", tls=True)),
        ("http://[::1]:7/", Endpoint("::1", 7, "http://[::1]:7/")),
    ],
)
def test_the_url_of_a_member(url: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(url) == endpoint


@pytest.mark.parametrize(
    "url",
    ["", "e1:2379", "ftp://e1", "http://", "http://e1:0", "http://e1:x", "http://e1:99999", "http://u:p@e1", "http://e1/v3",
     "http://e1?a", "http://e1#a", "http://e 1", "http://e1\n", "http://[::1"],
)  # fmt: skip
def test_what_is_not_the_url_of_a_member(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_endpoint(url)


async def test_https_needs_a_certificate_that_fits() -> None:
    """The fake does not speak TLS: it does not recognize what is sent to it as a request."""
    async with fake_etcd(always(GOOD)) as fake:
        members = EtcdMembers([parse_endpoint(fake.url.replace("http:", "https:"))], ssl.create_default_context())
        with pytest.raises(EtcdError):
            await members.call("/a", {}, 0.3, number, twice=True)
        assert fake.asked == []
        members.close()
