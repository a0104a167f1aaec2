"""The broker's history of an hour: rates, backlog, slow consumers, and bounds. ADR 0145."""

import tracemalloc

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.dead_letters import dead
from toymq_py.observability import history as module
from toymq_py.observability.history import ROWS, SLOW_S, STEP_S, TOPIC_COLUMNS, History, Ring

HOUR_S = ROWS * STEP_S


async def step(rig: BrokerRig, history: History, steps: int = 1) -> None:
    for _ in range(steps):
        rig.advance(STEP_S)
        await history.sample()


async def begun(rig: BrokerRig, **options: int) -> History:
    history = History(rig.broker, rig.clock, **options)
    await history.sample()
    return history


async def test_rates_and_what_waits_by_step() -> None:
    rig = BrokerRig()
    rig.publish("t", b"before")
    history = await begun(rig)
    subscription = rig.subscribe("t")
    rig.publish("t", *[b"x"] * 29)
    rig.take(subscription)
    rig.ack("t", 0, 19)
    await step(rig, history)
    await step(rig, history)
    window = history.window(3 * STEP_S)
    assert window.last_ms == rig.clock.wall_ns() // 1_000_000
    assert history.topic("t", window) == {
        "published": [None, 2.9, 0], "acked": [None, 2, 0], "backlog": [1, 10, 10], "oldest_s": [0, 10, 20],
        "letters": [0, 0, 0],
    }  # fmt: skip
    assert history.whole(window) == {
        "published": [None, 2.9, 0], "delivered": [None, 3, 0], "acked": [None, 2, 0], "redelivered": [None, 0, 0],
        "backlog": [1, 10, 10], "oldest_s": [0, 10, 20], "letters": [0, 0, 0],
    }  # fmt: skip
    assert history.topic("nothing", window) is None


async def test_an_hour_is_kept_and_no_more() -> None:
    rig = BrokerRig()
    history = await begun(rig)
    rig.publish("t", *[b"x"] * STEP_S)
    await step(rig, history, ROWS)
    window = history.window(2 * HOUR_S)
    assert window.last - window.first + 1 == ROWS
    found = history.topic("t", window)
    assert found is not None
    assert found["published"] == [1, *[0] * (ROWS - 1)]
    assert found["oldest_s"] == [0] * ROWS, "no consumer, none that waits"
    await step(rig, history)
    assert history.whole(history.window(HOUR_S))["published"] == [0] * ROWS
    assert history.whole(window)["published"] == [1, *[0] * (ROWS - 1)], "an answer that began a step ago is whole"
    await step(rig, history)
    assert history.whole(window)["published"] == [None, *[0] * (ROWS - 1)], "one of two steps ago lacks a row"


async def test_before_the_start_and_in_a_gap_nothing_is_known() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    history = await begun(rig)
    rig.advance(3 * STEP_S)
    rig.publish("t", *[b"x"] * 60)
    await history.sample()
    await history.sample()  # this step has its sample
    window = history.window(6 * STEP_S)
    assert history.whole(window)["published"] == [None, None, None, None, None, 2], "sixty in the thirty seconds that it saw"
    found = history.topic("t", window)
    assert found is not None
    assert found["backlog"] == [None, None, 1, None, None, 61]


async def test_letters_count_at_both_topics_until_they_went_back() -> None:
    rig = dead(3)
    history = await begun(rig)
    assert rig.redrive("t.dlq", [(1, 1)]) == (1, None)
    await step(rig, history)
    window = history.window(2 * STEP_S)
    for name in ("t", "t.dlq"):
        found = history.topic(name, window)
        assert found is not None
        assert found["letters"] == [3, 2], name
    dead_letters = history.topic("t.dlq", window)
    assert dead_letters is not None
    assert dead_letters["backlog"] == [3, 2], "a letter that went back waits no longer"
    whole = history.whole(window)
    assert whole["letters"] == [3, 2], "each counts once"
    assert whole["backlog"] == [0, 1], "letters are no backlog"


async def test_a_consumer_is_slow_until_it_is_not() -> None:
    rig = BrokerRig()
    history = await begun(rig)
    rig.publish("t", b"a")
    then_ms = rig.clock.wall_ns() // 1_000_000
    rig.subscribe("t")
    await step(rig, history, SLOW_S // STEP_S)
    assert history.slow_since_ms("t", "c") is None, "a minute is not more than a minute"
    await step(rig, history)
    assert history.slow_since_ms("t", "c") == then_ms + SLOW_S * 1000
    for _ in range(10):  # it goes on, always as far behind
        rig.publish("t", b"x")
        await step(rig, history)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 2)
    await step(rig, history)
    assert history.slow_since_ms("t", "c") == then_ms + SLOW_S * 1000, "another message is the oldest, it is as slow as before"
    rig.ack("t", 3, 10)
    await step(rig, history)
    assert history.slow_since_ms("t", "c") is None


async def test_topics_that_are_gone_are_forgotten_and_new_ones_begin_anew() -> None:
    rig = BrokerRig()
    history = await begun(rig)
    rig.publish("t", *[b"x"] * 50)
    await step(rig, history)
    rig.broker.delete("t", lambda count, error: None)
    rig.loop.drain()
    await step(rig, history)
    assert history.topics == []
    rig.publish("t", *[b"x"] * 10)
    await step(rig, history)
    found = history.topic("t", history.window(3 * STEP_S))
    assert found is not None
    assert found["published"] == [None, None, 1]


async def test_at_the_bound_a_topic_takes_the_place_of_one_that_rests_for_an_hour() -> None:
    rig = BrokerRig()
    history = await begun(rig, topics_max=2)
    for name in ("busy", "idle", "late", "empty"):
        rig.publish(name, b"x")
        await step(rig, history)
    rig.broker.topic("empty").purge(lambda count, error: None)
    assert (history.topics, history.topics_left_out) == (["busy", "idle"], 2)
    for _ in range(ROWS):
        rig.publish("busy", b"x")
        await step(rig, history)
    assert (history.topics, history.topics_left_out) == (["busy", "late"], 2)
    found = history.topic("late", history.window(HOUR_S))
    assert found is not None
    assert set(found["published"]) == {None, 0}, "its messages of an hour ago are no rate of now"


async def test_what_stands_still_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BrokerRig()
    history = await begun(rig)
    rig.publish("t", b"a", b"b")
    rig.subscribe("t")
    reads: list[str] = []
    oldest = module.oldest_due_ns
    monkeypatch.setattr(module, "oldest_due_ns", lambda channel: reads.append(channel.consumer.name) or oldest(channel))
    await step(rig, history, 5)
    assert reads == ["c"]
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0)
    await step(rig, history, 2)
    assert reads == ["c", "c"], "another message is the oldest"
    rig.broker.delete("t", lambda count, error: None)
    rig.loop.drain()
    rig.publish("t", b"a", b"b")
    rig.subscribe("t", start="1")
    await step(rig, history)
    found = history.topic("t", history.window(STEP_S))
    assert found is not None
    assert found["oldest_s"] == [STEP_S], "another topic of this name, with the same ids"


async def test_slow_consumers_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAGGING_MAX", 1)
    rig = BrokerRig()
    history = await begun(rig)
    rig.publish("t", b"a")
    for name in ("b", "c"):
        rig.subscribe("t", name)
    await step(rig, history, SLOW_S // STEP_S + 1)
    assert [history.slow_since_ms("t", name) is None for name in ("b", "c")] == [False, True]


def test_the_memory_of_the_docstrings_and_of_the_adr() -> None:
    """1,000 topics with an hour each take 7.4 MB."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    rings = [Ring(len(TOPIC_COLUMNS), 0) for _ in range(100)]
    each = (tracemalloc.get_traced_memory()[0] - before) / len(rings)
    tracemalloc.stop()
    assert 7_220 < each < 7_400
