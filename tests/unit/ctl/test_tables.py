"""Tables for people: they fit the terminal, and no text of a stranger moves its cursor."""

import pytest

from toymqctl.tables import NARROWEST, table

ROWS = [("topic", "messages", "consumer"), ("t" * 200, "12345", "c" * 190), ("orders", "7", "billing")]


@pytest.mark.parametrize("room", [40, 60, 80, 132])
def test_long_names_are_cut_to_the_terminal_and_numbers_stay(room: int) -> None:
    head, long, short = table(ROWS, text=(0, 2), room=room).split("\n")
    assert max(map(len, (head, long, short))) <= room
    assert len(long) == room, "the room is used"
    assert long.count("…") == 2
    assert long.split()[1] == "12345"
    assert short.split() == ["orders", "7", "billing"]


def test_names_that_fit_are_whole() -> None:
    assert table(ROWS[::2], text=(0, 2), room=40).split("\n")[1].split() == ["orders", "7", "billing"]


def test_without_a_terminal_nothing_is_cut() -> None:
    assert "t" * 200 in table(ROWS, text=(0, 2))


def test_on_the_narrowest_terminal_something_of_a_name_is_left() -> None:
    assert table(ROWS, text=(0, 2), room=5).split("\n")[1].split()[0] == "t" * (NARROWEST - 1) + "…"


def test_what_is_not_printable_is_a_dot() -> None:
    assert table([("reason",), ("\x1b[31m\nx\u202e\x9b",)], room=80) == "reason\n·[31m·x··"
