"""A topic that is being moved: commands for it wait until etcd has said where it is. More is in ``test_group_placement``."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from toymq_py.cluster import held_topics
from toymq_py.cluster.held_topics import HeldTopics
from toymq_py.errors import EtcdError, PlacementUnknown
from toymq_py.replication.kept_places import KeptPlaces, Move, Record
from toymq_py.replication.key_values import Outcome


class Kept:
    """An etcd that gives ``answers`` one after the other; None is no answer."""

    def __init__(self, *answers: Outcome | Record | None) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[object, ...]] = []

    def _next(self, *asked: object) -> Outcome | Record | None:
        self.asked.append(asked)
        if (answer := self._answers.pop(0)) is None:
            raise EtcdError("away")
        return answer

    async def give(self, *asked: object) -> object:
        return self._next("give", *asked)

    async def attempt(self, *asked: object) -> object:
        return self._next("attempt", *asked)

    async def record(self, topic: str) -> object:
        found = self._next("record", topic)
        return None if isinstance(found, Outcome) else found


class Books:
    """The placement of group a, epoch 7."""

    group, epoch = "a", 7

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self.said: list[object] = []
        self.moves = {"comes": Move("a", 1), "goes": Move("b", 2), "refused": Move("a", 3, "full")}

    def occupy(self, topic: str) -> bool:
        if topic in self.busy:
            return False
        self.busy.add(topic)
        return True

    def vacate(self, topic: str) -> None:
        self.busy.remove(topic)

    def refuse_waiting(self, topic: str, error: PlacementUnknown) -> None:
        self.said.append(error)

    def learn(self, topic: str, record: Record | None) -> None:
        self.said.append(record)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_topics, "RETRY_MIN_S", 0.0)


def done(*answers: Outcome | Record | None, call: Callable[[HeldTopics], object]) -> tuple[object, Kept, Books]:
    kept, books = Kept(*answers), Books()
    held = HeldTopics(cast(KeptPlaces, kept), books)
    return asyncio.run(call(held)), kept, books  # type: ignore[arg-type]


def test_a_topic_is_held_once_and_only_what_is_wanted_comes() -> None:
    books = Books()
    held = HeldTopics(cast(KeptPlaces, Kept()), books)
    assert held.wanted() == {"comes": Move("a", 1)}
    assert held.hold("t")
    assert "t" in held
    assert not held.hold("t")
    held.let_go("t")
    assert ("t" in held, books.busy) == (False, set())


def test_a_topic_is_given_once_etcd_has_said_so() -> None:
    gone, kept, books = done(None, Outcome(True, 9), call=lambda held: held.give("t", 5, "b", 3, 8))
    assert (gone, kept.asked[-1]) == (True, ("give", "t", 5, 7, "b", 3, 8))
    refused, learned = books.said
    assert isinstance(refused, PlacementUnknown)
    assert learned == Record("b", 9)


def test_a_topic_that_was_not_given_is_where_its_record_says() -> None:
    no = Outcome(False, 9)
    assert done(no, Record("a", 5), call=lambda held: held.give("t", 5, "b", 3, 8))[0] is False
    assert done(no, Record("b", 6), call=lambda held: held.give("t", 5, "b", 3, 8))[0] is True, "its answer was lost"
    assert done(no, no, call=lambda held: held.give("t", 5, "b", 3, 8))[0] is True, "it was moved, and deleted there"


def test_a_topic_came_when_its_record_says_so_and_the_attempt_is_over_first() -> None:
    came, kept, books = done(Outcome(True, 9), None, Outcome(True, 10), Record("a", 6), call=lambda held: held.take("t", 8))
    assert came is True
    assert [asked[0] for asked in kept.asked] == ["attempt", "record", "attempt", "record"]
    assert kept.asked[0] == ("attempt", "t", Move("a", 8), 7)
    assert books.said[-1] == Record("a", 6)
    assert done(Outcome(True, 9), Record("b", 5), call=lambda held: held.take("t", 8))[0] is False
