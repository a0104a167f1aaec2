"""A leader's broker and its followers over sockets, each with a directory on a real disk."""

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.link_rig import (
    CLUSTER,
    FOLLOW,
    NOTHING,
    QUICK,
    SECOND,
    FollowerRig,
    LeaderRig,
    assert_same,
    messages,
    replica_id,
    shared_files,
    until,
)
from toymq_py.consumer_options import EARLIEST
from toymq_py.replication import leader_links
from toymq_py.replication.acks import Fenced, Synced, encode_report
from toymq_py.replication.follower_link import EndReason
from toymq_py.replication.handshake import Follow, encode
from toymq_py.replication.link_options import LinkOptions

# -- joining


async def test_a_follower_joins_an_empty_leader(leader: LeaderRig, tmp_path: Path) -> None:
    follower = FollowerRig(tmp_path / "f")
    async with follower.following(leader):
        await leader.joined(2)
        assert leader.changes.happened == [("add", SECOND)]
        await leader.publish("t", b"first")
        await assert_same(leader, follower)
    await leader.left(2)
    assert leader.changes.happened[-1] == ("drop", SECOND)


async def test_publishes_go_on_while_a_follower_joins_and_both_directories_are_the_same(
    leader: LeaderRig, tmp_path: Path
) -> None:
    for topic in ("a", "b", "c"):
        await leader.publish(topic, *messages(200, 5000))
    follower = FollowerRig(tmp_path / "f")
    published = 0
    async with follower.following(leader):
        rng = random.Random(5)
        while not leader._is_in_sync(2) or published < 200:
            topic = rng.choice("abcd")
            if rng.random() < 0.05:
                deleted = asyncio.Event()
                if "d" in leader.broker.topics:
                    leader.broker.delete("d", lambda messages, error, deleted=deleted: deleted.set())
                    await deleted.wait()
            await leader.publish(topic, *messages(rng.randrange(1, 20), rng.choice((10, 3000)), published))
            published += 1
            assert published < 20_000, leader.links.lags()
        await assert_same(leader, follower)
        assert len(shared_files(follower.root)) > 8, "segments were rolled during the join"
    assert follower.file.record.promised == leader.epoch
    assert not follower.file.record.copying


async def test_the_in_sync_set_never_has_a_follower_that_is_not_waited_for(leader: LeaderRig, tmp_path: Path) -> None:
    followers = [FollowerRig(tmp_path / f"f{number}", number) for number in (2, 3)]
    leader.changes.holds.clear()
    async with followers[0].following(leader), followers[1].following(leader):
        await until(lambda: {SECOND, replica_id(3)} <= leader.links.required(), "both are required before T3 is answered")
        assert leader.changes.members == {replica_id(1)}
        leader.changes.holds.set()
        await leader.joined(2)
        await leader.joined(3)
        assert leader.changes.members == {replica_id(number) for number in (1, 2, 3)}
        await leader.publish("t", b"x")


async def test_a_member_of_the_set_that_a_leader_was_elected_from_leaves_it_before_it_joins(tmp_path: Path) -> None:
    async with LeaderRig(tmp_path / "leader", members={SECOND}, options=QUICK).serving() as leader:
        assert leader.links.required() == {SECOND}
        waiting = leader.put("t", b"x")
        async with FollowerRig(tmp_path / "f").following(leader):
            await leader.joined(2)
        assert leader.changes.happened[:2] == [("drop", SECOND), ("add", SECOND)]
        await waiting[0].wait()


async def test_members_without_a_link_are_dropped_when_asked(tmp_path: Path) -> None:
    async with LeaderRig(tmp_path / "leader", members={SECOND, replica_id(3)}, options=QUICK).serving() as leader:
        await leader.links.drop_members()
        assert leader.links.required() == frozenset()
        assert leader.changes.happened == [("drop", SECOND), ("drop", replica_id(3))]
        await leader.publish("t", b"x")


async def test_a_member_that_will_not_come_is_dropped_before_the_others_do(tmp_path: Path) -> None:
    async with LeaderRig(tmp_path / "leader", members={SECOND, replica_id(3)}, options=QUICK).serving() as leader:
        await leader.links.drop_absent(replica_id(3))
        await leader.links.drop_absent(replica_id(3))
        await leader.links.drop_absent(replica_id(4))
        assert leader.changes.happened == [("drop", replica_id(3))], "once, and only of a member"
        async with FollowerRig(tmp_path / "f").following(leader):
            await leader.joined(2)
            happened = list(leader.changes.happened)
            await leader.links.drop_absent(SECOND)
            assert leader.changes.happened == happened, "it is there"


async def test_a_loop_that_is_late_does_not_take_its_followers_for_dead(leader: LeaderRig, tmp_path: Path) -> None:
    async with FollowerRig(tmp_path / "f").following(leader):
        await leader.joined(2)
        for _ in range(3):
            time.sleep(1.0)  # noqa: ASYNC251 (that is the point)
            await asyncio.sleep(0.1)
        await leader.publish("t", b"x")
        assert leader.changes.happened == [("add", SECOND)]


# -- coming back


async def test_a_follower_that_comes_back_gets_the_tail_alone(leader: LeaderRig, tmp_path: Path) -> None:
    follower = FollowerRig(tmp_path / "f")
    await leader.publish("t", *messages(500, 3000))
    await leader.publish("u", *messages(100, 3000))
    async with follower.following(leader):
        await leader.joined(2)
        whole = follower.received
        assert whole > 1_800_000
    await leader.left(2)
    await leader.publish("t", *messages(10, 3000, seed=2))
    follower.received = 0
    async with follower.following(leader):
        await leader.joined(2)
        assert follower.received < 100_000, "more came than what it lacked"
        await assert_same(leader, follower)
    assert not (follower.root / "replaced").exists()


async def test_a_suffix_that_the_leader_does_not_have_goes_aside(leader: LeaderRig, tmp_path: Path) -> None:
    follower = FollowerRig(tmp_path / "f")
    await leader.publish("t", *messages(20))
    async with follower.following(leader):
        await leader.joined(2)
    await leader.left(2)
    segment = next(follower.root.glob("topics/t/*.log"))
    with segment.open("ab") as file:
        file.write(b"a record of its own life as a leader")
    own = segment.read_bytes()
    (follower.root / "topics/mine").mkdir()
    (follower.root / "topics/mine/topic.json").write_bytes(b"{}")
    async with follower.following(leader):
        await leader.joined(2)
        await assert_same(leader, follower)
    [place] = (follower.root / "replaced").iterdir()
    assert place.name.startswith(f"{leader.epoch}-")
    assert (place / segment.relative_to(follower.root)).read_bytes() == own
    assert (place / "topics/mine/topic.json").read_bytes() == b"{}"
    assert not (follower.root / "topics/mine").exists()


async def test_directories_in_the_place_of_files_stop_neither_a_join_nor_a_write(leader: LeaderRig, tmp_path: Path) -> None:
    follower = FollowerRig(tmp_path / "f")
    await leader.publish("t", b"x")
    for root in (leader.root, follower.root):
        (root / "topics/t/offsets.json.prev").mkdir(parents=True)
    async with follower.following(leader):
        await leader.joined(2)
        for consumer in ("c", "d"):
            topic, stored = leader.broker.topic("t"), asyncio.get_running_loop().create_future()
            topic.seek(consumer, EARLIEST)
            topic.flush_offsets(stored.set_result)
            assert await stored is None
        await assert_same(leader, follower)
        assert (follower.root / "topics/t/offsets.json.prev").is_file()
    for root in (leader.root, follower.root):
        assert (root / "topics/t/offsets.json.prev.damaged").is_dir()


async def test_two_joins_of_one_epoch_put_aside_into_two_places(leader: LeaderRig, tmp_path: Path) -> None:
    follower = FollowerRig(tmp_path / "f")
    await leader.publish("t", b"x")
    for count in (1, 2):
        (follower.root / "topics/mine").mkdir(parents=True)
        (follower.root / "topics/mine/00000000000000000001.log").write_bytes(b"mine %d" % count)
        async with follower.following(leader):
            await leader.joined(2)
        await leader.left(2)
    found = sorted(path.read_bytes() for path in (follower.root / "replaced").rglob("*.log"))
    assert found == [b"mine 1", b"mine 2"]


async def test_a_follower_that_was_cut_during_the_copy_may_not_be_elected_and_joins_later(tmp_path: Path) -> None:
    options = LinkOptions(timeout_s=2.0, resync_bytes_per_s=200_000)
    async with LeaderRig(tmp_path / "leader", options=options).serving() as leader:
        await leader.publish("t", *messages(100, 3000))
        await leader.publish("u", *messages(100, 3000))
        follower = FollowerRig(tmp_path / "f")
        async with follower.following(leader):
            await until(lambda: follower.received > 100, "the copy has begun")
            await until(lambda: follower.file.record.copying, "replica.json says so")
        assert follower.file.record.copying
        leader.links._term.pace._bytes_per_s = 10**9
        async with follower.following(leader):
            await leader.joined(2)
            assert not follower.file.record.copying
            await assert_same(leader, follower)


async def test_a_follower_whose_old_end_hangs_is_not_taken_for_another_directory(leader: LeaderRig, tmp_path: Path) -> None:
    follower = FollowerRig(tmp_path / "f")
    reader, writer = await asyncio.open_connection("127.0.0.1", leader.port)
    writer.write(FOLLOW)
    await until(lambda: leader.lag(2) is not None, "it has a link")
    end = await follower.follow_once_or_until_joined(leader)
    assert end is None, "the new link was refused"
    assert await reader.read() != b"", "the old one got WAIT, and its end"
    writer.close()


# -- which may come


async def refused(leader: LeaderRig, follower: FollowerRig, epoch: int | None = None) -> str:
    end = await follower.follow(leader, epoch)
    assert end.reason in (EndReason.REFUSED, EndReason.FENCED, EndReason.LOST)
    return end.code or end.detail


async def test_a_replica_of_another_token_cluster_or_epoch_is_refused(leader: LeaderRig, tmp_path: Path) -> None:
    for number, options in enumerate((LinkOptions(token="T"), LinkOptions(token="\N{SNOWMAN} x"), LinkOptions(token=None))):
        assert await refused(leader, FollowerRig(tmp_path / f"token{number}", options=options)) == "AUTH_FAILED"
    assert await refused(leader, FollowerRig(tmp_path / "cluster", cluster="another")) == "WRONG_CLUSTER"
    assert await refused(leader, FollowerRig(tmp_path / "copy", number=1)) == "SAME_REPLICA"
    assert "etcd has said 9" in await refused(leader, FollowerRig(tmp_path / "epoch"), epoch=9)
    later = FollowerRig(tmp_path / "later")
    later.file.change(promised=11)
    assert (await later.follow(leader)).reason is EndReason.FENCED
    assert leader.changes.fenced_by == [11]
    assert leader.changes.happened == []


async def test_two_directories_with_one_replica_id_are_refused(leader: LeaderRig, tmp_path: Path) -> None:
    follower = FollowerRig(tmp_path / "f")
    async with follower.following(leader):
        await leader.joined(2)
        assert await refused(leader, FollowerRig(tmp_path / "twin", number=2)) == "SAME_REPLICA"
        await leader.publish("t", b"x")
        assert leader.changes.happened == [("add", SECOND)], "the first one stays in sync"


async def test_a_follower_that_is_back_before_its_last_link_has_ended_waits_no_longer_than_that(
    leader: LeaderRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a failover a follower gives up one attempt and makes the next at once."""
    monkeypatch.setattr(leader_links, "ANSWER_S", 600.0)
    follow = encode(Follow(1, CLUSTER, "g0", SECOND, "n2", 0, leader.options.token))
    async with asyncio.timeout(20):
        reader, first = await asyncio.open_connection("127.0.0.1", leader.port)
        first.write(follow)
        while not (await reader.readline()).startswith(b"LEAD "):
            pass
        reader, second = await asyncio.open_connection("127.0.0.1", leader.port)
        second.write(follow)
        assert await reader.readline() == b"WAIT\n", "it is judged: the first may live"
        first.close()
        while not (line := await reader.readline()).startswith(b"LEAD "):
            assert line == b"WAIT\n"
        second.close()


async def test_no_one_listens_there(leader: LeaderRig, tmp_path: Path) -> None:
    leader.port, port = 1, leader.port
    end = await FollowerRig(tmp_path / "f").follow(leader)
    leader.port = port
    assert end.reason is EndReason.LOST


@pytest.mark.parametrize("garbage", [
    b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000, b"FOLLOW 1\n", b"x" * 2000, b"WAIT\n", b"MANIFEST 99999999\n",
    FOLLOW + b"MANIFEST 999999999999\n", FOLLOW + b"LEAD 1 0123456789abcdef\n", FOLLOW + b"MANIFEST 3\n[1]",
    FOLLOW + b'MANIFEST 60\n{"files":[["topics/../x",0,0,"' + b"0" * 32 + b'"]]', FOLLOW + NOTHING + b"X",
    FOLLOW + NOTHING + encode_report(Synced(77)), FOLLOW + NOTHING + encode_report(Fenced(3)),
    b"",
])  # fmt: skip
async def test_garbage_ends_its_own_connection_only(leader: LeaderRig, tmp_path: Path, garbage: bytes) -> None:
    async with FollowerRig(tmp_path / "f3", 3).following(leader):
        await leader.joined(3)
        reader, writer = await asyncio.open_connection("127.0.0.1", leader.port)
        writer.write(garbage)
        if not garbage:
            writer.write_eof()
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                await reader.read(-1)
        writer.close()
        await leader.publish("t", b"x")
        assert leader.changes.happened == [("add", replica_id(3))]
        assert leader.changes.fenced_by == []


async def test_connections_that_say_nothing_are_bounded(leader: LeaderRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_links, "GREETINGS_MAX", 2)
    silent = [await asyncio.open_connection("127.0.0.1", leader.port) for _ in range(2)]
    await until(lambda: len(leader.links._greeted) == 2, "both are taken")
    reader, writer = await asyncio.open_connection("127.0.0.1", leader.port)
    async with asyncio.timeout(0.5):
        assert await reader.read() == b""
    for _, each in [*silent, (reader, writer)]:
        each.close()


async def test_a_follower_that_reports_a_higher_epoch_has_the_leader_step_down(leader: LeaderRig) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", leader.port)
    writer.write(FOLLOW + NOTHING + encode_report(Fenced(12)))
    await until(lambda: leader.changes.fenced_by == [12], "it is told")
    writer.close()


# -- the end of a term


async def test_bye_is_said_when_all_is_settled_and_a_follower_has_it_all(leader: LeaderRig, tmp_path: Path) -> None:
    follower = FollowerRig(tmp_path / "f")
    async with follower.following(leader) as task:
        await leader.joined(2)
        waiting = leader.put("t", *messages(500, 1000))
        await until(lambda: waiting[-1].is_set() or not leader.tickets.all_settled, "it is being synced")
        assert await leader.links.say_bye()
        assert all(told.is_set() for told in waiting)
        assert (await task).reason is EndReason.BYE
        assert leader.changes.members == {replica_id(1), SECOND}, "it stays in the set, or no one could be elected"
        assert await refused(leader, FollowerRig(tmp_path / "late", number=3)) == "NOT_LEADER"


async def test_bye_is_not_said_when_a_sync_is_not_settled(leader: LeaderRig, tmp_path: Path) -> None:
    async with FollowerRig(tmp_path / "f").following(leader):
        await leader.joined(2)
        leader.changes.holds.clear()
    [told] = leader.put("t", b"x")
    await until(lambda: leader.tickets.oldest is not None, "it is synced here")
    assert not await leader.links.say_bye()
    assert not told.is_set()
    leader.changes.holds.set()
    await leader.left(2)


async def test_a_follower_of_another_version_is_told_the_order_of_an_upgrade(leader: LeaderRig) -> None:
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", leader.port)
        writer.write(encode(Follow(2, CLUSTER, "g0", SECOND, "n2", 0, leader.options.token)))
        while (line := await reader.readline()) == b"WAIT\n":
            pass
        assert line == b"ERR BAD_VERSION this leader speaks and writes version 1: upgrade followers first\n"
        writer.close()
