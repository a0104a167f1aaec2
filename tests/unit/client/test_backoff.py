"""Pauses between attempts to connect: a bound that doubles, and a random share of it."""

from random import Random

from toymq.backoff import Backoff


class Highest(Random):
    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        return b


def test_the_bound_doubles_up_to_its_maximum_and_begins_again() -> None:
    backoff = Backoff(0.05, 1.0, Highest())
    assert [backoff.next_s() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_s() == 0.05


def test_waits_are_spread_over_all_of_it() -> None:
    backoff = Backoff(1.0, 1.0, Random(3))
    waits = [backoff.next_s() for _ in range(1000)]
    assert all(0 <= wait <= 1 for wait in waits)
    assert min(waits) < 0.01
    assert max(waits) > 0.99
