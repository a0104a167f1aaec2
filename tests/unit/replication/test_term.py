"""One term of a leader: what it needs to serve, what ends it, and operators' requests."""

import asyncio

from tests.support.node_rig import TTL_S, NodeRig, Run, Running, pair
from toymq_py.errors import TermEnded
from toymq_py.replication.agreement import Answer, Request, RequestKind


async def ask(rig: NodeRig, request: Request) -> Answer:
    """Ask as an operator. Returns: the answer."""
    await rig.tool.ask(request, await rig.tool.grant(30))
    for _ in range(1000):
        state = await rig.tool.read()
        if state.answer is not None and (state.request is None or state.answer.request >= state.request.revision):
            return state.answer
        await asyncio.sleep(0.02)
    raise AssertionError("no answer")


async def ended(rig: NodeRig, running: Running, why: str) -> None:
    await rig.until(running.task.done, "the term has ended")
    assert isinstance(running.ended_by, TermEnded)
    assert why in str(running.ended_by)
    assert running.office.said[-1] == "abandon", "nothing is said to clients any more"


def test_publishes_are_refused_below_the_minimum_and_only_then(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        await rig.led_by(n1)
        assert n1.office.refuses == "1 of 2 copies are in sync, and this cluster wants 2"
        n2 = rig.start("n2")
        await rig.led_by(n1, in_sync=2)
        assert n1.office.refuses is None
        n2.die()
        await rig.links[n1.member.replica].leave(n2.member.replica)
        assert n1.office.refuses is not None

    run(scenario, min_in_sync=2)


def test_a_new_leader_drops_the_one_before_and_waits_for_the_others(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        n3 = rig.start("n3")
        await rig.led_by(n1, in_sync=3)
        n1.die()
        await rig.until(lambda: "LEADING" in (n2.node.state, n3.node.state), "one of them leads")
        leads, follows = (n2, n3) if n2.node.state == "LEADING" else (n3, n2)
        assert leads.node.term is not None
        assert set(leads.node.term.in_sync.members) == {leads.member.replica, follows.member.replica}

    run(scenario, replicas=3)


def test_a_new_leader_does_not_wait_for_ever(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        n3 = rig.start("n3")
        await rig.led_by(n1, in_sync=3)
        n1.die()
        n3.die()
        await rig.until(lambda: n2.node.state == "OPENING", "n2 is elected")
        opened_at = rig.loop.time()
        await rig.led_by(n2)
        assert 0.5 < rig.loop.time() - opened_at < 0.9, "--promote-wait, for n3"

    run(scenario, replicas=3)


def test_a_new_leader_waits_longer_for_the_copies_without_which_it_would_refuse_publishes(run: Run) -> None:
    """Found in a hand-over of a busy triple: a client got NOT_ENOUGH_REPLICAS just before the third copy was back."""

    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        n3 = rig.start("n3")
        await rig.led_by(n1, in_sync=3)
        rig.cut = {"n2", "n3"}
        n1.die()
        await rig.until(lambda: "OPENING" in (n2.node.state, n3.node.state), "one of them is elected")
        leads = n2 if n2.node.state == "OPENING" else n3
        opened_at = rig.loop.time()
        await asyncio.sleep(1.0)
        assert leads.node.state == "OPENING"
        rig.cut = set()
        await rig.led_by(leads, in_sync=2)
        assert rig.loop.time() - opened_at < 2.4
        assert leads.office.refuses is None

    run(scenario, replicas=3, min_in_sync=2)


def test_a_new_leader_refuses_publishes_when_too_few_copies_come(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        n1.die()
        await rig.until(lambda: n2.node.state == "OPENING", "n2 is elected")
        opened_at = rig.loop.time()
        await rig.led_by(n2)
        assert 2.5 < rig.loop.time() - opened_at < 2.9
        assert n2.office.refuses is not None

    run(scenario, min_in_sync=2)


def test_a_promise_of_a_higher_epoch_ends_the_term(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, _ = await pair(rig)
        assert n1.node.term is not None
        n1.node.term.fenced(999)
        await ended(rig, n1, "promised epoch 999")

    run(scenario)


def test_a_disk_that_hangs_ends_the_term_in_favour_of_another_copy(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        began = rig.loop.time()
        n1.office.trouble = "the disk has not answered for 2.1 s"
        await ended(rig, n1, "the disk has not answered")
        assert "retire" not in " ".join(n1.office.said), "that would wait for the disk"
        await rig.led_by(n2)
        assert rig.loop.time() - began < 2, "T4: the lease is not waited for"

    run(scenario)


def test_a_leader_whose_lease_may_have_ended_delivers_nothing_before_another_may_lead(run: Run) -> None:
    """Publishes still get OK: that needs the followers and not the lease."""

    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        await asyncio.sleep(5)
        assert 0 < n1.office.delivers_until - rig.loop.time() <= TTL_S
        rig.etcd.cut_off("n1")
        rig.cut = {"n1", "n2"}
        until = n1.office.delivers_until
        await rig.until(lambda: n2.node.state == "OPENING", "n2 is elected")
        assert n1.office.delivers_until == until, "no renewal had an answer"
        assert until <= rig.loop.time(), "n1 delivers no more when n2 begins to"
        assert n1.office.refuses is None

    run(scenario)


def test_deliveries_go_on_when_etcd_answers_again(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        await rig.led_by(n1)
        rig.etcd.cut_off("n1")
        await rig.until(lambda: n1.office.delivers_until < rig.loop.time() + 0.5, "the lease is about to end")
        rig.etcd.reconnect("n1")
        await rig.until(lambda: n1.office.delivers_until > rig.loop.time() + 2, "it was renewed")
        assert n1.node.state == "LEADING"

    run(scenario)


def test_a_disk_that_hangs_is_kept_while_no_other_copy_is_in_sync(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        await rig.led_by(n1)
        n1.office.trouble = "the disk has not answered for 2.1 s"
        await asyncio.sleep(20)
        assert n1.node.state == "LEADING"

    run(scenario)


def test_a_loop_that_is_late_again_ends_the_term(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        rig.loop.now += 1.6
        await asyncio.sleep(2)
        assert n1.node.state == "LEADING", "a pause that is over"
        rig.loop.now += 1.6
        await ended(rig, n1, "late 2 times")
        await rig.led_by(n2)

    run(scenario)


def test_a_hand_over_without_a_follower_is_refused(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        await rig.led_by(n1)
        answer = await ask(rig, Request(RequestKind.HAND_OVER, None, 0))
        assert not answer.accepted
        await asyncio.sleep(1)
        assert n1.node.state == "LEADING"

    run(scenario)


def test_a_node_that_does_not_come_back_is_removed(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        refused = await ask(rig, Request(RequestKind.REMOVE, n2.member.replica, 0))
        assert not refused.accepted, "it is connected"
        itself = await ask(rig, Request(RequestKind.REMOVE, n1.member.replica, 0))
        assert not itself.accepted
        links = rig.links[n1.member.replica]
        n2.die()
        await rig.until(lambda: not links.lags(), "n2 is gone")
        answer = await ask(rig, Request(RequestKind.REMOVE, n2.member.replica, 0))
        assert answer.accepted
        in_sync = (await rig.state()).in_sync
        assert in_sync is not None
        assert in_sync.members == (n1.member.replica,)

    run(scenario)


def test_force_is_refused_while_a_node_leads(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, n2 = await pair(rig)
        in_sync = (await rig.state()).in_sync
        assert in_sync is not None
        answer = await ask(rig, Request(RequestKind.FORCE, n2.member.replica, in_sync.revision))
        assert not answer.accepted
        assert n1.node.state == "LEADING"

    run(scenario)


def test_a_node_that_is_stopped_while_it_opens_hands_over(run: Run) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1 = rig.start("n1")
        n1.office.opening_s = 2.0
        await rig.until(lambda: n1.node.state == "OPENING", "n1 opens")
        n1.node.stop()
        await rig.until(n1.task.done, "n1 has ended")
        assert n1.office.said == ["open", "retire", "abandon"], "it has served no one"
        assert (await rig.state()).leader is None

    run(scenario)
