"""The order in which the messages of several workers or groups came to one subscription. ADR 0256."""

from toymq_py.session.arrivals import KEPT, Arrivals


def frame(topic: str, msg_id: int, body: str = "x y z") -> bytes:
    return f"MSG {topic} {msg_id} 1 99 - {len(body)}\n{body}\n".encode()


def test_what_came_earlier_has_the_lower_place_and_a_redelivery_a_new_one() -> None:
    arrivals = Arrivals()
    for topic, msg_id in (("a", 7), ("b", 7), ("a", 8)):
        arrivals.note(frame(topic, msg_id))
    assert [arrivals.place_of(*of) for of in ((b"a", b"7"), (b"b", b"7"), (b"a", b"8"))] == [0, 1, 2]
    arrivals.note(frame("a", 7))
    assert arrivals.place_of(b"a", b"7") == 3


def test_what_is_forgotten_came_before_the_rest_and_memory_is_bounded() -> None:
    arrivals = Arrivals()
    for msg_id in range(5 * KEPT):
        arrivals.note(frame("a", msg_id))
    places = [arrivals.place_of(b"a", b"%d" % msg_id) for msg_id in (0, 4 * KEPT, 5 * KEPT - 1)]
    assert places == sorted(places)
    assert places[0] == arrivals.place_of(b"never", b"1") == -1
    assert len(arrivals._seen) < 2 * KEPT
