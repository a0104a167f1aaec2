"""JSON lists of topics in slices. Contract: protocol.md, "JSON shapes"."""

import json

import pytest

from toymq_py.session.listing import TOPICS_PER_TURN, Listing, json_reply


@pytest.mark.parametrize("count", [0, 1, TOPICS_PER_TURN - 1, TOPICS_PER_TURN, 3 * TOPICS_PER_TURN + 1])
def test_a_list_is_whole_after_a_turn_for_each_slice(count: int) -> None:
    topics = [{"topic": f"t{n}"} for n in range(count)]
    listing = Listing(lambda: (b'{"topics": [', iter(topics), b"]}"))
    turns = 1
    while (reply := listing.make()) is None:
        turns += 1
    assert turns == count // TOPICS_PER_TURN + 1
    head, _, body = reply.partition(b"\n")
    assert head == b"JSON %d" % (len(body) - 1)
    assert json.loads(body) == {"topics": topics}


def test_nothing_is_described_before_its_turn() -> None:
    begun: list[bool] = []

    def begin() -> tuple[bytes, object, bytes]:
        begun.append(True)
        return b"[", iter(()), b"]"

    listing = Listing(begin)  # type: ignore[arg-type]
    assert not begun
    assert listing.make() == json_reply([])
