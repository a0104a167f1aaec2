"""A subscription at every worker or group, of which some are down: the client's reply and messages, and which places are
asked."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from toymq_py.errors import PlacementUnknown
from toymq_py.placement import Place
from toymq_py.protocol import Command, Subscribe
from toymq_py.session.gathering import Gathering
from toymq_py.session.in_hand import Heard
from toymq_py.session.spread_subscription import PATIENCE_S, RETRY_MAX_S, RETRY_MIN_S, SpreadSubscription


class Timer:
    def __init__(self, at: float, call: Callable[[], object]) -> None:
        self.at, self.call, self.cancelled = at, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Session:
    """A session with the subscription, its loop, and places that answer as the test says."""

    def __init__(
        self, places: Sequence[Place] = ("a", "b", "c"), given_up: Sequence[Place] = (), silent: Sequence[Place] = ()
    ) -> None:
        self.places = list(places)
        self.unreachable: set[Place] = set()
        self.silent = set(silent)
        """They take a connection and do not answer."""
        self.is_leaving = self.shutting_down = False
        self.asked: list[Place] = []
        self.asked_at = 0.0
        self.delivering: list[Place] = []
        self.withdrawn: list[tuple[Place, bool]] = []
        self.aborted = False
        self.replies: list[bytes] = []
        self.now = 0.0
        self._timers: list[Timer] = []
        loop: Any = self
        command = Subscribe("t.*", "c")
        gathering = Gathering(len(places), places[0])
        self.subscription = SpreadSubscription(command, places, gathering, self, loop, self.replies.append, given_up)
        self.subscription.begin()

    def is_place(self, place: Place) -> bool:
        return place in self.places

    def reach(self, place: Place, subscription: "SpreadSubscription") -> bool:
        if place in self.unreachable:
            raise PlacementUnknown("no socket")
        return place not in self.silent

    def subscribe_at(self, place: Place, subscription: SpreadSubscription) -> None:
        if place in self.unreachable:
            raise PlacementUnknown("no socket")
        self.asked.append(place)
        self.asked_at = self.now

    def deliver(self, place: Place) -> None:
        self.delivering.append(place)

    def withdraw(self, place: Place, subscription: SpreadSubscription, *, uncounted: bool) -> None:
        self.withdrawn.append((place, uncounted))

    def ask(self, place: Place, command: Command, heard: Heard, *, ends: str | None = None) -> None:
        raise AssertionError("no message has come")

    def abort(self) -> None:
        self.aborted = True

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: object) -> Timer:
        timer = Timer(self.now + delay_s, lambda: call(*arguments))
        self._timers.append(timer)
        return timer

    def call_soon(self, call: Callable[..., object], *arguments: object) -> Timer:
        return self.call_later(0.0, call, *arguments)

    def advance(self, seconds: float = 0.0) -> None:
        end = self.now + seconds
        while due := [timer for timer in self._timers if not timer.cancelled and timer.at <= end]:
            timer = min(due, key=lambda one: one.at)
            self._timers.remove(timer)
            self.now = timer.at
            timer.call()
        self.now = end

    @property
    def waits(self) -> bool:
        return any(not timer.cancelled for timer in self._timers)

    def hears(self, **answers: str) -> None:
        for place, answer in answers.items():
            self.subscription.heard(place, f"{answer}\n".encode())

    def goes_on_without_c(self) -> None:
        self.hears(a="OK 2", b="OK 3")
        self.advance(PATIENCE_S)
        self.subscription.released(0)


def test_the_ok_is_of_all_and_deliveries_are_passed_on_behind_it() -> None:
    session = Session()
    assert session.asked == ["a", "b", "c"]
    session.hears(b="OK 2", a="OK 1")
    assert session.replies == []
    session.hears(c="OK 4")
    assert session.replies == [b"OK 7\n"]
    assert session.delivering == []
    written: list[bool] = []
    session.subscription.when_written(lambda: written.append(True))
    session.subscription.released(0)
    assert session.delivering == ["b", "a", "c"]
    assert written == [True]
    assert not session.waits


def test_it_goes_on_without_one_that_is_away_which_joins_when_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toymq_py.session")
    session = Session()
    session.goes_on_without_c()
    assert session.replies == [b"OK 5\n"]
    assert session.delivering == ["a", "b"]
    for tries in range(2, 12):
        session.subscription.lost("c")
        session.advance(RETRY_MAX_S)
        assert session.asked.count("c") == tries
    assert session.asked.count("a") == 1
    session.hears(c="OK 4")
    session.advance()
    assert session.delivering == ["a", "b", "c"]
    assert not session.aborted
    assert session.withdrawn == []
    assert [record.message for record in caplog.records] == [
        "the subscription of c to t.* goes on without group c until that answers",
        "the subscription of c to t.* has group c, too, now",
    ]


def test_none_is_asked_while_one_has_not_answered_yet() -> None:
    """Found: deliveries of the other places waited here while their leases ran: they could become dead letters unseen."""
    session = Session(silent=["b"])
    session.advance(PATIENCE_S / 2)
    assert session.asked == []
    session.subscription.reached("b")
    assert session.asked == ["a", "b", "c"]
    session.hears(a="OK 1", b="OK 2")
    session.advance(PATIENCE_S * 3 / 4)
    assert session.replies == [], "c has as long for its answer"
    session.hears(c="OK 4")
    assert session.replies == [b"OK 7\n"]


def test_one_that_does_not_answer_in_time_is_asked_with_the_others_and_joins_later() -> None:
    session = Session(silent=["b"])
    session.advance(PATIENCE_S)
    assert session.asked == ["a", "b", "c"], "b has it when it answers"
    session.hears(a="OK 1", c="OK 4")
    assert session.replies == [b"OK 5\n"]
    session.subscription.reached("b")
    session.subscription.released(0)
    session.hears(b="OK 2")
    session.advance()
    assert session.delivering == ["a", "c", "b"]
    assert session.asked == ["a", "b", "c"]


def test_one_that_is_lost_before_it_has_answered_is_looked_for_again() -> None:
    session = Session(silent=["b"])
    session.subscription.unreached("b")
    session.silent.clear()
    session.advance(RETRY_MIN_S)
    assert session.asked == ["a", "b", "c"]
    session = Session(silent=["b"])
    session.advance(PATIENCE_S - RETRY_MIN_S / 2)
    session.subscription.unreached("b")
    session.advance(RETRY_MIN_S / 2)
    assert session.asked == ["a", "c"], "b after a while"
    session.advance(RETRY_MAX_S)
    assert session.asked == ["a", "c", "b"]


def test_all_are_asked_at_once_when_the_client_has_said_all() -> None:
    session = Session(silent=["b"])
    session.subscription.ask_now()
    assert session.asked == ["a", "b", "c"]
    session.subscription.ask_now()
    assert session.asked == ["a", "b", "c"]


def test_one_that_is_away_for_a_moment_is_asked_soon_and_then_later_and_later() -> None:
    session = Session()
    waits = []
    for _ in range(7):
        session.subscription.lost("c")
        lost_at = session.now
        session.advance(RETRY_MAX_S)
        waits.append((session.asked_at - lost_at) / RETRY_MIN_S)
    assert waits == pytest.approx([1, 2, 4, 8, 16, 20, 20])


def test_the_refusal_of_one_is_the_reply_and_what_the_others_delivered_counts_no_attempt() -> None:
    session = Session()
    session.hears(b="OK 2", c="ERR MODE_CONFLICT no")
    assert session.replies == []
    session.hears(a="OK 1")
    assert session.replies == [b"ERR MODE_CONFLICT no\n"]
    assert session.withdrawn == [("b", True), ("a", True)]
    assert session.subscription.has_ended
    session.subscription.released(0)
    assert session.delivering == ["b", "a"], "what they sent is read, and dropped"
    assert not session.waits


def test_a_refusal_while_another_is_away_is_the_reply_and_that_one_is_asked_no_more() -> None:
    session = Session()
    session.subscription.lost("c")
    session.hears(a="ERR FORBIDDEN no", b="OK 1")
    session.advance(PATIENCE_S)
    assert session.replies == [b"ERR FORBIDDEN no\n"]
    assert session.withdrawn == [("b", True), ("c", True)]
    assert not session.waits


def test_an_answer_behind_its_end_is_read_up_to_that_of_its_unsub() -> None:
    session = Session()
    session.goes_on_without_c()
    session.subscription.ask_no_more()
    assert session.withdrawn == [("c", True)], "the client ends it at the others"
    session.hears(c="OK 1")
    session.advance()
    assert session.delivering == ["a", "b", "c"]
    assert len(session.replies) == 1


def test_one_that_refuses_it_when_it_comes_back_ends_the_session() -> None:
    """The client then subscribes again, and gets the refusal as the reply."""
    session = Session()
    session.goes_on_without_c()
    session.hears(c="ERR FORBIDDEN no")
    assert session.aborted
    assert len(session.replies) == 1


@pytest.mark.parametrize("written", [False, True])
def test_one_that_is_lost_before_the_client_had_anything_of_it_is_asked_again(written: bool) -> None:
    session = Session()
    session.hears(a="OK 1", b="OK 2")
    assert session.subscription.left("b")
    session.advance(RETRY_MIN_S)
    assert session.asked == ["a", "b", "c", "b"]
    if written:
        session.advance(PATIENCE_S)
        session.subscription.released(0)
        assert session.replies == [b"OK 1\n"]
        assert not session.subscription.left("a"), "the client has what that delivered"
    else:
        session.hears(b="OK 3", c="OK 4")
        assert session.replies == [b"OK 8\n"]


@pytest.mark.parametrize("answer", ["ERR SHUTTING_DOWN the broker is shutting down", "ERR NOT_LEADER other:1"])
def test_one_that_is_being_replaced_is_asked_again(answer: str) -> None:
    session = Session()
    session.hears(a="OK 1", b="OK 2", c=answer)
    session.advance(RETRY_MIN_S)
    session.hears(c="OK 3")
    assert session.replies == [b"OK 6\n"]


def test_without_any_it_waits_for_the_first() -> None:
    session = Session()
    session.advance(10 * PATIENCE_S)
    assert session.replies == []
    session.hears(b="OK 2")
    assert session.replies == [b"OK 2\n"]


def test_one_that_another_subscription_of_the_session_misses_is_not_waited_for() -> None:
    session = Session(given_up=["c"])
    session.hears(b="OK 2", a="OK 1")
    assert session.replies == [b"OK 3\n"]
    assert "c" in session.subscription.missing


def test_a_group_that_was_removed_is_asked_no_more() -> None:
    session = Session()
    session.goes_on_without_c()
    session.places.remove("c")
    session.subscription.lost("c")
    session.advance(RETRY_MAX_S)
    assert session.asked == ["a", "b", "c"]
    assert not session.subscription.missing


def test_when_the_client_has_said_all_the_reply_is_what_there_is() -> None:
    session = Session(["a", "b", "c"])
    session.subscription.lost("c")
    session.is_leaving = True
    session.hears(a="OK 1")
    session.subscription.lost("b")
    session.advance(RETRY_MAX_S)
    assert session.asked == ["a", "b", "c"]
    assert session.replies == [b"OK 1\n"]
    alone = Session(["a"], silent=["a"])
    alone.subscription.ask_now()
    alone.is_leaving = True
    alone.subscription.lost("a")
    assert alone.replies == [b"ERR PLACEMENT_UNKNOWN nothing that may have its topics answers: try again\n"]
    alone = Session(["a"], silent=["a"])
    alone.shutting_down = alone.is_leaving = True
    alone.subscription.reached("a")
    assert alone.replies == [b"ERR SHUTTING_DOWN the broker is shutting down\n"], "a client connects again"
    alone = Session(["a"])
    alone.unreachable = {"a"}
    alone.subscription.lost("a")
    alone.advance(RETRY_MIN_S)
    alone.is_leaving = True
    alone.advance(RETRY_MAX_S)
    assert alone.replies == [b"ERR PLACEMENT_UNKNOWN no socket\n"]
