"""The timed work of the parts of a topic."""

from toymq_py.topic import Ticker


class Part:
    def __init__(self) -> None:
        self.called: list[float] = []

    def due(self, now: float) -> None:
        self.called.append(now)


def test_the_earliest_time_of_a_part_counts_and_it_is_called_once() -> None:
    earlier: list[float] = []
    ticker, part, other = Ticker(earlier.append), Part(), Part()
    ticker.arm(part, 5.0)
    ticker.arm(part, 9.0)
    ticker.arm(other, 7.0)
    ticker.arm(part, 3.0)
    assert earlier == [5.0, 3.0], "told only when the next tick has to come earlier"
    assert ticker.tick(2.9) == 3.0
    assert ticker.tick(3.0) == 5.0
    assert ticker.tick(8.0) is None
    assert (part.called, other.called) == ([3.0], [8.0])


def test_entries_that_an_earlier_time_made_void_are_dropped() -> None:
    ticker, part = Ticker(lambda at: None), Part()
    for at in range(1000, 0, -1):
        ticker.arm(part, float(at))
    assert len(ticker._due) <= 2 * 1 + 65
    ticker.tick(2000.0)
    assert part.called == [2000.0]
