"""Publishes and deliveries of toymq as the benchmark parses and writes them."""

import pytest

from tests.support.bench_messages import message
from toymq_bench.errors import WrongReply
from toymq_bench.toymq_wire import SharingConsumer, ToymqConsumer, ToymqProducer


def test_frames_of_all_producers_have_one_length() -> None:
    """Found: the consumer splits runs by one frame length, so a second digit in a producer's key made it lose a byte."""
    assert len({len(ToymqProducer("t", number, 4, 20, keyed=True).template.block(1, 0)) for number in (0, 9, 10, 9999)}) == 1


@pytest.mark.parametrize("reply", [b"DUP 3\n", b"ERR DISK_LOW no room\n", b"OK 1\nPONG\n"])
def test_any_other_reply_than_ok_ends_the_run(reply: bytes) -> None:
    with pytest.raises(WrongReply, match=reply.split()[-1].decode()):
        ToymqProducer("t", 0, 4, 20, keyed=True).replies(reply)


def test_runs_of_equal_length_end_where_ids_grow_and_where_an_ok_stands() -> None:
    consumer = ToymqConsumer("t", "c", 20, keyed=True)
    data = b"".join(message(one, one) + b"OK 1\n" * (one % 7 == 0) for one in range(1100))
    chunk = consumer.deliveries(data)
    assert [int(stamp, 16) for stamp in chunk.stamps] == list(range(1100))
    assert chunk.answer == b"ACK t c 0-1099\n"


def test_a_consumer_that_shares_takes_any_ids_and_any_pieces() -> None:
    data = b"OK 1\n" + b"".join(message(one, one) + b"OK 1\n" for one in (7, 3, 12))
    consumer = SharingConsumer("t", "c")
    chunks = [consumer.deliveries(data[at : at + 10]) for at in range(0, len(data), 10)]
    assert [int(stamp, 16) for chunk in chunks for stamp in chunk.stamps] == [7, 3, 12]
    assert b"".join(chunk.answer for chunk in chunks) == b"ACK t c 7\nACK t c 3\nACK t c 12\n"
    with pytest.raises(WrongReply, match="ERR NOT_SUBSCRIBED"):
        consumer.deliveries(b"ERR NOT_SUBSCRIBED no\n")


def test_a_message_without_a_key_carries_its_send_time_in_the_payload() -> None:
    (frame, _) = ToymqProducer("t", 0, 1, 20, keyed=False).template.block(1, 77).split(b"\n", 1)
    assert frame == b"PUB t - 20"
    consumer = ToymqConsumer("t", "c", 20, keyed=False, single=True)
    pushed = b"".join(b"MSG t %d 1 17 - 20\n%012xabcdefgh\n" % (one, 77 + one) for one in range(2))
    chunk = consumer.deliveries(pushed)
    assert [int(stamp, 16) for stamp in chunk.stamps] == [77, 78]
    assert chunk.answer == b"ACK t c 0\nACK t c 1\n"
    with pytest.raises(ValueError, match="12 bytes"):
        ToymqConsumer("t", "c", 11, keyed=False)


AGAIN = message(0, 1).replace(b" 0 1 ", b" 0 2 ")


@pytest.mark.parametrize("line", [b"ERR NOT_SUBSCRIBED so\n", b"CLOSED t c TAKEN_OVER\n", AGAIN])
def test_what_is_no_first_delivery_ends_the_run(line: bytes) -> None:
    with pytest.raises(WrongReply, match="expected a first delivery"):
        ToymqConsumer("t", "c", 20, keyed=True).deliveries(line)


@pytest.mark.parametrize("ids", [(1,), (0, 2), (0, 0), (0, 1, 3, 2)])
def test_a_gap_or_a_repetition_ends_the_run(ids: tuple[int, ...]) -> None:
    with pytest.raises(WrongReply, match="was the next"):
        ToymqConsumer("t", "c", 20, keyed=True).deliveries(b"".join(message(one, 1) for one in ids))
