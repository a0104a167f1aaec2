"""``toymqctl topics``."""

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, on_a_terminal, rows, values


def test_long_names_fit_a_terminal_and_are_whole_for_a_program(ctl: Ctl, broker: BrokerProcess) -> None:
    long = "t" * 190
    ok(ctl("pub", long, "x"))
    shown = on_a_terminal(broker, "topics", long).splitlines()
    assert max(map(len, shown)) <= 80, shown
    assert "t…t" in shown[1]
    assert shown[1].endswith("0  ok")
    assert rows(ctl("topics", long))[1][0] == long
    assert values(ctl("topics", long, "--json"))[0]["topic"] == long


@pytest.mark.parametrize(
    ("room", "left_out"),
    [(70, "inflight"), (60, "size, consumers, inflight"), (40, "messages, size, consumers, oldest, inflight")],
)
def test_a_narrow_terminal_gets_fewer_columns_and_no_line_of_it_wraps(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, room: int, left_out: str
) -> None:
    """Found: at 60 columns each row took two lines, with names cut to 8 characters."""
    monkeypatch.setattr("toymqctl.topics.screen_room", lambda: room)
    for end in ("east", "west"):
        ok(ctl("pub", f"orders.of.all.shops.that.are.{end}", "x"))
    *shown, told = ok(ctl("topics", "orders.of.*.*.*.*.*")).splitlines()
    assert max(map(len, shown)) <= room, shown
    assert told == f"the terminal is narrow: --json has {left_out}, too"
    assert [len(line.split()[0]) >= 16 for line in shown[1:]] == [True, True]
    assert shown[1] != shown[2], "names that differ at their end"


def test_what_is_published_for_later_is_no_backlog_before_its_time(ctl: Ctl) -> None:
    for delay in ("1h", "1h", "0"):
        ok(ctl("pub", "remind", "x", "--delay", delay))
    head, row = rows(ctl("topics", "remind"))
    assert row[head.index("backlog")] == "1"
    (told,) = values(ctl("topics", "remind", "--json"))
    assert (told["messages"], told["backlog"], told["scheduled"]) == (3, 1, 2)
