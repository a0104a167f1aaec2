"""Commands that a session passes on to another worker, which follows a script."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest

from tests.support.fake_place_link import FakePlaceLink
from tests.support.passing_rig import HERE, THERE, Groups, Rig, commands, rig_of_groups, running_rig
from tests.support.topic_commands import DIVIDED, ONE_PARTITION, TEXTS, kinds_with_a_topic
from toymq_py.errors import Moved, NameBusy, PlacementUnknown
from toymq_py.partitions import Partitioned, half_made
from toymq_py.placement import Place, PlaceLink, worker_of
from toymq_py.protocol import Held, Publish, Subscribe, Unsubscribe
from toymq_py.session import partial_stats
from toymq_py.session.gathering import WHOLE
from toymq_py.session.passing import BY_PATTERN, STAGED
from toymq_py.session.place_links import PlaceLinks
from toymq_py.session.replies import PendingReply
from toymq_py.session.spread_subscription import SpreadSubscription
from toymq_py.topic import Refused


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_rig(tmp_path) as rig:
        yield rig


@pytest.fixture
async def of_groups(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_of_groups(tmp_path) as rig:
        yield rig


async def test_what_is_ours_is_not_passed_on(rig: Rig) -> None:
    for text in (f"PUB {HERE} - 1\nx\n", f"SUB {HERE} c\n", "PING\n", "HELLO 1 auth=secret\n", "UNSUB * c\n"):
        assert not rig.take(text), text


async def test_few_of_the_names_that_a_client_makes_up_are_remembered(rig: Rig) -> None:
    """With 4,096 it was 1 MB of each connection, which counted for no limit."""
    names = [f"{number:0196}" for number in range(8000)]
    for name in filter(lambda name: worker_of(name, 2) == 0, names):
        assert not rig.take(f"ACK {name} c 0\n")
    assert 0 < sum(map(len, rig.passing._places)) <= 64 * 1024


async def test_the_workers_replies_stand_in_the_place_of_the_commands(rig: Rig) -> None:
    rig.greets = False
    assert not rig.take("HELLO 1 auth=secret name=me\n")
    assert rig.take(f"PUB {THERE} - 1\nx\nPUB {THERE} k 1\ny\n")
    rig.replies.add(b"PONG\n")
    assert rig.take(f"DESCRIBE {THERE}\n")
    await rig.hears("HELLO 1 auth=secret name=me\n")
    rig.says("HELLO 1 server=x/1 max_payload=9\n")
    await rig.hears(f"PUB {THERE} - 1\nx\nPUB {THERE} k 1\ny\nDESCRIBE {THERE}\n")
    rig.says("OK 7\nERR QUEUE_FULL no room\nJSON 2\n{}\n")
    await rig.client_reads("OK 7\nERR QUEUE_FULL no room\nPONG\nJSON 2\n{}\n")
    assert rig.replies.held_bytes == 0


async def test_a_pull_comes_with_its_messages(rig: Rig) -> None:
    rig.take(f"PULL {THERE} c 5\n")
    rig.take(f"ACK {THERE} c 0\nACK {THERE} c 1\n")
    await rig.hears(f"PULL {THERE} c 5\nACK {THERE} c 0\nACK {THERE} c 1\n")
    rig.says(f"MSG {THERE} 0 1 9 - 2\nOK\nMSG {THERE} 1 1 9 - 1\nx\nOK 2\nOK 1\nOK 0\n")
    await rig.client_reads(f"MSG {THERE} 0 1 9 - 2\nOK\nMSG {THERE} 1 1 9 - 1\nx\nOK 2\nOK 1\nOK 0\n")


async def test_an_unsub_is_for_the_worker_that_has_the_subscription(rig: Rig) -> None:
    rig.take(f"SUB {THERE} c\n")
    await rig.hears(f"SUB {THERE} c\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")
    rig.passing.take(commands("PAUSE\n")[0], rig.refused)
    rig.take(f"UNSUB {THERE} c\n")
    await rig.hears(f"PAUSE\nUNSUB {THERE} c\n")
    rig.says("OK 0\nOK 0\n")
    await rig.client_reads("OK 0\n")


async def test_an_unsub_of_another_consumer_ends_nothing(rig: Rig) -> None:
    """Found: the subscription was forgotten, and the session aborted at the next delivery."""
    rig.take(f"SUB {THERE} c\n")
    await rig.hears(f"SUB {THERE} c\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")
    rig.take(f"UNSUB {THERE} other\n")
    await rig.hears(f"UNSUB {THERE} other\n")
    rig.says("ERR NOT_SUBSCRIBED no\n")
    await rig.client_reads("ERR NOT_SUBSCRIBED no\n")
    rig.says(f"MSG {THERE} 0 1 9 - 1\nx\n")
    await rig.client_reads(f"MSG {THERE} 0 1 9 - 1\nx\n")
    assert not rig.aborted.is_set()


async def test_subscribed_and_ended_in_one_write_it_can_be_subscribed_again(rig: Rig) -> None:
    rig.take(f"SUB {THERE} c\n")
    rig.take(f"UNSUB {THERE} c\n")
    await rig.hears(f"SUB {THERE} c\nUNSUB {THERE} c\n")
    rig.says("OK 1\nOK 0\n")
    await rig.client_reads("OK 1\nOK 0\n")
    assert rig.take(f"SUB {THERE} c\n")


async def test_one_that_follows_is_told_moved_but_settles_through_us(rig: Rig) -> None:
    assert not rig.take("CLUSTER moved=1\n")
    assert not rig.take(f"PUB {THERE} - 1\nx\n")
    assert not rig.take(f"SUB {THERE} c\n")
    assert rig.take(f"NACK {THERE} c 3\n")
    await rig.hears(f"NACK {THERE} c 3\n")


async def test_what_was_refused_here_stops_its_producer(rig: Rig) -> None:
    rig.refused.refuse(THERE, [b"p"], [4])
    assert rig.take(f"PUB {THERE} p 1 seq=5\nx\n")
    rig.replies.wake()
    await rig.client_reads("ERR OUT_OF_SEQUENCE 4 was refused: repeat it and go on from there\n")
    rig.take(f"PUB {THERE} p 1 seq=4\nx\n")
    await rig.hears(f"PUB {THERE} p 1 seq=4\nx\n")


async def test_of_groups_nothing_is_passed_on_but_what_asks_all(of_groups: Rig) -> None:
    rig = of_groups
    assert not rig.take(f"PUB {THERE} - 1\nx\n")
    assert not rig.take(f"SUB {THERE} c\n")
    assert not rig.take("CLUSTER\n")
    assert not rig.take(f"DESCRIBE {THERE}\n"), "nor for one that does not say that it follows"
    assert rig.take("TOPICS\n")
    await rig.hears("TOPICS\n")
    rig.says('JSON 16\n[{"topic": "b"}]\n')
    await rig.client_reads('JSON 16\n[{"topic": "b"}]\n')


async def test_partitions_of_a_topic_that_has_none_are_not_asked_for(rig: Rig) -> None:
    """Found: `toymqctl pub` asks for them, and waited 20 s while one worker hung."""
    assert not rig.take("TOPICS jobs#*\n")
    assert not rig.take("TOPICS jobs#*.dlq\n")
    assert rig.take("TOPICS jobs.*\n")
    await rig.hears("TOPICS jobs.*\n")
    rig.partitioned.by_name["jobs"] = Partitioned("jobs", 2)
    assert rig.take("TOPICS jobs#*\n")


async def test_of_a_group_that_is_away_one_that_follows_repeats_publishes_and_subscriptions_there(of_groups: Rig) -> None:
    away = PlacementUnknown("group b has no leader")
    away.moved = Moved("b:1 (group b) has no leader")

    def refused(text: str) -> str:
        (command,) = commands(text)
        return of_groups.passing.refusal(command, away).code

    texts = f"PUB {THERE} - 1\nx\n", f"PUB {THERE} p 1 seq=4\nx\n", f"SUB {THERE} c\n", f"DESCRIBE {THERE}\n"
    assert [refused(text) for text in texts] == ["PLACEMENT_UNKNOWN"] * 4
    of_groups.take("CLUSTER moved=1\n")
    assert [refused(text) for text in texts] == ["MOVED", "MOVED", "MOVED", "PLACEMENT_UNKNOWN"]
    of_groups.take("CLUSTER\n")
    assert [refused(text) for text in texts] == ["PLACEMENT_UNKNOWN"] * 4


async def test_what_a_pattern_delivered_is_settled_at_its_group(of_groups: Rig) -> None:
    rig = of_groups
    rig.take("SUB * c\n")
    await rig.hears("SUB * c\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")
    rig.says(f"MSG {THERE} 0 1 9 - 1\nx\n")
    await rig.client_reads(f"MSG {THERE} 0 1 9 - 1\nx\n")
    assert rig.take(f"ACK {THERE} c 0\n")
    await rig.hears(f"ACK {THERE} c 0\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")


async def test_publishes_to_a_partition_are_passed_on_for_a_client_that_follows(rig: Rig) -> None:
    """A client that follows MOVED cannot know in which partition a route is, so its publish is passed on; one that names the
    partition gets MOVED. Each partition has its own place."""
    whole = rig.partitioned.by_name["t"] = Partitioned("t", 8)
    there = next(name for name in whole.names if worker_of(name, 2) == 1)
    here = next(name for name in whole.names if worker_of(name, 2) == 0)
    assert not rig.take("CLUSTER moved=1\n")
    assert not rig.take(f"PUB {there} - 1\nx\n")
    assert rig.passing.take_part(Publish(here, [b""], [b"x"]), rig.refused) is None
    places = rig.passing.take_part(Publish(there, [b"", b"k"], [b"x", b"y"]), rig.refused)
    assert places is not None
    first, second = places
    assert isinstance(first, PendingReply)
    assert isinstance(second, PendingReply)
    rig.replies.hold(first)
    rig.replies.add(b"PONG\n")
    rig.replies.hold(second)
    await rig.hears(f"PUB {there} - 1\nx\nPUB {there} k 1\ny\n")
    rig.says("OK 7\nERR QUEUE_FULL x\n")
    await rig.client_reads("OK 7\nPONG\nERR QUEUE_FULL x\n")


async def test_a_place_that_was_not_reached_is_not_waited_for_again_at_once(
    of_groups: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: until a dead group's lease ended, each publish to one of its partitions delayed all that its client sent after it
    by 4 s more."""
    rig, links = of_groups, list[FakePlaceLink]()

    def connected(self: Groups, place: Place, received: object, lost: Callable[[], None], **how: bool) -> PlaceLink:
        links.append(FakePlaceLink(lost, reached=False))
        monkeypatch.setattr(links[-1], "send", lambda pieces: None)
        return links[-1]

    monkeypatch.setattr(Groups, "connected", connected)
    part = Publish(THERE, [b""], [b"x"])
    (waits,) = rig.passing.take_part(part, rig.refused) or ()
    assert isinstance(waits, PendingReply)
    rig.replies.hold(waits)
    await rig.client_reads("ERR PLACEMENT_UNKNOWN group b does not answer, so its topics are not known: try again\n")
    (refused,) = rig.passing.take_part(part, rig.refused) or ()
    assert isinstance(refused, Refused)
    assert str(refused.error) == "group b does not answer: try again in a moment"
    assert len(links) == 1
    rig.passing.links._unreached_until.clear()
    rig.passing.take_part(part, rig.refused)
    assert len(links) == 2


async def test_one_that_renews_a_lease_may_hang_on_it_and_one_that_settles_does_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: after a TOUCH, leases at the other worker counted attempts again, although the client was still hanging on a
    message here."""
    settled: list[None] = []
    monkeypatch.setattr(PlaceLinks, "settled", lambda self: settled.append(None))
    rig.passing.links.spread["t.*"] = cast(SpreadSubscription, object())
    for text in (f"TOUCH {HERE} c 1\n", f"TOUCH {HERE} c 1\nTOUCH {HERE} c 2\nTOUCH {HERE} c 3\n"):
        rig.take(text)
    assert not settled
    for text in (f"ACK {HERE} c 1\n", f"NACK {HERE} c 1\n", f"ACK {HERE} c 1\nACK {HERE} c 2\nACK {HERE} c 3\n"):
        rig.take(text)
    assert len(settled) == 3
    rig.passing.links.spread.clear()


async def test_publishes_to_a_partition_of_a_group_that_is_away_hold_up_no_others(
    of_groups: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: each such publish delayed all that its client sent after it, to healthy topics too, by 4 s."""
    rig = of_groups
    part = Publish(THERE, [b"p", b"p"], [b"x", b"y"], seqs=[1, 2])
    before = rig.passing.take_part(part, rig.refused)
    assert before is not None
    assert [type(place).__name__ for place in before] == ["PendingReply"] * 2, "it may be a failover"
    problem = "has had no leader for 9 s: look at its nodes"
    monkeypatch.setattr(Groups, "problem_of", lambda self, place: problem)
    refused = rig.passing.take_part(part, rig.refused)
    assert refused is not None
    said = [str(place.error) for place in refused if isinstance(place, Refused)]
    assert said == [f"group b {problem}"] * 2
    await rig.hears(f"PUB {THERE} p 1 seq=1\nx\n")
    later = rig.passing.take_part(part, rig.refused)
    assert later is not None
    assert {type(place).__name__ for place in later} == {"PendingReply"}, "it is reached"


async def test_a_refused_number_holds_those_behind_it_in_its_partition(rig: Rig) -> None:
    whole = rig.partitioned.by_name["t"] = Partitioned("t", 8)
    there = next(name for name in whole.names if worker_of(name, 2) == 1)
    rig.refused.refuse(there, [b"p"], [5])
    places = rig.passing.take_part(Publish(there, [b"p", b"q"], [b"x", b"y"], seqs=[6, 1]), rig.refused)
    assert places is not None
    assert [type(place).__name__ for place in places] == ["Refused", "PendingReply"]
    await rig.hears(f"PUB {there} q 1 seq=1\ny\n")


async def test_a_partitioned_topic_is_made_first_where_a_plain_one_would_be(of_groups: Rig) -> None:
    """The worker that a plain topic of the name would have is asked first: it refuses if it has one, and nothing is created
    elsewhere."""
    rig = of_groups
    assert rig.take(f"CREATE {THERE} partitions=2\n")
    while len(rig.writers) < 2:  # noqa: ASYNC110 (first it is asked whether it is there)
        await asyncio.sleep(0.001)
    await rig.hears(f"CREATE {THERE} partitions=2\n")
    rig.replies.add(b"PONG\n")
    rig.says("ERR EXISTS it is plain\n")
    await rig.client_reads("ERR EXISTS it is plain\nPONG\n")
    assert rig.here_heard == []


async def test_a_client_that_does_not_follow_is_never_told_moved(rig: Rig) -> None:
    """Found: MOVED of a partition, from a worker that knows a topic's partitions and has some of them, reached a client that
    does not follow it."""
    rig.take(f"PUB {THERE} - 1\nx\nPUB {THERE} - 1\ny\n")
    await rig.hears(f"PUB {THERE} - 1\nx\nPUB {THERE} - 1\ny\n")
    rig.says(f"OK 7\nERR MOVED 127.0.0.1:1 (worker 0) has the topic {THERE}#1\n")
    refusal = str(half_made(THERE))
    await rig.client_reads(f"OK 7\nERR PLACEMENT_UNKNOWN {refusal}\n")
    whole = rig.partitioned.by_name["t"] = Partitioned("t", 8)
    there = next(name for name in whole.names if worker_of(name, 2) == 1)
    (place,) = rig.passing.take_part(Publish(there, [b""], [b"x"]), rig.refused) or ()
    assert isinstance(place, PendingReply)
    rig.replies.hold(place)
    await rig.hears(f"PUB {there} - 1\nx\n")
    rig.says(f"ERR NO_SUCH_TOPIC there is no partition {there}: t is not partitioned\n")
    await rig.client_reads(f"ERR PLACEMENT_UNKNOWN {half_made('t')}\n")


async def test_partitions_that_only_another_worker_knows_are_not_taken_for_the_whole(rig: Rig) -> None:
    """Found: the worker where the plain topic would be answered for its own partitions only, and deliveries of its subscription
    ended the connection."""
    rig.worker_knows(1, Partitioned(THERE, 8))
    for text in ("DESCRIBE {}", "CONFIG {}", "PURGE {}", "SEEK {} c latest", "FORGET {} c", "SUB {} c", "PULL {} c 1"):
        with pytest.raises(PlacementUnknown, match=f"^{half_made(THERE)}$"):
            rig.take(text.format(THERE) + "\n")
    assert rig.take(f"ACK {THERE} c 0\n"), "what names a message is for the worker to refuse"
    rig.worker_knows(1)
    assert rig.take(f"DESCRIBE {THERE}\n")


async def test_the_loop_does_not_ask_the_disk_what_another_worker_knows(rig: Rig) -> None:
    """Found: each SUB, PULL and DESCRIBE that was passed on read the disk: one that hangs blocked all sessions."""
    (command,), calls = commands(f"DESCRIBE {THERE}\n"), rig.disk.trace
    with pytest.raises(NameBusy) as busy:
        rig.passing.take(command, rig.refused)
    busy.value.when_done(lambda: None)
    assert calls == [], "a thread asks"
    rig.threads.drain()
    assert calls
    assert rig.passing.take(command, rig.refused)
    calls.clear()
    assert rig.take(f"PULL {THERE} c 1\n")
    assert calls == [], "and once, as long as nothing changes"
    rig.worker_knows(1, Partitioned(THERE, 8))
    for _ in range(2):
        with pytest.raises(PlacementUnknown, match="has its partitions at some workers"):
            rig.take(f"DESCRIBE {THERE}\n")


@pytest.mark.parametrize("why", ["it changes", "it could not be read"])
async def test_what_another_worker_knows_is_read_again_where_that_may_be_wrong(rig: Rig, why: str) -> None:
    if why == "it changes":
        rig.changes[1] += 1
    else:
        rig.worker_knows(1)
        rig.disk.fail("read_file", 1, errno.EMFILE, sticky=True)
    for _ in range(2):
        (command,) = commands(f"DESCRIBE {THERE}\n")
        with pytest.raises(NameBusy) as busy:
            rig.passing.take(command, rig.refused)
        busy.value.when_done(lambda: None)
        rig.threads.drain()
        assert rig.passing.take(command, rig.refused)


async def test_what_was_read_for_a_command_is_of_no_other(rig: Rig) -> None:
    """While another worker's table is read for a command, the topic becomes known here, too."""
    (command,) = commands(f"DESCRIBE {THERE}\n")
    with pytest.raises(NameBusy) as busy:
        rig.passing.take(command, rig.refused)
    rig.worker_knows(1, Partitioned(THERE, 8))
    rig.partitioned.by_name[THERE] = Partitioned(THERE, 8)
    busy.value.when_done(lambda: None)
    rig.threads.drain()
    assert rig.passing.take(command, rig.refused)
    del rig.partitioned.by_name[THERE]
    rig.worker_knows(1)
    assert rig.take(f"DESCRIBE {THERE}\n")


async def test_what_is_for_one_partition_is_refused_here(rig: Rig) -> None:
    rig.partitioned.by_name[HERE] = Partitioned(HERE, 8)
    for text in (f"FETCH {HERE} 0 1\n", f"ACK {HERE} c 0\n", f"OFFSETS {HERE}\n"):
        assert not rig.take(text)


@pytest.mark.parametrize(("subscribed", "ended"), [("t", "t#*"), ("t#*", "t")])
async def test_a_subscription_to_all_partitions_ends_everywhere_under_either_name(
    of_groups: Rig, subscribed: str, ended: str
) -> None:
    rig = of_groups
    rig.partitioned.by_name["t"] = Partitioned("t", 8)
    rig.take(f"SUB {subscribed} c\n")
    await rig.hears(f"SUB {subscribed} c\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")
    rig.held_here = b"OK 4 t#1 0\n"
    assert rig.take(f"HELD {ended} c\n")
    await rig.hears(f"HELD {subscribed} c\n")
    rig.says("MSG t#3 1 1 9 - 1\nx\nOK 2 t#3 1\n")
    await rig.client_reads("MSG t#3 1 1 9 - 1\nx\nOK 6 t#1 0\n")
    assert rig.take(f"UNSUB {ended} c\n")
    assert rig.gate.closed
    await rig.hears(f"HELD {subscribed} c uncounted=0\n")
    rig.says("OK 2 t#3 1\n")
    await rig.hears(f"UNSUB {subscribed} c uncounted=1\n")
    rig.says("OK 0\n")
    await rig.client_reads("OK 0\n")
    assert rig.here_heard[-2:] == [f"HELD {subscribed} c uncounted=0\n", f"UNSUB {subscribed} c\n"], "what it has came first"
    assert not rig.gate.closed
    assert rig.passing.links.spread == {}


def test_each_command_with_a_topic_is_for_all_partitions_or_names_one() -> None:
    """A command that does neither would be applied by this worker alone, to its own partitions: its reply would be silently
    wrong."""
    of_all = {*WHOLE, *BY_PATTERN, *STAGED, *DIVIDED}
    assert not of_all & ONE_PARTITION
    new = {kind.__name__ for kind in kinds_with_a_topic() - of_all - ONE_PARTITION}
    assert new == set(), (
        f"{new}: make one reply of those of all workers (WHOLE in session/gathering.py) and apply it to each partition that is "
        "here (partition_operations.py); or, if it is about ids, enter it in ONE_PARTITION of tests/support/topic_commands.py"
    )


@pytest.mark.parametrize("kind", TEXTS, ids=lambda kind: kind.__name__)
async def test_what_is_for_all_partitions_is_asked_of_the_other_worker(rig: Rig, kind: type) -> None:
    rig.partitioned.by_name["jobs"] = Partitioned("jobs", 8)
    if kind in (Unsubscribe, Held):
        assert rig.take(TEXTS[Subscribe].format("jobs"))
    assert [type(command) for command in commands(TEXTS[kind].format("jobs"))] == [kind]
    assert rig.take(TEXTS[kind].format("jobs")) == (kind not in ONE_PARTITION | DIVIDED)


async def test_figures_of_those_that_answer_do_not_wait_for_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: `toymqctl doctor` and `top` had no figures as long as one worker hung."""
    monkeypatch.setattr(partial_stats, "WITHIN_S", 0.2)
    rig.greets = False  # neither place says a word
    assert rig.take("STATS partial=1\n")
    await rig.client_reads(
        "ERR PLACEMENT_UNKNOWN worker 0 does not answer within 0.2 s; worker 1 does not answer within 0.2 s: try again\n"
    )
    assert rig.replies.held_bytes == 0
