"""Tables for a terminal: they fit its width, and no text in them moves its cursor."""

import pytest

from toymqctl.tables import NARROWEST, PADDED_MAX, cut, fitting, table

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
    assert table(ROWS, text=(0, 2), room=5).split("\n")[1].split()[0] == "tttt…ttt"
    assert len("tttt…ttt") == NARROWEST


def test_long_names_that_differ_at_their_end_look_different() -> None:
    names = "n" * 195 + "a", "n" * 195 + "b"
    _, first, second = table([("topic",), *((name,) for name in names)], room=40).split("\n")
    assert (first, second) == (f"{'n' * 20}…{'n' * 18}a", f"{'n' * 20}…{'n' * 18}b")


@pytest.mark.parametrize(("width", "shown"), [(6, "abcdef"), (5, "ab…ef"), (4, "ab…f"), (3, "a…f"), (2, "a…"), (1, "…")])
def test_a_name_is_cut_in_the_middle(width: int, shown: str) -> None:
    assert cut("abcdef", width) == shown


def test_a_sentence_is_cut_at_its_end() -> None:
    assert cut("ValueError: no template: x", 20) == "ValueError: no temp…"


def test_what_is_not_printable_is_a_dot() -> None:
    assert table([("reason",), ("\x1b[31m\nx\u202e\x9b",)], room=80) == "reason\n·[31m·x··"


def test_one_long_text_does_not_move_the_columns_of_all_lines() -> None:
    """Found: a dead letter with a reason of a kilobyte padded every line of a pipe to its width."""
    rows = [("id", "reason", "size"), ("1", "x" * 1000, "7B"), ("2", "timeout", "7B")]
    head, long, short = table(rows, text=(1,)).split("\n")
    assert long == f" 1  {'x' * 1000}    7B", "nothing is cut where a program may read"
    assert len(short) == len(head) == 4 + PADDED_MAX + 2 + 4


HEADS = ("topic", "consumer", "last acked", "scheduled", "mode")
LONG = ("orders.europe", "billing", "1234567", "0", "exclusive")


@pytest.mark.parametrize(
    ("room", "left_out"),
    [(None, ""), (80, ""), (51, ""), (50, "mode"), (41, "mode"), (40, "scheduled, mode"), (10, "scheduled, mode")],
)
def test_columns_that_have_no_room_are_left_out_and_named(room: int | None, left_out: str) -> None:
    lines = fitting([HEADS, LONG], (0, 1, 4), room, (4, 3)).split("\n")
    shown = [head for head in HEADS if head not in left_out.split(", ")]
    assert [head for head in HEADS if head in lines[0]] == shown
    assert lines[2:] == ([f"the terminal is narrow: --json has {left_out}, too"] if left_out else [])
    if room is not None and room > 10:
        assert max(map(len, lines[:2])) <= room
