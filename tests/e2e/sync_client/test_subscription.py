"""The blocking client: its subscriptions, against a real broker."""

import json
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from toymq import RequestTimeout, SubscriptionEnded, TakenOver, delivery_window, sync
from toymq.sync import Client
from toymq_py.errors import (
    AlreadySubscribed,
    BadName,
)


def test_what_is_not_acked_comes_again_after_close(client: Client) -> None:
    client.pub("again", b"x")
    with client.sub("again", "c") as subscription:
        assert subscription.next(5) is not None
    with client.sub("again", "c") as subscription:
        message = subscription.next(5)
        assert message.attempt == 2


def test_a_worker_whose_lease_has_ended_does_not_act_on_the_lease_of_another(broker: BrokerProcess, client: Client) -> None:
    client.pub("late", b"x")
    with client.sub("late", "c", mode="shared", window=1, visibility=0.001) as subscription:
        late = subscription.next(5)
        with sync.connect(f"127.0.0.1:{broker.port}") as other:
            (holder,) = other.pull("late", "c", wait=10, visibility=3600)
            assert (late.id, holder.id) == (0, 0)
            assert not late.extend(0.001)
            assert not late.dead_letter("it is not mine any more")
            late.nack(0)
            assert holder.extend(3600)
            holder.ack(sync=True)
    (found,) = client.describe("late")["consumers"]
    assert (found["inflight"], found["backlog"]) == (0, 0)


def test_a_subscription_that_ends_says_why(broker: BrokerProcess, client: Client) -> None:
    subscription = client.sub("ended", "c")
    with pytest.raises(AlreadySubscribed):
        client.sub("ended", "c")
    with sync.connect(f"127.0.0.1:{broker.port}") as other:
        other.sub("ended", "c")
        with pytest.raises(SubscriptionEnded) as caught:
            subscription.next(5)
        assert caught.value.code == "TAKEN_OVER"
        assert type(caught.value) is TakenOver
        with pytest.raises(TakenOver):
            next(iter(subscription))
    subscription.close()


def test_a_subscription_goes_on_where_its_consumer_was_moved_to(client: Client) -> None:
    for n in range(3):
        client.pub("moved", b"%d" % n)
    with client.sub("moved", "c") as subscription:
        assert [subscription.next(5).id for _ in range(3)] == [0, 1, 2]
        for message_id in (0, 1, 2):
            client.ack("moved", "c", [(message_id, message_id)])
        client.seek("moved", "c", "1")
        again = subscription.next(5)
        assert (again.id, again.attempt) == (1, 1)


def test_a_seek_under_a_handler_warns_of_no_lease(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.pub("replayed", b"0")
    with client.sub("replayed", "c") as messages:
        held = messages.next(5)
        client.seek("replayed", "c", "earliest")
        again = messages.next(5)
        assert (again.id, again.attempt) == (held.id, 1)
        again.ack()
    assert not caplog.records


def test_a_subscription_that_is_refused_leaves_nothing(client: Client) -> None:
    with pytest.raises(BadName):
        client.sub("ok.topic", ".bad")
    client.sub("ok.topic", "good").close()


@pytest.mark.parametrize("auto_ack", [False, True])
def test_what_a_handler_gave_back_is_not_acked_behind_it(client: Client, auto_ack: bool) -> None:
    topic = f"given.{auto_ack}"
    client.pub(topic, b"x")
    with client.sub(topic, "c", auto_ack=auto_ack) as messages:
        for attempt in (1, 2):
            message = messages.next(5)
            assert message.attempt == attempt
            if auto_ack:
                message.nack(0)
            else:
                with message.process():
                    message.nack(0)
        assert messages.next(5).attempt == 3


def test_an_ack_is_sent_although_the_next_handler_takes_long(broker: BrokerProcess, client: Client) -> None:
    """Found: an ack was sent with the next call, so during a job of a minute the lease of the job before it ended, and that job
    was done twice."""
    list(client.pub_many("long", [b"0", b"1"]))
    with client.sub("long", "c") as messages, sync.connect(f"127.0.0.1:{broker.port}") as other:
        first = messages.next(5)
        messages._link._exchanged_at = 0.0  # its handler took its time
        first.ack()
        messages.next(5)
        while not other.describe("long")["consumers"][0]["has_acked"]:
            other.ping()


def test_process_acks_or_gives_back(client: Client) -> None:
    list(client.pub_many("processed", [b"good", b"bad"]))
    with client.sub("processed", "c") as messages:
        with messages.next(5).process() as message:
            assert message.payload == b"good"
        with pytest.raises(ZeroDivisionError), messages.next(5).process(retry_delay=0):
            raise ZeroDivisionError
        again = messages.next(5)
        assert (again.payload, again.attempt) == (b"bad", 2)
        again.ack(sync=True)
        assert not again.extend(), "its lease is over"
    assert client.describe("processed")["consumers"][0]["backlog"] == 0


def test_auto_ack_and_batches(client: Client) -> None:
    list(client.pub_many("batched", [b"x"] * 25))
    sizes = []
    with client.sub("batched", "c", auto_ack=True) as messages:
        for batch in messages.batches(max=10, wait=0.01):
            sizes.append(len(batch))
            if sum(sizes) == 25:
                messages.close()
    assert sizes == [10, 10, 5]
    assert client.describe("batched")["consumers"][0]["backlog"] == 0


def test_auto_ack_acks_the_last_message_when_the_block_ends_without_an_exception(client: Client) -> None:
    """Found by a trial: the last message of ``next()`` was redelivered until it was a dead letter."""
    list(client.pub_many("last", [b"0", b"1", b"2", b"3", b"4"]))
    with client.sub("last", "c", auto_ack=True) as messages:
        messages.next(5)
        next(iter(messages))
    (found,) = client.describe("last")["consumers"]
    assert (found["last_acked"], found["backlog"]) == (1, 3)
    with client.sub("last", "c", auto_ack=True) as messages:
        assert [message.id for message in next(messages.batches(max=2, wait=5))] == [2, 3]
    with pytest.raises(ZeroDivisionError), client.sub("last", "c", auto_ack=True) as messages:
        _ = messages.next(5).id // 0
    (found,) = client.describe("last")["consumers"]
    assert (found["last_acked"], found["backlog"]) == (3, 1)


def test_a_message_that_does_not_come(client: Client) -> None:
    with client.sub("silent", "c") as messages:
        with pytest.raises(TimeoutError, match=r"no message within 0\.02 s: waited for one of silent for c"):
            messages.next(0.02)
        messages.close()
        with pytest.raises(SubscriptionEnded, match="is closed"):
            messages.next(1)


def test_a_wait_without_a_connection_says_why(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker, sync.connect(broker.url, timeout_s=1) as mq:
        messages = mq.sub("t", "c")
        broker.kill()
        with pytest.raises(RequestTimeout, match=r"waited for one of t for c \((no broker at|the connection to) 127"):
            messages.next(0.5)


def test_an_exception_is_in_the_dead_letter(client: Client) -> None:
    list(client.pub_many("failing", [b"0", b"1"]))
    with client.sub("failing", "c") as messages, client.sub("failing.dlq", "audit") as letters:
        with pytest.raises(ValueError, match="no such"), messages.next(5).process(dead_on=(ValueError,)):
            raise ValueError("no such template: x.html")
        messages.next(5).nack(reason="not now", error=KeyError("x"))
        assert messages.next(5).dead_letter()
        first, second = (letters.next(5).headers for _ in range(2))
    assert (first["toymq-reason"], first["toymq-error-type"], first["toymq-error"]) == (
        "rejected", "ValueError", "no such template: x.html",
    )  # fmt: skip
    assert json.loads(first["toymq-traceback"]).endswith('raise ValueError("no such template: x.html")')
    assert (second["toymq-reason"], second["toymq-error-type"]) == ("not now", "KeyError"), "what was said last"


def test_a_topic_of_a_pattern_goes_on_from_where_its_consumer_was_moved(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    list(client.pub_many("moving.a", [b"0", b"1"]))
    with client.sub("moving.*", "c") as messages:
        for n in range(2):
            message = messages.next(5)
            assert message.id == n
            message.ack()
        for target in (1, "earliest"):
            client.seek("moving.a", "c", target)
            while (message := messages.next(5)).id < 1:
                message.ack()
            message.ack()
    assert not caplog.records


def test_patterns_that_overlap(client: Client) -> None:
    with client.sub("over.*", "c") as some, client.sub("over.>", "d") as all_of_them, client.sub("over.a", "e") as one:
        list(client.pub_many("over.a", [b"x"]))
        for messages in (some, all_of_them, one):
            message = messages.next(5)
            assert message.topic == "over.a"
            assert message.extend(60)
            with message.process():
                pass
        assert client.drain(5)
    for consumer in client.describe("over.a")["consumers"]:
        assert consumer["backlog"] == 0


def test_what_waits_in_the_window_while_another_worker_gets_it_is_not_handled_twice(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: a worker that took 60 ms a message, with the default window, handled messages of its window long after their
    leases had ended and another worker's ack had returned: 345 of 2,000 twice."""
    monkeypatch.setattr(delivery_window, "CONFIRM_S", -1.0)  # everything has waited too long
    client.create("prefetched", {"max_attempts": 0})  # leases of 1 ms end again and again, on a busy machine 20 times
    list(client.pub_many("prefetched", [b"%d" % n for n in range(6)]))
    with client.sub("prefetched", "c", mode="shared", window=4, visibility=0.001) as messages:
        first = messages.next(5)  # the other three wait
        with sync.connect(f"127.0.0.1:{broker.port}") as other:
            done = set()
            while len(done) < 6:
                for message in other.pull("prefetched", "c", max=6, wait=10, visibility=3600):
                    message.ack(sync=True)
                    done.add(message.id)
        assert first.id in done
        with pytest.raises(RequestTimeout):
            messages.next(0.05)


def test_what_waited_and_is_still_ours_is_handed_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_window, "CONFIRM_S", -1.0)
    list(client.pub_many("kept", [b"%d" % n for n in range(50)]))
    with client.sub("kept", "c", window=10) as messages:
        for n in range(50):
            message = messages.next(5)
            assert (message.id, message.attempt) == (n, 1)
            message.ack()


def test_a_poll_without_a_wait_gets_what_waited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it hands out a message that has waited, the client asks the broker whether the lease still holds: that takes
    longer than a time-out of zero."""
    monkeypatch.setattr(delivery_window, "CONFIRM_S", -1.0)
    list(client.pub_many("polled", [b"%d" % n for n in range(3)]))
    with client.sub("polled", "c") as messages:
        assert messages.next(5).id == 0
        assert [messages.next(0).id for _ in range(2)] == [1, 2]


def test_a_subscription_that_ends_while_it_asks_says_why(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_window, "CONFIRM_S", -1.0)
    list(client.pub_many("asked", [b"%d" % n for n in range(3)]))
    with client.sub("asked", "c") as messages:
        assert messages.next(5).id == 0
        with sync.connect(f"127.0.0.1:{broker.port}") as other, other.sub("asked", "c"), pytest.raises(TakenOver):
            next(iter(messages))
