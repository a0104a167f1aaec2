"""A session's connections to other workers and groups: replies in order, deliveries after their OK, and what is lost with
them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.passing_rig import THERE, Groups, Rig, rig_of_groups, running_rig
from toymq_py.errors import PlacementUnknown
from toymq_py.heartbeat import standstill
from toymq_py.placement import Placement
from toymq_py.protocol import Publish
from toymq_py.session import place_links, spread_subscription, upstream
from toymq_py.topic import Refused


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_rig(tmp_path) as rig:
        yield rig


@pytest.fixture
async def of_groups(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_of_groups(tmp_path) as rig:
        yield rig


async def test_deliveries_wait_until_the_ok_of_their_sub_is_written(rig: Rig) -> None:
    held = rig.replies.hold()
    rig.take(f"SUB {THERE} c\n")
    await rig.hears(f"SUB {THERE} c\n")
    rig.says(f"OK 1\nMSG {THERE} 0 1 9 - 1\nx\n")
    rig.says(f"MSG {THERE} 1 1 9 - 1\ny\n")
    for _ in range(5):
        await asyncio.sleep(0)
    assert rig.written == b"", "a reply before it is due"
    rig.replies.fill(held, lambda: b"OK 5\n")
    await rig.client_reads(f"OK 5\nOK 1\nMSG {THERE} 0 1 9 - 1\nx\nMSG {THERE} 1 1 9 - 1\ny\n")
    rig.says(f"CLOSED {THERE} c DELETED\n")
    await rig.client_reads(f"CLOSED {THERE} c DELETED\n")


async def test_what_is_delivered_until_an_unsub_is_answered_is_no_part_of_another_reply(rig: Rig) -> None:
    rig.take(f"SUB {THERE} c\n")
    await rig.hears(f"SUB {THERE} c\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")
    held = rig.replies.hold()
    rig.take(f"PUB {THERE} - 1\nx\n")
    rig.take(f"UNSUB {THERE} c\n")
    rig.take(f"SUB {THERE} c2\n")
    await rig.hears(f"PUB {THERE} - 1\nx\nUNSUB {THERE} c\nSUB {THERE} c2\n")
    rig.says(f"MSG {THERE} 0 1 9 - 1\nx\nOK 5\nOK 0\nOK 1\n")
    await rig.client_reads(f"MSG {THERE} 0 1 9 - 1\nx\n")
    rig.replies.fill(held, lambda: b"PONG\n")
    await rig.client_reads("PONG\nOK 5\nOK 0\nOK 1\n")


async def test_while_the_client_does_not_read_the_worker_is_not_read(rig: Rig) -> None:
    rig.take(f"SUB {THERE} c\n")
    await rig.hears(f"SUB {THERE} c\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")
    rig.unread = True
    rig.says(f"MSG {THERE} 0 1 9 - 1\nx\n")
    await rig.client_reads(f"MSG {THERE} 0 1 9 - 1\nx\n")
    rig.says(f"MSG {THERE} 1 1 9 - 1\ny\n")
    for _ in range(5):
        await asyncio.sleep(0)
    assert rig.written == b""
    rig.unread = False
    rig.passing.links.resume()
    await rig.client_reads(f"MSG {THERE} 1 1 9 - 1\ny\n")


async def test_behind_a_missing_reply_nothing_is_written(rig: Rig) -> None:
    rig.take(f"PUB {THERE} - 1\nx\n")
    rig.take(f"PUB {THERE} - 1\ny\n")
    rig.replies.add(b"PONG\n")
    await rig.hears(f"PUB {THERE} - 1\nx\nPUB {THERE} - 1\ny\n")
    rig.says("OK 0\n")
    await rig.client_reads("OK 0\n")
    rig.writer.close()
    async with asyncio.timeout(10):
        await rig.aborted.wait()
    assert rig.written == b""


async def test_a_worker_that_refuses_the_connection_is_heard_and_ends_the_session(rig: Rig) -> None:
    """Found: the worker's error was taken for the answer to HELLO and to one command of a run, so later replies were taken for
    other commands'."""
    rig.greets = False
    assert not rig.take("HELLO 1 auth=secret\n")
    assert rig.take(f"PUB {THERE} - 1\nx\nPUB {THERE} - 1\ny\n")
    await rig.hears("HELLO 1 auth=secret\n")
    rig.says("ERR TOO_MANY_CONNECTIONS 100 is the limit\n")
    rig.writer.close()
    await rig.client_reads("ERR TOO_MANY_CONNECTIONS 100 is the limit\n")
    async with asyncio.timeout(10):
        await rig.aborted.wait()


async def test_behind_an_error_that_ends_a_connection_nothing_is_written(rig: Rig) -> None:
    """Found by chaos over workers: a run of two PUBs had one reply, SHUTTING_DOWN, and the OK of a later PUB was taken for the
    second one's, which was not stored."""
    assert rig.take(f"PUB {THERE} - 1\nx\nPUB {THERE} - 1\ny\n")
    rig.replies.add(b"OK 61\n")
    await rig.hears(f"PUB {THERE} - 1\nx\nPUB {THERE} - 1\ny\n")
    rig.says("ERR SHUTTING_DOWN the broker is shutting down\n")
    async with asyncio.timeout(10):
        await rig.aborted.wait()
    rig.replies.add(b"OK 62\n")
    rig.replies.wake()
    await asyncio.sleep(0)
    assert rig.written == b"ERR SHUTTING_DOWN the broker is shutting down\n"
    assert rig.replies.take_due(float("inf")) == []


async def test_a_subscription_ends_with_its_worker_and_an_idle_connection_is_made_anew(rig: Rig) -> None:
    rig.take(f"PUB {THERE} - 1\nx\n")
    await rig.hears(f"PUB {THERE} - 1\nx\n")
    rig.says("OK 0\n")
    await rig.client_reads("OK 0\n")
    rig.writer.close()
    rig.there.clear()
    for _ in range(5):
        await asyncio.sleep(0)
    assert rig.passing.links.open == {}
    assert not rig.aborted.is_set()
    rig.take(f"SUB {THERE} c\n")
    await rig.hears(f"SUB {THERE} c\n")
    rig.says("OK 0\n")
    await rig.client_reads("OK 0\n")
    rig.writer.close()
    async with asyncio.timeout(10):
        await rig.aborted.wait()


async def test_a_worker_that_is_not_there(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "missing")
    with pytest.raises(PlacementUnknown, match="worker 1 cannot be reached"):
        rig.take(f"PUB {THERE} - 1\nx\n")
    part = Publish(THERE, [b"p", b"q"], [b"x", b"y"], seqs=[6, 1])
    assert [type(one) for one in rig.passing.take_part(part, rig.refused) or ()] == [Refused, Refused]
    assert rig.refused.admit(THERE, [b"p"], [7], 0) == 0, "what comes behind one that was refused, would be stored before it"


async def test_what_is_for_a_worker_that_is_not_up_is_refused_and_nothing_of_it_was_done(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Found: the command was answered SHUTTING_DOWN, which ends the connection, or waited as long as the worker was down."""
    monkeypatch.setattr(upstream, "REACH_S", 0.0)
    rig.greets = False
    rig.take(f"PUB {THERE} p 1 seq=4\nx\nPUB {THERE} p 1 seq=5\nx\n")
    rig.take("TOPICS\n")
    rig.take(f"FETCH {THERE} 0 1\n")
    rig.replies.add(b"PONG\n")
    refusal = "ERR PLACEMENT_UNKNOWN worker 1 does not answer, so its topics are not known: try again\n"
    listed = refusal.replace("worker 1", "worker 0")
    await rig.client_reads(f"{refusal}{refusal}{listed}{refusal}PONG\n")
    while len(rig.writers) < 2:  # noqa: ASYNC110 (it takes connections that have ended)
        await asyncio.sleep(0)
    assert not rig.aborted.is_set()
    assert rig.refused.admit(THERE, [b"p"], [6], 0) == 0


async def test_a_worker_that_is_slow_to_come_up_is_waited_for(rig: Rig) -> None:
    rig.greets = False
    rig.take(f"FETCH {THERE} 0 1\n")
    await rig.hears("PING\n")
    rig.says("PONG\n")
    await rig.hears(f"FETCH {THERE} 0 1\n")
    rig.says("OK 0\n")
    await rig.client_reads("OK 0\n")


STANDS_STILL = f"ERR PLACEMENT_UNKNOWN worker 1 {standstill(77)}\n"


@pytest.fixture
async def standing(tmp_path: Path) -> AsyncIterator[tuple[Rig, set[int]]]:
    """Yield a session of worker 0, and the set of workers that hang."""
    still: set[int] = set()
    addresses, sockets = ("127.0.0.1:1", "127.0.0.1:2"), (str(tmp_path / "s"), str(tmp_path / "s"))
    placement = Placement(0, addresses, sockets, changes=[0, 0], pids=[76, 77], stands_still=still.__contains__)
    async with running_rig(tmp_path, placement) as rig:
        yield rig, still


async def refused(rig: Rig, text: str) -> None:
    """Check that the command is refused, that nothing is sent, and that later commands are answered."""
    with pytest.raises(PlacementUnknown) as refusal:
        rig.take(text)
    assert f"ERR PLACEMENT_UNKNOWN {refusal.value}\n" == STANDS_STILL


async def test_what_is_for_a_worker_that_stands_still_is_refused_by_name_until_it_goes_on(
    standing: tuple[Rig, set[int]]
) -> None:  # fmt: skip
    """Found: such a command delayed the replies to all that its client had sent after it by 20 s, each time anew; over an open
    connection, as long as the worker hung."""
    rig, still = standing
    still.add(1)
    for text in (f"PUB {THERE} - 1\nx\n", f"SUB {THERE} c\n", f"FETCH {THERE} 0 1\n", f"ACK {THERE} c 0\n", "TOPICS\n"):
        await refused(rig, text)
    part = Publish(THERE, [b"p"], [b"x"], seqs=[6])
    assert [type(one) for one in rig.passing.take_part(part, rig.refused) or ()] == [Refused]
    assert rig.refused.admit(THERE, [b"p"], [7], 0) == 0, "what comes behind one that was refused, would be stored before it"
    assert (rig.passing.links.open.keys() - {0}, rig.aborted.is_set()) == (set(), False)
    still.clear()
    rig.take(f"SUB {THERE} c\n")
    await rig.hears(f"SUB {THERE} c\n")
    rig.says(f"OK 1\nMSG {THERE} 0 1 9 - 1\nx\n")
    await rig.client_reads(f"OK 1\nMSG {THERE} 0 1 9 - 1\nx\n")
    still.add(1)
    await refused(rig, f"PUB {THERE} - 1\nx\n")
    rig.take(f"ACK {THERE} c 0\n")
    await rig.hears(f"ACK {THERE} c 0\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")


async def test_what_waits_for_a_worker_when_that_is_found_to_stand_still_is_refused(
    standing: tuple[Rig, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "LOOK_AT_BEATS_S", 0.0)
    rig, still = standing
    rig.greets = False
    rig.take(f"PUB {THERE} p 1 seq=4\nx\n")
    rig.replies.add(b"PONG\n")
    await rig.hears("PING\n")
    still.add(1)
    await rig.client_reads(f"{STANDS_STILL}PONG\n")
    assert rig.refused.admit(THERE, [b"p"], [5], 0) == 0


async def test_a_subscription_to_all_does_not_wait_for_one_that_stands_still(
    standing: tuple[Rig, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Found: each SUB waited two seconds for it. The worker joins the subscription when it goes on."""
    monkeypatch.setattr(spread_subscription, "PATIENCE_S", 1000.0)
    monkeypatch.setattr(spread_subscription, "RETRY_MIN_S", 0.0)
    rig, still = standing
    still.add(1)
    rig.take("SUB x.* c\n")
    await rig.hears("SUB x.* c\n")
    rig.says("OK 3\n")
    await rig.client_reads("OK 3\n")
    rig.there.clear()
    still.clear()
    await rig.hears("SUB x.* c\n")


async def test_where_one_that_stands_still_holds_up_the_replies_of_others_the_session_ends_as_when_it_dies(
    standing: tuple[Rig, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """What was sent to the worker may be stored. Found: other workers' replies waited as long as it hung, or until the client
    gave up. A client that waits for this worker only goes on with it."""
    monkeypatch.setattr(place_links, "LOOK_AT_BEATS_S", 0.0)
    rig, still = standing
    rig.take(f"PUB {THERE} p 1 seq=4\nx\n")
    await rig.hears(f"PUB {THERE} p 1 seq=4\nx\n")
    still.add(1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not rig.aborted.is_set()
    rig.replies.add(b"OK 5\n")
    async with asyncio.timeout(10):
        await rig.aborted.wait()
    assert rig.written == b"", "a reply would be taken for the missing one"


async def test_a_list_without_a_group_is_refused_and_the_client_stays(of_groups: Rig) -> None:
    rig = of_groups
    rig.take("TOPICS\n")
    rig.replies.add(b"PONG\n")
    await rig.hears("TOPICS\n")
    rig.writer.close()
    await rig.client_reads("ERR PLACEMENT_UNKNOWN group b does not answer, so its topics are not known: try again\nPONG\n")
    assert not rig.aborted.is_set()


async def test_the_refusal_says_what_is_known_to_be_wrong_with_the_group(
    of_groups: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = of_groups
    monkeypatch.setattr(Groups, "problem_of", lambda self, place: "has had no leader for 9 s: look at its nodes")
    rig.take("STATS\n")
    await rig.hears("STATS\n")
    rig.writer.close()
    problem = "group b has had no leader for 9 s: look at its nodes"
    await rig.client_reads(f"ERR PLACEMENT_UNKNOWN {problem}\n")


async def test_the_refusal_says_what_the_other_group_says(of_groups: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = of_groups
    rig.greets = False
    monkeypatch.setattr(upstream.Upstream, "refusal", "AUTH_FAILED the secret that was shown is another one")
    rig.take("STATS\n")
    async with asyncio.timeout(10):
        await rig.there.wait()
    rig.writer.close()
    said = "group b refuses this node: AUTH_FAILED the secret that was shown is another one"
    await rig.client_reads(f"ERR PLACEMENT_UNKNOWN {said}\n")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_subscription, "PATIENCE_S", 0.0)
    monkeypatch.setattr(spread_subscription, "RETRY_MIN_S", 0.0)


async def test_no_place_is_asked_to_deliver_while_one_has_not_answered(of_groups: Rig) -> None:
    """Found: deliveries waited here for up to 2 s while their leases ran, and could end before the client had them."""
    rig = of_groups
    rig.greets = False
    rig.take("SUB x.* c\n")
    await rig.hears("PING\n")
    rig.take("TOPICS\n")
    while not rig.here_heard:  # noqa: ASYNC110 (of a socket)
        await asyncio.sleep(0)
    assert rig.here_heard == ["TOPICS\n"], "the place answers what is no subscription"
    rig.says("PONG\n")
    await rig.hears("TOPICS\nSUB x.* c\n")
    rig.says("JSON 2\n[]\nOK 1\n")
    await rig.client_reads("OK 1\nJSON 2\n[]\n")
    assert rig.here_heard == ["TOPICS\n", "SUB x.* c\n"]


@pytest.mark.usefixtures("impatient")
async def test_a_subscription_without_a_group_has_the_others_and_joins_it_when_it_is_back(of_groups: Rig) -> None:
    """Found: the client's connection ended again and again, and each try took an attempt of the other groups' messages."""
    rig = of_groups
    rig.take("SUB x.* c\n")
    await rig.hears("SUB x.* c\n")
    rig.there.clear()
    rig.writer.close()
    await rig.client_reads("OK 0\n")
    await rig.hears("SUB x.* c\n")
    rig.says("OK 1\nMSG x.b 0 1 9 - 1\ny\n")
    await rig.client_reads("MSG x.b 0 1 9 - 1\ny\n")
    assert not rig.aborted.is_set()
    assert rig.take("UNSUB x.* c\n")
    await rig.hears("HELD x.* c uncounted=0\n")
    rig.says("OK 0\n")
    await rig.hears("UNSUB x.* c uncounted=1\n")
    rig.says("OK 0\n")
    await rig.client_reads("OK 0\n")
    assert rig.here_heard == ["SUB x.* c\n", "HELD x.* c uncounted=0\n", "UNSUB x.* c uncounted=1\n"]
    assert rig.take("SUB x.* c\n"), "it can be subscribed again"


@pytest.mark.usefixtures("impatient")
async def test_a_group_that_goes_before_it_has_answered_is_asked_once_when_it_is_back(of_groups: Rig) -> None:
    rig = of_groups
    rig.greets = False
    rig.take("SUB x.* c\n")
    await rig.hears("PING\n")
    await rig.client_reads("OK 0\n")
    rig.there.clear()
    rig.greets = True
    rig.writer.close()
    await rig.hears("SUB x.* c\n")
    rig.says("OK 1\n")
    rig.take("TOPICS\n")
    await rig.hears("TOPICS\n")


@pytest.mark.usefixtures("impatient")
async def test_an_unsub_while_a_group_is_away_ends_it_there_too(of_groups: Rig) -> None:
    rig = of_groups
    rig.take("SUB x.* c\n")
    await rig.client_reads("OK 0\n")
    assert rig.take("UNSUB x.* other\n"), "of another consumer: it ends nothing"
    assert rig.take("UNSUB x.* c\n")
    await rig.client_reads("OK 0\nOK 0\n")
    await rig.hears("SUB x.* c\nUNSUB x.* c uncounted=1\n")
    rig.says("OK 1\nMSG x.b 0 1 9 - 1\ny\nOK 0\n")
    rig.take("TOPICS\n")
    await rig.hears("TOPICS\n")
    rig.says("JSON 2\n[]\n")
    await rig.client_reads("JSON 2\n[]\n")


async def test_what_is_behind_a_subscription_of_all_waits_for_its_reply(of_groups: Rig) -> None:
    """Otherwise an UNSUB in the same packet would be executed before its SUB."""
    rig = of_groups
    rig.take("SUB x.* c\n")
    assert rig.gate.closed
    await rig.hears("SUB x.* c\n")
    rig.says("ERR MODE_CONFLICT no\n")
    await rig.client_reads("ERR MODE_CONFLICT no\n")
    assert not rig.gate.closed
    assert not rig.take("UNSUB x.* c\n")
    while len(rig.here_heard) < 2:  # noqa: ASYNC110 (of a socket)
        await asyncio.sleep(0)
    assert rig.here_heard == ["SUB x.* c\n", "UNSUB x.* c uncounted=1\n"]


async def test_a_refusal_that_ends_the_connection_there_ends_it_here(of_groups: Rig) -> None:
    rig = of_groups
    rig.take("SUB x.* c\n")
    await rig.hears("SUB x.* c\n")
    rig.says("ERR TOO_MANY_CONNECTIONS 100 is the limit\n")
    await rig.client_reads("ERR TOO_MANY_CONNECTIONS 100 is the limit\n")
    async with asyncio.timeout(10):
        await rig.aborted.wait()


async def test_one_that_is_taken_over_at_a_group_ends_everywhere_and_is_told_once(of_groups: Rig) -> None:
    """Found: the other groups went on with a subscription that the client considered ended, and each sent a CLOSED."""
    rig = of_groups
    rig.take("SUB x.* c\n")
    await rig.hears("SUB x.* c\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")
    rig.says("CLOSED x.b c TAKEN_OVER\nCLOSED x.* c TAKEN_OVER\n")
    await rig.client_reads("CLOSED x.b c TAKEN_OVER\nCLOSED x.* c TAKEN_OVER\n")
    while len(rig.here_heard) < 2:  # noqa: ASYNC110 (of a socket)
        await asyncio.sleep(0)
    assert rig.here_heard == ["SUB x.* c\n", "UNSUB x.* c\n"]
    assert rig.take("SUB x.* c\n")


@pytest.mark.parametrize("shutting_down", [False, True])
async def test_where_a_group_or_worker_shuts_down_the_client_of_a_pattern_subscribes_again(
    of_groups: Rig, shutting_down: bool
) -> None:  # fmt: skip
    """Found: the client got CLOSED with SHUTTING_DOWN, which announces the end of the connection, but the connection stayed: it
    waited for ever."""
    rig = of_groups
    rig.take("SUB x.* c\n")
    await rig.hears("SUB x.* c\n")
    rig.says("OK 1\n")
    await rig.client_reads("OK 1\n")
    rig.says("CLOSED x.* c SHUTTING_DOWN\n")
    await rig.client_reads("CLOSED x.* c SHUTTING_DOWN\n")
    assert not rig.aborted.is_set(), "what it has may be acked meanwhile"
    rig.passing.links.shutting_down = shutting_down
    rig.writer.close()
    if shutting_down:
        while rig.passing.links.open.get("b") is not None:  # noqa: ASYNC110 (the loss is heard in a pass of the loop)
            await asyncio.sleep(0)
        assert not rig.aborted.is_set(), "it waits for acks, too"
    else:
        async with asyncio.timeout(10):
            await rig.aborted.wait()


async def subscribe_to_both(rig: Rig) -> None:
    """Subscribe. The client then has a message of each group: x.a 3 of this one, x.b 0 of the other."""
    rig.held_here = b"OK 1 x.a 3\n"
    rig.take("SUB x.* c\n")
    await rig.hears("SUB x.* c\n")
    rig.says("OK 1\nMSG x.b 0 1 9 - 1\ny\n")
    await rig.client_reads("OK 1\nMSG x.b 0 1 9 - 1\ny\n")


@pytest.mark.parametrize("end", ["eof", "lost"])
async def test_of_what_a_client_had_at_several_groups_only_the_message_that_came_first_counts_an_attempt(
    of_groups: Rig, end: str
) -> None:
    """Found: at each group one message counted, so poison took healthy messages of other groups along."""
    rig = of_groups
    await subscribe_to_both(rig)
    (rig.passing.finish if end == "eof" else rig.passing.close)()
    await rig.hears("HELD x.* c uncounted=0\n")
    rig.says("MSG x.b 1 1 9 - 1\nz\nOK 2 x.b 0\n")
    await rig.hears("UNSUB x.* c uncounted=1\n")
    assert rig.here_heard == ["SUB x.* c\n", "HELD x.* c uncounted=0\n"], "what it holds is not known here, so it came before"
    rig.says("OK 0\n")
    assert await asyncio.wait_for(rig.reader.read(), 10) == b""
    assert rig.written == (b"MSG x.b 1 1 9 - 1\nz\n" if end == "eof" else b"")


async def test_what_a_client_has_said_to_be_uncounted_is_so_at_all_groups(of_groups: Rig) -> None:
    """Found: when the session was lost, the question which message counts revoked the client's HELD uncounted=1."""
    rig = of_groups
    await subscribe_to_both(rig)
    rig.take("HELD x.* c uncounted=1\n")
    await rig.hears("HELD x.* c uncounted=1\n")
    rig.says("OK 1 x.b 0\n")
    await rig.client_reads("OK 2 x.a 3\n")
    rig.passing.close()
    await rig.hears("UNSUB x.* c uncounted=1\n")
    assert rig.here_heard[-1] == "UNSUB x.* c uncounted=1\n"
