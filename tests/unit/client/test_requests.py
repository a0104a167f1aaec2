"""Requests: the validated command, long id lists split over several lines, and the reply as a value."""

import pytest

import toymq
from tests.support.conversing import GREETING_LEASE, GREETING_UNCOUNTED, Conversing
from toymq import Client, requests
from toymq.delivery_window import Feed
from toymq.message import RANGES_BESIDE_A_FAILURE, RANGES_PER_LINE
from toymq_py.errors import BadArgument, ConnectionLost, NoSuchTopic, ProtocolViolation
from toymq_py.protocol import JsonReply, MessagePush, OkReply, Pull, Subscribe

SCATTERED = [(one, one) for one in range(0, 400, 2)]


@pytest.fixture
def client() -> Client:
    return toymq.connect("h")


def test_a_reply_becomes_a_value_and_a_failure_is_raised() -> None:
    request = requests.delete("t")
    request.slot.answered(OkReply(3))
    assert request.result() == 3
    request = requests.delete("t")
    request.slot.refused(NoSuchTopic("t"))
    with pytest.raises(NoSuchTopic):
        request.result()


def test_settings_come_back_in_seconds() -> None:
    request = requests.config("t", {"visibility": 1.5})
    assert request.slot.frame() == b"CONFIG t visibility=1500\n"
    request.slot.answered(JsonReply(b'{"visibility": 1500, "dedupe_keys": 7}'))
    assert request.result() == {"visibility": 1.5, "dedupe_keys": 7}


@pytest.mark.parametrize("body", [b"{]}", b"\xff", b"[" * 100_000, b"9" * 5000, b""])
def test_a_json_reply_that_is_none_is_a_violation_of_the_protocol(body: bytes) -> None:
    """Found: ``stats`` raised JSONDecodeError, which is not a ToymqError."""
    for request in (requests.stats(), requests.config("t")):
        request.slot.answered(JsonReply(body))
        with pytest.raises(ProtocolViolation, match="which is not JSON"):
            request.result()
    request = requests.config("t")
    request.slot.answered(JsonReply(b"[]"))
    with pytest.raises(ProtocolViolation, match="not settings by name"):
        request.result()


def test_only_requests_without_an_effect_are_repeated_after_a_lost_connection() -> None:
    safe = (requests.topics(), requests.stats(), requests.create("t"), requests.ping())
    assert all(request.slot.repeatable for request in safe)
    unsafe = (requests.delete("t"), requests.purge("t"), requests.seek("t", "c", "latest"), requests.forget("t", "c"))
    assert not any(request.slot.repeatable for request in unsafe)


def test_many_ids_are_as_many_lines_as_they_need(client: Client) -> None:
    lines = [request.slot.frame() for request in requests.ack(client, "t", "c", SCATTERED, sync=True)]
    assert len(lines) == -(-len(SCATTERED) // RANGES_PER_LINE)
    assert all(len(line) <= 4096 and line.endswith(b" sync=1\n") for line in lines)
    lines = [request.slot.frame() for request in requests.nack(client, "t", "c", SCATTERED, error=ValueError("x" * 5000))]
    assert len(lines) == -(-len(SCATTERED) // RANGES_BESIDE_A_FAILURE)
    assert all(len(line) <= 4096 for line in lines)


def test_a_redrive_asks_for_what_is_left_of_its_maximum(client: Client) -> None:
    asked = []
    for request in requests.redrive(client, "t.dlq", ids=SCATTERED, max=100):
        asked.append(request.slot.frame().split()[-1])
        request.slot.answered(OkReply(60))
    assert asked == [b"max=100", b"max=40"]


def test_deliveries_that_no_caller_takes_are_ready_again_at_once() -> None:
    feed = Feed(Subscribe("t", "c"), lambda: None)
    feed.lease = 7
    pushes = [MessagePush(topic, msg_id, 1, 0, b"", b"", b"") for topic, msg_id in (("a", 1), ("b", 5), ("a", 2))]
    peer = Conversing()
    requests.give_back(peer.conversation, feed, pushes)
    assert peer.said() == ["NACK a c 1-2 delay=0", "NACK b c 5 delay=0"], "an older broker knows no other word"
    newer = Conversing(GREETING_UNCOUNTED)
    requests.give_back(newer.conversation, feed, pushes)
    assert newer.said() == ["NACK a c 1-2 uncounted=1", "NACK b c 5 uncounted=1"]
    newest = Conversing(GREETING_UNCOUNTED[:-1] + b" lease=1\n")
    requests.give_back(newest.conversation, feed, pushes[:1])
    assert newest.said() == ["NACK a c 1 uncounted=1 lease=7"]
    peer.lose()
    requests.give_back(peer.conversation, feed, pushes)
    assert peer.connect() == [], "a later NACK could hit the lease of another worker"


def test_a_pull_that_loses_its_connection_is_not_repeated() -> None:
    conversation, feed = Conversing().conversation, Feed(Subscribe("t", "c"), lambda: None)
    request = requests.pull(Pull("t", "c", 1, wait_ms=9000), 1.5, conversation, feed)
    assert request.slot.frame() == b"PULL t c 1 wait=1500\n"
    assert (request.wait_s, request.slot.repeatable) == (1.5, False)
    request.slot.failed(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        request.result()


def test_a_pull_has_the_number_of_its_lease_where_the_broker_takes_one() -> None:
    feed = Feed(Subscribe("t", "c"), lambda: None)
    feed.lease = 7
    request = requests.pull(Pull("t", "c", 1), 0, Conversing(GREETING_LEASE).conversation, feed)
    assert request.slot.frame() == b"PULL t c 1 lease=7\n"


def test_auto_extend_needs_a_lease_of_known_length() -> None:
    extended = requests.subscription("t", "c", 8, None, None, None, False, True)
    assert extended.visibility_ms == 30_000
    assert requests.subscription("t", "c", 8, None, None, None, False, False).visibility_ms is None
    with pytest.raises(BadArgument):
        requests.subscription("t", "c", 8, 0, None, None, False, False)
