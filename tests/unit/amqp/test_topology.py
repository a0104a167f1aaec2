"""Exchanges and bindings: which queues a message goes to."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.topology import Binding, Exchange, Queue, Topology, headers_match, topic_matches
from toymq_py.errors import DamagedData

WORDS = st.lists(st.sampled_from(("a", "b", "")), min_size=1, max_size=5)
PATTERNS = st.lists(st.sampled_from(("a", "b", "", "*", "#")), min_size=1, max_size=6)


def topology(*exchanges: tuple[str, str]) -> Topology:
    found = Topology()
    for name, kind in exchanges:
        found.declare_exchange(Exchange(name, kind))
    for queue in "pqr":
        found.queue_added(Queue(queue, queue))
    return found


def bind(found: Topology, source: str, target: str, key: str = "", *, to_exchange: bool = False, **arguments: Any) -> None:
    found.bind(Binding(source, target, to_exchange, key, arguments))


@given(PATTERNS, WORDS)
def test_topic_patterns_against_a_regular_expression(pattern: list[str], words: list[str]) -> None:
    """``#`` matches any number of words, also none; ``*`` matches one."""
    text = "".join(r"(?:\.[^.]*)*" if word == "#" else rf"\.{'[^.]*' if word == '*' else word}" for word in pattern)
    assert topic_matches(pattern, words) is (re.fullmatch(text, "".join(f".{word}" for word in words)) is not None)


def test_a_pattern_of_many_hashes_costs_no_more() -> None:
    """Backtracking would take 2 to the 60th steps."""
    assert not topic_matches(["#", "a"] * 60, ["b"] * 100)


def test_each_type_of_exchange() -> None:
    found = topology(("d", "direct"), ("f", "fanout"), ("t", "topic"))
    bind(found, "d", "p", "x")
    bind(found, "f", "p", "whatever")
    bind(found, "f", "q")
    bind(found, "t", "r", "a.#")
    bind(found, "t", "r", "#.z")
    assert found.route("d", "x", {}) == ("p",)
    assert found.route("d", "y", {}) == ()
    assert found.route("f", "x", {}) == ("p", "q")
    assert found.route("t", "a.b.z", {}) == ("r",), "once, though two bindings match"
    assert found.route("", "anything", {}) == ("anything",)
    with pytest.raises(AmqpError, match="no exchange 'nowhere'"):
        found.route("nowhere", "x", {})


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True), ({"a": 1}, {"a": 2}, False), ({"a": None}, {"a": 7}, True),
        ({"x-match": "all", "x-a": 1}, {}, True), ({"x-match": "all-with-x", "x-a": 1}, {}, False), ({}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
    ],
)  # fmt: skip
def test_headers(arguments: dict[str, Any], headers: dict[str, Any], matches: bool) -> None:
    assert headers_match(arguments, headers) is matches
    found = topology(("h", "headers"))
    found.bind(Binding("h", "p", False, "", arguments))
    assert found.route("h", "", headers) == (("p",) if matches else ())


def test_exchanges_behind_exchanges_and_in_a_circle() -> None:
    found = topology(("a", "fanout"), ("b", "direct"), ("c", "fanout"))
    bind(found, "a", "b", to_exchange=True)
    bind(found, "b", "c", "x", to_exchange=True)
    bind(found, "c", "a", to_exchange=True)
    bind(found, "c", "p")
    bind(found, "a", "q")
    assert found.route("a", "x", {}) == ("p", "q")
    assert found.route("a", "y", {}) == ("q",)


def test_an_alternate_exchange_gets_what_has_no_queue() -> None:
    found = topology(("rest", "fanout"))
    found.declare_exchange(Exchange("d", "direct", arguments={"alternate-exchange": "rest"}))
    bind(found, "d", "p", "x")
    bind(found, "rest", "q")
    assert found.route("d", "x", {}) == ("p",)
    assert found.route("d", "y", {}) == ("q",)


def test_routes_that_are_known_change_with_the_bindings() -> None:
    found = topology(("d", "direct"))
    assert found.route("d", "x", {}) == ()
    bind(found, "d", "p", "x")
    assert found.route("d", "x", {}) == ("p",)
    found.queue_removed("p")
    assert found.route("d", "x", {}) == ()
    assert not found.bindings


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Exchange("d", "fanout"), "inequivalent arg 'type' for exchange 'd' in vhost '/': received 'fanout' but current"),
        (Exchange("d", "direct", durable=False), "received 'false' but current is 'true'"),
        (Exchange("amq.x", "direct"), "reserved prefix"),
        (Exchange("new", "x-consistent-hash"), "unknown exchange type 'x-consistent-hash'"),
    ],
)  # fmt: skip
def test_a_wrong_exchange_is_refused(wanted: Exchange, text: str) -> None:
    with pytest.raises(AmqpError, match=text) as refused:
        topology(("d", "direct")).declare_exchange(wanted)
    assert not refused.value.closes_connection


def test_predeclared_exchanges_are_there_and_stay() -> None:
    found = topology()
    assert not found.declare_exchange(Exchange("amq.topic", "topic"))
    for name in ("", "amq.direct"):
        with pytest.raises(AmqpError, match="predeclared"):
            found.delete_exchange(name)
    with pytest.raises(AmqpError, match="not permitted on the default exchange"):
        bind(found, "", "p", "p")


def test_an_exchange_goes_with_its_last_binding() -> None:
    found = topology()
    found.declare_exchange(Exchange("once", "fanout", auto_delete=True))
    bind(found, "once", "p")
    with pytest.raises(AmqpError, match="in use"):
        found.delete_exchange("once", if_unused=True)
    assert found.unbind(Binding("once", "p", False, "", {}))
    assert "once" not in found.exchanges
    assert not found.unbind(Binding("once", "p", False, "", {}))


def test_what_lasts_is_read_as_it_was_written() -> None:
    found = topology(("d", "direct"))
    found.declare_exchange(Exchange("gone", "direct", durable=False))
    bind(found, "d", "p", "x", note="n")
    bind(found, "gone", "p", "x")
    again = Topology.from_json(found.to_json())
    assert again.to_json() == found.to_json()
    assert again.route("d", "x", {}) == ("p",)
    assert "gone" not in again.exchanges
    for damaged in ({}, {"exchanges": [{"x": 1}]}, {"exchanges": [], "queues": 5}):
        with pytest.raises(DamagedData, match="invalid exchanges and queues"):
            Topology.from_json(damaged)
