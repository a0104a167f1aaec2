"""Replies find their commands, subscriptions and acks outlive connections."""

from collections.abc import Callable

import pytest

from tests.support.conversing import GREETING, GREETING_LEASE, GREETING_UNCOUNTED, Conversing, ids_of, message
from toymq import requests
from toymq.delivery_window import Feed, FeedState
from toymq.errors import ConsumerDeleted, TakenOver
from toymq.pending_replies import CallSlot
from toymq_py.consumer_options import Start
from toymq_py.errors import AuthFailed, ProtocolViolation, ToymqError
from toymq_py.protocol import Delete, Hello, JsonReply, Nack, OkReply, Ping, PongReply, Quit, Seek, Stats, Subscribe


def test_nothing_is_said_before_the_broker_greeted() -> None:
    peer = Conversing(online=False)
    peer.publish("a")
    peer.subscribe()
    peer.conversation.connected(Hello(1), peer.greetings.append)
    assert peer.said() == ["HELLO 1"]
    peer.hear(GREETING)
    assert peer.said() == ["SUB t c", "PUB t p-0 1 seq=0", "a"]


def test_a_refused_greeting_is_told() -> None:
    peer = Conversing(online=False)
    peer.conversation.connected(Hello(1), peer.greetings.append)
    peer.hear(b"ERR AUTH_FAILED no\n")
    assert isinstance(peer.greetings[0], AuthFailed)
    assert not peer.conversation.online


def test_a_connection_that_ends_before_the_greeting_is_told() -> None:
    peer = Conversing(online=False)
    peer.conversation.connected(Hello(1), peer.greetings.append)
    peer.lose()
    assert isinstance(peer.greetings[0], ToymqError)


def test_the_reply_of_a_call_that_was_left_is_nobodys() -> None:
    peer = Conversing()
    left, asked = CallSlot(Stats(), JsonReply), CallSlot(Ping(), PongReply)
    peer.conversation.send(left)
    left.abandon()
    peer.conversation.send(asked)
    peer.hear(b"JSON 2\n{}\nPONG\n")
    assert asked.answer == PongReply()


def test_what_is_safe_is_asked_again_and_what_is_not_fails() -> None:
    peer = Conversing()
    safe, unsafe = CallSlot(Ping(), PongReply, repeatable=True), CallSlot(Delete("t"), OkReply)
    peer.conversation.send(safe)
    peer.conversation.send(unsafe)
    peer.lose()
    assert isinstance(unsafe.answer, ToymqError)
    assert unsafe.answer.code == "CONNECTION_LOST"
    assert peer.connect() == ["PING"]


@pytest.mark.parametrize("data", [b"OK 1\n", b"PONG\n", b"ERR QUEUE_FULL of what\n", b"what\n"])
def test_an_answer_to_nothing(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        Conversing().hear(data)


def test_a_publish_that_is_answered_with_nonsense_keeps_its_place() -> None:
    peer = Conversing()
    peer.publish("a")
    first = peer.said()
    with pytest.raises(ProtocolViolation, match="answered PUB with PongReply"):
        peer.hear(b"PONG\n")
    peer.lose()
    assert peer.connect() == first


def test_deliveries_and_acks_as_ranges() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    assert feed.state is FeedState.ASKED
    peer.hear(b"OK 1\n" + b"".join(message(n) for n in range(6)))
    assert feed.state is FeedState.LIVE
    assert ids_of(feed) == [0, 1, 2, 3, 4, 5]
    peer.said()
    told = peer.told
    for msg_id in (4, 0, 1, 2):
        peer.conversation.ack(feed, "t", msg_id)
    assert peer.told == told + 1
    assert peer.said() == ["ACK t c 0-2,4"]
    assert list(feed.open) == [("t", 3), ("t", 5)]
    peer.hear(b"OK 4\n")
    assert peer.conversation.idle


def test_a_reconnect_acks_first_and_subscribes_then() -> None:
    """The order prevents that acked messages are delivered again."""
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0) + message(1) + message(2))
    ids_of(feed)
    peer.said()
    peer.conversation.ack(feed, "t", 0)
    peer.said()
    peer.conversation.ack(feed, "t", 1)
    peer.lose()
    peer.conversation.ack(feed, "t", 2)
    assert peer.connect() == ["ACK t c 0-2", "SUB t c"]


def test_what_was_not_handed_out_comes_again_and_is_not_handed_out_twice() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0) + message(1))
    assert feed.take() is not None
    peer.lose()
    assert peer.connect() == ["SUB t c"]
    peer.hear(b"OK 1\n" + message(0, attempt=2) + message(1, attempt=2))
    assert ids_of(feed) == [1], "the handler of 0 runs on, and acks it"
    peer.hear(message(0, attempt=3))
    assert ids_of(feed) == [0], "its lease was over: it has to be done"


def test_what_was_given_back_before_a_reconnect_is_handed_out_again() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0))
    ids_of(feed)
    peer.lose()
    feed.settle("t", 0)
    peer.connect()
    peer.hear(b"OK 1\n" + message(0, attempt=2))
    assert ids_of(feed) == [0]


@pytest.mark.parametrize(("code", "error"), [("TAKEN_OVER", TakenOver), ("DELETED", ConsumerDeleted)])
def test_an_ended_subscription_is_never_asked_for_again(code: str, error: type[Exception]) -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0) + b"CLOSED t c " + code.encode() + b"\n")
    assert type(feed.error) is error
    assert feed.take() is None, "another one has it now"
    peer.said()
    peer.lose()
    assert peer.connect() == []


@pytest.mark.parametrize("code", ["SEEK", "MOVED"])
def test_a_moved_consumer_or_topic_is_subscribed_again(code: str) -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(5) + b"CLOSED t c %b\n" % code.encode())
    assert peer.said() == ["SUB t c", "SUB t c"]
    peer.hear(b"OK 1\n" + message(0))
    assert ids_of(feed) == [0]


def test_a_consumer_that_was_moved_on_a_topic_of_a_pattern_goes_on_from_there(caplog: pytest.LogCaptureFixture) -> None:
    """Found: after a SEEK on one topic of a pattern its messages stopped, and the client logged a warning. Buffered messages of
    other topics stay."""
    peer = Conversing()
    feed = peer.subscribe("a.*")
    peer.hear(b"OK 2\n" + message(5, topic="a.x") + message(7, topic="a.y") + b"CLOSED a.x c SEEK\n")
    peer.hear(message(0, topic="a.x"))
    assert peer.said() == ["SUB a.* c"], "the broker has attached it again"
    assert feed.waiting() == [("a.y", 7), ("a.x", 0)]
    assert not caplog.records


def test_a_broker_that_goes_is_waited_for() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\nCLOSED t c SHUTTING_DOWN\n")
    peer.lose()
    assert peer.connect() == ["SUB t c"]
    assert feed.state is FeedState.LIVE


def test_a_refused_subscription() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"ERR MODE_CONFLICT it is shared\n")
    assert feed.error is not None
    assert feed.error.code == "MODE_CONFLICT"
    peer.lose()
    assert peer.connect() == []


def test_leaving_sends_acks_before_it_gives_the_rest_back() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0) + message(1))
    ids_of(feed)
    peer.said()
    peer.conversation.ack(feed, "t", 0)
    done: list[bool] = []
    peer.conversation.unsubscribe(feed, lambda: done.append(True))
    assert peer.said() == ["ACK t c 0", "UNSUB t c"]
    peer.hear(message(1, attempt=2) + b"OK 1\nOK 0\n")
    assert done == [True]
    assert feed.take() is None
    again = peer.subscribe()
    peer.hear(b"OK 1\n" + message(1, attempt=3))
    assert ids_of(again) == [1]


def test_acks_are_to_be_sent_at_once_behind_a_message_that_was_delivered_before() -> None:
    """Found: a worker killed by one message had not sent the acks before it, so these messages were redelivered and became dead
    letters."""
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0) + message(1, attempt=2) + message(2))
    ids_of(feed)
    assert [peer.conversation.ack(feed, "t", msg_id) for msg_id in (0, 1, 2)] == [True, True, True]
    feed.careful = 1
    peer.hear(message(3) + message(4))
    ids_of(feed)
    assert [peer.conversation.ack(feed, "t", msg_id) for msg_id in (3, 4)] == [True, False]


@pytest.mark.parametrize(("attempt", "at_once"), [(1, False), (2, True)])
def test_acks_of_a_pull_are_to_be_sent_at_once_when_some_of_it_was_delivered_before(attempt: int, at_once: bool) -> None:
    """Found, as for a subscription: a worker that pulled ten jobs, one of them poison, never got rid of it, and did the ninth
    job twenty times."""
    peer = Conversing()
    feed = Feed(Subscribe("t", "c"), lambda: None)
    feed.pulled = True
    request = requests.pull(requests.pull_command("t", "c", 3, 0.0, None, None), 0.0, peer.conversation, feed)
    peer.conversation.send_now(request.slot)
    peer.hear(message(0) + message(1, attempt=attempt) + b"OK 2\n")
    assert [push.msg_id for push in request.result()] == [0, 1]
    assert [peer.conversation.ack(feed, "t", msg_id) for msg_id in (0, 1)] == [at_once, at_once]


@pytest.mark.parametrize(("greeting", "said"), [(GREETING, "UNSUB t c"), (GREETING_UNCOUNTED, "UNSUB t c uncounted=1")])
def test_leaving_with_nothing_handed_out_counts_no_attempt(greeting: bytes, said: str) -> None:
    """Found: twenty such departures made a dead letter of a message that no handler had seen. An older broker does not know the
    option for this."""
    peer = Conversing(greeting)
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0) + message(1))
    peer.said()
    peer.conversation.unsubscribe(feed, lambda: None)
    assert peer.said() == [said]
    peer.hear(b"OK 0\n")
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0) + message(1))
    assert feed.take() is not None
    peer.said()
    peer.conversation.unsubscribe(feed, lambda: None)
    assert peer.said() == ["UNSUB t c"], "the application has the first one"


def test_a_subscription_has_one_number_for_its_leases_on_all_connections() -> None:
    """An older broker does not know the option ``lease``, so it is not sent there."""
    peer = Conversing(GREETING_LEASE)
    feed = peer.subscribe()
    assert peer.said() == [f"SUB t c lease={feed.lease}"]
    peer.lose()
    assert peer.connect() == [f"SUB t c lease={feed.lease}"]
    assert Feed(Subscribe("t", "c"), lambda: None).lease != feed.lease
    peer.lose()
    peer.greeting = GREETING
    assert peer.connect() == ["SUB t c"]


def test_leaving_before_the_ok_came() -> None:
    peer = Conversing()
    feed, done = peer.subscribe(), list[bool]()
    peer.conversation.unsubscribe(feed, lambda: done.append(True))
    assert peer.said() == ["SUB t c", "UNSUB t c"]
    peer.hear(b"OK 1\n" + message(0) + b"OK 0\n")
    assert done == [True]
    assert feed.take() is None
    assert feed.state is FeedState.CLOSED


def test_deliveries_of_a_pattern() -> None:
    peer = Conversing()
    feed = peer.subscribe("orders.*")
    peer.hear(b"OK 2\n" + message(0, topic="orders.eu") + message(0, topic="orders.us") + message(0, topic="other"))
    peer.said()
    places = []
    while (push := feed.take()) is not None:
        places.append(push.topic)
        peer.conversation.ack(feed, push.topic, push.msg_id)
    assert places == ["orders.eu", "orders.us"]
    assert peer.said() == ["ACK orders.eu c 0", "ACK orders.us c 0"]
    assert feed.overlaps("orders.eu")
    assert feed.overlaps("orders.>")
    assert not feed.overlaps("bills")


def test_an_ack_that_waits_for_the_disk() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0) + message(1))
    ids_of(feed)
    peer.said()
    told: list[object] = []
    peer.conversation.ack_synced(feed, "t", 0, told.append)
    assert peer.said() == ["ACK t c 0 sync=1"]
    peer.lose()
    assert told == []
    assert peer.connect() == ["ACK t c 0 sync=1", "SUB t c"]
    peer.hear(b"OK 1\n")
    assert told == [None]
    peer.conversation.ack_synced(feed, "t", 1, told.append)
    peer.hear(b"OK 1\n")
    peer.said()
    peer.hear(b"ERR NO_SUCH_TOPIC gone\n")
    assert isinstance(told[1], ToymqError)


def test_acks_of_a_topic_that_is_gone_harm_nobody() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0))
    ids_of(feed)
    peer.conversation.ack(feed, "t", 0)
    peer.said()
    peer.hear(b"ERR NO_SUCH_TOPIC gone\n")
    assert peer.conversation.idle


def test_acks_of_every_other_message_fit_into_lines() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.said()
    for msg_id in range(0, 2000, 2):
        peer.conversation.ack(feed, "t", 10**19 + msg_id)
    said = peer.said()
    assert len(said) == 13
    assert max(map(len, said)) < 4096


def _publishes(peer: Conversing, feed: Feed) -> None:
    peer.publish("a")


def _publishes_with_a_key(peer: Conversing, feed: Feed) -> None:
    peer.publish("a", key="k")


def _acks(peer: Conversing, feed: Feed) -> None:
    peer.conversation.ack(feed, "t", 0)


def _acks_and_waits(peer: Conversing, feed: Feed) -> None:
    peer.conversation.ack_synced(feed, "t", 0, lambda error: None)


def _asks(peer: Conversing, feed: Feed) -> None:
    peer.conversation.send(CallSlot(Ping(), PongReply, repeatable=True))


def _gives_back(peer: Conversing, feed: Feed) -> None:
    peer.conversation.send_now(CallSlot(Nack("t", "c", ((0, 0),)), OkReply))


def _subscribes(peer: Conversing, feed: Feed) -> None:
    peer.subscribe("other")


def _unsubscribes(peer: Conversing, feed: Feed) -> None:
    peer.conversation.unsubscribe(feed, lambda: None)


def _is_moved(peer: Conversing, feed: Feed) -> None:
    peer.hear(b"CLOSED t c SEEK\n")


def _leaves(peer: Conversing, feed: Feed) -> None:
    peer.conversation.send_last(CallSlot(Quit(), OkReply))


OUTPUTS = (
    _publishes, _publishes_with_a_key, _acks, _acks_and_waits, _asks, _gives_back, _subscribes, _unsubscribes, _is_moved,
    _leaves,
)  # fmt: skip


@pytest.mark.parametrize("speak", OUTPUTS, ids=lambda speak: speak.__name__)
def test_a_loss_between_the_announcement_of_an_output_and_its_taking_silences_nothing(
    speak: Callable[[Conversing, Feed], None],
) -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.said()
    peer.hear(b"OK 1\n" + message(0))
    ids_of(feed)
    told = peer.told
    speak(peer, feed)
    assert peer.told == told + 1
    peer.lose()  # whoever was told finds no connection
    peer.conversation.connected(Hello(1), peer.greetings.append)
    assert peer.told == told + 2
    assert peer.said() == ["HELLO 1"]
    peer.hear(GREETING)
    said = peer.said()
    assert peer.told == told + 2 + bool(said)


def test_a_greeting_that_was_not_taken_before_the_loss_is_announced_the_next_time() -> None:
    peer = Conversing(online=False)
    for connection in range(1, 4):
        peer.conversation.connected(Hello(1), peer.greetings.append)
        assert peer.told == connection
        peer.lose()


def test_output_is_announced_once_until_it_is_taken() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.said()
    peer.hear(b"OK 1\n" + message(0) + message(1))
    ids_of(feed)
    told = peer.told
    peer.conversation.ack(feed, "t", 0)
    peer.publish("a")
    peer.conversation.ack(feed, "t", 1)
    peer.publish("b", key="k")
    assert peer.told == told + 1
    assert peer.said() == ["PUB t p-0 1 seq=0", "a", "PUB t k 1", "b", "ACK t c 0-1"]
    assert peer.told == told + 1, "taking it is no news"


def test_what_is_asked_goes_behind_the_acks_that_were_said_before() -> None:
    """Found: a seek overtook acks that the application had given before it, so these acked the messages that the seek brought
    back."""
    peer = Conversing()
    feed = peer.subscribe()
    peer.hear(b"OK 1\n" + message(0) + message(1))
    peer.said()
    for msg_id in ids_of(feed):
        peer.conversation.ack(feed, "t", msg_id)
    peer.conversation.send(CallSlot(Seek("t", "c", Start("id", 1)), OkReply))
    assert peer.said() == ["ACK t c 0-1", "SEEK t c 1"]
