"""The states of a node: leading, following, and what it does while it does not know the leader."""

import asyncio
import shutil
from dataclasses import replace

import pytest

from tests.support.node_rig import TTL_S, UUID, NodeRig, Run, pair
from tests.support.simulated_etcd import LATE_S, Loss
from toymq_py.errors import DataDirectoryError, LeaseLost, TermEnded
from toymq_py.replication.agreement import Member, Outcome, Request, RequestKind
from toymq_py.replication.follower_link import FollowEnd


def test_the_first_node_begins_the_group(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        await rig.led_by(n1)
        assert n1.office.said == ["open", "serve"]
        assert n1.node.elected_as == "began"
        state = await rig.state()
        assert state.leader is not None
        assert state.leader.epoch == n1.file.record.promised, "it has promised its epoch before it opened"
        assert state.leader.lease == n1.file.record.lease

    run(scenario)


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("seed", range(3))
def test_an_election_without_an_answer_is_settled_by_a_read(run: Run, loss: Loss, seed: int) -> None:
    """T1: if the read shows the node as the leader of an epoch that it has not promised, it opens; if not, it tries again."""

    async def scenario(rig: NodeRig) -> None:
        rig.etcd.lose("n1", loss)
        n1 = rig.start("n1")
        await rig.led_by(n1)
        await asyncio.sleep(LATE_S[1] + 2 * TTL_S)
        assert n1.node.state == "LEADING", "a late T1 changes nothing"
        state = await rig.state()
        assert state.leader is not None
        assert state.leader.epoch == n1.file.record.promised
        assert n1.office.said == ["open", "serve"], "it led once"

    run(scenario, seed=seed)


@pytest.mark.parametrize("loss", list(Loss))
def test_a_t2_without_an_answer_is_settled_by_a_read(run: Run, loss: Loss) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        rig.etcd.lose("n2", loss)
        n1.die()
        await rig.led_by(n2)
        await asyncio.sleep(LATE_S[1] + 2 * TTL_S)
        assert n2.node.state == "LEADING"

    run(scenario)


def test_a_leader_that_dies_is_replaced_when_its_lease_ends(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        died_at = rig.loop.time()
        assert n2.node.hears_leader
        n1.die()
        await rig.until(lambda: not n2.node.hears_leader, "the leader is in doubt", within_s=0.5)
        assert (await rig.state()).leader is not None, "etcd has it still"
        await rig.led_by(n2)
        assert rig.loop.time() - died_at < TTL_S + 1.0
        assert n2.node.elected_as == "leader_lost"
        assert n2.office.said == ["open", "serve"]

    run(scenario)


def test_a_restarted_node_ends_its_old_lease_first(run: Run) -> None:
    """T5: the node holds the directory's lock, so its earlier life is over, whatever etcd has."""

    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        await rig.led_by(n1)
        epoch = n1.file.record.promised
        n1.die()
        died_at = rig.loop.time()
        again = rig.start("n1")
        await rig.led_by(again)
        assert rig.loop.time() - died_at < 1.0, "it did not wait for the lease"
        assert again.file.record.promised > epoch, "never the same epoch again"
        assert again.node.elected_as == "restarted"

    run(scenario)


def test_a_restarted_node_ends_its_old_lease_though_it_leads_nothing(run: Run) -> None:
    """A T6 (``force``) that names the node may still be under way (ADR 0097, item 6)."""

    async def scenario(rig: NodeRig) -> None:
        _, n2 = await pair(rig)
        lease = n2.file.record.lease
        assert lease is not None
        n2.die()
        again = rig.start("n2")
        await rig.until(lambda: again.file.record.lease != lease, "it has a new lease")
        with pytest.raises(LeaseLost):
            rig.etcd.renew(lease)

    run(scenario)


def test_a_copy_of_a_leaders_directory_does_not_end_its_term(run: Run) -> None:
    """Found: a copied directory served at another address: each node revoked the other's lease, twice a second, and
    acknowledged messages were lost."""

    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        epoch = n1.file.record.promised
        shutil.copytree(rig.directory / "n1", rig.directory / "n9")
        copy = rig.start("n9")
        assert copy.member.replica == n1.member.replica
        await asyncio.sleep(5 * TTL_S)
        assert (n1.node.state, n1.file.record.promised, n1.office.said) == ("LEADING", epoch, ["open", "serve"])
        assert copy.node.waits_for.startswith("SAME_REPLICA: a leader at n1:2 has this replica id")
        n2.die()
        n1.die()
        await rig.led_by(copy)
        assert copy.file.record.promised > epoch, "it was the same node, at another address"

    run(scenario)


def test_a_copy_that_is_not_in_sync_waits_for_one_that_is(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        rig.cut = {"n1", "n2"}
        n2.die()
        await rig.links[n1.member.replica].leave(n2.member.replica)
        await rig.led_by(n1)
        n1.die()
        n2 = rig.start("n2")
        await asyncio.sleep(5 * TTL_S)
        assert n2.node.state == "LOOKING"
        assert n1.member.replica in n2.node.waits_for
        assert n2.office.said == []
        rig.cut = set()
        await rig.led_by(rig.start("n1"), in_sync=2)

    run(scenario)


def test_a_stopped_leader_hands_over(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        links = rig.links[n1.member.replica]
        stopped_at = rig.loop.time()
        n1.node.stop()
        await rig.led_by(n2)
        assert rig.loop.time() - stopped_at < 0.5, "the successor does not wait"
        assert n2.node.elected_as == "handed_over"
        assert n1.office.said == ["open", "serve", "retire in haste", "abandon"]
        assert links.said_bye
        await rig.until(n1.task.done, "n1 has ended")
        assert n1.task.result() is False, "it was stopped: it does not come back"

    run(scenario)


def test_without_a_successor_a_stopped_leader_takes_its_time(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        await rig.led_by(n1)
        n1.node.stop()
        await rig.until(n1.task.done, "n1 has ended")
        assert n1.office.said == ["open", "serve", "retire", "abandon"]
        assert (await rig.state()).leader is None

    run(scenario)


def test_others_leave_the_election_to_the_successor_for_a_second(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        n3 = rig.start("n3")
        await rig.led_by(n1, in_sync=3)
        lease = await rig.tool.grant(5)
        await rig.tool.hand_over(n1.file.record.promised, n3.member.replica, lease)
        await rig.led_by(n3, in_sync=2)
        assert n2.link.followed[-1] == ("n3", n3.file.record.promised)

    run(scenario, replicas=3)


def test_a_leader_whose_lease_is_gone_says_nothing_more(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        assert n1.file.record.lease is not None
        rig.etcd.end_lease(n1.file.record.lease)
        await rig.until(n1.task.done, "n1 has ended", within_s=2)
        assert isinstance(n1.ended_by, TermEnded)
        assert n1.office.said[-1] == "abandon"
        await rig.led_by(n2)

    run(scenario)


def test_a_follower_with_a_new_lease_says_at_once_where_it_is(run: Run) -> None:
    """Found: the follower was shown as away for up to a minute, though it was in sync."""

    async def scenario(rig: NodeRig) -> None:
        _, n2 = await pair(rig)
        await asyncio.sleep(TTL_S)
        lease = n2.file.record.lease
        assert lease is not None
        rig.etcd.end_lease(lease)
        await rig.until(lambda: n2.file.record.lease != lease, "it has a new lease")
        await asyncio.sleep(TTL_S)
        assert [(seat.state, seat.present) for seat in await rig.tool.seats()] == [("LEADING", True), ("FOLLOWING", True)]

    run(scenario)


def test_a_leader_goes_on_while_etcd_is_away(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        rig.etcd.away = True
        await asyncio.sleep(3 * TTL_S)
        assert n1.node.state == "LEADING", "nothing in an OK needs etcd"
        assert n2.node.state == "FOLLOWING"
        assert n1.office.said == ["open", "serve"]

    run(scenario)


def test_a_leader_that_is_cut_off_from_etcd_learns_that_it_is_replaced(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        rig.etcd.cut_off("n1")
        await rig.until(lambda: n2.node.term is not None, "n2 is elected")
        assert not n1.task.done()
        rig.etcd.reconnect("n1")
        await rig.until(n1.task.done, "n1 has ended")
        assert isinstance(n1.ended_by, TermEnded)
        await rig.led_by(n2)

    run(scenario)


def test_a_wiped_etcd_is_not_trusted_and_that_is_remembered(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        rig.etcd.wipe()
        await rig.tool.close()
        rig.tool = rig.etcd.agreement("tool2", "orders", "g0")
        await rig.tool.create_settings(rig.settings)
        await rig.until(n1.task.done, "n1 has ended")
        n2.die()
        again = rig.start("n2")
        await rig.until(lambda: again.file.record.distrusted, "n2 knows that etcd went back")
        rig.etcd.revision = 10_000
        await asyncio.sleep(30)
        assert again.office.said == []
        assert "see the runbook" in again.node.waits_for

    run(scenario)


def test_a_node_that_runs_while_etcd_goes_back_does_not_trust_it_when_its_revisions_have_grown_again(run: Run) -> None:
    """Found: within a minute the nodes' own writes took a restored etcd past the revisions that the node had seen."""

    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        rig.etcd.wipe()
        rig.tool = rig.etcd.agreement("tool2", "orders", "g0")
        await rig.tool.create_settings(rig.settings)
        await rig.until(lambda: n2.file.record.distrusted, "n2 has seen it")
        n1.die()
        rig.etcd.revision = 10_000
        lease = await rig.tool.grant(600)
        assert (await rig.tool.begin(n2.member, lease)).done, "an in-sync set of before that has n2"
        await rig.tool.revoke(lease)
        await asyncio.sleep(30)
        assert n2.office.said == []
        assert "see the runbook" in n2.node.waits_for

    run(scenario)


def test_a_leader_that_sees_etcd_go_back_ends_its_term_though_its_lease_lives_there(run: Run) -> None:
    """Found: etcd was restored from a snapshot that had the leader's lease: the leader renewed it, and went on until the
    revisions had grown again."""

    async def scenario(rig: NodeRig) -> None:
        n1, _ = await pair(rig)
        rig.etcd.revision += 1000
        await asyncio.sleep(10)
        rig.etcd.revision -= 1000
        await rig.until(n1.task.done, "n1 has ended")
        assert "etcd went back" in str(n1.ended_by)
        assert n1.file.record.distrusted
        rig.etcd.revision = 10_000
        again = rig.start("n1")
        await asyncio.sleep(30)
        assert again.office.said == []

    run(scenario)


def test_a_node_that_has_read_other_settings_does_not_begin_and_does_not_ask_without_end(run: Run) -> None:
    """Another copy was adopted since the node read the settings: T1 compares them."""

    async def scenario(rig: NodeRig) -> None:
        await rig.tool.settings()
        n1 = rig.start("n1")
        await n1.agreement.settings()
        assert (await rig.tool.adopt(replace(rig.settings, cluster="other", was=UUID, adopted="9" * 32))).done
        asked = 0
        begin = n1.agreement.begin

        async def counted(me: Member, lease: int) -> Outcome:
            nonlocal asked
            asked += 1
            return await begin(me, lease)

        n1.agreement.begin = counted  # type: ignore[method-assign]
        await asyncio.sleep(30)
        assert n1.office.said == []
        assert 0 < asked < 200

    run(scenario)


def test_force_makes_a_copy_lead_that_is_not_in_sync(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        n2.die()
        await rig.links[n1.member.replica].leave(n2.member.replica)
        n1.die()
        n2 = rig.start("n2")
        await rig.until(lambda: bool(n2.node.waits_for), "n2 waits")
        await asyncio.sleep(2 * TTL_S)
        in_sync = (await rig.state()).in_sync
        assert in_sync is not None
        lease = await rig.tool.grant(30)
        request = await rig.tool.ask(Request(RequestKind.FORCE, n2.member.replica, in_sync.revision), lease)
        assert request.done
        await rig.led_by(n2)
        assert n2.node.elected_as == "forced"
        answer = (await rig.state()).answer
        assert answer is not None
        assert answer.accepted

    run(scenario)


@pytest.mark.parametrize("loss", list(Loss))
def test_a_force_without_an_answer_is_settled_before_anything_else(run: Run, loss: Loss) -> None:
    """The node revokes the lease of the attempt, so a late T6 cannot make a copy the leader that has begun to follow."""

    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        n2.die()
        await rig.links[n1.member.replica].leave(n2.member.replica)
        n1.die()
        n2 = rig.start("n2")
        await asyncio.sleep(2 * TTL_S)
        lease = n2.file.record.lease
        in_sync = (await rig.state()).in_sync
        assert in_sync is not None
        forced = n2.agreement.force

        async def lossy(*arguments: object) -> object:
            rig.etcd.lose("n2", loss)
            return await forced(*arguments)  # type: ignore[arg-type]

        n2.agreement.force = lossy  # type: ignore[method-assign, assignment]
        request = Request(RequestKind.FORCE, n2.member.replica, in_sync.revision)
        await rig.tool.ask(request, await rig.tool.grant(30))
        await asyncio.sleep(LATE_S[1] + 2 * TTL_S)
        assert n2.file.record.lease != lease, "the lease that T6 named is gone"
        state = await rig.state()
        if loss is Loss.ANSWER:
            assert n2.node.state == "LEADING", "it has happened, and then a T2 follows"
        else:
            assert state.leader is None

    run(scenario)


def test_a_handed_over_request_of_an_operator_comes_back_as_a_follower(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        lease = await rig.tool.grant(30)
        await rig.tool.ask(Request(RequestKind.HAND_OVER, n2.member.replica, 0), lease)
        await rig.until(n1.task.done, "n1 has handed over")
        assert n1.task.result() is True
        await rig.led_by(n2)
        await rig.led_by(n2, in_sync=1)
        rig.start("n1")
        await rig.led_by(n2, in_sync=2)

    run(scenario)


def test_a_recovery_that_fails_ends_the_node_with_its_reason(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        n1.office.error = DataDirectoryError("damaged")
        await rig.until(n1.task.done, "n1 has ended")
        assert isinstance(n1.ended_by, DataDirectoryError)

    run(scenario)


def test_a_node_that_follows_keeps_its_link_when_its_lease_is_lost(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        followed = list(n2.link.followed)
        assert n2.file.record.lease is not None
        rig.etcd.end_lease(n2.file.record.lease)
        await asyncio.sleep(2 * TTL_S)
        assert n2.link.followed == followed
        assert n1.node.state == "LEADING"

    run(scenario)


def test_losses_of_every_call_end_in_one_leader(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        rig.etcd.loss_chance = 0.2
        nodes = [rig.start("n1"), rig.start("n2")]
        for _ in range(20):
            await asyncio.sleep(5)
            leaders = [each for each in nodes if not each.task.done() and each.node.state == "LEADING"]
            assert len(leaders) <= 2
            nodes = [rig.start(each.member.name) if each.task.done() else each for each in nodes]
        rig.etcd.loss_chance = 0.0
        await rig.until(lambda: sum(each.node.state == "LEADING" for each in nodes if not each.task.done()) == 1, "one leads")

    run(scenario)


def test_etcd_that_does_not_answer_is_waited_for(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        rig.etcd.away = True
        n1 = rig.start("n1")
        await asyncio.sleep(20)
        assert "etcd does not answer" in n1.node.waits_for
        rig.etcd.away = False
        await rig.led_by(n1)

    run(scenario)


def test_a_node_whose_topics_are_away_waits_for_them_and_follows_then(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        await rig.led_by(n1)
        n2 = rig.start("n2")
        follow, n2.link.follow = n2.link.follow, refuse  # type: ignore[method-assign]
        await rig.until(lambda: n2.node.waits_for == "topics is empty: mount it", "it says so")
        n2.link.follow = follow  # type: ignore[method-assign]
        await rig.led_by(n1, in_sync=2)

    async def refuse(leader: object, epoch: int) -> FollowEnd:
        raise DataDirectoryError("topics is empty: mount it")

    run(scenario)
