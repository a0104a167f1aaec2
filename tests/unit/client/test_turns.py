"""In which order a client tries its addresses."""

from toymq.turns import Turns
from toymq.url import parse_urls
from toymq_py.errors import ConnectionLost, NotLeader

ADDRESSES = parse_urls(["toymq://a:1", "toymq://b:2", "toymq://c:3"])


def order(turns: Turns) -> str:
    return "".join(address.host for address in turns.round())


def test_the_order_is_the_users() -> None:
    turns = Turns(ADDRESSES)
    assert order(turns) == "abc"
    assert order(turns) == "abc"


def test_a_node_that_does_not_lead_says_who_is_next() -> None:
    turns = Turns(ADDRESSES)
    tried = ""
    for address in turns.round():
        tried += address.host
        turns.failed(NotLeader("c:3") if address.host == "a" else ConnectionLost("gone"))
    assert tried == "acb"


def test_a_leader_that_is_not_among_them_changes_nothing() -> None:
    turns = Turns(ADDRESSES)
    for answer in ("-", "d:4", "a:1"):
        tried = ""
        for address in turns.round():
            tried += address.host
            turns.failed(NotLeader(answer))
        assert tried == "abc", answer


def test_a_silent_address_comes_last_in_the_next_round_only() -> None:
    turns = Turns(ADDRESSES)
    turns.silent(ADDRESSES[1])
    assert order(turns) == "cab"
    assert order(turns) == "abc"
    turns.silent(ADDRESSES[2])
    assert order(turns) == "abc"


def test_the_last_of_a_round_is_known() -> None:
    turns = Turns(ADDRESSES)
    assert [turns.is_last for _ in turns.round()] == [False, False, True]
