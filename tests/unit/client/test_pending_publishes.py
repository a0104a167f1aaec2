"""Publishes over lost connections and refusals: each is stored once, whatever the broker answers and when."""

import pytest

from tests.support.conversing import Conversing, outcomes


def numbers(said: list[str]) -> list[tuple[str, str, str]]:
    """Return (producer, number, body) of each PUB with a number."""
    heads = [line.split(" ") for line in said[::2]]
    assert all(head[0] == "PUB" and len(head) == 5 for head in heads), said
    return [(head[2], head[4].removeprefix("seq="), body) for head, body in zip(heads, said[1::2], strict=True)]


def test_a_key_is_the_callers_and_without_one_the_client_numbers() -> None:
    peer = Conversing()
    keyed, plain = peer.publish("a", key="k"), peer.publish("b", "c")
    assert peer.said() == ["PUB t k 1", "a", "PUB t p-0 1 seq=0", "b", "PUB t p-0 1 seq=1", "c"]
    peer.hear(b"DUP 7\nOK 8\nOK 9\n")
    assert outcomes(keyed) == ["DUP 7"]
    assert outcomes(plain) == [8, 9]
    assert peer.conversation.outstanding.bytes == 0
    assert peer.conversation.idle


def test_topics_are_numbered_apart_under_names_of_their_own() -> None:
    peer = Conversing()
    peer.publish("a", topic="t")
    peer.publish("a", topic="u")
    assert peer.said() == ["PUB t p-0 1 seq=0", "a", "PUB u p-1 1 seq=0", "a"]


def test_output_is_announced_once_until_it_is_taken() -> None:
    peer = Conversing()
    told = peer.told
    peer.publish("a")
    peer.publish("b")
    assert peer.told == told + 1
    peer.said()
    peer.publish("c")
    assert peer.told == told + 2


def test_what_has_no_answer_is_said_again_in_its_order_and_under_its_number() -> None:
    peer = Conversing()
    plain, keyed = peer.publish("a", "b", "c"), peer.publish("d", key="k")
    first = peer.said()
    peer.hear(b"OK 0\n")
    peer.lose()
    assert outcomes(plain) == [0, None, None]
    offline = peer.publish("e")
    assert peer.connect() == [*first[2:], "PUB t p-0 1 seq=3", "e"]
    peer.hear(b"DUP 2\nDUP 2\nDUP 3\nOK 4\n")
    assert outcomes(plain) == [0, "DUP 2", "DUP 2"]
    assert outcomes(keyed) == ["DUP 3"]
    assert outcomes(offline) == [4]


def test_without_numbers_a_publish_without_a_key_is_never_said_twice() -> None:
    peer = Conversing(producer=None)
    plain, keyed = peer.publish("a"), peer.publish("b", key="k")
    assert peer.said() == ["PUB t - 1", "a", "PUB t k 1", "b"]
    peer.lose()
    assert outcomes(plain) == ["CONNECTION_LOST"]
    assert peer.connect() == ["PUB t k 1", "b"]
    assert outcomes(keyed) == [None]


def test_a_refused_one_takes_none_of_those_behind_it_along() -> None:
    peer = Conversing()
    batch = peer.publish("a", "b", "c", "d")
    peer.said()
    peer.hear(b"OK 0\nERR QUEUE_FULL later\nERR OUT_OF_SEQUENCE behind it\n")
    late = peer.publish("e")
    assert peer.said() == [], "what is new waits until the pipeline is dry"
    peer.hear(b"ERR OUT_OF_SEQUENCE behind it\n")
    assert numbers(peer.said()) == [("p-0", "1", "c"), ("p-0", "2", "d"), ("p-0", "3", "e")]
    peer.hear(b"OK 1\nOK 2\nOK 3\n")
    assert outcomes(batch) == [0, "QUEUE_FULL", 1, 2]
    assert outcomes(late) == [3]
    peer.publish("f")
    assert numbers(peer.said()) == [("p-0", "4", "f")]


def test_a_broker_that_lets_the_others_pass_a_refused_one() -> None:
    """A topic with partitions, for example: the partition that refused waits for that number, which may now go to another
    partition. So the client takes another producer name."""
    peer = Conversing()
    batch = peer.publish("a", "b", "c")
    peer.said()
    peer.hear(b"ERR PAYLOAD_TOO_LARGE of the first\nOK 0\nOK 1\n")
    assert outcomes(batch) == ["PAYLOAD_TOO_LARGE", 0, 1]
    peer.publish("d")
    assert numbers(peer.said()) == [("p-1", "0", "d")]


def test_a_partition_that_waits_for_a_number_that_went_elsewhere() -> None:
    peer = Conversing()
    batch = peer.publish("a", "b")
    peer.said()
    peer.hear(b"ERR QUEUE_FULL later\nERR OUT_OF_SEQUENCE 0 was refused\n")
    assert numbers(peer.said()) == [("p-0", "0", "b")], "the number is free"
    peer.hear(b"OK 0\n")
    later = peer.publish("c")
    assert numbers(peer.said()) == [("p-0", "1", "c")]
    for producer, seq in (("p-0", "1"), ("p-1", "0")):
        peer.hear(b"ERR OUT_OF_SEQUENCE 0 was refused\n")
        assert numbers(peer.said()) == [(producer, seq, "c")], "again, and then under a name that it does not wait for"
    peer.hear(b"OK 5\n")
    assert (outcomes(batch), outcomes(later)) == (["QUEUE_FULL", 0], [5])


def test_a_keyed_one_is_not_held_by_a_refused_number() -> None:
    peer = Conversing()
    peer.publish("a", "b")
    peer.said()
    peer.hear(b"ERR QUEUE_FULL later\n")
    peer.publish("k", key="key")
    assert peer.said() == ["PUB t key 1", "k"]


@pytest.mark.parametrize("code", [b"STORAGE_FAILED", b"INTERNAL", b"OF_A_LATER_VERSION"])
def test_a_number_whose_outcome_is_open_is_never_used_for_another_message(code: bytes) -> None:
    peer = Conversing()
    batch = peer.publish("a", "b")
    peer.said()
    peer.hear(b"ERR " + code + b" may be stored\nERR OUT_OF_SEQUENCE behind it\n")
    assert numbers(peer.said()) == [("p-1", "0", "b")]
    peer.hear(b"OK 5\n")
    assert outcomes(batch)[1] == 5


def test_where_nobody_could_look_the_number_of_an_earlier_try_is_not_used_again() -> None:
    """Found: after PLACEMENT_UNKNOWN the next message got the number of a publish that was stored already, was taken for its
    repeat, and lost."""
    peer = Conversing()
    peer.publish("stored, and its OK lost")
    peer.said()
    peer.lose()
    assert numbers(peer.connect()) == [("p-0", "0", "stored, and its OK lost")]
    peer.hear(b"ERR PLACEMENT_UNKNOWN its group is away\n")
    peer.publish("b")
    assert numbers(peer.said()) == [("p-1", "0", "b")]


@pytest.mark.parametrize("key", ["", "k"])
def test_a_repeat_that_finds_its_place_away_has_an_unknown_outcome(key: str) -> None:
    """`PlacementUnknown` says that nothing was done. Found: a client raised it although the worker hung with the first try, and
    stored it later."""
    peer = Conversing()
    first = peer.publish("under way", key=key)
    peer.said()
    peer.lose()
    later = peer.publish("behind it", key=key)
    peer.connect()
    peer.hear(b"ERR PLACEMENT_UNKNOWN worker 1 stands still\n" * 2)
    assert outcomes(first) + outcomes(later) == ["CONNECTION_LOST", "PLACEMENT_UNKNOWN"]
    assert str(first.outcomes[0]).endswith("on a connection that was lost, and worker 1 stands still")


def test_a_refusal_between_two_connections() -> None:
    peer = Conversing()
    batch = peer.publish("a", "b", "c")
    peer.said()
    peer.hear(b"ERR DISK_LOW later\nERR OUT_OF_SEQUENCE behind it\n")
    peer.lose()
    assert numbers(peer.connect()) == [("p-0", "2", "c")], "whose outcome is unknown keeps its number"
    peer.hear(b"OK 0\n")
    assert numbers(peer.said()) == [("p-1", "0", "b")], "below one that is confirmed: under another name"
    peer.hear(b"OK 1\n")
    assert outcomes(batch) == ["DISK_LOW", 1, 0]


def test_a_broker_that_refuses_for_ever_does_not_hold_the_client() -> None:
    peer = Conversing()
    batch = peer.publish("a", "b", "c")
    rounds = 0
    while peer.conversation.unanswered_count:
        peer.said()
        peer.hear(b"ERR OUT_OF_SEQUENCE no\n" * peer.conversation.unanswered_count)
        rounds += 1
        assert rounds < 10
    assert outcomes(batch) == ["OUT_OF_SEQUENCE"] * 3


def test_who_left_is_not_said_again() -> None:
    peer = Conversing()
    left, stays = peer.publish("a"), peer.publish("b")
    peer.said()
    left.abandoned = True
    peer.lose()
    assert numbers(peer.connect()) == [("p-0", "1", "b")]
    peer.hear(b"OK 0\n")
    assert outcomes(stays) == [0]
    assert peer.conversation.outstanding.bytes == 0
    assert peer.conversation.idle


def test_who_left_while_it_was_held_is_not_said_again() -> None:
    peer = Conversing()
    peer.publish("a")
    held = peer.publish("b")
    peer.said()
    peer.hear(b"ERR QUEUE_FULL later\n")
    held.abandoned = True
    peer.hear(b"ERR OUT_OF_SEQUENCE behind it\n")
    assert peer.said() == []
    assert peer.conversation.outstanding.bytes == 0
    peer.publish("c")
    assert numbers(peer.said()) == [("p-0", "0", "c")]


def test_a_shutdown_is_no_answer_to_a_publish() -> None:
    peer = Conversing()
    batch = peer.publish("a")
    first = peer.said()
    peer.hear(b"ERR SHUTTING_DOWN come back later\n")
    assert outcomes(batch) == [None]
    assert peer.conversation.farewell is not None
    peer.lose()
    assert peer.connect() == first


def test_a_fatal_refusal_ends_with_its_publish() -> None:
    """A publish that ends its connection is not repeated: it would end the next connection, too."""
    peer = Conversing()
    batch, behind = peer.publish("a"), peer.publish("b")
    peer.said()
    peer.hear(b"ERR BAD_FRAMING what was that\n")
    assert outcomes(batch) == ["BAD_FRAMING"]
    peer.lose()
    assert numbers(peer.connect())[0][2] == "b"
    peer.hear(b"OK 0\n")
    assert outcomes(behind) == [0]


def test_time_is_over() -> None:
    peer = Conversing()
    batch = peer.publish("a")
    batch.deadline = None
    timed = peer.publish("b")
    for slot in peer.conversation._unanswered:
        slot.deadline = 5.0 if slot.batch is timed else 9.0  # type: ignore[attr-defined]
    assert peer.conversation.expire(4.0, 3.0, "") == 5.0
    assert peer.conversation.expire(5.0, 3.0, " (no connection)") == 9.0
    assert outcomes(timed) == ["TIMEOUT"]
    assert str(timed.outcomes[0]) == "no answer within 3 s: waited for the OK of a publish to t (no connection)"
    peer.said()
    peer.hear(b"OK 0\nOK 1\n")
    assert outcomes(batch) == [0], "the late answer is not given to another"


def test_closed_is_closed() -> None:
    peer = Conversing(online=False)
    from toymq.errors import ClientClosed

    waiting = peer.publish("a")
    peer.conversation.close(ClientClosed("closed"))
    late = peer.publish("b")
    assert outcomes(waiting) == outcomes(late) == ["CLIENT_CLOSED"]
    assert peer.conversation.outstanding.bytes == 0


def test_idle_topics_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic whose numbering was dropped gets a new producer name when it is used again, since its numbers begin again."""
    monkeypatch.setattr("toymq.streams.STREAMS_MAX", 1)
    peer = Conversing()
    peer.publish("a", topic="t")
    peer.said()
    peer.hear(b"OK 0\n")
    peer.publish("b", topic="u")
    peer.said()
    peer.hear(b"OK 0\n")
    peer.publish("c", topic="t")
    assert numbers(peer.said()) == [("p-2", "0", "c")]


def test_a_refused_one_and_those_behind_it_while_there_is_no_connection() -> None:
    """The time-out of a refused publish and of the next one ends while there is no connection: later publishes go on from the
    refused number."""
    peer = Conversing()
    peer.publish("a", "b", "c")
    peer.said()
    peer.hear(b"ERR DISK_LOW later\nERR OUT_OF_SEQUENCE behind it\n")
    peer.lose()
    (waiting,) = peer.conversation._waiting
    waiting.deadline = 1.0
    assert peer.conversation.expire(1.0, 1.0, "") is None
    assert numbers(peer.connect()) == [("p-0", "0", "b")]


def test_what_waits_without_a_caller_is_dropped_and_its_numbers_name_nothing_else() -> None:
    """One abandoned publish was sent, and its outcome is unknown; the other one never was."""
    peer = Conversing()
    sent = peer.publish("a")
    peer.said()
    peer.lose()
    unsent, waited_for = peer.publish("b"), peer.publish("c")
    sent.abandoned = unsent.abandoned = True
    peer.conversation.drop_done()
    assert peer.conversation.outstanding.bytes == 1
    assert numbers(peer.connect()) == [("p-0", "2", "c")]
    peer.hear(b"OK 7\n")
    assert outcomes(waited_for) == [7]
    peer.publish("d")
    assert numbers(peer.said()) == [("p-0", "3", "d")]
