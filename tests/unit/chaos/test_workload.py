"""Messages of the harness as frames, and how a dead letter names its origin."""

from toymq_chaos.workload import SEQUENCED, Message, told_by_headers


def test_a_message_is_a_publish_with_its_options() -> None:
    assert Message("t", "k", b"xy").encode() == b"PUB t k 2\nxy\n"
    frame = Message("t", SEQUENCED + "q1", b"4 x", delay_ms=20, ttl_ms=100, seq=4).encode()
    assert frame.startswith(b"PUB t seq-q1 3 ")
    assert set(frame.split(b"\n")[0].split()[4:]) == {b"delay=20", b"ttl=100", b"seq=4"}


def test_a_producers_message_is_known_by_its_number() -> None:
    assert Message("t", "k", b"").told_key == "k"
    assert Message("t", "seq-q1", b"4 x", seq=4).told_key == "seq-q1#4"


def test_a_dead_letter_and_a_redriven_message_tell_their_origin() -> None:
    letter = b"toymq-origin-id: 17\ntoymq-consumer: worker\ntoymq-attempts: 3\ntoymq-origin-key: k\n"
    assert told_by_headers(letter) == {"origin_id": 17, "origin_consumer": "worker", "count": 3, "note": "k"}
    assert told_by_headers(b"toymq-redrive-consumer: worker\n") == {"origin_consumer": "worker"}
    assert told_by_headers(b"Kind: job\n") == {}
