"""The values that alert rules measure, on a real broker."""

import random

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.http_rig import HttpRig, gateway
from tests.support.sim_disk import SimDisk
from toymq_py.config.alerts import Condition
from toymq_py.consumer_options import EARLIEST
from toymq_py.gateway.alert_readings import NOTHING, Subjects, measure
from toymq_py.gateway.alert_states import Reading

LATER = {"X-Delay-Ms": "3600000"}


@pytest.mark.parametrize(
    ("when", "topic", "measured"),
    [
        ("lag", "orders.*", {"orders.1": "orders.1", "orders.1.dlq": None, "other": None}),
        ("lag", ">", {"orders.1": "orders.1", "orders.1.dlq": None}),
        ("letters", "orders.*", {"orders.1": None, "orders.1.dlq": "orders.1", "other.dlq": None}),
        ("letters", ">", {"a.dlq": "a", "a.b.dlq": "a.b", "a": None}),
    ],
)
def test_patterns_measure_topics_and_letters_those_of_dead_letters(
    when: Condition, topic: str, measured: dict[str, str | None]
) -> None:
    subjects = Subjects(when, topic)
    assert subjects.exact is None
    assert {name: subjects.of(name) for name in measured} == measured


def test_a_name_is_looked_up() -> None:
    assert Subjects("lag", "orders").exact == "orders"
    letters = Subjects("letters", "orders")
    assert (letters.exact, letters.of("orders.dlq")) == ("orders.dlq", "orders")


async def lagging(rig: HttpRig) -> None:
    """Make topic ``t`` with 5 messages: ``slow`` has acked none, ``fast`` all but one."""
    topic = rig.broker.topic_or_new("t")
    for name in ("slow", "fast"):
        topic.seek(name, EARLIEST)
    await rig.publish("t", *"abcde")
    topic.ack("fast", [(0, 3)], unseen=True)


async def test_the_worst_consumer_counts() -> None:
    async with gateway("/data/d", fs=SimDisk(random.Random(1))) as rig:
        await lagging(rig)
        topic = rig.broker.topic("t")
        assert measure("lag", topic) == Reading(5, "slow")
        assert measure("unattached", topic) == Reading(5, "slow")
        aged = measure("age", topic)
        assert aged.consumer == "slow"
        assert 0 <= aged.value < 60_000
        assert len(await rig.lease("t", "slow", max=1)) == 1
        assert measure("unattached", topic) == Reading(1, "fast"), "a lease is attached: a worker that pulls has one"
        topic.ack("fast", [(4, 4)], unseen=True)
        assert measure("unattached", topic) == NOTHING
        topic.ack("slow", [(0, 4)], unseen=True)
        assert (measure("lag", topic), measure("age", topic)) == (NOTHING, NOTHING)


async def test_what_a_consumer_fails_at_and_gives_back_is_lag_and_grows_old_until_it_is_acked() -> None:
    """Found by trials: while a webhook's endpoint was dead, alerts on lag and age were resolved, since all messages were given
    back for a while."""
    async with gateway("/data/d", fs=SimDisk(random.Random(1))) as rig:
        await rig.publish("t", "a", "b", "c")
        topic = rig.broker.topic("t")
        assert len(await rig.lease("t", max=3)) == 3
        assert measure("retrying", topic) == NOTHING, "nothing has failed yet"
        assert topic.nack("c", [(0, 2)], 300.0) == 3
        assert (topic.channel("c").consumer.counts(topic.next_id).backlog, measure("lag", topic)) == (0, Reading(3, "c", 3))
        assert measure("retrying", topic) == Reading(3, "c")
        topic.context.clock = FakeClock(topic.context.clock.wall_ns() + 900 * 10**9)
        aged = measure("age", topic)
        assert (aged.consumer, 900_000 <= aged.value < 960_000) == ("c", True), "since it was due first"
        topic.ack("c", [(0, 2)], unseen=True)
        assert {measure(when, topic) for when in ("lag", "age", "retrying")} == {NOTHING}


async def test_what_is_published_for_later_is_no_lag() -> None:
    async with gateway("/data/d", fs=SimDisk(random.Random(1))) as rig:
        topic = rig.broker.topic_or_new("t")
        topic.seek("c", EARLIEST)
        assert (await rig.ask("POST", "/v1/topics/t/messages", content="a", headers=LATER)).status_code == 201
        assert {measure(when, topic) for when in ("lag", "age", "retrying", "unattached")} == {NOTHING}


async def test_messages_without_any_consumer_have_nothing_attached() -> None:
    async with gateway("/data/d", fs=SimDisk(random.Random(1))) as rig:
        await rig.publish("t", "a", "b")
        topic = rig.broker.topic("t")
        assert (measure("unattached", topic), measure("lag", topic)) == (Reading(2), NOTHING)
        for _ in range(2):
            assert (await rig.ask("POST", "/v1/topics/t/messages", content="c", headers=LATER)).status_code == 201
        assert measure("unattached", topic) == Reading(2), "what is not due waits for its time, and for no consumer"
        topic.context.is_stream = True
        assert measure("unattached", topic) == NOTHING, "its readers come and go, and nothing waits for them"


async def test_letters_are_those_that_did_not_go_back() -> None:
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), max_attempts=1) as rig:
        await rig.publish("t", "a", "b", "c")
        for message in await rig.lease("t", max=3):
            await rig.ask("POST", f"/v1/topics/t/messages/{message['id']}:nack?consumer=c")
        await rig.until(lambda: "t.dlq" in rig.broker.topics and rig.broker.topic("t.dlq").log.committed_id == 3)
        letters = rig.broker.topic("t.dlq")
        assert measure("letters", letters) == Reading(3)
        letters.redrive_consumer.ack([0, 2])
        assert measure("letters", letters) == Reading(1)
