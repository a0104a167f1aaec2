"""Topic records and the picture of the groups, on etcd in memory and on a real one: both must behave alike."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.etcd import EtcdCluster, running_etcd
from tests.support.requirements import require
from tests.support.sim_event_loop import SimEventLoop
from tests.support.simulated_etcd import SimulatedEtcd
from toymq_py.errors import EtcdError
from toymq_py.partitions import Partitioned
from toymq_py.replication.agreement import ClusterSettings, Member, Seat
from toymq_py.replication.etcd_client import EtcdClient, EtcdOptions
from toymq_py.replication.kept_agreement import KeptAgreement
from toymq_py.replication.kept_places import CLAIMED_TOGETHER, KeptPlaces, Move, Picture, Record
from toymq_py.replication.key_values import KeyValues, Put, Transaction
from toymq_py.storage.partitions_file import StoredPartitions

N1 = Member("1" * 32, "n1", "10.0.0.1:6789", "10.0.0.1:6791", "10.0.0.1:8080", "")
N2 = Member("2" * 32, "n2", "10.0.0.2:6789", "10.0.0.2:6791")
SETTINGS = ClusterSettings("6f1b", replicas=2, min_in_sync=1, ttl_s=2.0)
CLUSTERS = itertools.count()


class Rig:
    """Clients of one cluster, each with an etcd client of its own."""

    def __init__(self, name: str, client: Callable[[], KeyValues]) -> None:
        self.name = name
        self._client = client
        self.made: list[KeptPlaces | KeptAgreement] = []

    def places(self, group: str) -> KeptPlaces:
        self.made.append(places := KeptPlaces(self._client(), self.name, group))
        return places

    def agreement(self, group: str) -> KeptAgreement:
        self.made.append(agreement := KeptAgreement(self._client(), self.name, group))
        return agreement

    async def led(self, group: str, member: Member = N1) -> tuple[KeptAgreement, int, int]:
        """Make a group with a leader. Returns: its agreement, epoch and lease."""
        agreement = self.agreement(group)
        await agreement.create_settings(SETTINGS)
        await agreement.settings()
        lease = await agreement.grant(60)
        begun = await agreement.begin(member, lease)
        assert begun.done
        return agreement, begun.revision, lease

    async def put(self, key: str, value: bytes) -> None:
        await self._client().commit(Transaction([], [Put(f"/toymq/{self.name}/{key}", value)]))


Scenario = Callable[[Rig], Coroutine[Any, Any, None]]
Run = Callable[[Scenario], None]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["simulated", pytest.param("etcd", marks=require("etcd"))])
def run(request: pytest.FixtureRequest) -> Run:
    name = f"c{next(CLUSTERS)}"

    async def closed(scenario: Scenario, rig: Rig) -> None:
        try:
            await scenario(rig)
        finally:
            for each in rig.made:
                await each.close()

    def on_etcd(scenario: Scenario) -> None:
        urls = request.getfixturevalue("etcd").urls
        asyncio.run(closed(scenario, Rig(name, lambda: EtcdClient(EtcdOptions(urls)))))

    def simulated(scenario: Scenario) -> None:
        loop = SimEventLoop(random.Random(7))
        etcd, clients = SimulatedEtcd(random.Random(8)), itertools.count()
        try:
            loop.run_until_complete(closed(scenario, Rig(name, lambda: etcd.client(f"client{next(clients)}"))))
        finally:
            loop.close()

    return on_etcd if request.param == "etcd" else simulated


def test_a_record_is_written_once_and_removed_by_its_own_group(run: Run) -> None:
    async def scenario(rig: Rig) -> None:
        (_, epoch, _), (_, other_epoch, _) = await rig.led("a"), await rig.led("b", N2)
        a, b = rig.places("a"), rig.places("b")
        assert await a.record("t") is None
        claimed = await a.claim(["t"], "a", epoch)
        assert claimed.done
        assert not (await b.claim(["t"], "b", other_epoch)).done
        assert not (await b.claim(["t"], "a", None)).done
        assert await b.record("t") == Record("a", claimed.revision)
        assert (await b.mark_placed(other_epoch)).done
        assert not (await a.release("t", claimed.revision - 1, epoch)).done
        assert not (await a.release("t", claimed.revision, epoch + 1)).done, "of a leader that is over"
        assert (await a.release("t", claimed.revision, epoch)).done
        assert await a.record("t") is None
        assert not (await a.claim(["t"], "a", epoch + 1)).done
        assert (await a.claim(["t"], "b", None)).done, "for the other group"
        assert not (await a.claim(["u", "t"], "a", epoch)).done
        assert await a.record("u") is None, "all or none"

    run(scenario)


def test_a_topic_is_given_once_by_both_leaders_and_the_last_attempt(run: Run) -> None:
    async def scenario(rig: Rig) -> None:
        (_, epoch, _), (_, there, _) = await rig.led("a"), await rig.led("b", N2)
        a, b = rig.places("a"), rig.places("b")
        record = Record("a", (await a.claim(["t"], "a", epoch)).revision)
        assert await a.move("t") is None
        assert not (await a.ask("t", Record("a", record.revision - 1), "b", None)).done
        assert (await a.ask("t", record, "b", None)).done
        assert not (await a.ask("t", record, "b", None)).done, "it is asked for"
        asked = await b.move("t")
        assert asked is not None
        assert (asked.to, asked.refused) == ("b", None)
        assert (await b.read()).moves == {"t": asked}
        refused = await b.attempt("t", asked, there, refused="x" * 2000)
        assert refused.done
        assert (await a.move("t")) == Move("b", refused.revision, "x" * 1000)
        assert (await a.ask("t", record, "b", Move("b", refused.revision))).done
        again = await b.move("t")
        assert again is not None
        assert not (await b.attempt("t", asked, there)).done, "an old one"
        assert not (await b.attempt("t", again, there + 1)).done, "of a leader that is over"
        attempt = (await b.attempt("t", again, there)).revision
        for wrong in (
            (record.revision, epoch, "b", there, again.revision), (record.revision, epoch, "b", there + 1, attempt),
            (record.revision, epoch + 1, "b", there, attempt), (record.revision - 1, epoch, "b", there, attempt),
        ):  # fmt: skip
            assert not (await a.give("t", *wrong)).done
        before = await a.read()
        given = await a.give("t", record.revision, epoch, "b", there, attempt)
        assert given.done
        assert await b.record("t") == Record("b", given.revision)
        assert await b.move("t") is None
        assert not (await a.give("t", record.revision, epoch, "b", there, attempt)).done, "once"
        before.apply(await a.news(before.revision))
        assert (before.records, before.moves) == ({"t": Record("b", given.revision)}, {})
        assert (await a.ask("t", Record("b", given.revision), "a", None)).done
        back = await a.move("t")
        assert back is not None
        assert (await b.withdraw("t", back)).done
        assert await a.move("t") is None

    run(scenario)


def test_a_group_is_removed_when_it_is_closed_and_nothing_is_placed_there_meanwhile(run: Run) -> None:
    async def scenario(rig: Rig) -> None:
        (_, _, _), (gone, epoch, lease) = await rig.led("a"), await rig.led("b", N2)
        a, b = rig.places("a"), rig.places("b")
        assert not (await a.claim(["t"], "b", None)).done, "it was not served"
        assert (await b.mark_placed(epoch)).done
        assert (await a.claim(["t"], "b", None)).done
        assert not (await b.close_group()).done, "it has a leader"
        await gone.revoke(lease)
        assert not (await b.remove_group()).done, "it was not closed"
        assert (await b.close_group()).done
        assert not (await a.claim(["u"], "b", None)).done
        assert (await b.close_group()).done, "a command that comes again"
        assert (await b.remove_group()).done
        picture = await a.read()
        assert (picture.groups["a"].made, "b" in picture.groups) == (True, False)
        assert await gone.settings() is None

    run(scenario)


def test_what_the_watch_tells_late_of_a_record_changes_nothing(run: Run) -> None:
    """This leader may know more about a topic that it has just given away."""

    async def scenario(rig: Rig) -> None:
        _, epoch, _ = await rig.led("a")
        a = rig.places("a")
        claimed = await a.claim(["t"], "a", epoch)
        picture = Picture(f"/toymq/{rig.name}/")
        picture.records["t"] = Record("b", claimed.revision + 1)
        picture.apply(await a.news(0))
        assert picture.records == {"t": Record("b", claimed.revision + 1)}

    run(scenario)


def test_the_picture_is_what_etcd_has_and_news_keep_it_so(run: Run) -> None:
    async def scenario(rig: Rig) -> None:
        agreement, epoch, lease = await rig.led("a")
        a = rig.places("a")
        first = await a.read()
        assert (first.groups["a"].made, first.groups["a"].placed) == (True, False)
        assert first.groups["a"].leader is not None
        assert first.groups["a"].leader.epoch == epoch
        assert (await a.mark_placed(epoch)).done
        assert (await agreement.read()).placed
        assert (await a.claim(["t", "u"], "a", epoch)).done
        await a.weigh(7.5, lease)
        await agreement.put_seat(Seat(N2, "5", "FOLLOWING", 0, 1), lease)
        record = await a.record("u")
        assert record is not None
        await a.release("u", record.revision, epoch)
        old, _, _ = await rig.led("g0", N2)
        await agreement.revoke(lease)
        seen = first
        expected = await a.read()
        while seen.revision < expected.revision:
            seen.apply(await a.news(seen.revision))
        for found in (seen, expected):
            assert found.records == {"t": Record("a", expected.records["t"].revision)}
            assert (found.groups["a"].placed, found.groups["a"].leader, found.groups["a"].load) == (True, None, 0.0)
            assert found.groups["a"].nodes == {}
            assert (found.groups["a"].in_sync, found.groups["a"].settings) == (1, SETTINGS)
            assert found.groups["g0"].made
            assert (await old.settings()) == SETTINGS
        assert seen.groups["a"].led == N1, "the last leader is remembered"
        assert seen.groups["a"].addresses() == ["10.0.0.1:6789", "10.0.0.2:6789"]

    run(scenario)


def test_groups_that_have_led_or_are_from_before_etcd_was_lost_may_have_topics_without_records(run: Run) -> None:
    """By the runbook all groups are created again before a copy of any is adopted."""

    async def scenario(rig: Rig) -> None:
        _, epoch, _ = await rig.led("led")
        made = [*map(rig.agreement, ("adopted", "not-yet", "later"))]
        for agreement in made[:2]:
            await agreement.create_settings(SETTINGS)
        picture = await rig.places("led").read()
        assert picture.unplaced() == ["led"]
        adopted = await made[0].settings()
        assert adopted is not None
        assert (await made[0].adopt(replace(adopted, was="0a0b", adopted=N1.replica))).done
        await made[2].create_settings(SETTINGS)
        await rig.places("led").mark_placed(epoch)
        expected = await rig.places("led").read()
        while picture.revision < expected.revision:
            picture.apply(await rig.places("led").news(picture.revision))
        for found in (picture, expected):
            assert sorted(found.unplaced()) == ["adopted", "not-yet"]

    run(scenario)


def test_a_leaders_nodes_are_named_behind_it() -> None:
    picture = Picture("/r/")
    group = picture._group("a")
    assert group.addresses() == []
    group.nodes = {N2.replica: N2, N1.replica: N1}
    assert group.addresses() == ["10.0.0.1:6789", "10.0.0.2:6789"]
    group.led = N2
    assert group.addresses() == ["10.0.0.2:6789", "10.0.0.1:6789"]
    group.nodes, group.seen = {}, {N2.replica: N2, N1.replica: N1}
    assert group.addresses() == ["10.0.0.2:6789", "10.0.0.1:6789"], "the others are not forgotten while none runs"


def test_where_the_nodes_were_is_known_to_a_leader_that_is_newer_than_their_absence(run: Run) -> None:
    """Found: such a leader knew no address of the missing group, and refused what other leaders sent there."""

    async def scenario(rig: Rig) -> None:
        agreement, _, lease = await rig.led("b", N2)
        await agreement.put_seat(Seat(N2, "5", "LEADING", 0, 1), lease)
        picture = await rig.places("a").read()
        await agreement.revoke(lease)
        late = await rig.places("a").read()
        assert (late.groups["b"].nodes, late.groups["b"].led) == ({}, None)
        assert late.groups["b"].addresses() == [N2.url]
        await agreement.forget_seat(N2.replica)
        expected = await rig.places("a").read()
        for found in (picture, late):
            while found.revision < expected.revision:
                found.apply(await rig.places("a").news(found.revision))
        assert [each.groups["b"].seen for each in (picture, late, expected)] == [{}] * 3
        assert late.groups["b"].addresses() == []

    run(scenario)


def test_more_records_than_a_page_are_read(run: Run) -> None:
    names = [f"{number:04}.{'x' * 190}" for number in range(2_500)]

    async def scenario(rig: Rig) -> None:
        _, epoch, _ = await rig.led("a")
        a = rig.places("a")
        for at in range(0, len(names), CLAIMED_TOGETHER):
            assert (await a.claim(names[at : at + CLAIMED_TOGETHER], "a", epoch)).done
        assert sorted((await a.read()).records) == names

    run(scenario)


def test_no_news_is_an_answer(run: Run) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.led("a")
        a = rig.places("a")
        a.bound(0.3)
        revision = (await a.read()).revision
        news = await a.news(revision)
        assert (news.changes, news.revision) == ((), revision)
        await a.ping()

    run(scenario)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"group":7}', b'{"group":""}'])
def test_what_cannot_be_read_is_left_out_and_says_so_when_it_is_asked_for(value: bytes) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.put("topics/t", value)
        await rig.put("topics/u", b'{"group":"b","more":1}')
        await rig.put("groups/b/weight", b'{"messages_s":"much"}')
        await rig.put("groups/b/leader", value)
        a = rig.places("a")
        found = await a.read()
        assert list(found.records) == ["u"]
        assert (found.groups["b"].load, found.groups["b"].leader) == (0.0, None)
        with pytest.raises(EtcdError, match="topics/t in etcd"):
            await a.record("t")

    loop = SimEventLoop(random.Random(7))
    etcd = SimulatedEtcd(random.Random(8))
    try:
        loop.run_until_complete(scenario(Rig("c", lambda: etcd.client("client"))))
    finally:
        loop.close()


def test_an_old_removal_does_not_hide_a_newer_record() -> None:
    picture = Picture("/r/")
    picture.records["t"] = Record("b", 9)
    picture._remove("/r/topics/t", 8)
    assert picture.records == {"t": Record("b", 9)}
    picture._remove("/r/topics/t", 10)
    assert picture.records == {}
    assert replace(Record("a", 1), group="b") == Record("b", 1)


def test_partitions_get_records_only_while_their_topic_stays_as_it_is(run: Run) -> None:
    async def scenario(rig: Rig) -> None:
        (_, epoch, _), _ = await rig.led("a"), await rig.led("b", N2)
        a, b = rig.places("a"), rig.places("b")
        stored = StoredPartitions(Partitioned("t", 3, {"visibility": "60000"}))
        assert not (await a.divide(stored, None, "a", epoch + 1)).done, "of a leader that is over"
        made = await a.divide(stored, None, "a", epoch)
        assert made.done
        assert not (await a.divide(stored, None, "a", epoch)).done
        assert (await b.record("t")) == Record("a", made.revision, stored)
        assert not (await a.claim(["t"], "a", epoch)).done, "it is no plain topic"
        claimed = await a.claim_parts({"t#0": "a", "t#1": "b"}, "t", made.revision, epoch)
        assert claimed.done
        assert not (await a.claim_parts({"t#1": "a", "t#2": "a"}, "t", made.revision, epoch)).done
        for name in ("t-1", "s", "t.dlq"):
            assert (await a.claim([name], "a", epoch)).done
        assert await b.records_of("t") == {
            "t": Record("a", made.revision, stored), "t#0": Record("a", claimed.revision), "t#1": Record("b", claimed.revision),
        }  # fmt: skip
        going = StoredPartitions(stored.topic, deleting=True)
        gone = await a.divide(going, made.revision, "a", epoch)
        assert gone.done
        assert not (await a.claim_parts({"t#2": "a"}, "t", made.revision, epoch)).done, "it goes"
        assert (await b.read()).records["t"] == Record("a", gone.revision, going)
        assert await b.records_of("none") == {}

    run(scenario)


def test_older_news_do_not_undo_what_was_read(run: Run) -> None:
    async def scenario(rig: Rig) -> None:
        _, epoch, _ = await rig.led("a")
        a = rig.places("a")
        seen = await a.read()
        first = await a.divide(StoredPartitions(Partitioned("t", 3)), None, "a", epoch)
        second = await a.divide(StoredPartitions(Partitioned("t", 3), deleting=True), first.revision, "a", epoch)
        record = await a.record("t")
        assert record is not None
        news = await a.news(seen.revision)
        assert next(change.changed for change in news.changes if not isinstance(change, tuple)) == first.revision
        seen.records["t"] = record
        seen.apply(replace(news, changes=news.changes[:1]))
        assert seen.records["t"].revision == second.revision

    run(scenario)
