"""``toymqctl topics``."""

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, on_a_terminal, rows, values


def test_long_names_fit_a_terminal_and_are_whole_for_a_program(ctl: Ctl, broker: BrokerProcess) -> None:
    long = "t" * 190
    ok(ctl("pub", long, "x"))
    shown = on_a_terminal(broker, "topics", long).splitlines()
    assert [len(line) <= 80 for line in shown] == [True, True], shown
    assert "t…" in shown[1]
    assert shown[1].endswith("0  ok")
    assert rows(ctl("topics", long))[1][0] == long
    assert values(ctl("topics", long, "--json"))[0]["topic"] == long


def test_what_is_published_for_later_is_no_backlog_before_its_time(ctl: Ctl) -> None:
    for delay in ("1h", "1h", "0"):
        ok(ctl("pub", "remind", "x", "--delay", delay))
    head, row = rows(ctl("topics", "remind"))
    assert row[head.index("backlog")] == "1"
    (told,) = values(ctl("topics", "remind", "--json"))
    assert (told["messages"], told["backlog"], told["scheduled"]) == (3, 1, 2)
