"""``toymqctl consumers``."""

import pytest

from tests.support.ctl import Ctl, ok, refused, rows, values


def test_the_consumers_of_a_topic_of_a_pattern_and_of_all(ctl: Ctl) -> None:
    for topic in ("a.x", "a.y", "b"):
        ok(ctl("pub", topic, "1", "2", "3"))
        ok(ctl("sub", topic, "--consumer", "one", "--max", "2"))
    ok(ctl("pub", "b", "4", "--delay", "1h"))
    assert [row["topic"] for row in values(ctl("consumers", "--json"))] == ["a.x", "a.y", "b"]
    assert [row["topic"] for row in values(ctl("consumers", "a.*", "--json"))] == ["a.x", "a.y"]
    head, row = rows(ctl("consumers", "b"))
    assert head[:4] == ["topic", "consumer", "last", "acked"]
    assert (row[:8], row[9:]) == (["b", "one", "1", "1", "1", "0", "1", "0"], ["0", "-"]), "a mode is one of what is attached"


def test_one_that_acked_nothing_has_no_last_ack(ctl: Ctl) -> None:
    ok(ctl("create", "fresh"))
    assert ok(ctl("consumers", "fresh")) == "no consumers\n"
    ok(ctl("seek", "fresh", "new", "earliest", "--create"))
    (_, row) = rows(ctl("consumers", "fresh"))
    assert row[2:9] == ["-", "0", "0", "0", "0", "0", "-"]
    refused(ctl("consumers", "nothing"), 1, "`toymqctl topics` lists")


def test_the_table_fits_a_terminal_of_80_columns(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the table was 91 columns wide, and every line wrapped. It has the column `scheduled`, to which the page on delays
    refers."""
    monkeypatch.setattr("toymqctl.consumers.screen_room", lambda: 80)
    for _ in range(3):
        ok(ctl("pub", "orders.of.a.long.name", "x"))
    ok(ctl("pull", "orders.of.a.long.name", "billing-of-europe", "--ack"))
    shown = ok(ctl("consumers", "orders.of.a.long.name"))
    assert max(map(len, shown.splitlines())) <= 80
    assert " ".join(shown.splitlines()[0].split()) == "topic consumer backlog inflight scheduled retrying oldest sessions"
    assert shown.splitlines()[-1] == "the terminal is narrow: --json has last acked, ready, mode, too"
