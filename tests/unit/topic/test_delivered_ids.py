"""What is kept about a delivery that was written to a client."""

from toymq_py.topic import DeliveredIds


class Taker:
    def __init__(self) -> None:
        self.returned: list[tuple[int, int]] = []

    def unsend(self, first: int, last: int) -> None:
        self.returned.append((first, last))


def test_what_was_not_written_is_returned_in_ranges() -> None:
    taker = Taker()
    kept = DeliveredIds(taker, [0, 3, 4, 5, 9, 10, 12], 1, 6)
    kept.unsend(2)
    assert taker.returned == [(5, 5), (9, 10)]
    taker.returned.clear()
    kept.unsend()
    assert taker.returned == [(3, 5), (9, 10)]
    taker.returned.clear()
    kept.unsend(5)
    assert taker.returned == []
