"""`STATS partial=1`, with workers that answer as the test says."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from toymq_py.errors import PlacementUnknown
from toymq_py.protocol import encode_json
from toymq_py.session.gathering import Gathering
from toymq_py.session.partial_stats import WITHIN_S, PartialStats


class Places:
    """Three workers. ``links``: the replies of each, and the commands sent to it."""

    def __init__(self, *, problem: str = "", unreachable: int = -1) -> None:
        self.links: dict[int, Any] = {}
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.replies: list[bytes] = []
        self.charged = 0
        self._problem, self._unreachable = problem, unreachable
        self.look = PartialStats(
            range(3), Gathering(3), self._connect, lambda place: self._problem if place == 2 else "", self._later, self._done,
            self._charge,
        )  # fmt: skip
        self.look.begin()

    def _charge(self, size: int) -> None:
        self.charged += size

    def _later(self, delay_s: float, call: Callable[[], None]) -> Any:
        self.timers.append((delay_s, call))
        return SimpleNamespace(cancel=self.timers.clear)

    def _done(self) -> None:
        reply = self.look.make()
        assert reply is not None
        self.replies.append(reply)

    def _connect(self, place: Any, heard: Callable[[list[bytes]], None], lost: Callable[[], None]) -> Any:
        if place == self._unreachable:
            raise PlacementUnknown(f"worker {place} cannot be reached (gone): try again")
        sent: list[bytes] = []
        link = SimpleNamespace(heard=heard, lost=lost, sent=sent, send=sent.extend, refusal="", closed=0)

        def close() -> None:
            link.closed += 1

        link.close = close
        self.links[place] = link
        return link

    def answers(self, place: int, *topics: str) -> None:
        figures = {"publish_total": place + 1, "topics": [{"topic": name} for name in topics]}
        self.links[place].heard([b"HELLO 1\n", encode_json(json.dumps(figures).encode())])

    def told(self) -> dict[str, Any]:
        (reply,) = self.replies
        return dict(json.loads(reply.partition(b"\n")[2]))


def test_the_figures_are_of_those_that_answer_in_time_and_the_other_is_named() -> None:
    places = Places()
    assert [link.sent for link in places.links.values()] == [[b"STATS\n"]] * 3
    places.answers(2, "c")
    places.answers(0, "a", "d")
    assert not places.replies, "worker 1 has its time"
    ((delay_s, over),) = places.timers
    assert delay_s == WITHIN_S
    over()
    told = places.told()
    assert told["publish_total"] == 4
    assert [one["topic"] for one in told["topics"]] == ["a", "c", "d"]
    assert told["away"] == [{"place": "worker 1", "why": "does not answer within 2 s"}]
    assert all(link.closed for link in places.links.values())
    places.answers(1, "late")
    assert len(places.replies) == 1
    assert places.charged


def test_where_all_answer_nothing_is_away_and_no_timer_is_left() -> None:
    places = Places()
    for place in (1, 0, 2):
        places.answers(place)
    assert places.told()["away"] == []
    assert not places.timers


def test_what_is_known_to_be_away_or_cannot_be_reached_is_not_waited_for() -> None:
    places = Places(problem="has had no leader for 9 s", unreachable=1)
    places.answers(0)
    assert places.told()["away"] == [
        {"place": "worker 1", "why": "cannot be reached (gone)"}, {"place": "worker 2", "why": "has had no leader for 9 s"},
    ]  # fmt: skip


def test_one_that_refuses_or_ends_is_away() -> None:
    places = Places()
    places.links[0].heard([b"ERR QUEUE_FULL no room\n"])
    places.links[1].refusal = "another secret"
    places.links[1].lost()
    places.answers(2)
    assert [one["why"] for one in places.told()["away"]] == ["answers QUEUE_FULL no room", "refuses this node: another secret"]


def test_where_none_answers_that_is_the_error() -> None:
    places = Places()
    for link in places.links.values():
        link.lost()
    (reply,) = places.replies
    assert reply.startswith(b"ERR PLACEMENT_UNKNOWN worker 0 does not answer; worker 1 does not")


def test_nothing_is_said_once_the_session_has_ended() -> None:
    places = Places()
    places.look.close()
    places.answers(0)
    places.links[1].lost()
    assert not places.replies
    assert not places.timers
