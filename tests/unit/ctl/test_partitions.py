"""Partitions as one line, and those that messages are published to."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

import toymq.sync
from toymq_py.errors import BadArgument, PlacementUnknown, QueueFull
from toymq_py.partitions import partition_of_route
from toymqctl.partitions import CHUNK, Dealer, dealer, grouped, parts_of, range_name


def topic(name: str, messages: int = 1) -> dict[str, Any]:
    counts = dict.fromkeys(("bytes", "segments", "expired_total", "dead_lettered_total", "dropped_total", "lost"), 0)
    return {"topic": name, "messages": messages, "state": "ok", "settings": {}, "consumers": [], **counts}


def test_partitions_are_one_in_the_place_of_the_first() -> None:
    names = ["a", "b#0", "b#0.dlq", "b#10", "b#2", "c"]
    found = grouped([topic(name) for name in names])
    assert [(one["topic"], one["messages"]) for one in found] == [("a", 1), ("b#0,2,10", 3), ("b#0.dlq", 1), ("c", 1)]
    assert [one["topic"] for one in parts_of(found[1])] == ["b#0", "b#2", "b#10"]
    assert parts_of(found[0]) == [found[0]]


def test_names_of_ranges() -> None:
    assert range_name("b", [topic("b#3")]) == "b#3"
    assert range_name("b.dlq", [topic("b#3.dlq"), topic("b#1.dlq")]) == "b#1,3.dlq", "not what is not there"
    assert range_name("b", [topic(f"b#{number}") for number in (10, 0, 2, 1, 9)]) == "b#0-2,9-10"


class FakeClient:
    """A client that publishes; with ``full`` its second message is refused."""

    def __init__(
        self, described: dict[str, Any] | None = None, full: str = "", *, away: bool = False,
        counts: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.described, self.full, self.away = described, full, away
        self.counts = counts
        self.published: dict[str, list[bytes]] = {}

    def _ask(self, request: object) -> dict[str, int] | None:
        return self.counts

    def topics(self, pattern: str) -> list[dict[str, Any]]:
        assert pattern == "t#*"
        return [self.described] if self.described is not None and "partitions" in self.described else []

    def describe(self, topic: str) -> dict[str, Any]:
        assert self.described is not None, "it would be refused, which the audit trail shows"
        if self.away:
            raise PlacementUnknown("group b does not answer")
        return self.described

    def pub_many(self, topic: str, items: Iterable[bytes], *, delay: object, ttl: object) -> Iterator[None]:
        for item in items:
            kept = self.published.setdefault(topic, [])
            if topic == self.full and kept:
                raise QueueFull("full")
            kept.append(item)
            yield None


def as_client(fake: FakeClient) -> toymq.sync.Client:
    return cast(toymq.sync.Client, fake)


def test_a_message_goes_where_the_broker_would_route_it() -> None:
    parts = Dealer("t", 7)

    def by(route: str) -> str:
        return f"t#{partition_of_route(route.encode(), 7)}"

    assert parts.choose("k", "r", {"toymq-group": "g"}) == by("r")
    assert parts.choose("k", None, {"toymq-group": "g"}) == by("g")
    assert parts.choose("k", None, {"other": "x"}) == by("k")
    assert {parts.choose(None, None, None) for _ in range(7)} == {f"t#{number}" for number in range(7)}, "in turn"


def test_many_are_dealt_evenly_and_told_in_their_order() -> None:
    fake = FakeClient()
    items = [b"%d" % number for number in range(CHUNK + 40)]
    names = list(Dealer("t", 4).publish_many(as_client(fake), items, None, delay=None, ttl=None))
    assert set(Counter(names).values()) == {(CHUNK + 40) // 4}
    assert fake.published == {name: [item for item, at in zip(items, names, strict=True) if at == name] for name in set(names)}


def test_one_that_is_refused_ends_it_in_its_place() -> None:
    fake = FakeClient(full="t#0")
    told: list[str] = []
    with pytest.raises(QueueFull):
        told.extend(Dealer("t", 2).publish_many(as_client(fake), [b"x"] * 6, None, delay=None, ttl=None))
    assert Counter(told)["t#0"] == 1
    assert len(told) in (2, 3), "those before it"


def test_only_a_topic_that_is_said_to_be_partitioned_is_dealt_to() -> None:
    assert dealer(as_client(FakeClient({"topic": "t"})), "t") is None
    assert dealer(as_client(FakeClient()), "t") is None, "the token may not see it"
    assert dealer(as_client(FakeClient({"partitions": 1}, away=True)), "t") is None
    assert dealer(as_client(FakeClient({"partitions": 1})), "t#0") is None
    found = dealer(as_client(FakeClient({"partitions": 1})), "t")
    assert found is not None
    assert found.choose(None, None, None) == "t#0"


def test_how_many_partitions_there_are_is_known_while_a_group_is_away() -> None:
    """Found: `toymqctl pub` printed the id without its partition."""
    away = FakeClient({"partitions": 4}, away=True, counts={"t": 4})
    found = dealer(as_client(away), "t")
    assert found is not None
    assert {found.choose(None, None, None) for _ in range(4)} == {f"t#{number}" for number in range(4)}
    assert dealer(as_client(FakeClient({"partitions": 4}, counts={})), "t") is None, "the token may not see it"


@pytest.mark.parametrize("route", ["Ann Lee", "J\u00fcrgen", "", "caf\udce9", "x" * 513])
def test_a_route_is_one_that_the_broker_takes(route: str) -> None:
    """Found: `toymqctl pub` chose a partition for a route that HTTP and the clients refuse."""
    with pytest.raises(BadArgument, match=r"invalid route .*: write 1 to 512 printable ASCII characters without space"):
        Dealer("t", 7).choose(None, route, None)


def test_a_key_or_header_that_is_no_text_is_left_to_the_client_to_refuse() -> None:
    """Found: it was a traceback, where a plain topic gives the client's error."""
    assert Dealer("t", 1).choose("caf\udce9", None, {"toymq-group": "caf\udce9"}) == "t#0"
