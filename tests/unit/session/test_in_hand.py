"""Which of the messages from several workers or groups the client of a subscription is handling. ADR 0262."""

from typing import Any

from tests.unit.session.test_spread_subscription import Session
from toymq_py.placement import Place
from toymq_py.protocol import Command, Subscribe, encode_command
from toymq_py.session.in_hand import LOOK_LEAST_S, LOOK_MAX_S, LOOK_MIN_S, Heard, InHand


class Stalling:
    """A subscription at places a and b, its loop, and places that answer as the test says."""

    def __init__(self, visibility_ms: int | None = None) -> None:
        self.loop = Session(("a", "b"))
        self.loop.advance(10)
        self.held: dict[Place, str] = {"a": "0", "b": "0"}
        self.said: list[str] = []
        loop: Any = self.loop
        self.in_hand = InHand(Subscribe("t.*", "c", visibility_ms=visibility_ms), ["a", "b"], self._ask, loop)

    def _ask(self, place: Place, command: Command, heard: Heard, *, ends: str | None = None) -> None:
        self.said.append(f"{place} {encode_command(command).decode().rstrip()}")
        self.loop.call_soon(heard, f"OK {self.held[place]}\n".encode())

    def come(self, place: Place, held: str) -> None:
        """Let a place deliver a message; ``held`` is what it then answers to HELD."""
        self.held[place] = held
        self.in_hand.came(b"MSG %b 1 9 - 1\nx\n" % b" ".join(held.encode().split()[1:3]))

    def told(self, after_s: float) -> list[str]:
        """Return what is sent to the places within a time, sorted, without the questions."""
        self.loop.advance(after_s)
        told = sorted(line for line in self.said if "uncounted" in line)
        self.said.clear()
        return told

    def first(self) -> Place | None:
        return self.in_hand.first({place: f"OK {held}\n".encode() for place, held in self.held.items()})


def hanging() -> Stalling:
    """Return a subscription whose client hangs on a message of b, with one of a behind it."""
    them = Stalling()
    them.come("b", "1 t.b 7")
    them.come("a", "1 t.a 3")
    assert them.told(LOOK_MIN_S) == ["a HELD t.* c uncounted=1"]
    return them


def test_a_place_without_the_message_counts_nothing_until_something_is_settled() -> None:
    them = hanging()
    assert them.told(10 * LOOK_MAX_S) == [], "nothing is said twice"
    them.held["b"] = "0"
    them.in_hand.settled()
    assert them.told(0) == ["a HELD t.* c uncounted=0"]
    assert them.told(3 * LOOK_MAX_S) == ["b HELD t.* c uncounted=1"], "now it hangs on the other one"


def test_it_hangs_on_the_same_message_when_another_one_is_delivered_again_before_it() -> None:
    them = hanging()
    them.come("a", "1 t.a 3")
    them.come("b", "1 t.b 7")
    assert them.told(3 * LOOK_MAX_S) == []
    assert them.first() == "b"


def test_what_comes_while_it_hangs_counts_nothing_when_the_message_has_gone_to_another_worker() -> None:
    """Found: each place gave the client that hangs another message, and counted an attempt of it, though the client had not
    begun it."""
    them = hanging()
    them.come("b", "1 t.b 8")
    assert them.first() is None, "nor when the client goes now"
    assert them.told(LOOK_MAX_S) == ["b HELD t.* c uncounted=1"]
    them.come("a", "1 t.a 3")
    assert them.told(LOOK_MAX_S) == ["a HELD t.* c uncounted=0"], "a client that settles nothing cannot go on for ever"
    assert them.first() == "a"


def test_what_it_is_given_after_all_was_taken_back_is_looked_at_soon() -> None:
    them = hanging()
    them.held.update(a="0", b="0")
    assert them.told(2 * LOOK_MAX_S) == ["b HELD t.* c uncounted=1"]
    assert not them.loop.waits
    them.come("b", "1 t.b 9")
    assert them.told(LOOK_MIN_S) == ["b HELD t.* c uncounted=0"]


def test_a_client_that_works_costs_a_look_at_the_clock() -> None:
    them = Stalling()
    for number in range(100):
        them.come("ab"[number % 2], f"1 t.a {number}")
        them.loop.advance(LOOK_MIN_S / 5)
        them.in_hand.settled()
    assert them.said == []
    them.held.update(a="0", b="0")
    them.loop.advance(10 * LOOK_MAX_S)
    assert (them.said, them.loop.waits) == (["a HELD t.* c", "b HELD t.* c"], False), "and one question behind the last message"


def test_while_nothing_is_settled_it_looks_less_and_less() -> None:
    them = hanging()
    them.said.clear()
    them.loop.advance(60 * LOOK_MAX_S)
    assert 60 <= len(them.said) / 2 <= 65


def test_it_looks_before_a_short_lease_ends() -> None:
    for visibility_ms, looks in ((800, 4), (50, 0.05 / LOOK_LEAST_S)):
        them = Stalling(visibility_ms)
        them.come("b", "1 t.b 7")
        them.loop.advance(100 * visibility_ms / 1000)
        asked = sum(line == "b HELD t.* c" for line in them.said)
        assert 90 * looks <= asked <= 100 * looks, visibility_ms


def test_something_settled_while_places_are_asked_is_not_overlooked() -> None:
    them = Stalling()
    them.come("b", "1 t.b 7")
    them.come("a", "1 t.a 3")
    them.loop.call_later(LOOK_MIN_S, them.in_hand.settled)
    assert them.told(LOOK_MIN_S) == []
    assert them.told(3 * LOOK_MIN_S) == ["a HELD t.* c uncounted=1"]


def test_once_it_is_closed_it_asks_nothing_and_still_knows_what_came_first() -> None:
    them = Stalling()
    them.come("b", "1 t.b 7")
    them.in_hand.close()
    them.come("a", "1 t.a 8")
    assert them.told(LOOK_MAX_S) == []
    assert (them.said, them.loop.waits, them.first()) == ([], False, "b")


def test_what_the_client_says_itself_is_left_as_it_is() -> None:
    them = hanging()
    them.in_hand.says(uncounted=True)
    them.in_hand.settled()
    assert them.told(3 * LOOK_MAX_S) == []
    them.in_hand.says(uncounted=False)
    assert them.told(2 * LOOK_MAX_S) == ["a HELD t.* c uncounted=1"]
