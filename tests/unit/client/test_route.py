"""Which address is tried next: the given ones, a leader that a node named, and last those that were silent or just lost."""

import pytest

from toymq.route import ELECTION_WAIT_MAX_S, SILENT_S, Route
from toymq.url import Address, parse_urls
from toymq_py.errors import ConnectionLost, NotLeader

A, B, C = parse_urls(["toymq://t1@a:1", "toymq://t2@b:2", "toymq://t3@c:3"])
REFUSED = ConnectionRefusedError()


def left(route: Route) -> list[Address]:
    """Return the rest of a round in which no address answers."""
    found = []
    while (address := route.next()) is not None:
        found.append(address)
    assert route.exhausted
    return found


def in_a_round(route: Route, failures: dict[Address, BaseException]) -> list[str]:
    """Return the hosts that are tried in a round; each fails as ``failures`` says, the others refuse."""
    route.begin()
    tried = []
    while (address := route.next()) is not None:
        tried.append(address.host)
        route.failed(address, failures.get(address, REFUSED))
        assert len(tried) < 20, "a round without end"
    return tried


def test_given_addresses_are_tried_in_their_order() -> None:
    route = Route([A, B, C])
    for _ in range(2):
        assert in_a_round(route, {}) == ["a", "b", "c"]
    assert route.wait_max_s is None


def test_a_leader_that_is_named_is_next() -> None:
    route = Route([A, B, C])
    assert in_a_round(route, {A: NotLeader("c:3")}) == ["a", "c", "b"]
    assert in_a_round(route, {A: NotLeader("-")}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("c:3", C),
        ("d:4", Address("d", 4, "t1")),
        ("[::1]:4", Address("::1", 4, "t1")),
        ("c:3 and words", None),
        ("-", None),
        ("", None),
        ("d", None),
        ("d:0", None),
        ("d:99999", None),
        ("d:" + "9" * 400, None),
        (":4", None),
        ("unix:/a", None),
        ("toymq://evil@d:4", None),
        ("t@d:4", None),
        ("d d:4", None),
    ],
)
def test_what_a_node_names_is_an_address_or_nothing(text: str, named: Address | None) -> None:
    """An address from the client's URL keeps its own token; another gets the token of the address that named it."""
    route = Route([A, C])
    route.begin()
    assert route.next() == A
    route.failed(A, NotLeader(text))
    assert left(route) == ([C] if named in (None, C) else [named, C])


def test_over_tls_a_named_leader_is_reached_over_tls() -> None:
    (secure,) = parse_urls("toymqs://t@a:1")
    route = Route([secure])
    route.begin()
    route.next()
    route.failed(secure, NotLeader("b:2"))
    assert left(route) == [Address("b", 2, "t", tls=True)]


def test_a_unix_socket_names_no_leader() -> None:
    (path,) = parse_urls("unix:/a")
    route = Route([path])
    assert in_a_round(route, {path: NotLeader("b:2")}) == [""]


def test_nodes_that_name_each_other_end_the_round() -> None:
    route = Route([A, B])
    assert in_a_round(route, {A: NotLeader("b:2"), B: NotLeader("a:1")}) == ["a", "b"]
    route = Route([A])
    x, y = Address("x", 7, "t1"), Address("y", 8, "t1")
    assert in_a_round(route, {A: NotLeader("x:7"), x: NotLeader("y:8"), y: NotLeader("x:7")}) == ["a", "x", "y"]


def test_a_node_that_names_itself_was_elected_meanwhile_and_is_tried_once_more() -> None:
    route = Route([A, B])
    assert in_a_round(route, {A: NotLeader("a:1")}) == ["a", "a", "b"]
    assert in_a_round(route, {A: NotLeader("a:1")}) == ["a", "a", "b"], "in each round"
    route.begin()
    assert route.next() == A
    route.failed(A, NotLeader("a:1"))
    assert route.next() == A
    route.failed(A, NotLeader("b:2"))
    assert left(route) == [B]


def test_a_leader_that_fails_is_forgotten_and_one_that_was_named_is_tried_first() -> None:
    route = Route([A, B])
    route.begin()
    assert route.next() == A
    route.failed(A, NotLeader("d:4"))
    assert in_a_round(route, {}) == ["d", "a", "b"]
    assert in_a_round(route, {}) == ["a", "b"]


def test_what_was_just_lost_is_tried_last_until_it_works_again() -> None:
    route = Route([A, B, C])
    route.begin()
    route.up(A)
    route.lost(A, ConnectionLost("x"))
    assert in_a_round(route, {}) == ["b", "c", "a"]
    route.up(A)
    assert in_a_round(route, {}) == ["a", "b", "c"]


def test_a_leader_that_steps_down_names_the_next() -> None:
    route = Route([A, B, C])
    route.up(A)
    route.lost(A, NotLeader("c:3"))
    assert in_a_round(route, {}) == ["c", "b", "a"]


def test_a_machine_that_is_down_holds_up_no_election() -> None:
    """An address of a dead machine is tried for a second while another node answers, and for all the time when none does."""
    route = Route([A, B])
    route.begin()
    route.silent(A)
    route.failed(A, TimeoutError())
    route.begin()
    assert route.next() == B
    assert route.timeout_s(B, 5.0) == 5.0
    route.failed(B, NotLeader("-"))
    assert route.next() == A
    assert route.timeout_s(A, 5.0) == SILENT_S
    assert route.timeout_s(A, 0.5) == 0.5
    assert route.wait_max_s == ELECTION_WAIT_MAX_S
    route.failed(A, TimeoutError())
    route.begin()
    assert route.timeout_s(A, 5.0) == 5.0
    route.failed(A, NotLeader("-"))
    assert in_a_round(route, {}) == ["a", "b"], "it answers again"


def test_one_address_is_no_cluster_before_a_node_names_another() -> None:
    assert Route([A, B]).several
    route = Route([A])
    assert not route.several
    route.begin()
    route.failed(A, NotLeader("b:2"))
    assert route.several
