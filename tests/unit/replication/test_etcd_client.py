"""The JSON of etcd: requests, validation of answers, and when an outcome is unknown. And a real etcd that fails.

The behaviour of etcd is in test_kept_agreement.py, for a real etcd and for the one in memory."""

import asyncio
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import CERT, CLIENT_CERT, CLIENT_KEY, KEY
from tests.support.etcd import EtcdCluster, running_etcd
from tests.support.fake_etcd import (
    FakeEtcd,
    Respond,
    always,
    chunk,
    chunked,
    done,
    fake_etcd,
    header,
    in_turn,
    key_value,
    silent,
    whole,
)
from tests.support.requirements import require
from toymq_py.errors import ConfigError, EtcdError, LeaseLost
from toymq_py.replication.agreement import ClusterSettings, Member, Outcome
from toymq_py.replication.etcd_client import EtcdAgreement, EtcdClient, EtcdOptions
from toymq_py.replication.key_values import Check, Compare, Delete, Found, KeyRange, KeyValue, News, Put, Transaction

KEYS = KeyRange("/a", "/b")
PUT = Transaction([Compare("/a", Check.ABSENT)], [Put("/a", b"1")])


@asynccontextmanager
async def client_of(*responds: Respond, ttl_s: float = 1.5) -> AsyncIterator[tuple[EtcdClient, list[FakeEtcd]]]:
    """Yield a client of one member, which answers the first request with the first respond and so on."""
    left = list(responds)

    async def respond(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(path, body, writer)

    async with fake_etcd(respond) as fake, asyncio.timeout(20):
        client = EtcdClient(EtcdOptions([fake.url]))
        client.bound(ttl_s)
        try:
            yield client, [fake]
        finally:
            await client.close()


def found(*keys: dict[str, str], revision: int = 5, count: int | None = None) -> bytes:
    return whole({"header": header(revision), "kvs": keys, "count": str(len(keys) if count is None else count)})


# -- what is sent


async def test_a_read_is_linearizable_and_has_everything() -> None:
    async with client_of(always(found(key_value("/a/b", {"c": 1}, 3)))) as (client, (fake,)):
        assert await client.get(KEYS) == Found((KeyValue("/a/b", b'{"c": 1}', 3, 3, 0),), 5)
        assert fake.asked == [("/v3/kv/range", {"key": "L2E=", "range_end": "L2I=", "limit": "1000"})]
        assert client.request_s.count == 1
        assert client.silent_s == 0


async def test_it_is_known_how_long_etcd_has_not_answered() -> None:
    async with client_of(always(whole({})), always(whole({})), always(found())) as (client, _):
        assert client.silent_s == 0
        for _ in range(2):
            before = client.silent_s
            with pytest.raises(EtcdError):
                await client.commit(PUT)
            assert client.silent_s > before, "since the first call, whatever comes behind it"
        await client.get(KEYS)
        assert client.silent_s == 0


async def test_a_long_range_is_read_in_pages_of_one_revision() -> None:
    keys = [key_value(f"/a/{number}", number) for number in range(3)]
    first = {"header": header(9), "kvs": keys[:2], "more": True, "count": "3"}
    second = {"header": header(12), "kvs": keys[2:], "count": "1"}
    async with client_of(in_turn(whole(first), whole(second))) as (client, (fake,)):
        read = await client.get(KEYS)
        assert ([each.key for each in read.keys], read.revision) == (["/a/0", "/a/1", "/a/2"], 9)
        assert fake.asked[1][1] == {"key": "L2EvMQA=", "range_end": "L2I=", "limit": "1000", "revision": "9"}
    for wrong in ({"kvs": [], "more": True, "count": "3"}, {"kvs": keys, "more": "yes", "count": "3"}):
        async with client_of(always(whole({"header": header(9), **wrong}))) as (client, _):
            with pytest.raises(EtcdError):
                await client.get(KEYS)


async def test_a_transaction_has_all_compares_and_changes() -> None:
    compares = [
        Compare("a", Check.ABSENT), Compare("b", Check.PRESENT), Compare("c", Check.CREATED_AT, 3),
        Compare("d", Check.CHANGED_AT, 4),
    ]  # fmt: skip
    async with client_of(always(whole(done(6, changes=2)))) as (client, (fake,)):
        outcome = await client.commit(Transaction(compares, [Put("e", b"f", 7), Delete("g")]))
        assert outcome == Outcome(done=True, revision=6)
    assert fake.asked == [
        (
            "/v3/kv/txn",
            {
                "compare": [
                    {"key": "YQ==", "target": "CREATE", "result": "EQUAL", "create_revision": "0"},
                    {"key": "Yg==", "target": "CREATE", "result": "GREATER", "create_revision": "0"},
                    {"key": "Yw==", "target": "CREATE", "result": "EQUAL", "create_revision": "3"},
                    {"key": "ZA==", "target": "MOD", "result": "EQUAL", "mod_revision": "4"},
                ],
                "success": [
                    {"request_put": {"key": "ZQ==", "value": "Zg==", "lease": "7"}},
                    {"request_delete_range": {"key": "Zw=="}},
                ],
            },
        )
    ]


# -- what is believed


@pytest.mark.parametrize(
    "answer",
    [
        {"header": header(), "kvs": [], "count": "1"},
        {"header": header(), "kvs": [key_value("/a", 1)]},
        {"header": header(), "kvs": [{"key": "/a"}], "count": "1"},
        {"header": header(), "kvs": [{**key_value("/a", 1), "key": "!"}], "count": "1"},
        {"header": header(), "kvs": [{**key_value("/a", 1), "mod_revision": "-1"}], "count": "1"},
        {"header": header(), "kvs": [{**key_value("/a", 1), "mod_revision": 1.5}], "count": "1"},
        {"header": header(), "kvs": 7, "count": "1"},
        {"header": header(), "kvs": ["a"], "count": "1"},
        {"header": {"cluster_id": "1"}},
        {"header": {"cluster_id": "1", "revision": "1e3"}},
        {"header": header(0)},
    ],
)
async def test_a_read_that_is_not_understood_is_an_error(answer: object) -> None:
    async with client_of(always(whole(answer))) as (client, _):
        with pytest.raises(EtcdError):
            await client.get(KEYS)


@pytest.mark.parametrize(
    "answer",
    [
        done(6, changes=2),
        done(6, changes=0),
        {"header": header(6), "responses": [{}]},
        {"header": header(6), "succeeded": "true", "responses": [{}]},
        {"header": header(6), "succeeded": True, "responses": 7},
        {"succeeded": True, "responses": [{}]},
        {"header": header(0), "succeeded": True, "responses": [{}]},
    ],
)
async def test_a_transaction_whose_answer_is_not_its_own_is_unknown(answer: object) -> None:
    async with client_of(always(whole(answer))) as (client, (fake,)):
        with pytest.raises(EtcdError):
            await client.commit(PUT)
        assert len(fake.asked) == 1


@pytest.mark.parametrize(
    "last", [found(revision=8), whole(done(8)), whole({"header": header(8)})], ids=["read", "done", "not done"]
)
async def test_a_revision_below_the_highest_seen_is_an_error(last: bytes) -> None:
    async def act(client: EtcdClient) -> None:
        await (client.get(KEYS) if last.count(b"count") else client.commit(PUT))

    async with client_of(always(found(revision=9)), always(last), always(found(revision=9))) as (client, _):
        await client.get(KEYS)
        with pytest.raises(EtcdError, match="revision 8, and 9 before"):
            await act(client)
        await client.get(KEYS)
    async with client_of(always(whole(done(9))), always(last)) as (client, _):
        await client.commit(PUT)
        with pytest.raises(EtcdError, match="revision 8, and 9 before"):
            await act(client)


async def test_only_a_revision_seen_before_the_call_counts() -> None:
    """Calls run over two connections, and the one with the older answer may end last."""
    held = asyncio.Event()

    async def late(_: str, __: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await held.wait()
        writer.write(found(revision=5))

    async with client_of(late, always(found(revision=6))) as (client, (fake,)):
        first = asyncio.ensure_future(client.get(KEYS))
        await fake.was_asked.wait()
        assert (await client.get(KEYS)).revision == 6
        held.set()
        assert (await first).revision == 5


async def test_the_revision_of_an_answer_about_a_lease_says_nothing() -> None:
    """The answer has the revision of the member's own copy, which may lag."""
    renewed = chunked({"result": {"header": header(3), "ID": "7", "TTL": "2"}})
    granted = whole({"header": header(3), "ID": "7", "TTL": "2"})
    async with client_of(always(found(revision=9)), always(renewed), always(granted), always(whole({"header": header(3)}))) as (
        client,
        (fake,),
    ):
        await client.get(KEYS)
        await client.renew(7)
        assert await client.grant(1.2) == 7
        await client.revoke(7)
    assert fake.asked[1:] == [
        ("/v3/lease/keepalive", {"ID": "7"}),
        ("/v3/lease/grant", {"TTL": "2"}),
        ("/v3/lease/revoke", {"ID": "7"}),
    ]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"ID": "7"}, LeaseLost),
        ({"ID": "7", "TTL": "0"}, LeaseLost),
        ({"ID": "8", "TTL": "2"}, EtcdError),
        ({"TTL": "2"}, EtcdError),
        ({"ID": "7", "TTL": 2}, EtcdError),
        ({"ID": "7", "TTL": "-1"}, EtcdError),
    ],
)
async def test_a_lease_is_lost_only_when_etcd_says_so(answer: dict[str, object], error: type[EtcdError]) -> None:
    async with client_of(always(chunked({"result": {"header": header(), **answer}}))) as (client, _):
        with pytest.raises(EtcdError) as caught:
            await client.renew(7)
        assert type(caught.value) is error


@pytest.mark.parametrize("answer", [{}, {"ID": "0"}, {"ID": "x"}, {"ID": "7", "error": "no"}])
async def test_a_lease_without_id_is_an_error(answer: dict[str, str]) -> None:
    async with client_of(always(whole({"header": header(), **answer}))) as (client, _):
        with pytest.raises(EtcdError):
            await client.grant(3)


async def test_a_call_ends_within_a_third_of_the_ttl() -> None:
    async with client_of(silent, ttl_s=0.6) as (client, _):
        loop = asyncio.get_running_loop()
        for call in (client.get(KEYS), client.commit(PUT), client.grant(3), client.renew(7), client.revoke(7)):
            began = loop.time()
            with pytest.raises(EtcdError, match="no answer in time"):
                await call
            assert 0.15 < loop.time() - began < 1.5


# -- the watch


def event(revision: int) -> bytes:
    return chunk({"result": {"header": header(revision), "events": [{"kv": key_value("/a", 1, revision)}]}})


CREATED = chunked({"result": {"header": header(), "created": True}}, end=b"")


async def test_a_watch_is_kept_and_told_where_to_begin() -> None:
    async with client_of(always(CREATED + event(7) + event(9))) as (client, (fake,)):
        await client.changed(KEYS, 6)
        await client.changed(KEYS, 7)
        await client.changed(KEYS, 8)
        assert fake.asked == [
            ("/v3/watch", {"create_request": {"key": "L2E=", "range_end": "L2I=", "start_revision": "7"}})
        ]
        await client.changed(KEYS, 5)
        assert fake.asked[1][1]["create_request"]["start_revision"] == "6", "of changes before it began, another one"


@pytest.mark.parametrize(
    "end",
    [
        b"0\r\n\r\n",
        chunk({"result": {"header": header(), "canceled": True, "compact_revision": "8"}}),
    ],
)
async def test_a_watch_that_ends_is_news_and_the_next_call_begins_another(end: bytes) -> None:
    async with client_of(always(CREATED + end), always(CREATED + event(7))) as (client, (fake,)):
        await client.changed(KEYS, 6)
        await client.changed(KEYS, 6)
        assert fake.count("/v3/watch") == 2


@pytest.mark.parametrize(
    "wrong",
    [
        chunk({"error": {"message": "etcdserver: no leader"}}),
        chunk({"result": {"header": header(cluster_id="9")}}),
        chunk({"result": {"header": header(), "events": [{"kv": {}}]}}),
        chunk({"result": {"header": header(), "events": 7}}),
        chunk([1]),
    ],
)
async def test_a_watch_that_is_not_understood_is_an_error(wrong: bytes) -> None:
    async with client_of(always(CREATED + wrong), always(CREATED + event(7))) as (client, _):
        with pytest.raises(EtcdError):
            await client.changed(KEYS, 6)
        await client.changed(KEYS, 6)


def removal(key: str, revision: int) -> bytes:
    removed = {"key": b64encode(key.encode()).decode(), "mod_revision": str(revision)}
    return chunk({"result": {"header": header(), "events": [{"type": "DELETE", "kv": removed}]}})


async def test_news_are_what_was_written_and_removed_each_once() -> None:
    put = chunk({"result": {"header": header(), "events": [{"kv": key_value("/a/x", 1, 7)}]}})
    async with client_of(always(CREATED + put + removal("/a/y", 9))) as (client, (fake,)):
        changes: list[object] = []
        since = 6
        while since < 9:
            news = await client.news(KEYS, since)
            changes += news.changes
            since = news.revision
        assert changes == [KeyValue("/a/x", b"1", 7, 7, 0), ("/a/y", 9)]
        assert fake.count("/v3/watch") == 1
        await client.news(KEYS, 6)
        assert fake.asked[1][1]["create_request"]["start_revision"] == "7", "what was taken is asked for anew"


@pytest.mark.parametrize("end", [b"0\r\n\r\n", chunk([1]), removal("!", 9).replace(b'"9"', b'"x"')])
async def test_news_that_are_not_to_be_had_are_an_error(end: bytes) -> None:
    async with client_of(always(CREATED + end), always(CREATED + event(7))) as (client, _):
        with pytest.raises(EtcdError):
            await client.news(KEYS, 6)
        assert (await client.news(KEYS, 6)).revision == 7


async def test_no_news_come_after_the_ttl() -> None:
    async with client_of(always(CREATED), ttl_s=0.3) as (client, (fake,)):
        for _ in range(2):
            assert await client.news(KEYS, 6) == News((), 6)
        assert fake.count("/v3/watch") == 1


async def test_a_watch_that_no_member_begins_is_an_error() -> None:
    async with client_of(silent, ttl_s=0.3) as (client, _):
        with pytest.raises(EtcdError, match="no answer in time"):
            await client.changed(KEYS, 6)


async def test_a_silent_watch_ends_after_the_ttl_and_goes_on() -> None:
    async with client_of(always(CREATED), ttl_s=0.3) as (client, (fake,)):
        loop = asyncio.get_running_loop()
        for _ in range(2):
            began = loop.time()
            await client.changed(KEYS, 6)
            assert 0.25 < loop.time() - began < 1.5
        assert fake.count("/v3/watch") == 1


async def test_a_watch_follows_the_calls_to_another_member() -> None:
    """The member that serves the watch may be cut off, and silent for ever."""
    async with fake_etcd(in_turn(CREATED, whole(b"", 503))) as first, fake_etcd(in_turn(found(), CREATED + event(7))) as second:
        client = EtcdClient(EtcdOptions([first.url, second.url]))
        client.bound(0.6)
        await client.changed(KEYS, 6)
        await client.get(KEYS)
        await client.changed(KEYS, 6)
        assert (first.count("/v3/watch"), second.count("/v3/watch")) == (1, 1)
        await client.close()


# -- options


def test_etcd_needs_an_url_and_certificates_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no URL of etcd"):
        EtcdClient(EtcdOptions([]))
    with pytest.raises(ConfigError, match="certificates for etcd"):
        EtcdClient(EtcdOptions(["https://e1"], ca=str(tmp_path / "missing")))
    with pytest.raises(ConfigError, match="certificates for etcd"):
        EtcdClient(EtcdOptions(["https://e1"], cert=str(KEY), key=str(CERT)))
    EtcdClient(EtcdOptions(["https://e1"], ca=str(CERT), cert=str(CERT), key=str(KEY)))
    with pytest.raises(ConfigError, match="invalid name"):
        EtcdAgreement(EtcdOptions(["http://e1"]), "a/b", "g0")


# -- a real one


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path, members=3) as etcd:
        yield etcd


async def _until_answered(agreement: EtcdAgreement) -> int:
    """Read until an answer comes. Returns: its revision."""
    async with asyncio.timeout(20):
        while True:
            try:
                return (await agreement.read()).revision
            except EtcdError:
                await asyncio.sleep(0.05)


@require("etcd")
async def test_members_hang_die_and_lose_their_majority(three: EtcdCluster) -> None:
    """Calls and the watch go on with the remaining members; without a majority each call is an error, and none hangs."""
    me = Member("1" * 32, "n1", "a:1", "a:2")
    agreement = EtcdAgreement(EtcdOptions(three.urls), "c", "g0")
    other = EtcdAgreement(EtcdOptions(three.urls[::-1]), "c", "g0")
    loop = asyncio.get_running_loop()
    try:
        await _until_answered(agreement)
        await agreement.create_settings(ClusterSettings("u", 3, 2, ttl_s=3.0))
        begun = await agreement.begin(me, await agreement.grant(60))
        assert begun.done

        three.members[0].signal(signal.SIGSTOP)  # the one that is asked; it may be the leader of etcd
        revision = await _until_answered(agreement)
        changed = None
        async with asyncio.timeout(20):
            while changed is None:
                try:
                    changed = await other.change_in_sync(begun.revision, begun.revision, [me.replica])
                except EtcdError:
                    await asyncio.sleep(0.05)
        await agreement.changed(revision)
        assert await _until_answered(agreement) >= changed.revision

        three.members[1].kill()
        began = loop.time()
        with pytest.raises(EtcdError):
            await agreement.read()
        with pytest.raises(EtcdError):
            await agreement.change_in_sync(begun.revision, changed.revision, [me.replica])
        assert loop.time() - began < 5

        three.members[0].signal(signal.SIGCONT)
        assert await _until_answered(agreement) >= changed.revision
        assert (await agreement.read()).leader is not None
    finally:
        await agreement.close()
        await other.close()


@pytest.fixture
def over_tls(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Run an etcd that requires a client certificate."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(Path(CLIENT_CERT).read_text() + Path(CERT).read_text())  # etcd's gateway is a client of etcd itself
    tls = ["--cert-file", CERT, "--key-file", KEY, "--client-cert-auth", "--trusted-ca-file", str(trusted)]
    with running_etcd(tmp_path, tls=tls) as etcd:
        yield etcd


@require("etcd")
async def test_over_tls_with_certificates_on_both_sides(over_tls: EtcdCluster) -> None:
    urls = over_tls.urls
    trusts = EtcdAgreement(EtcdOptions(urls, CERT, CLIENT_CERT, CLIENT_KEY), "c", "g0")
    settings = ClusterSettings("u", 2, 1, ttl_s=2.0)
    assert (await trusts.create_settings(settings)).done
    assert await trusts.settings() == settings
    await trusts.close()
    for options, words in (
        (EtcdOptions(urls), "CERTIFICATE_VERIFY_FAILED"),
        (EtcdOptions(urls, CERT), "CERTIFICATE_REQUIRED|BAD_CERTIFICATE|ended within"),
        (EtcdOptions([urls[0].replace("https", "http")]), "ended within|HTTP 400"),
    ):
        stranger = EtcdAgreement(options, "c", "g0")
        with pytest.raises(EtcdError, match=words):
            await stranger.read()
        await stranger.close()
