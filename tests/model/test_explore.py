"""The search itself: it visits everything within reach, and a trace leads from the beginning to the violation."""

from collections.abc import Iterator

import pytest

from tests.model.explore import Action, Key, exhaust, walk


class Jugs:
    """Two jugs of 5 and 3 litres. ``broken`` when one holds ``forbidden`` litres."""

    def __init__(self, forbidden: int | None) -> None:
        self.forbidden = forbidden

    def initial(self) -> tuple[int, int]:
        return 0, 0

    def steps(self, world: tuple[int, int]) -> Iterator[tuple[Action, tuple[int, int]]]:
        five, three = world
        yield ("fill five",), (5, three)
        yield ("fill three",), (five, 3)
        yield ("empty five",), (0, three)
        yield ("empty three",), (five, 0)
        poured = min(five, 3 - three)
        yield ("pour five",), (five - poured, three + poured)
        poured = min(three, 5 - five)
        yield ("pour three",), (five + poured, three - poured)

    def broken(self, world: tuple[int, int]) -> str | None:
        return f"{world} holds {self.forbidden}" if self.forbidden in world else None

    def pack(self, world: tuple[int, int]) -> Key:
        return world

    def unpack(self, key: Key) -> tuple[int, int]:
        five, three = key
        assert isinstance(five, int)
        assert isinstance(three, int)
        return five, three

    def words(self, action: Action) -> str:
        return str(action[0])


def test_every_world_is_visited_once() -> None:
    outcome = exhaust(Jugs(None))
    assert outcome.complete
    assert outcome.violation is None
    assert outcome.states == 16, "the worlds in which one jug is full or empty"


def test_the_trace_is_a_shortest_way() -> None:
    outcome = exhaust(Jugs(4))
    assert outcome.violation == "(4, 3) holds 4"
    assert outcome.trace == ["fill five", "pour five", "empty three", "pour five", "fill five", "pour five"]


def test_a_limit_ends_the_search_incomplete() -> None:
    outcome = exhaust(Jugs(4), limit=5)
    assert not outcome.complete
    assert outcome.violation is None


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.model.explore.REPORT_STATES", 5)
    reports: list[int] = []
    exhaust(Jugs(None), report=lambda states, to_visit, cpu_s: reports.append(states))
    assert reports == sorted(reports)
    assert len(reports) >= 2


def test_a_walk_is_the_same_for_the_same_seed() -> None:
    first = walk(Jugs(2), 3, 500)
    assert first == walk(Jugs(2), 3, 500)
    steps, violation, trace = first
    assert violation is not None
    assert len(trace) == steps < 500
    assert first != walk(Jugs(2), 4, 500)
    assert walk(Jugs(None), 3, 500)[:2] == (500, None)
