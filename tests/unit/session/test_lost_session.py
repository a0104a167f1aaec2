"""At which of several workers or groups a lost session counts an attempt. ADR 0256."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.session.test_spread_subscription import Session
from toymq_py.placement import Place
from toymq_py.protocol import Command, encode_command
from toymq_py.session.lost_session import PATIENCE_S, LostSession


class Places:
    """The places of some subscriptions; the test answers for them."""

    def __init__(self, *sessions: Session, uncounted: bool = False) -> None:
        self.asked: list[tuple[Place, str, str | None]] = []
        self.done = 0
        self._heard: dict[Place, list[Callable[[bytes], None]]] = {}
        self.loop = sessions[0] if sessions else Session()
        loop: Any = self.loop
        self.lost = LostSession([session.subscription for session in sessions], self._ask, loop, self._done)
        self.lost.begin(uncounted=uncounted)

    def _ask(self, place: Place, command: Command, heard: Callable[[bytes], None], *, ends: str | None = None) -> None:
        self.asked.append((place, encode_command(command).decode().rstrip(), ends))
        self._heard.setdefault(place, []).append(heard)

    def _done(self) -> None:
        self.done += 1

    def says(self, place: Place, answer: str) -> None:
        self._heard[place].pop(0)(f"{answer}\n".encode())

    def withdrawn(self) -> list[Place]:
        assert all(ends == "t.*" for _, line, ends in self.asked if line.startswith("UNSUB"))
        return [place for place, line, _ in self.asked if line == "UNSUB t.* c uncounted=1"]


def joined(*came: tuple[str, int]) -> Session:
    """Return a session with a subscription at three places, and deliveries from them, in order."""
    session = Session()
    session.hears(a="OK 1", b="OK 1", c="OK 1")
    for topic, msg_id in came:
        session.subscription.in_hand.came(b"MSG %b %d 1 9 - 1\nx\n" % (topic.encode(), msg_id))
    session.subscription.ask_no_more()
    return session


def test_the_place_of_the_message_that_came_first_counts_and_the_others_do_not() -> None:
    places = Places(joined(("t.b", 4), ("t.c", 1), ("t.a", 9), ("t.b", 5)))
    assert places.asked == [(place, "HELD t.* c uncounted=0", None) for place in ("a", "b", "c")]
    places.says("a", "OK 1 t.a 9")
    places.says("b", "OK 1 t.b 5")
    assert places.withdrawn() == [], "one has not answered"
    places.says("c", "OK 3 t.c 1")
    assert (places.withdrawn(), places.done) == (["a", "b"], 0)
    places.says("a", "OK 0")
    places.says("b", "OK 0")
    assert (places.done, places.lost.is_done, places.loop.waits) == (1, True, False)


def test_a_place_that_holds_nothing_never_counts() -> None:
    places = Places(joined(("t.c", 1)))
    places.says("a", "OK 0")
    places.says("b", "OK 0")
    places.says("c", "OK 1 t.c 1")
    assert places.withdrawn() == ["a", "b"]


@pytest.mark.parametrize("end", ["refuses", "lost"])
def test_a_place_that_does_not_know_the_question_counts_by_itself(end: str) -> None:
    """A worker or group of an older version, for example."""
    places = Places(joined(("t.c", 1), ("t.b", 2)))
    places.says("b", "OK 1 t.b 2")
    places.says("c", "OK 1 t.c 1")
    if end == "lost":
        places.lost.gone("a")
    else:
        places.says("a", "ERR BAD_COMMAND what is HELD")
    assert places.withdrawn() == ["b"]
    places.says("b", "OK 0")
    assert places.done == 1


def test_a_place_that_hangs_holds_the_leases_of_the_others_for_a_moment_only() -> None:
    places = Places(joined(("t.c", 1)))
    places.says("a", "OK 0")
    places.loop.advance(PATIENCE_S)
    assert (places.withdrawn(), places.done) == ([], 1)
    places.says("b", "OK 0")
    places.says("c", "OK 1 t.c 1")
    assert (places.withdrawn(), places.done) == ([], 1), "too late"


def test_each_subscription_of_the_session_is_judged_by_itself() -> None:
    places = Places(joined(("t.a", 1)), joined(("t.b", 1)))
    assert len(places.asked) == 6
    empty = Places()
    assert (empty.asked, empty.done) == ([], 1)


def test_the_end_of_the_broker_counts_nowhere() -> None:
    """No attempt counts at a worker that goes on either, as when only one worker is stopped."""
    places = Places(joined(("t.a", 1)), uncounted=True)
    assert places.withdrawn() == ["a", "b", "c"]
    for place in ("a", "b", "c"):
        places.says(place, "OK 0")
    assert (places.done, len(places.asked)) == (1, 3)
